"""One round of admission: claim what every request hits, in all groups; then allocate for all; then take once.

Claiming comes first for all requests, so that nothing a request of this round hits can be evicted by another. A claim
leaves no trace when it is undone, and slots are taken only when it is settled who gets some: a refused request leaves
the pools exactly as they were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.attention import RecurrentState
from kvtroupe.coordinator.claims import Ask
from kvtroupe.coordinator.errors import OutOfBlocks, SequenceCancelled, TierLost
from kvtroupe.coordinator.ledger import NULL_SLOT, Holder
from kvtroupe.coordinator.lookups import Lookups
from kvtroupe.coordinator.messages import LookupRequest, NewSequence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.bands import Layout
    from kvtroupe.coordinator.claims import Claim, Pool, Stale
    from kvtroupe.coordinator.messages import Evidence, GrowRequest, LookupReply, MatchReply, Slots
    from kvtroupe.coordinator.sequences import Sequence as RunningSequence
    from kvtroupe.coordinator.tiers import Tiers


@dataclass(slots=True)
class Growth:
    """Running sequences that want more blocks, as many of each group for each of them.

    Attributes:
        request: what is asked for.
        sequences: those of its sequences that may grow, in order.
    """

    request: GrowRequest
    sequences: list[RunningSequence]

    @property
    def blocks(self) -> int:
        """Blocks of every group for each sequence."""
        return self.request.blocks

    @property
    def count(self) -> int:
        """How many sequences want blocks."""
        return len(self.sequences)

    def reserved_in(self, pool: Pool) -> int:  # noqa: ARG002 - as of `Ask`
        """Nothing: what is reserved is reserved for growth."""
        return 0


@dataclass(slots=True)
class Grant:
    """What became of a request.

    Attributes:
        ask: the request.
        claim: what it hits; None for growth.
        needs: for each pool the slots that a sequence needs beyond its hit; where they differ between the sequences of
            a growth, those of the first one, of the first two, and so on.
        granted: how many of its sequences get their blocks.
        refusal: why the others do not.
        lost: why a new sequence gets nothing, if there is no memory for it at all, or nobody wants it.
        slots: for each pool what is freshly taken, sequence after sequence.
        found: the answer to a lookup.
    """

    ask: Ask | Growth
    claim: Claim | None
    needs: Sequence[int | list[int]]
    granted: int = 0
    refusal: OutOfBlocks | None = None
    lost: TierLost | SequenceCancelled | None = None
    slots: tuple[Slots, ...] = ()
    found: LookupReply | None = None

    def need(self, pool: int, count: int) -> int:
        """The slots of a pool that the first `count` sequences need."""
        need = self.needs[pool]
        if isinstance(need, int):
            return count * need
        return need[count - 1] if count else 0


@dataclass(slots=True)
class Settlement:
    """The outcome of a round.

    Attributes:
        grants: for each request that was settled: growth first, then the others, in order.
        deferred: the requests after those: their claims stood in the way of an earlier one.
        stale: of groups whose evidence named slots under a generation that had passed, these slots with the generation.
    """

    grants: list[Grant]
    deferred: list[Ask]
    stale: Stale


class Round:
    """The requests of one round and the evidence for them.

    Args:
        round_id: names the match answers that belong to it.
        asks: in order of arrival.
        groups: how many groups there are.
        asked: those that are asked, each with the number of the last message that has changed it.
        deadline_s: when the round goes on without the groups that have not answered.
    """

    def __init__(
        self, round_id: int, asks: Sequence[Ask], groups: int, asked: dict[int, int], deadline_s: float
    ) -> None:
        self.round_id = round_id
        self.asks = asks
        self.deadline_s = deadline_s
        self.evidence: list[Sequence[Evidence] | None] = [None] * groups
        self._asked = asked

    @property
    def is_complete(self) -> bool:
        """Whether no group is waited for."""
        return not self._asked

    def add_evidence(self, reply: MatchReply) -> bool:
        """Note a group's answer; False if the group has missed a message, so that its answer is worth nothing."""
        number = self._asked.pop(reply.group, None)
        if number is None:
            return True
        if reply.applied not in (None, number):
            return False
        self.evidence[reply.group] = reply.evidence
        return True

    def give_up(self, group: int) -> None:
        """A group is lost: what it has answered counts no more, and it is not waited for."""
        self.evidence[group] = None
        self._asked.pop(group, None)


class Settler:
    """Settles rounds over the pools of a replica.

    Args:
        pools: of the replica.
        layout: of its tables.
        tiers: that slots are taken of.
    """

    def __init__(self, pools: Sequence[Pool], layout: Layout, tiers: Tiers) -> None:
        self._pools = pools
        self._layout = layout
        self._tiers = tiers
        self._claimer = tiers.claimer
        self._extender = tiers.extender
        self._lookups = Lookups(pools, layout, tiers.claimer)
        self._has_states = any(isinstance(rule, RecurrentState) for rule in layout.rules)

    def settle(self, growth: Sequence[Growth], current: Round | None, now_s: float) -> Settlement:
        """Claim for all requests, judge them in order, take what they get.

        Args:
            growth: of running sequences; comes first.
            current: the round; None when there is nothing but growth.
            now_s: the time now.
        """
        self._tiers.start(now_s)
        grants = [Grant(one, None, self._needs_of_growth(one)) for one in growth]
        wanted = [0] * len(self._pools)
        settlement = self._judge_all(grants, current, wanted)
        self._take(settlement.grants, wanted, now_s)
        return settlement

    def rehearse(self, current: Round, wanted: list[int], now_s: float) -> Settlement:
        """Claim for all requests of a round and judge them, but take nothing: the claims stand until they are undone.

        Args:
            current: the round.
            wanted: for each pool what rounds before it would have taken; what this one would take is added.
            now_s: the time now.
        """
        self._tiers.start(now_s)
        return self._judge_all([], current, wanted)

    def _judge_all(self, grants: list[Grant], current: Round | None, wanted: list[int]) -> Settlement:
        stale: Stale = {}
        waiting: list[Ask] = []
        if current is not None:
            claimed = self._claim_all(current, stale)
            waiting += current.asks[len(claimed) :]
            grants += claimed
        settled = len(grants)
        position = 0
        while position < settled:
            settled = self._judge(grants, position, settled, wanted)
            position += 1
        deferred = [grant.ask for grant in grants[settled:] if isinstance(grant.ask, Ask)]
        del grants[settled:]
        return Settlement(grants, deferred + waiting, stale)

    # -- claim ---------------------------------------------------------------------------------------------------------

    def _claim_all(self, current: Round, stale: Stale) -> list[Grant]:
        """Claims of the requests, up to the first that has to wait for another round."""
        grants: list[Grant] = []
        for position, ask in enumerate(current.asks):
            evidence = [answers[position] if answers else None for answers in current.evidence]
            if isinstance(ask.request, LookupRequest):
                found = self._lookups.answer(ask, evidence, stale)
                grants.append(Grant(ask, None, [0] * len(self._pools), found=found))
                continue
            if ask.is_cancelled or self._tiers.lost_devices:
                lost = self._lost(ask)
                if lost is not None:
                    grants.append(Grant(ask, None, [0] * len(self._pools), lost=lost))
                    continue
            claim = self._claimer.claim(ask, evidence, stale)
            if claim is None:
                break
            if self._has_states and claim.hit_tokens and not self._can_go_on(ask, claim):
                self._claimer.undo(claim)
                claim = self._claimer.claim(replace(ask, limit_units=0), evidence, stale)
                if claim is None:
                    break
            if ask.prompts[0].content is not None:
                self._extender.extend(claim, ask, evidence, stale)
            grants.append(Grant(ask, claim, self.needs(ask, claim)))
        return grants

    def _lost(self, ask: Ask) -> TierLost | SequenceCancelled | None:
        """Why a new sequence gets nothing, whatever is free; None: it is none, but a pin or a move."""
        if not isinstance(ask.request, NewSequence):
            return None
        if ask.is_cancelled:
            return SequenceCancelled(ask.request.sequence_id)
        return TierLost(ask.request.sequence_id, self._pools[min(self._tiers.lost_devices)].name)

    def _can_go_on(self, ask: Ask, claim: Claim) -> bool:
        """Whether a sequence gets states of its own to go on with from those that it hits.

        There has to be room for them, and for the copies.
        """
        if self._leaves_no_room(ask, claim):
            return False
        blocks = [0] * len(self._pools)
        if ask.units:
            for band in self._layout.bands:
                if band.columns == "state":
                    blocks[band.pool] += len(band.groups) * ask.shape.beams
        return self._tiers.copy_room.plan(blocks)

    def _leaves_no_room(self, ask: Ask, claim: Claim) -> bool:
        """Whether a sequence could never fit with its hit, and can without it.

        A state that is hit takes a slot beside that of its copy, which may be one too many.
        """
        capacity_tokens = ask.units * self._layout.unit_tokens
        is_too_much = False
        for number, (pool, need) in enumerate(zip(self._pools, self.needs(ask, claim), strict=True)):
            room = pool.ledger.blocks - 1 - pool.reserved_blocks
            is_too_much |= need + int(np.count_nonzero(claim.slots[number])) > room
            if self._layout.slots_at_admission(number, 0, capacity_tokens, ask.shape, cross_hit=False) > room:
                return False
        return is_too_much and ask.units > 0

    def needs(self, ask: Ask, claim: Claim) -> list[int]:
        """For each pool the slots that a request needs beyond those that it hits on the device."""
        needs = [0] * len(self._pools)
        if ask.units:
            layout, hit_tokens, cross_hit = self._layout, claim.hit_tokens, claim.cross_hit
            capacity_tokens = ask.units * layout.unit_tokens
            for pool in range(len(needs)):
                needs[pool] = layout.slots_at_admission(
                    pool, hit_tokens, capacity_tokens, ask.shape, cross_hit=cross_hit
                )
                if claim.lifts:
                    needs[pool] += claim.lifted_to(pool)
        return needs

    def _needs_of_growth(self, growth: Growth) -> list[int | list[int]]:
        needs: list[int | list[int]] = []
        sequences = growth.sequences
        for pool, is_plain in enumerate(self._layout.is_plain):
            each = [
                self._layout.slots_to_grow(pool, one.capacity_tokens, growth.request.blocks, one.shape)
                for one in (sequences[:1] if is_plain else sequences)
            ]
            needs.append(sum(each) if is_plain else [*accumulate(each)])
        return needs

    # -- judge ---------------------------------------------------------------------------------------------------------

    def _judge(self, grants: list[Grant], position: int, settled: int, wanted: list[int]) -> int:
        """Grant or refuse one request: how many requests, from the first on, are still part of the round."""
        grant = grants[position]
        grant.granted = self._fitting(grant, wanted)
        if grant.granted < grant.ask.count:
            settled = self._make_room(grants, position, settled, wanted)
        for number in range(len(wanted)):
            wanted[number] += grant.need(number, grant.granted)
        return settled

    def _make_room(self, grants: list[Grant], position: int, settled: int, wanted: list[int]) -> int:
        """Grant a request that does not fit as much as can be, or refuse it: as `_judge`.

        Nobody is refused because of a later request: if it helps, the claims of later ones are undone, last first, and
        those requests leave the round. With 4 free slots, of which a later request claims 2 that are cached, one that
        needs 3 does not fit; without that claim it does, and the later one is judged anew in the next round. One that
        needs 5 does not fit either way: it is refused, and the later claim stands.

        Its own extension is dropped before that: it holds slots that others could have, and saves a few tokens only.
        """
        grant = grants[position]
        still = settled
        if grant.claim is not None and self._extender.drop(grant.claim):
            grant.granted = self._fitting(grant, wanted)
        fitting_now = grant.granted
        undone: list[Claim] = []
        while grant.granted < grant.ask.count and still > position + 1:
            if isinstance(grants[still - 1].ask, Growth):
                break  # it comes first and has no claim that could stand in the way
            still -= 1
            claim = grants[still].claim
            if claim is not None:
                self.undo(claim)
                undone.append(claim)
            grant.granted = self._fitting(grant, wanted)
        if grant.granted < grant.ask.count:
            grant.refusal = self._refuse(grant, wanted)
        if grant.granted == fitting_now:
            for claim in reversed(undone):
                self._claimer.redo(claim)
                self._extender.redo(claim)
            still = settled
        return still

    def undo(self, claim: Claim) -> None:
        """Take a claim back, with its extension: no trace of it is left."""
        self._extender.undo(claim)
        self._claimer.undo(claim)

    def _fitting(self, grant: Grant, wanted: Sequence[int]) -> int:
        """How many of the sequences of a request fit into what is free, not reserved, and not wanted before."""
        fitting = grant.ask.count
        for number, pool in enumerate(self._pools):
            if not grant.needs[number]:
                continue  # growth may have used up what is reserved: who needs nothing fits all the same
            room = max(0, pool.ledger.free - wanted[number] - grant.ask.reserved_in(pool))
            while fitting and grant.need(number, fitting) > room:
                each = grant.need(number, 1) if isinstance(grant.needs[number], int) else 0
                fitting = max(0, room // each) if each else fitting - 1
        return fitting

    def _refuse(self, grant: Grant, wanted: Sequence[int]) -> OutOfBlocks:
        """Undo the claim of a request that does not fit, and say by how much."""
        claimed_free = [pool.ledger.free for pool in self._pools]
        if not grant.granted and grant.claim is not None:
            self._claimer.undo(grant.claim)
        shortages = []
        for number, pool in enumerate(self._pools):
            ledger = pool.ledger
            reserved = grant.ask.reserved_in(pool)
            free = ledger.free - wanted[number] - grant.need(number, grant.granted)
            next_one = grant.need(number, grant.granted + 1) - grant.need(number, grant.granted)
            needed = next_one + ledger.free - claimed_free[number]
            coming = ledger.uses_by_holder[Holder.FENCE]
            if next_one and needed > free - reserved:
                shortages.append(OutOfBlocks(pool.name, needed, free, coming, reserved))
        return shortages[0]

    # -- take ----------------------------------------------------------------------------------------------------------

    def _take(self, grants: Sequence[Grant], wanted: Sequence[int], now_s: float) -> None:
        """Take once per pool, hand out in order: what a claim lifts comes first."""
        for number, taken in enumerate(self._tiers.take(wanted, now_s)):
            end = 0
            for grant in grants:
                start = end
                end += grant.need(number, grant.granted)
                claim = grant.claim
                if claim is not None and claim.is_lifted and grant.granted and (lifted := claim.lifted_to(number)):
                    slots = claim.slots[number]
                    slots[slots == NULL_SLOT] = taken[start : start + lifted]
                    start += lifted
                grant.slots += (taken[start:end],)
