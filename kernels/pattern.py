"""What the bytes of a block must be, worked out from its digest: the means to prove that no block was mixed up.

The bytes are those of a table of pseudo-random words, one for each place in a block, each XORed with a word that
stands for the digest and the group. So a block of another digest or another group, a block that is shifted, and a block
that is torn between two contents differ from what is expected in nearly all of the bytes concerned, and the bytes of
many blocks are made at the speed of memory.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORD_BYTES = 8
# Odd numbers without structure, from the constants of SplitMix64.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


class BlockPattern:
    """The expected bytes of blocks of one size.

    Args:
        block_bytes: bytes of a block, any number from 1 on.
    """

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self._places = _mixed(np.arange(1, -(-block_bytes // WORD_BYTES) + 1, dtype=np.uint64) * GOLDEN)

    def rows(self, digests: NDArray[np.uint8], group: int) -> NDArray[np.uint8]:
        """The bytes of blocks.

        Args:
            digests: uint8 [blocks, digest bytes].
            group: number of the group that the blocks belong to, from 0 on.

        Returns:
            uint8 [blocks, block_bytes].
        """
        words = np.bitwise_xor.outer(_block_words(digests, group), self._places)
        return words.view(np.uint8)[:, : self.block_bytes]


def _block_words(digests: NDArray[np.uint8], group: int) -> NDArray[np.uint64]:
    """uint64 [blocks]: a word for each digest in this group."""
    blocks, digest_bytes = digests.shape
    if digest_bytes % WORD_BYTES:
        digests = np.concatenate((digests, np.zeros((blocks, -digest_bytes % WORD_BYTES), np.uint8)), axis=1)
    words = digests.view(np.uint64)
    group_word = (group + 1) * int(GOLDEN) % 2**64
    return _mixed(words @ _factors(words.shape[1]) + np.uint64(group_word))


@cache
def _factors(words: int) -> NDArray[np.uint64]:
    """Odd factors for the words of a digest: digests that differ in one word only cannot have equal sums."""
    return _mixed(np.arange(1, words + 1, dtype=np.uint64)) | np.uint64(1)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: a bijection after which near words have nothing in common."""
    words = (words ^ (words >> np.uint64(30))) * FIRST_FACTOR
    words = (words ^ (words >> np.uint64(27))) * SECOND_FACTOR
    return words ^ (words >> np.uint64(31))
