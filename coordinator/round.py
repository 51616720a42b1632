"""One round of admission: claim what every request hits, in all groups; then allocate for all; then take once.

Claiming comes first for all requests, so that nothing a request of this round hits can be evicted by another. A claim
leaves no trace when it is undone, and slots are taken only when it is settled who gets some: a refused request leaves
the pools exactly as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np

from kvtroupe.coordinator.agreement import agreed_blocks
from kvtroupe.coordinator.errors import InvariantError, OutOfBlocks
from kvtroupe.coordinator.ledger import Holder, Ledger
from kvtroupe.coordinator.messages import NO_SLOTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.attention import AttentionRule
    from kvtroupe.coordinator.messages import (
        Evidence,
        Generations,
        GrowRequest,
        NewSequence,
        PinRequest,
        Prompt,
        Slots,
    )
    from kvtroupe.coordinator.sequences import Sequence as RunningSequence

Stale: TypeAlias = dict[int, dict[int, int]]


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool and the groups that draw from it.

    Attributes:
        name: of the configuration.
        ledger: its slots.
        groups: numbers of its groups.
        reserved_blocks: free slots that only running sequences may take.
    """

    name: str
    ledger: Ledger
    groups: tuple[int, ...]
    reserved_blocks: int


@dataclass(slots=True)
class Ask:
    """A request that waits for a round: it looks a chain up, claims what it hits, and may need new blocks.

    Attributes:
        request: what is asked for.
        request_id: of the client's message.
        position: which of the message's requests this is.
        prompt: the chain to look up.
        blocks: of every group, those of the prompt and spare ones together; for a pin none.
    """

    request: NewSequence | PinRequest
    request_id: int
    position: int
    prompt: Prompt
    blocks: int
    count: ClassVar[int] = 1

    def reserved_in(self, pool: Pool) -> int:
        """Free slots of a pool that this request must leave alone."""
        return pool.reserved_blocks


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
class Claim:
    """What a request hits, claimed in all groups.

    Attributes:
        hit_blocks: agreed length.
        first_blocks: for each group the first block that the hit reads.
        slots: for each pool what is claimed, group after group.
    """

    hit_blocks: int
    first_blocks: tuple[int, ...]
    slots: tuple[Slots, ...]


@dataclass(slots=True)
class Grant:
    """What became of a request.

    Attributes:
        ask: the request.
        claim: what it hits; None for growth.
        new_blocks: of every group that each granted sequence needs beyond its hit.
        granted: how many of its sequences get their blocks.
        refusal: why the others do not.
        slots: for each pool [granted, groups of the pool, blocks], freshly taken.
    """

    ask: Ask | Growth
    claim: Claim | None
    new_blocks: int
    granted: int = 0
    refusal: OutOfBlocks | None = None
    slots: tuple[Slots, ...] = ()

    @property
    def claimed(self) -> tuple[Slots, ...]:
        """For each pool what is claimed; nothing for growth."""
        return self.claim.slots if self.claim else ()


@dataclass(slots=True)
class Settlement:
    """The outcome of a round.

    Attributes:
        grants: for each request that was settled: growth first, then the others, in order.
        deferred: the requests after those: their claims stood in the way of an earlier one.
        evicted: of groups that lost published blocks to this round, their slots.
        stale: of groups whose evidence named slots under a generation that had passed, these slots with the generation.
    """

    grants: list[Grant]
    deferred: list[Ask]
    evicted: dict[int, Slots]
    stale: Stale


class Round:
    """The requests of one round and the evidence for them.

    Args:
        round_id: names the match answers that belong to it.
        asks: in order of arrival.
        groups: how many groups are asked.
        deadline_s: when the round goes on without the groups that have not answered.
    """

    def __init__(self, round_id: int, asks: Sequence[Ask], groups: int, deadline_s: float) -> None:
        self.round_id = round_id
        self.asks = asks
        self.deadline_s = deadline_s
        self.evidence: list[Sequence[Evidence] | None] = [None] * groups
        self._missing = groups

    def add_evidence(self, group: int, evidence: Sequence[Evidence]) -> bool:
        """Note a group's answer; True when it was the last one."""
        if self.evidence[group] is None:
            self.evidence[group] = evidence
            self._missing -= 1
        return not self._missing


class Settler:
    """Settles rounds over the pools of a replica.

    Args:
        pools: of the replica.
        rules: of its groups.
        block_tokens: tokens of a block.
    """

    def __init__(self, pools: Sequence[Pool], rules: Sequence[AttentionRule], block_tokens: int) -> None:
        self._pools = pools
        self._rules = rules
        self._block_tokens = block_tokens
        self._no_hit = Claim(0, (0,) * len(rules), (NO_SLOTS,) * len(pools))

    def settle(self, growth: Sequence[Growth], current: Round | None) -> Settlement:
        """Claim for all requests, judge them in order, take what they get.

        Args:
            growth: of running sequences; comes first.
            current: the round; None when there is nothing but growth.
        """
        stale: Stale = {}
        grants = [Grant(one, None, one.blocks) for one in growth]
        if current is not None:
            grants += self._claim_all(current, stale)
        wanted = [0] * len(self._pools)
        settled = len(grants)
        position = 0
        while position < settled:
            settled = self._judge(grants, position, settled, wanted)
            position += 1
        deferred = [grant.ask for grant in grants[settled:] if isinstance(grant.ask, Ask)]
        del grants[settled:]
        return Settlement(grants, deferred, self._take(grants, wanted), stale)

    # -- claim ---------------------------------------------------------------------------------------------------------

    def _claim_all(self, current: Round, stale: Stale) -> list[Grant]:
        grants = []
        for position, ask in enumerate(current.asks):
            evidence = [answers[position] if answers else None for answers in current.evidence]
            claim = self._claim(ask.prompt.limit_blocks, evidence, stale)
            grants.append(Grant(ask, claim, max(0, ask.blocks - claim.hit_blocks)))
        return grants

    def _claim(self, limit_blocks: int, evidence: Sequence[Evidence | None], stale: Stale) -> Claim:
        """Claim the longest prefix that all groups serve.

        A block that has changed hands since the group answered is as good as never named: the lengths are judged again
        without it.
        """
        present = [found.present if found else 0 for found in evidence]
        while True:
            hit = agreed_blocks(present, self._rules, limit_blocks)
            if not hit:
                return self._no_hit
            first_blocks = tuple([rule.first_block(hit * self._block_tokens) for rule in self._rules])
            claimed: list[Slots] = []
            for pool in self._pools:
                slots, generations = _read_by_hit(evidence, pool.groups, first_blocks, hit)
                good = pool.ledger.claim(slots, generations, Holder.SEQUENCE)
                if good < len(slots):
                    pool.ledger.undo_claim(slots[:good], Holder.SEQUENCE)
                    break
                claimed.append(slots)
            else:
                return Claim(hit, first_blocks, tuple(claimed))
            self._undo(claimed)
            group, block = _locate(good, pool.groups, first_blocks, hit)
            present[group] &= ~(1 << block)
            stale.setdefault(group, {})[int(slots[good])] = int(generations[good])

    def _undo(self, claimed: Sequence[Slots]) -> None:
        for pool, slots in zip(self._pools, claimed, strict=False):  # a claim that was cut short covers fewer pools
            pool.ledger.undo_claim(slots, Holder.SEQUENCE)

    def _redo(self, claimed: Sequence[Slots]) -> None:
        for pool, slots in zip(self._pools, claimed, strict=False):  # growth has none
            pool.ledger.claim(slots, pool.ledger.generation.take(slots), Holder.SEQUENCE)

    # -- judge ---------------------------------------------------------------------------------------------------------

    def _judge(self, grants: list[Grant], position: int, settled: int, wanted: list[int]) -> int:
        """Grant or refuse one request: how many requests, from the first on, are still part of the round.

        Nobody is refused because of a later request: if it helps, the claims of later ones are undone, last first, and
        those requests leave the round. With 4 free slots, of which a later request claims 2 that are cached, one that
        needs 3 does not fit; without that claim it does, and the later one is judged anew in the next round. One that
        needs 5 does not fit either way: it is refused, and the later claim stands.
        """
        grant = grants[position]
        still = settled
        fitting_now = grant.granted = self._fitting(grant, wanted)
        while grant.granted < grant.ask.count and still > position + 1 and grants[still - 1].claim is not None:
            still -= 1  # growth comes first and has no claim that could stand in the way
            self._undo(grants[still].claimed)
            grant.granted = self._fitting(grant, wanted)
        if grant.granted < grant.ask.count:
            grant.refusal = self._refuse(grant, wanted)
        if grant.granted == fitting_now:
            for later in grants[still:settled]:
                self._redo(later.claimed)
            still = settled
        for number, pool in enumerate(self._pools):
            wanted[number] += grant.granted * grant.new_blocks * len(pool.groups)
        return still

    def _fitting(self, grant: Grant, wanted: Sequence[int]) -> int:
        """How many of the sequences of a request fit into what is free, not reserved, and not wanted before."""
        fitting = grant.ask.count
        for number, pool in enumerate(self._pools):
            each = grant.new_blocks * len(pool.groups)
            room = pool.ledger.free - wanted[number] - grant.ask.reserved_in(pool)
            if each and each * fitting > room:
                fitting = max(0, room // each)
        return fitting

    def _refuse(self, grant: Grant, wanted: Sequence[int]) -> OutOfBlocks:
        """Undo the claim of a request that does not fit, and say by how much."""
        claimed_free = [pool.ledger.free for pool in self._pools]
        if not grant.granted:
            self._undo(grant.claimed)
        shortages = []
        for number, pool in enumerate(self._pools):
            ledger = pool.ledger
            reserved = grant.ask.reserved_in(pool)
            free = ledger.free - wanted[number] - grant.granted * grant.new_blocks * len(pool.groups)
            needed = grant.new_blocks * len(pool.groups) + ledger.free - claimed_free[number]
            coming = ledger.uses_by_holder[Holder.FENCE]
            if needed > free - reserved:
                shortages.append(OutOfBlocks(pool.name, needed, free, coming, reserved))
        return shortages[0]

    # -- take ----------------------------------------------------------------------------------------------------------

    def _take(self, grants: Sequence[Grant], wanted: Sequence[int]) -> dict[int, Slots]:
        """Take once per pool, hand out in order: by group, the slots of published blocks that were taken."""
        evicted_of: dict[int, Slots] = {}
        for pool, count in zip(self._pools, wanted, strict=True):
            taken = NO_SLOTS
            if count:
                taken, evicted = pool.ledger.take(count, Holder.SEQUENCE)
                evicted_of |= evicted
            at = 0
            for grant in grants:
                shape = (grant.granted, len(pool.groups), grant.new_blocks if grant.granted else 0)
                end = at + shape[0] * shape[1] * shape[2]
                grant.slots += (taken[at:end].reshape(shape),)
                at = end
        return evicted_of


def _read_by_hit(
    evidence: Sequence[Evidence | None], groups: Sequence[int], first_blocks: Sequence[int], hit_blocks: int
) -> tuple[Slots, Generations]:
    """What a hit reads of the groups of a pool, group after group: slots and generations."""
    slots, generations = [], []
    for group in groups:
        found = evidence[group]
        if found is not None:
            slots.append(found.slots[first_blocks[group] : hit_blocks])
            generations.append(found.generations[first_blocks[group] : hit_blocks])
    if len(slots) == 1:
        return slots[0], generations[0]
    return (np.concatenate(slots), np.concatenate(generations)) if slots else (NO_SLOTS, NO_SLOTS)


def _locate(position: int, groups: Sequence[int], first_blocks: Sequence[int], hit_blocks: int) -> tuple[int, int]:
    """Group and block of a position in what `_read_by_hit` returns."""
    for group in groups:
        reads = hit_blocks - first_blocks[group]
        if position < reads:
            return group, first_blocks[group] + position
        position -= reads
    raise InvariantError(f"position {position} lies beyond what a hit of {hit_blocks} blocks reads")
