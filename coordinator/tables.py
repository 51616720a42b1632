"""Block tables: which slots hold the blocks of a sequence.

A table has a row for each group of a band and each beam, and a column for each block. What all rows do with a block is
one operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.ledger import NULL_SLOT
from kvtroupe.coordinator.messages import NO_SLOTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.bands import Band, Shape
    from kvtroupe.coordinator.messages import Slots

SPARE_COLUMNS = 16  # room in a new table for blocks to come, so that growth seldom copies a table


@dataclass(frozen=True, slots=True)
class Form:
    """How the rows and columns of a table are used.

    Attributes:
        beams: rows of each group.
        shared_blocks: columns, from the first on, that all beams share.
        sparse: columns may be null that no window has left behind.
    """

    beams: int = 1
    shared_blocks: int = 0
    sparse: bool = False


PLAIN = Form()


class BlockTable:
    """The blocks of a sequence in one band.

    Args:
        hit: for each group of the band the slots that a hit reads, up to the end of the hit.
        hit_blocks: length of the hit; positions before what it reads are null.
        fresh: [groups times beams, blocks], slots of the blocks that follow; those of a group side by side.
        form: of the table.
    """

    __slots__ = ("_columns", "_room", "beams", "blocks", "first_blocks", "has_nulls", "shared_blocks", "sparse")

    def __init__(self, hit: Sequence[Slots], hit_blocks: int, fresh: Slots, form: Form = PLAIN) -> None:
        rows, new_blocks = fresh.shape
        self.beams = beams = form.beams
        self.shared_blocks = form.shared_blocks
        self.sparse = form.sparse
        self.blocks = hit_blocks + new_blocks
        self._room = self.blocks + SPARE_COLUMNS
        self._columns = columns = np.zeros((rows, self._room), np.int64)  # null blocks
        columns[:, hit_blocks : self.blocks] = fresh
        self.first_blocks = [0] * len(hit)  # of each group, the first block that is not left behind
        self.has_nulls = form.sparse
        if hit_blocks:
            for group, slots in enumerate(hit):
                self.first_blocks[group] = first = hit_blocks - len(slots)
                self.has_nulls |= first > 0
                columns[group * beams : (group + 1) * beams, first:hit_blocks] = slots

    @property
    def rows(self) -> Slots:
        """[groups times beams, blocks]: the table itself, not a copy."""
        return self._columns[:, : self.blocks]

    @property
    def first_beams(self) -> Slots:
        """[groups, blocks]: the first beam of each group, the table itself."""
        return self._columns[:: self.beams, : self.blocks]

    def append(self, slots: Slots) -> None:
        """Add blocks that no beam shares.

        Args:
            slots: [groups times beams, blocks].
        """
        start = self.blocks
        self.blocks = end = start + slots.shape[1]
        if end > self._room:
            self._room = end + max(SPARE_COLUMNS, end // 4)
            grown = np.empty((len(slots), self._room), np.int64)
            grown[:, :start] = self._columns[:, :start]
            self._columns = grown
        self._columns[:, start:end] = slots

    def slide(self, group: int, first_block: int) -> Slots:
        """Take the blocks of a group before `first_block` out of its table: their slots, newest block first.

        Args:
            group: its place in the band.
            first_block: the first block that stays.
        """
        start = self.first_blocks[group]
        if first_block <= start:
            return NO_SLOTS
        first_row = group * self.beams
        left = self._columns[first_row : first_row + self.beams, start:first_block]
        gone = self._each_once(left, start)
        left[:] = NULL_SLOT
        self.first_blocks[group] = first_block
        self.has_nulls = True
        return gone.compress(gone) if self.sparse else gone

    def held(self) -> Slots:
        """Every slot held, in the order of giving back: last block first, and the groups of a block side by side."""
        slots = self._each_once(self.rows, 0)
        return slots.compress(slots != NULL_SLOT) if self.has_nulls else slots

    def held_with_columns(self) -> tuple[Slots, Slots]:
        """The same, with the column of each."""
        rows = self.rows
        slots = self._each_once(rows, 0)
        columns = self._each_once(np.broadcast_to(np.arange(self.blocks), rows.shape), 0)
        there = slots != NULL_SLOT
        return slots.compress(there), columns.compress(there)

    def _each_once(self, rows: Slots, start: int) -> Slots:
        """Slots of whole groups, as a copy: last column first, what beams share from their first row only."""
        if len(rows) == 1:
            return rows[0, ::-1].copy()
        if self.beams == 1:
            return rows[:, ::-1].flatten(order="F")
        shared = max(0, self.shared_blocks - start)
        return np.concatenate(
            [rows[:, shared:][:, ::-1].flatten(order="F"), rows[:: self.beams, :shared][:, ::-1].flatten(order="F")]
        )


def arrange(band: Band, start: int, end: int, slots: Slots, shape: Shape) -> Slots:
    """Slots taken for the columns from `start` to `end` of a band, as rows of its table.

    Args:
        band: whose groups they are for.
        start: first column.
        end: the column after the last one.
        slots: as many as `Band.slots` says.
        shape: of the sequence.

    Returns:
        [groups times beams, columns]; null where a column has no slot.
    """
    groups, columns, beams = len(band.groups), end - start, shape.beams
    if band.columns == "dense" and beams == 1:
        return slots.reshape(groups, columns)
    wanted = band.wanted(start, end, shape)
    if wanted is not None:
        rows = np.zeros((groups, columns), np.int64)
        rows[:, wanted] = slots.reshape(groups, -1)
        return rows.repeat(beams, axis=0) if beams > 1 else rows
    if beams == 1:
        return slots.reshape(groups, columns)
    shared = band.shared(start, end, shape)
    by_beam = np.empty((groups, beams, columns), np.int64)
    by_beam[:, :, :shared] = slots[: groups * shared].reshape(groups, 1, shared)
    by_beam[:, :, shared:] = slots[groups * shared :].reshape(groups, beams, columns - shared)
    return by_beam.reshape(groups * beams, columns)


def in_order_of_giving_back(bands: Sequence[Band], tables: Sequence[BlockTable]) -> Slots:
    """Every slot that the tables of one pool hold: what is never shared first, then the last tokens first.

    Args:
        bands: of the pool.
        tables: one for each.
    """
    if len(tables) == 1:
        return tables[0].held()
    private = [table.held() for band, table in zip(bands, tables, strict=True) if band.columns in ("state", "fixed")]
    encoder = [table.held() for band, table in zip(bands, tables, strict=True) if band.columns == "cross"]
    growing, ends = [], []
    for band, table in zip(bands, tables, strict=True):
        if band.grows:
            slots, columns = table.held_with_columns()
            growing.append(slots)
            ends.append((columns + 1) * band.rule.block_tokens)
    if growing:
        order = np.argsort(-np.concatenate(ends), kind="stable")
        growing = [np.concatenate(growing).take(order)]
    return np.concatenate([*private, *growing, *encoder])
