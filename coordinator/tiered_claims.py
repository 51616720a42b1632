"""Claims where blocks of a hit may be below the device: these are claimed where they are, to be copied up.

A hit is cut at the first block that cannot be brought up: too much is on its way, there is no room between, or requests
that wait for bytes hold their share of the pool already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.agreement import agree
from kvtroupe.coordinator.claims import Claim, Claimer, Lift
from kvtroupe.coordinator.ledger import Holder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtroupe.coordinator.bands import Layout, Span
    from kvtroupe.coordinator.claims import Ask, Pool, Stale
    from kvtroupe.coordinator.lifts import Lifts
    from kvtroupe.coordinator.messages import Evidence, Generations, Slots
    from kvtroupe.coordinator.waits import Waits

NOWHERE = -1


@dataclass(slots=True)
class Reading:
    """The blocks that a hit reads in one device pool, group after group.

    Attributes:
        device: number of the pool.
        pools: for each block the pool that it is in.
        slots: there.
        generations: of these slots.
        groups: of the blocks.
        blocks: their places in the chain.
        ends: tokens of the chain up to the end of each; those of encoder blocks, which are hit whole, are 0.
    """

    device: int
    pools: NDArray[np.int64]
    slots: Slots
    generations: Generations
    groups: NDArray[np.int64]
    blocks: NDArray[np.int64]
    ends: NDArray[np.int64]

    def in_pool(self, pool: int) -> NDArray[np.int64]:
        """Positions of the blocks that are in a pool."""
        found: NDArray[np.int64] = (self.pools == pool).nonzero()[0]
        return found


class Seen:
    """What of the evidence still counts: for each group and level the bits of the blocks that are there.

    Args:
        evidence: of every group.
        deepest: the lowest level that counts.
    """

    def __init__(self, evidence: Sequence[Evidence | None], deepest: int) -> None:
        self.evidence = evidence
        self.bits: list[dict[int, int]] = []
        for found in evidence:
            levels = {} if found is None else {0: found.present}
            for places in found.lower if found is not None else ():
                if places.level <= deepest:
                    levels[places.level] = places.present
            self.bits.append(levels)

    def present(self, group: int) -> int:
        """The blocks of a group that are anywhere."""
        found = 0
        for bits in self.bits[group].values():
            found |= bits
        return found

    def forget_block(self, group: int, level: int, block: int) -> None:
        """A block is not there after all."""
        self.bits[group][level] &= ~(1 << block)

    def forget_below(self, group: int, first_block: int) -> None:
        """Blocks from this one on do not count unless they are on the device."""
        for level in self.bits[group]:
            if level:
                self.bits[group][level] &= (1 << first_block) - 1


class TieredClaimer(Claimer):
    """See the module.

    Args:
        pools: of the replica.
        layout: of its tables.
        lifts: copies up.
        waits: who waits for bytes.
    """

    def __init__(self, pools: Sequence[Pool], layout: Layout, lifts: Lifts, waits: Waits) -> None:
        super().__init__(pools, layout)
        self._lifts = lifts
        self._waits = waits
        self._places = lifts.traffic.places
        self._device_of = {group: number for number, pool in enumerate(pools) for group in pool.groups}
        self._pool_at = {(place.device, place.level): place.pool for place in self._places}

    def claim(self, ask: Ask, evidence: Sequence[Evidence | None], stale: Stale) -> Claim | None:
        """As without pools below; None if an earlier request of this round brings up a block that this one hits."""
        deepest = max([places.level for found in evidence if found is not None for places in found.lower], default=0)
        while deepest:
            claim = self._claim_down_to(deepest, ask, evidence, stale)
            if claim is None or not claim.is_lifted:
                return claim
            others_bounce = any(self._lifts.bounced(place.pool) for place in self._places if place.level)
            self._lifts.plan(claim)
            if self._share_allows(ask, claim):
                if self._lifts.bounces_fit():
                    return claim
                self.undo(claim)
                if others_bounce:
                    return None
                deepest -= 1
            else:
                self.undo(claim)
                deepest = 0
        return super().claim(ask, evidence, stale)

    def look(self, ask: Ask, evidence: Sequence[Evidence | None], stale: Stale) -> Claim:
        """As without pools below; what is below is part of it."""
        claim = self.claim(ask, evidence, stale)
        assert claim is not None, "only what is brought up may have to wait"
        self.undo(claim)
        return claim

    def undo(self, claim: Claim) -> None:
        """Take a claim back: no trace of it is left."""
        if not claim.lifts:
            super().undo(claim)
            return
        if claim.is_lifted:
            self._lifts.unplan(claim)
        self._undo([slots.compress(slots) for slots in claim.slots])
        for lift in claim.lifts:
            self._pools[lift.pool].ledger.undo_claim(lift.sources, Holder.TRANSFER)

    def redo(self, claim: Claim) -> None:
        """Claim again what has just been undone."""
        for pool, slots in zip(self._pools, claim.slots, strict=True):
            there = slots.compress(slots) if claim.lifts else slots
            pool.ledger.hold(there, Holder.SEQUENCE)
        for lift in claim.lifts:
            self._pools[lift.pool].ledger.hold(lift.sources, Holder.TRANSFER)
        if claim.is_lifted:
            self._lifts.plan(claim)

    def _share_allows(self, ask: Ask, claim: Claim) -> bool:
        """Whether the pools have enough that does not wait for bytes; one request may always wait."""
        capacity_tokens = ask.units * self._layout.unit_tokens
        for number in {lift.device for lift in claim.lifts}:
            waiting = self._waits.slots_waiting(number)
            held = len(claim.slots[number]) + self._layout.slots_at_admission(
                number, claim.hit_tokens, capacity_tokens, ask.shape, cross_hit=claim.cross_hit
            )
            if waiting and waiting + held > self._places[number].waiting_max_blocks:
                return False
        return True

    # -- one claim -----------------------------------------------------------------------------------------------------

    def _claim_down_to(self, deepest: int, ask: Ask, evidence: Sequence[Evidence | None], stale: Stale) -> Claim | None:
        seen = Seen(evidence, deepest)
        while True:
            present = [seen.present(group) for group in range(len(evidence))]
            agreement = agree(
                [present[group] for group in self._layout.participating], self._rules, self._strides, ask.limit_units
            )
            cross_hit = self._hits_encoder(ask, present)
            spans = self._spans(agreement.units, ask, cross_hit=cross_hit)
            readings = [self._reading(number, spans, seen) for number, pool in enumerate(self._pools) if pool.groups]
            if ask.units:
                if any(self._is_planned(reading) for reading in readings):
                    return None
                if self._cut(readings, seen):
                    continue
            lifts = self._claim_all(readings, seen, stale)
            if lifts is not None:
                unit_tokens = self._layout.unit_tokens
                return Claim(
                    agreement.units * unit_tokens,
                    agreement.junction_units * unit_tokens,
                    cross_hit,
                    spans,
                    self._slots_of(readings),
                    lifts,
                    is_lifted=bool(lifts and ask.units),
                )

    def _reading(self, device: int, spans: Sequence[Span], seen: Seen) -> Reading:
        parts = [self._reading_of_group(device, group, spans[group], seen) for group in self._pools[device].groups]
        pools, slots, generations, groups, blocks, ends = (
            np.concatenate([part[column] for part in parts]) for column in range(6)
        )
        return self._join(Reading(device, pools, slots, generations, groups, blocks, ends))

    def _reading_of_group(self, device: int, group: int, span: Span, seen: Seen) -> list[NDArray[np.int64]]:
        """Columns of a reading: pools, slots, generations, groups, blocks, ends."""
        first, end = span
        blocks = np.arange(first, end)
        pools = np.full(len(blocks), NOWHERE, np.int64)
        slots, generations = np.zeros((2, len(blocks)), np.int64)
        found = seen.evidence[group]
        if len(blocks) and found is not None:
            at_level = {places.level: (places.slots, places.generations) for places in found.lower}
            at_level[0] = found.slots, found.generations
            for level in sorted(seen.bits[group]):
                here = _as_mask(seen.bits[group][level], first, end) & (pools == NOWHERE)
                level_slots, level_generations = at_level[level]
                pools[here] = self._pool_at[device, level]
                slots[here] = level_slots[first:end][here]
                generations[here] = level_generations[first:end][here]
        block_tokens = self._layout.rules[group].block_tokens if self._layout.strides[group] else 0
        return [pools, slots, generations, np.full(len(blocks), group), blocks, (blocks + 1) * block_tokens]

    def _join(self, reading: Reading) -> Reading:
        """Blocks that are on their way to the device count as there."""
        ledger = self._pools[reading.device].ledger
        for pool in np.unique(reading.pools).tolist():
            if pool == reading.device:
                continue
            positions = reading.in_pool(pool)
            destinations = self._lifts.joined(pool, reading.slots[positions])
            joining = destinations.nonzero()[0]
            if len(joining):
                there = positions[joining]
                reading.pools[there] = reading.device
                reading.slots[there] = destinations[joining]
                reading.generations[there] = ledger.generation.take(destinations[joining])
        return reading

    def _is_planned(self, reading: Reading) -> bool:
        pools = [pool for pool in np.unique(reading.pools).tolist() if pool != reading.device]
        return any(self._lifts.is_planned(pool, reading.slots[reading.in_pool(pool)]) for pool in pools)

    def _cut(self, readings: Sequence[Reading], seen: Seen) -> bool:
        """Forget what cannot be brought up, from the first such block on; False: all can."""
        cut_tokens: int | None = None
        for reading in readings:
            below = (reading.pools != reading.device).nonzero()[0]
            below = below[np.argsort(reading.ends[below], kind="stable")]
            engines = [self._lifts.engines(pool) for pool in reading.pools[below].tolist()]
            for engine in {engine for path in engines for engine in path}:
                used = np.cumsum([engine in path for path in engines])
                beyond = used > self._lifts.room(engine)
                if beyond.any():
                    end = int(reading.ends[below[int(beyond.argmax())]])
                    cut_tokens = end if cut_tokens is None else min(cut_tokens, end)
        if cut_tokens is None:
            return False
        for group in self._layout.indexed:
            if not self._layout.strides[group]:
                if not cut_tokens:
                    seen.forget_below(group, 0)
            elif cut_tokens:
                seen.forget_below(group, (cut_tokens - 1) // self._layout.rules[group].block_tokens)
        return True

    def _claim_all(self, readings: Sequence[Reading], seen: Seen, stale: Stale) -> tuple[Lift, ...] | None:
        """Claim every block where it is; None: one has changed hands, nothing is claimed, and it does not count."""
        claimed: list[tuple[int, Slots, Holder]] = []
        lifts = []
        for reading in readings:
            for number in sorted({*reading.pools.tolist()}, key=lambda pool: self._places[pool].level):
                positions = reading.in_pool(number)
                slots, generations = reading.slots[positions], reading.generations[positions]
                holder = Holder.SEQUENCE if number == reading.device else Holder.TRANSFER
                ledger = self._pools[number].ledger
                good = ledger.claim(slots, generations, holder)
                claimed.append((number, slots[:good], holder))
                if good < len(slots):
                    for pool, some, its_holder in claimed:
                        self._pools[pool].ledger.undo_claim(some, its_holder)
                    position = positions[good]
                    group, level = int(reading.groups[position]), self._places[number].level
                    seen.forget_block(group, level, int(reading.blocks[position]))
                    stale.setdefault((group, level), {})[int(slots[good])] = int(generations[good])
                    return None
                if number != reading.device:
                    lifts.append(Lift(reading.device, number, positions, slots))
        return tuple(lifts)

    def _slots_of(self, readings: Sequence[Reading]) -> tuple[Slots, ...]:
        slots = list(self._no_slots)
        for reading in readings:
            slots[reading.device] = np.where(reading.pools == reading.device, reading.slots, 0)
        return tuple(slots)


def _as_mask(bits: int, first: int, end: int) -> NDArray[np.bool_]:
    """Bits from `first` up to `end`."""
    count = end - first
    wanted = bits >> first & (1 << count) - 1
    packed = np.frombuffer(wanted.to_bytes(-(-count // 8), "little"), np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little").astype(np.bool_)
