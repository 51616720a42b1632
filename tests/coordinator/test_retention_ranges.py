"""Retention of ranges of a prompt and of the blocks after it."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from kvtroupe.coordinator.errors import ConfigError
from kvtroupe.coordinator.retention import MOST_RANGES, Retention, RetentionRange

if TYPE_CHECKING:
    from numpy.typing import NDArray


def blocks(retention: Retention, start: int, end: int, *, prompt_tokens: int = 64) -> tuple[object, object]:
    """Priorities and durations of blocks of 16 tokens, arrays as lists."""
    priority, duration_s = retention.for_blocks(start, end, 16, prompt_tokens)
    return plain(priority), plain(duration_s)


def plain(value: float | NDArray[Any] | None) -> object:
    """An array as a list."""
    return value.tolist() if isinstance(value, np.ndarray) else value


# -- which block gets what ---------------------------------------------------------------------------------------------


def test_blocks_of_a_plain_retention_are_all_alike() -> None:
    """One priority and one duration, whatever blocks are asked for."""
    assert blocks(Retention(70, 9.5), 0, 100) == (70, 9.5)
    assert blocks(Retention(), 3, 4) == (35, None)


def test_a_block_is_judged_by_its_first_token() -> None:
    """Blocks begin at 0, 16, 32 and 48: only that at 32 begins in tokens 20 to 44."""
    retention = Retention(ranges=(RetentionRange(20, 45, 70),))

    assert blocks(retention, 0, 4) == ([35, 35, 70, 35], None)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (16, 32, [35, 70, 35, 35]),  # exactly one block
        (16, 33, [35, 70, 70, 35]),  # and the first token of the next
        (15, 17, [35, 70, 35, 35]),
        (0, 1, [70, 35, 35, 35]),
        (48, None, [35, 35, 35, 70]),
        (33, None, [35, 35, 35, 70]),
    ],
)
def test_the_ends_of_a_range_decide_to_the_token(start: int, end: int | None, expected: list[int]) -> None:
    """The first token belongs to it, and the one at its end does not."""
    assert blocks(Retention(ranges=(RetentionRange(start, end, 70),)), 0, 4) == (expected, None)


@pytest.mark.parametrize(("start", "end"), [(1, 16), (17, 31), (49, 64), (49, None), (64, 1000), (64, None)])
def test_a_range_in_which_no_block_of_the_prompt_begins_has_no_effect(start: int, end: int | None) -> None:
    """It is smaller than a block, or behind the last first token of the prompt's 64."""
    assert blocks(Retention(20, 7.0, (RetentionRange(start, end, 70),)), 0, 6) == (20, 7.0)


def test_blocks_in_no_range_have_the_retention_of_the_sequence() -> None:
    """With its duration; a range has its own, or none, which stands as infinite among finite ones."""
    ranges = (RetentionRange(16, 32, 70, 5.0), RetentionRange(32, 48, 80))

    assert blocks(Retention(20, 9.0, ranges), 0, 4) == ([20, 70, 80, 20], [9.0, 5.0, math.inf, 9.0])


def test_only_what_differs_is_an_array() -> None:
    """Equal priorities or equal durations are one value; both are where one range holds every block asked for."""
    same_priority = Retention(70, None, (RetentionRange(16, 32, 70, 5.0),))
    same_duration = Retention(20, 5.0, (RetentionRange(16, 32, 70, 5.0),))

    assert blocks(same_priority, 0, 3) == (70, [math.inf, 5.0, math.inf])
    assert blocks(same_duration, 0, 3) == ([20, 70, 20], 5.0)
    assert blocks(same_duration, 1, 2) == (70, 5.0)
    assert blocks(same_duration, 2, 9) == (20, 5.0)


def test_arrays_are_of_the_types_that_a_ledger_takes() -> None:
    """One byte for a priority, and a float for a duration."""
    retention = Retention(20, 9.0, (RetentionRange(16, 32, 70),))

    priority, duration_s = retention.for_blocks(0, 3, 16, 64)

    assert isinstance(priority, np.ndarray)
    assert isinstance(duration_s, np.ndarray)
    assert (priority.dtype.name, duration_s.dtype.name) == ("uint8", "float64")


def test_no_block_at_all_has_the_retention_of_the_sequence() -> None:
    """Nothing is looked up."""
    retention = Retention(20, 9.0, (RetentionRange(0, None, 70),), 80)

    assert blocks(retention, 2, 2) == (20, 9.0)
    assert blocks(retention, 9, 9) == (20, 9.0)


# -- after the prompt --------------------------------------------------------------------------------------------------


def test_blocks_that_begin_after_the_prompt_may_have_their_own_retention() -> None:
    """Of a prompt of 40 tokens the block at 32 is the last; the one at 48 is the first after it."""
    retention = Retention(20, 9.0, (), 80, 5.0)

    assert blocks(retention, 0, 5, prompt_tokens=40) == ([20, 20, 20, 80, 80], [9.0, 9.0, 9.0, 5.0, 5.0])
    assert blocks(retention, 2, 3, prompt_tokens=40) == (20, 9.0)
    assert blocks(retention, 3, 5, prompt_tokens=40) == (80, 5.0)
    assert blocks(retention, 3, 5, prompt_tokens=48) == (80, 5.0)
    assert blocks(retention, 3, 5, prompt_tokens=49) == ([20, 80], [9.0, 5.0])


def test_a_priority_after_the_prompt_without_a_duration_is_for_good() -> None:
    """The duration of the sequence is that of its own priority."""
    assert blocks(Retention(20, 9.0, (), 80), 3, 5, prompt_tokens=40) == (80, None)


@pytest.mark.parametrize("decode_priority", [None, 80])
def test_ranges_end_with_the_prompt(decode_priority: int | None) -> None:
    """Those with an open end, and those that reach further: generated blocks are not the prompt's."""
    after = 20 if decode_priority is None else decode_priority
    for end in (None, 1000, 49):
        retention = Retention(20, None, (RetentionRange(16, end, 70),), decode_priority)
        assert blocks(retention, 0, 5, prompt_tokens=40) == ([20, 70, 70, after, after], None)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_ranges_may_come_in_any_order() -> None:
    """They are kept in that of their tokens, so that equal retentions are equal."""
    first, second, third = RetentionRange(0, 4, 1), RetentionRange(4, 9, 2), RetentionRange(100, None, 3)

    made = Retention(ranges=(third, first, second))

    assert made.ranges == (first, second, third)
    assert made == Retention(ranges=(first, second, third))
    assert hash(made) == hash(Retention(ranges=(first, second, third)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (RetentionRange(0, 5, 1), RetentionRange(4, 9, 2)),
        (RetentionRange(0, 50, 1), RetentionRange(4, 9, 1)),
        (RetentionRange(4, 5, 1), RetentionRange(4, 9, 2)),
        (RetentionRange(0, None, 1), RetentionRange(4, 9, 2)),
        (RetentionRange(0, None, 1), RetentionRange(4, None, 2)),
    ],
)
def test_ranges_that_overlap_are_refused(before: RetentionRange, after: RetentionRange) -> None:
    """In either order; one with an open end may only be the last."""
    named = f"overlap: one of tokens {before.start_tokens} to {before.end_tokens} and one that begins at 4"
    for ranges in ((before, after), (after, before)):
        with pytest.raises(ConfigError, match=named if before.start_tokens < 4 else "overlap"):
            Retention(ranges=ranges)


@pytest.mark.parametrize("start", [-1, 0.0, True, None, "0"])
def test_a_range_begins_at_a_whole_number(start: Any) -> None:  # noqa: ANN401 - bad values are of any type
    """From 0 on."""
    with pytest.raises(ConfigError, match=f"start_tokens {start!r} is no whole number from 0 on"):
        RetentionRange(start, None, 50)


@pytest.mark.parametrize("end", [-1, 0, 3, 4, 5.0, float("inf"), True, "9"])
def test_a_range_ends_behind_its_beginning(end: Any) -> None:  # noqa: ANN401 - bad values are of any type
    """At a whole number, or nowhere."""
    with pytest.raises(ConfigError, match=f"end_tokens {end!r} is no whole number above start_tokens 4; use None"):
        RetentionRange(4, end, 50)


def test_priorities_and_durations_of_ranges_and_after_the_prompt_are_checked() -> None:
    """As those of the sequence are."""
    with pytest.raises(ConfigError, match=r"retention range priority 101 is .* 0 to 100; the default is 35"):
        RetentionRange(0, 1, 101)
    with pytest.raises(ConfigError, match="retention range duration_s 0 is no positive number"):
        RetentionRange(0, 1, 100, 0)
    with pytest.raises(ConfigError, match=r"retention decode_priority -1 is .* 0 to 100"):
        Retention(decode_priority=-1)
    with pytest.raises(ConfigError, match=r"retention decode_duration_s -2\.0 is no positive number"):
        Retention(decode_priority=1, decode_duration_s=-2.0)


def test_a_duration_after_the_prompt_needs_a_priority() -> None:
    """It says when the priority falls back, so there has to be one."""
    with pytest.raises(ConfigError, match=r"decode_duration_s 5\.0 without a decode_priority"):
        Retention(decode_duration_s=5.0)


@pytest.mark.parametrize("ranges", [None, [], [RetentionRange(0, 1, 2)], ((0, 1, 2),), (RetentionRange(0, 1, 2), None)])
def test_ranges_are_a_tuple_of_ranges(ranges: Any) -> None:  # noqa: ANN401 - bad values are of any type
    """A retention never changes, and neither do its parts."""
    with pytest.raises(ConfigError, match="are no tuple of RetentionRange"):
        Retention(ranges=ranges)


def test_the_number_of_ranges_has_a_bound() -> None:
    """1024 are allowed, and one more is not."""
    ranges = tuple(RetentionRange(at, at + 1, at % 101) for at in range(MOST_RANGES + 1))

    assert len(Retention(ranges=ranges[:-1]).ranges) == 1024
    with pytest.raises(ConfigError, match="1025 retention ranges are more than 1024"):
        Retention(ranges=ranges)


# -- a slow model ------------------------------------------------------------------------------------------------------

PRIORITY = st.sampled_from([0, 35, 80])
DURATION_S = st.sampled_from([None, 5.0, 60.0])


@st.composite
def retentions(draw: st.DrawFn) -> Retention:
    """Some ranges with gaps or none between them, the last one open now and then."""
    ends = sorted(draw(st.sets(st.integers(0, 70), max_size=8)))
    pairs = [pair for pair in itertools.pairwise(ends) if draw(st.booleans())]
    ranges = [RetentionRange(start, end, draw(PRIORITY), draw(DURATION_S)) for start, end in pairs]
    if draw(st.booleans()):
        ranges.append(RetentionRange(draw(st.integers(71, 80)), None, draw(PRIORITY), draw(DURATION_S)))
    decode = draw(st.one_of(st.just((None, None)), st.tuples(PRIORITY, DURATION_S)))
    return Retention(draw(PRIORITY), draw(DURATION_S), tuple(draw(st.permutations(ranges))), *decode)


def looked_up(retention: Retention, first_token: int, prompt_tokens: int) -> tuple[int, float]:
    """Priority and duration of the block with this first token."""
    found: tuple[int, float | None] = retention.priority, retention.duration_s
    if first_token >= prompt_tokens and retention.decode_priority is not None:
        found = retention.decode_priority, retention.decode_duration_s
    for each in retention.ranges:
        if each.start_tokens <= first_token < min(prompt_tokens, each.end_tokens or prompt_tokens):
            found = each.priority, each.duration_s
    return found[0], math.inf if found[1] is None else found[1]


@hypothesis.settings(max_examples=300, deadline=None, database=None)
@hypothesis.given(retentions(), st.integers(0, 30), st.integers(0, 40), st.integers(1, 9), st.integers(1, 100))
def test_the_retention_of_many_blocks_is_that_of_each(
    retention: Retention, start: int, count: int, block_tokens: int, prompt_tokens: int
) -> None:
    """Looked up one by one; whatever is equal is no array."""
    priority, duration_s = retention.for_blocks(start, start + count, block_tokens, prompt_tokens)

    each = [looked_up(retention, block * block_tokens, prompt_tokens) for block in range(start, start + count)]
    duration_s = math.inf if duration_s is None else duration_s
    for got, expected in ((priority, [one for one, _ in each]), (duration_s, [other for _, other in each])):
        assert isinstance(got, np.ndarray) == (len(set(expected)) > 1)
        assert np.broadcast_to(got, count).tolist() == expected
