"""The length of a prompt that all window groups can serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.attention import AttentionRule

_NOTHING = 1  # of all lengths, only 0


class Agreement(NamedTuple):
    """How much of a prompt is hit.

    Attributes:
        units: the longest length that every group serves.
        junction_units: how much more the first group serves.
    """

    units: int
    junction_units: int


def agree(
    present: Sequence[int], rules: Sequence[AttentionRule], strides: Sequence[int], limit_units: int
) -> Agreement:
    """The longest prefix that every group can serve.

    Args:
        present: for each group, bit i is set when block i of the group is published.
        rules: of the groups.
        strides: for each group its blocks in one unit.
        limit_units: longest length wanted.
    """
    for found, stride in zip(present, strides, strict=True):
        if found != (1 << limit_units * stride) - 1:
            break
    else:
        return Agreement(limit_units, 0)  # with every block there, every rule serves every length
    lengths = (2 << limit_units) - 1
    first = 0
    for found, rule, stride in zip(present, rules, strides, strict=True):
        served = at_multiples(rule.servable(found, limit_units * stride), stride)
        first = first or served
        lengths &= served
        if lengths == _NOTHING:
            break
    units = lengths.bit_length() - 1
    return Agreement(units, max(0, first.bit_length() - 1 - units))


def at_multiples(lengths: int, stride: int) -> int:
    """Of a set of lengths in blocks those that are whole units, in units.

    Args:
        lengths: bit L is set when the first L blocks can be served.
        stride: blocks of one unit.
    """
    if stride == 1:
        return lengths
    lowest_first = f"{lengths:b}"[::-stride]  # one binary digit of every `stride`
    return int(lowest_first[::-1], 2)
