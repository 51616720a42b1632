"""Running sequences and what they hold: block tables, spare slots, digests known so far, slots on their way back.

A table has one row per group of a pool and one column per block. Rows of a pool that several groups share make up one
array, so that what all groups do with a block is one operation.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.errors import FenceError, UnknownSequence
from kvtroupe.coordinator.ledger import NULL_SLOT, Holder
from kvtroupe.coordinator.messages import NO_SLOTS

if TYPE_CHECKING:
    from kvtroupe.coordinator.ledger import Ledger
    from kvtroupe.coordinator.messages import SequenceId, Slots
    from kvtroupe.coordinator.retention import Retention

NO_STEP = -1  # before the first step of the engine
SPARE_COLUMNS = 16  # room in a new table for blocks to come, so that growth seldom copies a table


class BlockTable:
    """The blocks of a sequence in one pool.

    Args:
        hit: for each group of the pool the slots that a hit reads, up to the end of the hit.
        hit_blocks: length of the hit; positions before what it reads are null.
        fresh: [groups of the pool, blocks], slots of the blocks that follow.
    """

    __slots__ = ("_columns", "_room", "blocks", "first_blocks", "has_nulls")

    def __init__(self, hit: list[Slots], hit_blocks: int, fresh: Slots) -> None:
        groups, new_blocks = fresh.shape
        self.blocks = hit_blocks + new_blocks
        self._room = self.blocks + SPARE_COLUMNS
        self._columns = np.zeros((groups, self._room), np.int64)  # null blocks
        self._columns[:, hit_blocks : self.blocks] = fresh
        # Of each group, the first block that is not the null block.
        self.first_blocks = [hit_blocks - len(slots) for slots in hit]
        self.has_nulls = any(self.first_blocks)
        for row, slots in enumerate(hit):
            self._columns[row, self.first_blocks[row] : hit_blocks] = slots

    @property
    def rows(self) -> Slots:
        """[groups of the pool, blocks]: the table itself, not a copy."""
        return self._columns[:, : self.blocks]

    def append(self, slots: Slots) -> None:
        """Add blocks.

        Args:
            slots: [groups of the pool, blocks].
        """
        start = self.blocks
        self.blocks = end = start + slots.shape[1]
        if end > self._room:
            self._room = end + max(SPARE_COLUMNS, end // 4)
            grown = np.empty((len(slots), self._room), np.int64)
            grown[:, :start] = self._columns[:, :start]
            self._columns = grown
        self._columns[:, start:end] = slots

    def slide(self, row: int, first_block: int) -> Slots:
        """Take the blocks of a group before `first_block` out of its table: their slots, newest block first."""
        start = self.first_blocks[row]
        if first_block <= start:
            return NO_SLOTS
        gone = self._columns[row, start:first_block][::-1].copy()
        self._columns[row, start:first_block] = NULL_SLOT
        self.first_blocks[row] = first_block
        self.has_nulls = True
        return gone

    def held(self) -> Slots:
        """Every slot held, in the order of giving back: last block first, and the groups of a block side by side."""
        slots = self.rows[:, ::-1].ravel(order="F")
        return slots.compress(slots) if self.has_nulls else slots


@dataclass(slots=True, eq=False)
class Sequence:
    """A running sequence.

    Attributes:
        sequence_id: chosen by the client.
        prompt_tokens: it was admitted with.
        tokens: tokens appended so far, computed or not.
        cached_tokens: found in the cache at admission.
        committed_tokens: computed on every rank.
        capacity_tokens: that fit into the blocks held.
        digests: of its blocks, as far as the client has told them.
        digest_count: of its hash blocks, likewise; some may be of a block that is not complete yet.
        considered_blocks: offered to the indexes so far, or hit.
        tables: one for each pool.
        retention: of the blocks it publishes.
        publishing: publications of its blocks that some group has not answered; none of its blocks is freed before.
        returned: slots it has given back that wait for those answers.
    """

    sequence_id: SequenceId
    prompt_tokens: int
    tokens: int
    cached_tokens: int
    committed_tokens: int
    capacity_tokens: int
    digests: bytes
    digest_count: int
    considered_blocks: int
    tables: tuple[BlockTable, ...]
    retention: Retention
    publishing: int = 0
    returned: list[Return] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Return:
    """Slots that a client has given back.

    Attributes:
        sequence_id: who held them.
        fence: the engine step after which nothing touches them; None: nothing does any more.
        slots: for each pool, in the order of giving back.
    """

    sequence_id: SequenceId
    fence: int | None
    slots: tuple[Slots, ...]


class Returns:
    """Slots on their way back to the free order: steps of the engine may still touch them, or groups name them.

    Args:
        ledgers: of the pools.
    """

    def __init__(self, ledgers: list[Ledger]) -> None:
        self.done_step = NO_STEP
        self._ledgers = ledgers
        self._fenced: list[tuple[int, int, Return]] = []  # heap by fence, then order of arrival
        self._arrivals = 0

    def give_back(self, sequence: Sequence, returned: Return) -> None:
        """Free slots of a sequence as soon as their fence has passed and all its publications are answered."""
        if not sequence.publishing and self._is_passed(returned.fence):
            self._release(returned, Holder.SEQUENCE)
            return
        for ledger, slots in zip(self._ledgers, returned.slots, strict=True):
            ledger.hand_over(len(slots), Holder.SEQUENCE, Holder.FENCE)
        if sequence.publishing:
            sequence.returned.append(returned)
        else:
            self._wait_for_fence(returned)

    def published(self, sequence: Sequence) -> None:
        """All publications of a sequence are answered: what it has given back waits for its fence only."""
        for returned in sequence.returned:
            if self._is_passed(returned.fence):
                self._release(returned, Holder.FENCE)
            else:
                self._wait_for_fence(returned)
        sequence.returned.clear()

    def steps_done(self, step: int) -> None:
        """All engine steps up to `step` are complete: free what waited for them, by fence, then by order of arrival.

        Raises:
            FenceError: a later step was done already.
        """
        if step < self.done_step:
            raise FenceError(f"step {step} was reported done after step {self.done_step}; steps are done in order")
        self.done_step = step
        while self._fenced and self._fenced[0][0] <= step:
            self._release(heapq.heappop(self._fenced)[2], Holder.FENCE)

    def fenced(self) -> list[Return]:
        """What waits for a fence now, for inspection."""
        return [returned for _, _, returned in sorted(self._fenced, key=lambda entry: entry[:2])]

    def _is_passed(self, fence: int | None) -> bool:
        return fence is None or fence <= self.done_step

    def _wait_for_fence(self, returned: Return) -> None:
        assert returned.fence is not None, "only slots with a fence wait for it"
        self._arrivals += 1
        heapq.heappush(self._fenced, (returned.fence, self._arrivals, returned))

    def _release(self, returned: Return, holder: Holder) -> None:
        for ledger, slots in zip(self._ledgers, returned.slots, strict=True):
            if len(slots):
                ledger.release(slots, holder)


def unknown_sequence(sequence_id: SequenceId) -> UnknownSequence:
    """The error for an id that no running sequence has."""
    return UnknownSequence(
        f"no sequence {sequence_id!r} is running: it was never admitted, or it was released already; admit it first"
    )
