"""Kinds of window group, as rules over which blocks of a chain are there.

Lengths are counted in blocks. A set of lengths is a Python int: bit L is set when the first L blocks can be served.
The AND of such sets over all groups, and its highest bit, cost a fraction of a microsecond for thousands of blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class AttentionRule(ABC):
    """What a group of layers that share an attention window needs in order to compute the next token."""

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
    def first_block(self, computed_tokens: int) -> int:
        """The first block that is still read once `computed_tokens` are computed; all before it may go."""


class FullAttention(AttentionRule):
    """Every token attends to all before it: every length up to the first hole, and all of it is read."""

    def servable(self, present: int, limit: int) -> int:
        """Every length up to the first hole."""
        lowest_zero = ~present & (present + 1)
        return (2 << min(lowest_zero.bit_length() - 1, limit)) - 1

    def first_block(self, computed_tokens: int) -> int:  # noqa: ARG002 - the rule of this kind does not depend on it
        """Always 0: nothing ever leaves the window."""
        return 0


class SlidingWindow(AttentionRule):
    """Every token attends to itself and the `window_tokens - 1` tokens before it.

    A length is servable when the blocks that cover the last `window_tokens - 1` positions before it are there. With a
    window of 1 that is none at all, and every length is.
    """

    def __init__(self, window_tokens: int, block_tokens: int) -> None:
        self.window_tokens = window_tokens
        self.block_tokens = block_tokens
        self._reach_blocks = -(-(window_tokens - 1) // block_tokens)

    def servable(self, present: int, limit: int) -> int:
        """Lengths that end a stretch of blocks as long as the window reaches back, or one that begins at block 0."""
        all_lengths = (2 << limit) - 1
        reach = self._reach_blocks
        whole = not (present + 1) & present and present.bit_length() >= limit
        if whole or not reach:
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

    def first_block(self, computed_tokens: int) -> int:
        """The block of the oldest token that the next one attends to."""
        return max(0, computed_tokens - self.window_tokens + 1) // self.block_tokens
