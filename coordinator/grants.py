"""From slots that a round has granted to tables: of new sequences, and of sequences that have grown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.messages import NO_SLOTS
from kvtroupe.coordinator.tables import BlockTable, Form, arrange, in_order_of_giving_back

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
        self._nothing = (NO_SLOTS,) * len(layout.rules)
        self._has_states = any(band.columns == "state" for band in layout.bands)

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
        copies: list[tuple[int, Slots, Slots]] = []
        if not (self._has_states and claim.hit_tokens):
            return copies
        for band, table in zip(self._layout.bands, sequence.tables, strict=True):
            if band.columns == "state":
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
        by_group = [NO_SLOTS.reshape(0, 0)] * len(self._layout.rules)
        if not sequences:
            return tuple(by_group)
        beams = sequences[0].shape.beams
        for pool, slots in enumerate(fresh):
            arranged = self._alike if self._layout.is_plain[pool] else self._one_by_one
            for number, added in arranged(pool, sequences, units, slots):
                added.setflags(write=False)
                for sequence, rows in zip(sequences, added, strict=True):
                    sequence.tables[number].append(rows)
                for place, group in enumerate(self._layout.bands[number].groups):
                    of_group = added[:, place * beams : (place + 1) * beams]
                    by_group[group] = of_group if beams > 1 else of_group[:, 0]
        added_tokens = units * self._layout.unit_tokens
        for sequence in sequences:
            sequence.capacity_tokens += added_tokens
        return tuple(by_group)

    def _alike(
        self, pool: int, sequences: Sequence[RunningSequence], units: int, slots: Slots
    ) -> Iterator[tuple[int, Slots]]:
        """What the growing bands of a pool get, where all sequences get as much: [sequences, rows, columns] of each."""
        slots = slots.reshape(len(sequences), -1)
        at = 0
        for number in self._layout.bands_of[pool]:
            groups = self._layout.bands[number].groups
            rows, columns = len(groups) * sequences[0].shape.beams, units * self._layout.strides[groups[0]]
            yield number, slots[:, at : at + rows * columns].reshape(len(sequences), rows, columns)
            at += rows * columns

    def _one_by_one(
        self, pool: int, sequences: Sequence[RunningSequence], units: int, slots: Slots
    ) -> Iterator[tuple[int, Slots]]:
        """The same where it depends on the prompt of a sequence which columns have slots."""
        growing = [number for number in self._layout.bands_of[pool] if self._layout.bands[number].grows]
        added: dict[int, list[Slots]] = {number: [] for number in growing}
        at = 0
        for sequence in sequences:
            end_tokens = sequence.capacity_tokens + units * self._layout.unit_tokens
            for number in growing:
                band = self._layout.bands[number]
                start, end = band.span(sequence.capacity_tokens, end_tokens, sequence.shape)
                count = band.slots(start, end, sequence.shape)
                added[number].append(arrange(band, start, end, slots[at : at + count], sequence.shape))
                at += count
        for number, rows in added.items():
            yield number, np.stack(rows)

    def lent(self, sequence: RunningSequence) -> tuple[tuple[Slots, ...], tuple[Slots, ...]]:
        """What a client gets of a sequence's tables, as read-only copies.

        Returns:
            for each group its table [columns], or [beams, columns] if there are several; and for each recurrent group
            the slot of the state that the sequence computes with, for each beam.
        """
        tables, states = [*self._nothing], [*self._nothing]
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
        return tuple(tables), tuple(states) if self._has_states else self._nothing

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
    if band.columns == "dense":
        if shape.beams == 1:
            return BlockTable(hit, start, rows)
        return BlockTable(hit, start, rows, Form(shape.beams, shape.prompt_tokens // band.rule.block_tokens))
    if band.columns in ("sparse", "cross"):
        return BlockTable(hit, start, rows, Form(shape.beams, ALWAYS, band.columns == "sparse"))
    return BlockTable([NO_SLOTS] * len(hit), 0, rows, Form(shape.beams))
