"""The lengths of a chain that all window groups can serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.attention import AttentionRule

_NOTHING = 1  # of all lengths, only 0


def agreed_blocks(present: Sequence[int], rules: Sequence[AttentionRule], limit_blocks: int) -> int:
    """The longest prefix that every group can serve, in blocks.

    Args:
        present: for each group, bit i is set when block i is published.
        rules: of the groups.
        limit_blocks: longest length wanted.
    """
    whole = (1 << limit_blocks) - 1
    if present.count(whole) == len(present):
        return limit_blocks  # with every block there, every rule serves every length
    lengths = 2 * whole + 1
    for found, rule in zip(present, rules, strict=True):
        lengths &= rule.servable(found, limit_blocks)
        if lengths == _NOTHING:
            return 0
    return lengths.bit_length() - 1
