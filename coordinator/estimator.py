"""Answers requests for estimates. What it claims for an answer is undone at once, so that nothing changes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.asks import check_new_sequences
from kvtroupe.coordinator.claims import Ask
from kvtroupe.coordinator.errors import Overloaded, RequestError
from kvtroupe.coordinator.estimates import Run, held_at_admission, held_by, most_slots, slots_alone, slots_for_step
from kvtroupe.coordinator.ledger import NULL_SLOT
from kvtroupe.coordinator.messages import Estimate, EstimateReply, Pace
from kvtroupe.coordinator.rehearsals import Rehearsals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.asks import Edge
    from kvtroupe.coordinator.claims import Claim
    from kvtroupe.coordinator.messages import EstimateRequest, EstimateResult, Evidence
    from kvtroupe.coordinator.parts import Parts
    from kvtroupe.coordinator.records import Records
    from kvtroupe.coordinator.round import Round, Settler
    from kvtroupe.coordinator.tiers import Tiers


@dataclass(slots=True)
class Pending:
    """A request some of whose sequences have to be looked up: what is known of the others.

    Attributes:
        request: what is asked for.
        results: in order; an ask where a new sequence has to be looked up.
    """

    request: EstimateRequest
    results: list[EstimateResult | Ask]

    @property
    def asks(self) -> list[Ask]:
        """What has to be looked up, in order."""
        return [result for result in self.results if isinstance(result, Ask)]

    def reply(self) -> EstimateReply:
        """The reply, once nothing has to be looked up any more."""
        estimates = [result for result in self.results if not isinstance(result, Ask)]
        return EstimateReply(self.request.request_id, tuple(estimates))


class Estimator:
    """See the module.

    Args:
        parts: of the state.
        edge: that checks new sequences.
        records: of who holds slots.
        tiers: that claim.
        settler: of rounds.

    Attributes:
        waiting: requests that have to be looked up, those that have waited longest first.
        asked: the request whose evidence is awaited now.
    """

    def __init__(self, parts: Parts, edge: Edge, records: Records, tiers: Tiers, settler: Settler) -> None:
        self.asked: Pending | None = None
        self._pools = parts.pools
        self._layout = parts.layout
        self._sequences_max = parts.config.limits.sequences_max
        # Room is given in whole units.
        unit_tokens = parts.layout.unit_tokens
        self._longest_tokens = parts.config.limits.sequence_tokens_max // unit_tokens * unit_tokens
        self._edge = edge
        self._records = records
        self._settler = settler
        self._claimer = tiers.claimer
        self._rehearsals = Rehearsals(parts, tiers, settler)
        self.waiting: deque[Pending] = deque()
        self._was_last = False

    def add(self, message: EstimateRequest) -> EstimateReply | None:
        """Take a request: its reply, if nothing has to be looked up.

        Raises:
            RequestError: it is malformed, or an admission would be refused as malformed.
            UnknownSequence: one that is said to run does not.
            Overloaded: too many requests wait, or it names too many sequences.
        """
        self._check(message)
        pending = Pending(message, [self._of_running(message, position) for position in range(len(message.running))])
        pending.results += [self._edge.admission(message, position) for position in range(len(message.sequences))]
        if not pending.asks:
            return pending.reply()
        self.waiting.append(pending)
        return None

    def _check(self, message: EstimateRequest) -> None:
        check_new_sequences(message.sequences)
        count, most = len(message.running) + len(message.sequences), self._sequences_max
        if len(self.waiting) >= most or count > most:
            raise Overloaded(
                f"{len(self.waiting)} requests for estimates wait, and one more names {count} sequences; "
                f"sequences_max is {most}; ask for fewer, or later"
            )
        if len(message.new_tokens_max) != count:
            raise RequestError(
                f"new_tokens_max has {len(message.new_tokens_max)} numbers for {count} sequences; give one for each"
            )
        for tokens in message.new_tokens_max:
            if type(tokens) is not int or tokens < 0:
                raise RequestError(f"an estimate for {tokens!r} new tokens; give a whole number, 0 or more")
        if not isinstance(message.pace, Pace):
            raise RequestError(f"{message.pace!r:.60} is no Pace; leave it out for one token a step")

    # -- looking up ----------------------------------------------------------------------------------------------------

    def next_asks(self, *, others_wait: bool) -> list[Ask]:
        """What is to be looked up next of what waits; nothing where it is the turn of others, every second time."""
        if others_wait and self._was_last:
            self._was_last = False
            return []
        self._was_last = True
        self.asked = self.waiting.popleft()
        return self.asked.asks

    def answer(self, current: Round, now_s: float) -> EstimateReply:
        """Answer the request that was looked up.

        Args:
            current: the round in which that was done.
            now_s: the time now.
        """
        assert self.asked is not None, "who is answered was looked up"
        pending, self.asked = self.asked, None
        fits = self._rehearsals.granted(current, now_s)
        for number, ask in enumerate(current.asks):
            evidence = [None if found is None else found[number] for found in current.evidence]
            place = len(pending.request.running) + ask.position
            pending.results[place] = self._of_new(ask, evidence, pending.request, fits_now=fits[number])
        return pending.reply()

    # -- one sequence --------------------------------------------------------------------------------------------------

    def _of_running(self, message: EstimateRequest, position: int) -> Estimate:
        sequence, pace = self._records.running(message.running[position]), message.pace
        tokens, shape = sequence.tokens, sequence.shape
        end_tokens = max(tokens, shape.prompt_tokens + message.new_tokens_max[position])
        run = Run(shape, tokens, sequence.committed_tokens, sequence.capacity_tokens, self._cut(end_tokens), pace)
        now, to_end = [], []
        for number, pool in enumerate(self._pools):
            now.append(slots_for_step(self._layout, number, run))
            to_end.append(
                most_slots(self._layout, number, run, held_by(self._layout, number, sequence, pool.ledger.uses))
            )
        free = self._free()
        return Estimate(
            sequence.cached_tokens,
            tuple(now),
            tuple(to_end),
            tuple(free),
            fits_now=self._is_allowed(min(tokens + pace.step_tokens, end_tokens)) and _fit(now, free),
            fits_to_end=self._is_allowed(end_tokens) and _fit(to_end, free),
            fits_empty=self._is_allowed(end_tokens) and self._fits_empty(run.anew(self._layout.unit_tokens)),
        )

    def _of_new(
        self, ask: Ask, evidence: Sequence[Evidence | None], message: EstimateRequest, *, fits_now: bool | None
    ) -> Estimate:
        end_tokens = ask.shape.prompt_tokens + message.new_tokens_max[len(message.running) + ask.position]
        capacity_tokens = ask.units * self._layout.unit_tokens
        empty = Run(ask.shape, ask.shape.prompt_tokens, 0, capacity_tokens, self._cut(end_tokens), message.pace)
        claim = self._claimer.claim(ask, evidence, {})
        assert claim is not None, "only what an earlier request brings up has to be waited for"
        now, to_end = self._with_hit(ask, claim, replace(empty, committed_tokens=claim.hit_tokens))
        self._claimer.undo(claim)
        free = self._free()
        return Estimate(
            claim.hit_tokens,
            tuple(now),
            tuple(to_end),
            tuple(free),
            fits_now=fits_now,
            fits_to_end=self._is_allowed(end_tokens) and self._fit_new(now, to_end, free),
            fits_empty=self._is_allowed(end_tokens) and self._fits_empty(empty),
        )

    def _with_hit(self, ask: Ask, claim: Claim, run: Run) -> tuple[list[int], list[int]]:
        """For each pool the slots that a new sequence takes with its admission, and the most until its end."""
        now, to_end = [], []
        needs = self._settler.needs(ask, claim)
        for number, pool in enumerate(self._pools):
            hits = claim.hits(number, pool.groups)
            # One use is that of the claim; the null block, where something is to be brought up, has one as well.
            free_hits = {group: pool.ledger.uses.take(slots) == 1 for group, slots in hits.items()}
            leaving = [np.count_nonzero(free_hits[group] & (slots != NULL_SLOT)) for group, slots in hits.items()]
            now.append(needs[number] + int(sum(leaving)))
            held = held_at_admission(self._layout, number, run, free_hits)
            to_end.append(most_slots(self._layout, number, run, held, now[number]))
        return now, to_end

    # -- whether it fits -----------------------------------------------------------------------------------------------

    def _fit_new(self, now: Sequence[int], to_end: Sequence[int], free: Sequence[int]) -> bool:
        """Whether a new sequence leaves alone what is reserved when it comes; once it runs it may use that, too."""
        left_alone = [max(0, slots - pool.reserved_blocks) for slots, pool in zip(free, self._pools, strict=True)]
        return _fit(now, left_alone) and _fit(to_end, free)

    def _fits_empty(self, run: Run) -> bool:
        alone = [slots_alone(self._layout, number, run) for number in range(len(self._pools))]
        usable = [pool.ledger.blocks - 1 for pool in self._pools]
        return self._fit_new([now for now, _ in alone], [to_end for _, to_end in alone], usable)

    def _free(self) -> list[int]:
        return [pool.ledger.free for pool in self._pools]

    def _cut(self, end_tokens: int) -> int:
        """No run is looked at further than to the longest sequence that is allowed."""
        return min(end_tokens, self._longest_tokens)

    def _is_allowed(self, tokens: int) -> bool:
        return tokens <= self._longest_tokens


def _fit(needed: Sequence[int], free: Sequence[int]) -> bool:
    return all(slots <= there for slots, there in zip(needed, free, strict=True))
