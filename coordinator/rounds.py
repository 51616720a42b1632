"""Rounds of admission, one at a time: what waits, the round that runs, and the way from one to the next.

Requests that arrive while a round waits for its match answers ride in the next one, growth of running sequences in the
one that runs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtroupe.coordinator.claims import Ask
from kvtroupe.coordinator.errors import InvariantError, Overloaded
from kvtroupe.coordinator.messages import MatchRequest
from kvtroupe.coordinator.round import Growth, Round

if TYPE_CHECKING:
    from kvtroupe.coordinator.answers import Answers
    from kvtroupe.coordinator.estimator import Estimator
    from kvtroupe.coordinator.messages import GrowRequest, MatchReply, Output, SequenceId
    from kvtroupe.coordinator.parts import Parts
    from kvtroupe.coordinator.round import Settler
    from kvtroupe.coordinator.waiting import WaitingRoom


@dataclass
class Rounds:
    """See the module.

    Attributes:
        parts: of the state.
        settler: that decides.
        answers: to those for whom was decided.
        waiting: requests that wait for a round.
        estimator: that has its turn between rounds.
        current: the round that waits for answers of groups.
    """

    parts: Parts
    settler: Settler
    answers: Answers
    waiting: WaitingRoom
    estimator: Estimator
    current: Round | None = None
    _last_round_id: int = 0
    _free_when_refused: list[int] = field(default_factory=list)  # of every device pool; the least since then
    _growing: deque[GrowRequest] = field(default_factory=deque)  # settled with the round that runs

    def start(self, now_s: float) -> list[Output]:
        """Begin a round, if none runs and somebody waits; it is settled at once if there is no group to ask."""
        return self._ask_groups(now_s) + self._finish_complete(now_s)

    def grow(self, request: GrowRequest, now_s: float) -> list[Output]:
        """Settle growth of running sequences: now, or with the round that runs.

        Raises:
            Overloaded: too much waits already.
        """
        sequences_max = self.parts.config.limits.sequences_max
        if len(self._growing) >= sequences_max:
            raise Overloaded(
                f"{len(self._growing)} requests for growth wait, as many as sequences_max; try again later"
            )
        self._growing.append(request)
        return [] if self.current is not None else self._settle(None, now_s)

    def answered(self, message: MatchReply, now_s: float) -> tuple[bool, list[Output]]:
        """A group has answered.

        Returns:
            whether the group has missed a message, so that it has to begin anew; and what follows if it has not.

        Raises:
            InvariantError: the answer does not fit the question.
        """
        current = self.current
        if current is None or message.round_id != current.round_id or message.epoch != self.parts.mail.epoch:
            self.parts.counters.late_answers += 1
            return False, []
        layout = self.parts.layout
        if message.group not in layout.indexed or len(message.evidence) != len(current.asks):
            raise InvariantError(
                f"group {message.group} answers a round of {len(current.asks)} requests and {len(layout.rules)} groups "
                f"with evidence for {len(message.evidence)}"
            )
        if not current.add_evidence(message):
            return True, []
        return False, self._finish_complete(now_s) if current.is_complete else []

    def give_up(self, group: int, now_s: float) -> list[Output]:
        """A group is lost: the round that runs goes on without it."""
        if self.current is not None:
            self.current.give_up(group)
        return self._finish_complete(now_s)

    def time_passed(self, now_s: float) -> list[Output]:
        """Go on without the groups that have not answered in time; those who have waited long enough are refused."""
        self.waiting.time_passed(now_s)
        current = self.current
        if current is None or now_s < current.deadline_s:
            return self.start(now_s)
        return self._finish(current, now_s) + self.start(now_s)

    def try_again(self, now_s: float) -> list[Output]:
        """Let requests that wait for room try again, if there is more of it now than when the last one was refused."""
        free = self._free()
        if all(now <= before for now, before in zip(free, self._free_when_refused, strict=True)):
            return []
        self._free_when_refused = free
        self.waiting.try_again(sum(free))
        return self.start(now_s)

    def _free(self) -> list[int]:
        return [pool.ledger.free for pool in self.parts.pools if pool.groups]

    # -- from round to round -------------------------------------------------------------------------------------------

    def _ask_groups(self, now_s: float) -> list[Output]:
        if self.current is not None or not (self.waiting or self.estimator.waiting):
            return []
        asks = self.estimator.next_asks(others_wait=bool(self.waiting)) if self.estimator.waiting else []
        asks = asks or self.waiting.next_asks()
        self._last_round_id += 1
        layout, mail = self.parts.layout, self.parts.mail
        deadline_s = now_s + self.parts.config.limits.match_deadline_s
        asked = {group: mail.sent[group] for group in layout.indexed if group not in mail.lost}
        self.current = Round(self._last_round_id, asks, len(layout.rules), asked, deadline_s)
        requests = [
            MatchRequest(self._last_round_id, tuple([ask.prompts[scale] for ask in asks]))
            for scale in range(len(asks[0].prompts))
        ]
        return [mail.to(group, requests[layout.scale_of[group]]) for group in asked]

    def _finish_complete(self, now_s: float) -> list[Output]:
        """Settle the round that runs if nothing is missing, and go on to the next one."""
        outputs: list[Output] = []
        while self.current is not None and self.current.is_complete:
            outputs += self._finish(self.current, now_s)
            outputs += self._ask_groups(now_s)
        return outputs

    def _finish(self, current: Round, now_s: float) -> list[Output]:
        """Settle a round with the evidence that has come in."""
        self.current = None
        outputs = [] if self.estimator.asked else self._settle(current, now_s)
        while self._growing:
            outputs += self._settle(None, now_s)
        return [*outputs, self.estimator.answer(current, now_s)] if self.estimator.asked else outputs

    def _settle(self, current: Round | None, now_s: float) -> list[Output]:
        waited_for_room = bool(self.waiting.for_room)
        settlement = self.settler.settle(self._next_growth(), current, now_s)
        counters, tiers = self.parts.counters, self.answers.tiers
        counters.rounds += 1
        counters.deferred += len(settlement.deferred)
        if settlement.deferred:
            self.waiting.put_back(settlement.deferred)
        if settlement.stale:
            tiers.stale(settlement.stale)
        answers: list[Output] = []
        for grant in settlement.grants:
            if grant.refusal is not None and isinstance(grant.ask, Ask) and grant.ask.waits_until_s > now_s:
                self.waiting.wait_for_room(grant.ask)
                counters.waited += 1
            else:
                answers += self.answers.answer(grant, now_s)
        if self.waiting.for_room:
            free = self._free()
            # Who has waited before this round has not been refused what became free since.
            self._free_when_refused = [*map(min, self._free_when_refused, free)] if waited_for_room else free
        return tiers.binds.outputs() + answers

    def _next_growth(self) -> list[Growth]:
        """Growth that waits, in order, up to the first request that names a sequence again."""
        growth: list[Growth] = []
        named: set[SequenceId] = set()
        while self._growing and named.isdisjoint(self._growing[0].sequence_ids):
            request = self._growing.popleft()
            named.update(request.sequence_ids)
            growth.append(self._growth_now(request))
        return growth

    def _growth_now(self, request: GrowRequest) -> Growth:
        """Growth of those sequences of a request that run still and may grow."""
        longest = self.answers.edge.capacity_tokens_max(request.blocks)
        sequences = self.answers.records.sequences
        known = [sequences.get(sequence_id) for sequence_id in request.sequence_ids]
        return Growth(request, [one for one in known if one is not None and one.capacity_tokens <= longest])
