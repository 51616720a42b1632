"""From slots that a round has granted to tables: of new sequences, and of sequences that have grown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.messages import NO_SLOTS
from kvtroupe.coordinator.tables import BlockTable, Form, arrange, in_order_of_giving_back

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.bands import Band, Layout, Shape
    from kvtroupe.coordinator.claims import Claim, Pool
    from kvtroupe.coordinator.messages import Slots
    from kvtroupe.coordinator.sequences import Sequence as RunningSequence

ALWAYS = 2**31  # more columns than any table has


class Tables:
    """Makes, lends and takes back the tables of sequences.

    Args:
        pools: of the replica.
        layout: of its tables.
    """

    def __init__(self, pools: Sequence[Pool], layout: Layout) -> None:
        self._pools = pools
        self._layout = layout

    def new(self, claim: Claim, fresh: Sequence[Slots], capacity_tokens: int, shape: Shape) -> tuple[BlockTable, ...]:
        """Tables of what a hit reads, followed by fresh slots.

        Args:
            claim: of the hit.
            fresh: for each pool the slots that the layout says a new sequence needs.
            capacity_tokens: of the sequence.
            shape: of the sequence.
        """
        tables = []
        for pool in range(len(self._pools)):
            hits = claim.hits(pool, self._pools[pool].groups)
            at = 0
            for number in self._layout.bands_of[pool]:
                band = self._layout.bands[number]
                start, end = band.span(claim.hit_tokens, capacity_tokens, shape)
                if band.columns == "cross" and claim.cross_hit:
                    start = end
                count = band.slots(start, end, shape)
                rows = arrange(band, start, end, fresh[pool][at : at + count], shape)
                tables.append(_new_table(band, [hits[group] for group in band.groups], start, rows, shape))
                at += count
        return tuple(tables)

    def claimed(self, claim: Claim) -> tuple[Slots, ...]:
        """For each pool what is claimed, in the order of giving back; what is to be copied up: where it is now."""
        claimed = [self._claimed(claim, pool) for pool in range(len(self._pools))]
        for lift in claim.lifts:
            claimed[lift.device] = claimed[lift.device].compress(claimed[lift.device])
            claimed[lift.pool] = lift.sources[::-1]
        return tuple(claimed)

    def _claimed(self, claim: Claim, pool: int) -> Slots:
        slots, ends = [], []
        for group, found in claim.hits(pool, self._pools[pool].groups).items():
            first, end = claim.spans[group]
            slots.append(found)
            ends.append(np.arange(first + 1, end + 1) * self._layout.rules[group].block_tokens)
        if not slots:
            return NO_SLOTS
        order = np.argsort(-np.concatenate(ends), kind="stable")
        return np.concatenate(slots).take(order)

    def states_hit(self, sequence: RunningSequence, claim: Claim) -> list[tuple[int, Slots, Slots]]:
        """The states that a new sequence goes on from, and the slots of its own that they have to be copied to.

        Returns:
            for each band of states its pool, the slots to be read, and as many to be written.
        """
        copies = []
        for band, table in zip(self._layout.bands, sequence.tables, strict=True):
            if band.columns == "state" and claim.hit_tokens:
                hits = claim.hits(band.pool, self._pools[band.pool].groups)
                read = np.concatenate([hits[group][-1:].repeat(table.beams) for group in band.groups])
                copies.append((band.pool, read, table.rows[:, 0].copy()))
        return copies

    def grow(self, sequences: Sequence[RunningSequence], units: int, fresh: Sequence[Slots]) -> tuple[Slots, ...]:
        """Append fresh slots to the tables of sequences.

        Args:
            sequences: with the same number of beams.
            units: that each of them gets.
            fresh: for each pool the slots that the layout says they need, sequence after sequence.

        Returns:
            for each group what its tables got: [sequences, columns], with an axis for beams in between if there are
            several.
        """
        added: list[list[Slots]] = [[] for _ in self._layout.bands]
        for pool, slots in enumerate(fresh):
            growing = [number for number in self._layout.bands_of[pool] if self._layout.bands[number].grows]
            at = 0
            for sequence in sequences:
                for number in growing:
                    band = self._layout.bands[number]
                    end_tokens = sequence.capacity_tokens + units * self._layout.unit_tokens
                    start, end = band.span(sequence.capacity_tokens, end_tokens, sequence.shape)
                    count = band.slots(start, end, sequence.shape)
                    rows = arrange(band, start, end, slots[at : at + count], sequence.shape)
                    sequence.tables[number].append(rows)
                    added[number].append(rows)
                    at += count
        for sequence in sequences:
            sequence.capacity_tokens += units * self._layout.unit_tokens
        return self._by_group(added, sequences[0].shape.beams if sequences else 1)

    def _by_group(self, added: list[list[Slots]], beams: int) -> tuple[Slots, ...]:
        by_group = [NO_SLOTS.reshape(0, 0)] * len(self._layout.rules)
        for band, rows in zip(self._layout.bands, added, strict=True):
            if rows:
                stacked = np.stack(rows)
                stacked.setflags(write=False)
                for place, group in enumerate(band.groups):
                    of_group = stacked[:, place * beams : (place + 1) * beams]
                    by_group[group] = of_group if beams > 1 else of_group[:, 0]
        return tuple(by_group)

    def lent(self, sequence: RunningSequence) -> tuple[tuple[Slots, ...], tuple[Slots, ...]]:
        """What a client gets of a sequence's tables, as read-only copies.

        Returns:
            for each group its table [columns], or [beams, columns] if there are several; and for each recurrent group
            the slot of the state that the sequence computes with, for each beam.
        """
        tables: list[Slots] = [NO_SLOTS] * len(self._layout.rules)
        states: list[Slots] = [NO_SLOTS] * len(self._layout.rules)
        beams = sequence.shape.beams
        for band, table in zip(self._layout.bands, sequence.tables, strict=True):
            copy = table.rows.copy()
            copy.setflags(write=False)
            if band.columns == "state":
                for place, group in enumerate(band.groups):
                    states[group] = copy[place * beams : (place + 1) * beams, 0]
            elif beams == 1:
                for place, group in enumerate(band.groups):
                    tables[group] = copy[place]
            else:
                for place, group in enumerate(band.groups):
                    tables[group] = copy[place * beams : (place + 1) * beams]
        return tuple(tables), tuple(states)

    def held(self, sequence: RunningSequence) -> tuple[Slots, ...]:
        """For each pool every slot of a sequence, in the order of giving back."""
        held = []
        for numbers in self._layout.bands_of:
            if len(numbers) == 1:
                held.append(sequence.tables[numbers[0]].held())
            elif numbers:
                bands = [self._layout.bands[number] for number in numbers]
                held.append(in_order_of_giving_back(bands, [sequence.tables[number] for number in numbers]))
            else:
                held.append(NO_SLOTS)
        return tuple(held)

    def slide(self, sequence: RunningSequence) -> tuple[Slots, ...] | None:
        """Take the blocks that no token to come can attend to out of the tables: for each pool, their slots."""
        gone: list[Slots] = []
        any_gone = False
        for numbers in self._layout.bands_of:
            parts = []
            for number in numbers:
                band = self._layout.bands[number]
                if band.grows:
                    table = sequence.tables[number]
                    for place, group in enumerate(band.groups):
                        part = table.slide(place, self._layout.rules[group].first_block(sequence.committed_tokens))
                        if len(part):
                            parts.append(part)
            any_gone |= bool(parts)
            gone.append(np.concatenate(parts) if parts else NO_SLOTS)
        return tuple(gone) if any_gone else None


def _new_table(band: Band, hit: list[Slots], start: int, rows: Slots, shape: Shape) -> BlockTable:
    if not band.grows and band.columns != "cross":
        hit = [NO_SLOTS] * len(hit)
        start = 0
    if band.columns == "dense" and shape.beams == 1:
        return BlockTable(hit, start, rows)
    shared = shape.prompt_tokens // band.rule.block_tokens if band.columns == "dense" else 0
    shared_blocks = ALWAYS if band.columns in ("sparse", "cross") else shared
    return BlockTable(hit, start, rows, Form(shape.beams, shared_blocks, band.columns == "sparse"))
