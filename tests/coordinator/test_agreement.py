"""The lengths that groups agree on, by hand and against trying every length."""

from __future__ import annotations

from random import Random

import pytest

from kvtroupe.coordinator.agreement import Agreement, agree, at_multiples
from kvtroupe.coordinator.attention import (
    AttentionRule,
    ChunkedAttention,
    FullAttention,
    RecurrentState,
    SlidingWindow,
)

FULL = FullAttention(4)


def test_groups_agree_on_the_longest_length_that_all_can_serve() -> None:
    """Lengths: full has 0-3 of its first hole at 3; the window of one block has 0, 1 and 3-5: together 3."""
    rules = [FULL, SlidingWindow(5, 4)]

    assert agree([0b10111, 0b11101], rules, [1, 1], 5).units == 3
    assert agree([0b10111, 0b11101], rules, [1, 1], 2).units == 1
    assert agree([0b10111, 0b11010], rules, [1, 1], 3).units == 2
    assert agree([0b11110, 0b11111], rules, [1, 1], 5).units == 0
    assert agree([0b11111, 0b11111], rules, [1, 1], 0).units == 0


def test_the_junction_is_what_the_first_group_serves_beyond_the_agreed_length() -> None:
    """Full serves 4, the states end at 1 and 3: agreed 3, of which the first group has one more."""
    assert agree([0b1111, 0b101], [FULL, RecurrentState(4)], [1, 1], 4) == Agreement(3, 1)
    assert agree([0b1111, 0b0], [FULL, RecurrentState(4)], [1, 1], 4) == Agreement(0, 4)


def test_what_later_groups_serve_beyond_the_first_is_no_junction() -> None:
    """The first group serves 2, the second 4."""
    assert agree([0b11, 0b1111], [FULL, FULL], [1, 1], 4) == Agreement(2, 0)


def test_groups_with_smaller_blocks_serve_whole_units_only() -> None:
    """Blocks of 8 and of 4 tokens, in units of 8: five small blocks are two units and a half."""
    rules = [FullAttention(8), FullAttention(4)]

    assert agree([0b111, 0b11111], rules, [1, 2], 3) == Agreement(2, 1)
    assert agree([0b111, 0b111111], rules, [1, 2], 3) == Agreement(3, 0)
    assert agree([0b111, 0b11011], rules, [1, 2], 3) == Agreement(1, 2)


@pytest.mark.parametrize(
    ("lengths", "stride", "units"),
    [(0b1, 3, 0b1), (0b1000, 3, 0b10), (0b111, 3, 0b1), (0b1001001, 3, 0b111), (0b110101, 1, 0b110101)],
)
def test_lengths_in_blocks_become_lengths_in_units(lengths: int, stride: int, units: int) -> None:
    """Bit stride * L becomes bit L; lengths between are no whole units."""
    assert at_multiples(lengths, stride) == units


@pytest.mark.parametrize("seed", range(300))
def test_agreement_is_what_trying_every_length_finds(seed: int) -> None:
    """For random evidence, kinds and block sizes."""
    random = Random(seed)  # noqa: S311 - chooses test cases
    strides = [random.choice([1, 1, 2, 3]) for _ in range(random.randint(1, 4))]
    rules = [random_rule(random, 12 // stride) for stride in strides]
    limit = random.randint(0, 9)
    likely = random.choice([0.5, 0.9, 0.99])
    present = [sum([(random.random() < likely) << block for block in range(limit * stride)]) for stride in strides]

    served = [
        [rule.servable(found, limit * stride) >> length * stride & 1 for length in range(limit + 1)]
        for found, rule, stride in zip(present, rules, strides, strict=True)
    ]
    longest = max([length for length in range(limit + 1) if all(column[length] for column in served)])
    first = max([length for length in range(limit + 1) if served[0][length]])
    assert agree(present, rules, strides, limit) == Agreement(longest, first - longest)


def random_rule(random: Random, block_tokens: int) -> AttentionRule:
    """A rule of any kind that takes part."""
    return random.choice(
        [
            FullAttention(block_tokens),
            SlidingWindow(random.randint(1, 60), block_tokens),
            ChunkedAttention(random.randint(1, 60), block_tokens),
            RecurrentState(block_tokens),
        ]
    )
