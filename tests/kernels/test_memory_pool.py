"""A pool whose bytes tell which block they are."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kvtroupe.kernels.memory_pool import PIECE_BYTES, MemoryPool

SIZES = [1, 7, 8, 31, 32, 100, 4096]


def _digests(blocks: int, first: int = 0) -> NDArray[np.uint8]:
    """Digests of 32 bytes that differ in their last byte only: the least that distinct digests can."""
    digests = np.zeros((blocks, 32), np.uint8)
    digests[:, -1] = np.arange(first, first + blocks)
    return digests


@pytest.mark.parametrize("block_bytes", SIZES)
def test_blocks_that_were_written_are_right(block_bytes: int) -> None:
    """What was written for a digest and a group is what is expected of them, wherever the slots are."""
    pool = MemoryPool(20, block_bytes)
    slots = np.array([19, 3, 8])

    pool.write(slots, _digests(3), group=1)

    assert pool.wrong(slots, _digests(3), group=1).tolist() == []
    assert pool.wrong(slots[::-1], _digests(3)[::-1], group=1).tolist() == []


@pytest.mark.parametrize("block_bytes", SIZES)
def test_every_single_flipped_bit_shows(block_bytes: int) -> None:
    """Each byte of a block counts, the last one of an odd size included; the position of the block is named."""
    pool = MemoryPool(4, block_bytes)
    slots = np.array([1, 2, 3])
    pool.write(slots, _digests(3), group=0)
    for place in range(block_bytes):
        pool.blocks[2, place] ^= 1 << place % 8

        assert pool.wrong(slots, _digests(3), group=0).tolist() == [1]

        pool.blocks[2, place] ^= 1 << place % 8


@pytest.mark.parametrize("block_bytes", [size for size in SIZES if size >= 7])
def test_blocks_of_other_digests_show(block_bytes: int) -> None:
    """Two blocks in each other's slots are both wrong, also when blocks are smaller than digests."""
    pool = MemoryPool(4, block_bytes)
    pool.write(np.array([1, 2, 3]), _digests(3), group=0)

    assert pool.wrong(np.array([2, 1, 3]), _digests(3), group=0).tolist() == [0, 1]


@pytest.mark.parametrize("block_bytes", [size for size in SIZES if size >= 7])
def test_blocks_of_another_group_show(block_bytes: int) -> None:
    """The same prefix has other contents in other layers."""
    pool = MemoryPool(4, block_bytes)
    slots = np.array([1, 2, 3])
    for group in range(3):
        pool.write(slots, _digests(3), group)

        assert pool.wrong(slots, _digests(3), (group + 1) % 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("shift_bytes", [1, 7, 8, 32, 64])
def test_shifted_blocks_show(shift_bytes: int) -> None:
    """A block copied to a wrong offset is not mistaken for itself, whatever the offset."""
    pool = MemoryPool(2, 4096)
    slot = np.array([1])
    pool.write(slot, _digests(1), group=0)
    pool.blocks[1] = np.roll(pool.blocks[1], shift_bytes)

    assert pool.wrong(slot, _digests(1), group=0).tolist() == [0]


def test_most_bytes_of_two_blocks_differ() -> None:
    """A piece of a block that was taken from another one shows too: any stretch of 16 bytes is unlike."""
    pool = MemoryPool(3, 4096)
    pool.write(np.array([0, 1]), _digests(2), group=0)
    pool.write(np.array([2]), _digests(1), group=1)

    for other in (1, 2):
        differs = (pool.blocks[0] != pool.blocks[other]).reshape(-1, 16)
        assert differs.any(axis=1).all()


def test_slots_never_written_are_wrong() -> None:
    """Reading what nobody wrote is found, as is reading what was cleared."""
    pool = MemoryPool(4, 64)
    slots = np.array([1, 2, 3])
    pool.write(slots[:2], _digests(2), group=0)
    pool.clear(slots[:1])

    assert pool.wrong(slots, _digests(3), group=0).tolist() == [0, 2]


def test_calls_of_any_length_are_handled_in_pieces() -> None:
    """Positions count from the start of the call, whichever piece a block falls into."""
    rows = PIECE_BYTES // 4096 * 2 + 5
    pool = MemoryPool(rows, 4096)
    slots = np.random.default_rng(1).permutation(rows)
    digests = _digests(rows)
    pool.write(slots, digests, group=0)
    pool.blocks[slots[[0, rows - 70, rows - 1]], 5] ^= 1

    assert pool.wrong(slots, digests, group=0).tolist() == [0, rows - 70, rows - 1]


def test_blocks_larger_than_a_piece_are_handled_one_by_one() -> None:
    """A block of any size can be written and compared."""
    pool = MemoryPool(3, PIECE_BYTES + 1)
    slots = np.array([2, 1])
    pool.write(slots, _digests(2), group=0)
    pool.blocks[1, -1] ^= 1

    assert pool.wrong(slots, _digests(2), group=0).tolist() == [1]


def test_nothing_to_do_is_allowed() -> None:
    """A hit of no blocks has no wrong blocks."""
    pool = MemoryPool(2, 8)
    none = np.empty(0, np.int64)
    pool.write(none, _digests(0), group=0)
    pool.clear(none)

    assert pool.wrong(none, _digests(0), group=0).tolist() == []


@pytest.mark.parametrize(("slots", "block_bytes"), [(0, 8), (-1, 8), (4, 0), (4, -8)])
def test_a_pool_without_bytes_is_refused(slots: int, block_bytes: int) -> None:
    """The sizes are named."""
    with pytest.raises(ValueError, match=f"not {slots} of {block_bytes}"):
        MemoryPool(slots, block_bytes)


def test_memory_that_cannot_be_had_is_an_error_at_once() -> None:
    """An exbibyte is refused when the pool is made, not when it is written."""
    with pytest.raises(MemoryError):
        MemoryPool(2**30, 2**30)
