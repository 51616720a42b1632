"""Kinds of window group, as rules over which blocks of a chain are there.

Lengths are counted in blocks of the group. A set of lengths is a Python int: bit L is set when the first L blocks can
be served. The AND of such sets over all groups, and its highest bit, cost a fraction of a microsecond for thousands of
blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

Tokens = TypeVar("Tokens", int, NDArray[np.int64])  # one number, or one for each of many moments


class AttentionRule(ABC):
    """What a group of layers that share an attention kind needs in order to compute the next token.

    Args:
        block_tokens: tokens of one block of the group.

    Attributes:
        block_tokens: tokens of one block of the group.
        participates: whether the group has a say in how much of a prompt is hit.
    """

    participates: ClassVar[bool] = True

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens

    @abstractmethod
    def servable(self, present: int, limit: int) -> int:
        """The lengths that this group can serve.

        Args:
            present: bit i is set when block i of the chain is published.
            limit: longest length that may be served, in blocks.

        Returns:
            bit L is set, for L in 0..limit, when the group can go on after the first L blocks. Bit 0 is always set.
        """

    @abstractmethod
    def first_block(self, computed_tokens: Tokens) -> Tokens:
        """The first block that is still read once `computed_tokens` are computed; all before it may go."""

    def wanted(self, start_block: int, end_block: int, prompt_tokens: int) -> NDArray[np.bool_] | None:  # noqa: ARG002 - most kinds fill every column
        """Which new columns of the group's table need a slot.

        Args:
            start_block: first new column.
            end_block: the column after the last new one.
            prompt_tokens: length of the sequence's prompt.

        Returns:
            one bool for each new column, or None: all of them.
        """
        return None


class FullAttention(AttentionRule):
    """Every token attends to all before it: every length up to the first hole, and all of it is read."""

    def servable(self, present: int, limit: int) -> int:
        """Every length up to the first hole."""
        lowest_zero = ~present & (present + 1)
        return (2 << min(lowest_zero.bit_length() - 1, limit)) - 1

    def first_block(self, computed_tokens: Tokens) -> Tokens:
        """Always 0: nothing ever leaves the window."""
        return computed_tokens * 0


class SlidingWindow(AttentionRule):
    """Every token attends to itself and the `window_tokens - 1` tokens before it.

    A length is servable when the blocks that cover the last `window_tokens - 1` positions before it are there. With a
    window of 1 that is none at all, and every length is.

    Args:
        window_tokens: tokens that a token attends to, itself included.
        block_tokens: tokens of one block of the group.
    """

    def __init__(self, window_tokens: int, block_tokens: int) -> None:
        super().__init__(block_tokens)
        self.window_tokens = window_tokens
        self._reach_blocks = -(-(window_tokens - 1) // block_tokens)

    def servable(self, present: int, limit: int) -> int:
        """Lengths that end a stretch of blocks as long as the window reaches back, or one that begins at block 0."""
        all_lengths = (2 << limit) - 1
        reach = self._reach_blocks
        if not reach or _starts_whole(present, limit):
            return all_lengths
        # Bit i + reach is block i; the blocks before the first one count as there. After the loop a bit says that the
        # `reach` places ending there are there, found in log2(reach) steps.
        stretch = present << reach | (1 << reach) - 1
        covered = 1
        while covered < reach:
            step = min(covered, reach - covered)
            stretch &= stretch << step | (1 << step) - 1
            covered += step
        return stretch >> (reach - 1) & all_lengths

    def first_block(self, computed_tokens: Tokens) -> Tokens:
        """The block of the oldest token that the next one attends to."""
        oldest_token = computed_tokens - self.window_tokens + 1
        return oldest_token * (oldest_token > 0) // self.block_tokens


class ChunkedAttention(AttentionRule):
    """The positions are cut into chunks; every token attends to the tokens before it in its own chunk, and to itself.

    A length is servable when the blocks that cover the positions from the start of its own chunk on are there: none at
    all where a chunk begins.

    Args:
        chunk_tokens: tokens of one chunk.
        block_tokens: tokens of one block of the group.
    """

    def __init__(self, chunk_tokens: int, block_tokens: int) -> None:
        super().__init__(block_tokens)
        self.chunk_tokens = chunk_tokens

    def servable(self, present: int, limit: int) -> int:
        """In every chunk the lengths up to the first hole, counted from the block in which the chunk begins."""
        block_tokens, chunk_tokens = self.block_tokens, self.chunk_tokens
        if not block_tokens % chunk_tokens or _starts_whole(present, limit):
            return (2 << limit) - 1
        lengths, shortest = 0, 0
        while shortest <= limit:  # one chunk after the other, but for those in which no block ends
            chunk = shortest * block_tokens // chunk_tokens
            first_block = chunk * chunk_tokens // block_tokens
            longest = min(((chunk + 1) * chunk_tokens - 1) // block_tokens, limit)
            there = present >> first_block & (1 << longest - first_block) - 1
            served = first_block + (~there & (there + 1)).bit_length() - 1
            if served >= shortest:
                lengths |= (2 << served) - (1 << shortest)
            shortest = longest + 1
        return lengths

    def first_block(self, computed_tokens: Tokens) -> Tokens:
        """The block in which the chunk of the next token begins."""
        return computed_tokens // self.chunk_tokens * self.chunk_tokens // self.block_tokens


class RecurrentState(AttentionRule):
    """One state stands for all tokens before it; a published block is the state that ends exactly at its boundary.

    The state that a running sequence computes with is no column of its table. Columns hold what later prompts may go on
    from: the states at the multiples of `snapshot_tokens`, and the last one before the end of the prompt.

    Args:
        block_tokens: tokens of one block of the group: the unit of the configuration.
        snapshot_tokens: states are kept at its multiples too; a multiple of `block_tokens`.
    """

    def __init__(self, block_tokens: int, snapshot_tokens: int | None = None) -> None:
        super().__init__(block_tokens)
        self.snapshot_tokens = snapshot_tokens

    def servable(self, present: int, limit: int) -> int:
        """Every length at which a state ends."""
        return (present << 1 | 1) & ((2 << limit) - 1)

    def first_block(self, computed_tokens: Tokens) -> Tokens:
        """The block of the last token: its state is all that is read."""
        return (computed_tokens - (computed_tokens > 0)) // self.block_tokens

    def wanted(self, start_block: int, end_block: int, prompt_tokens: int) -> NDArray[np.bool_]:
        """The columns whose state is kept."""
        wanted = np.zeros(max(0, end_block - start_block), np.bool_)
        if self.snapshot_tokens is not None:
            every_blocks = self.snapshot_tokens // self.block_tokens
            wanted[(every_blocks - 1 - start_block) % every_blocks :: every_blocks] = True
        last_of_prompt = (prompt_tokens - 1) // self.block_tokens - 1  # a hit always leaves one token to compute
        if start_block <= last_of_prompt < end_block:
            wanted[last_of_prompt - start_block] = True
        return wanted


class _HeldWhole(AttentionRule):
    """Of no interest to hits on the prompt, and read from its first block on as long as the sequence runs."""

    participates: ClassVar[bool] = False

    def servable(self, present: int, limit: int) -> int:  # noqa: ARG002 - the prompt's hits do not depend on it
        """Every length."""
        return (2 << limit) - 1

    def first_block(self, computed_tokens: Tokens) -> Tokens:
        """Always 0."""
        return computed_tokens * 0


class CrossAttention(_HeldWhole):
    """Every token attends to the whole encoder input, whose blocks have digests of their own."""


class FixedBlocks(_HeldWhole):
    """So many blocks for each sequence, however long it is, that nothing else ever reads.

    Args:
        blocks: blocks of one sequence.
        block_tokens: tokens of one block of the replica.
    """

    def __init__(self, blocks: int, block_tokens: int) -> None:
        super().__init__(block_tokens)
        self.blocks = blocks


def _starts_whole(present: int, limit: int) -> bool:
    """Whether the first `limit` blocks are there, and none after a hole: the common case, and cheap to see."""
    return not (present + 1) & present and present.bit_length() >= limit
