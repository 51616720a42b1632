"""Slots of one size in ordinary memory, filled with bytes that tell which block they are.

Memory is touched when a slot is first written, not when the pool is made. Rows are handled in pieces that fit into the
caches of a core, so a call needs little memory of its own however many blocks it gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.kernels.pattern import BlockPattern

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE_BYTES = 1 << 18


class MemoryPool:
    """The bytes of a pool.

    Args:
        slots: number of slots.
        block_bytes: bytes of a slot.

    Attributes:
        blocks: uint8 [slots, block_bytes], the bytes themselves; zero where nothing was written.

    Raises:
        ValueError: no slots, or slots without bytes.
        MemoryError: the memory cannot be had.
    """

    def __init__(self, slots: int, block_bytes: int) -> None:
        if slots < 1 or block_bytes < 1:
            raise ValueError(f"a pool has at least 1 slot of 1 byte, not {slots} of {block_bytes}")
        self.blocks: NDArray[np.uint8] = np.zeros((slots, block_bytes), np.uint8)
        self._pattern = BlockPattern(block_bytes)
        self._piece_rows = max(1, PIECE_BYTES // block_bytes)

    def write(self, slots: NDArray[np.int64], digests: NDArray[np.uint8], group: int) -> None:
        """Give slots the bytes of blocks.

        Args:
            slots: [blocks].
            digests: uint8 [blocks, digest bytes], of the blocks.
            group: number of the group that the blocks belong to.
        """
        for piece in self._pieces(slots):
            self.blocks[slots[piece]] = self._pattern.rows(digests[piece], group)

    def wrong(self, slots: NDArray[np.int64], digests: NDArray[np.uint8], group: int) -> NDArray[np.int64]:
        """Compare slots with the bytes of blocks.

        Args:
            slots: [blocks].
            digests: uint8 [blocks, digest bytes], of the blocks that the slots should hold.
            group: number of the group that the blocks belong to.

        Returns:
            the positions in `slots`, ascending, where at least one byte is not as expected.
        """
        found = [np.empty(0, np.int64)]
        for piece in self._pieces(slots):
            held = self.blocks.take(slots[piece], axis=0)
            differs = (held != self._pattern.rows(digests[piece], group)).any(axis=1)
            found.append(np.flatnonzero(differs) + piece.start)
        return np.concatenate(found)

    def clear(self, slots: NDArray[np.int64]) -> None:
        """Set all bytes of slots to zero."""
        self.blocks[slots] = 0

    def _pieces(self, slots: NDArray[np.int64]) -> Iterator[slice]:
        for start in range(0, len(slots), self._piece_rows):
            yield slice(start, start + self._piece_rows)
