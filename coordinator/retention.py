"""How long published blocks are worth keeping: a priority, and optionally a time after which it falls back.

One retention speaks for a whole sequence. Ranges of its prompt may have their own, and so may the blocks that follow
the prompt. A block is judged by its first token, so a range in which no block begins has no effect.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

DEFAULT_PRIORITY = 35
LOWEST_PRIORITY = 0
HIGHEST_PRIORITY = 100
LONGEST_DURATION_S = 1e12  # 31,000 years
MOST_RANGES = 1024  # every commit of a prompt may read them


@dataclass(frozen=True, slots=True)
class RetentionRange:
    """Retention of the blocks of a prompt whose first token lies in a range of tokens.

    Attributes:
        start_tokens: the first token of the range.
        end_tokens: the token after its last one; None: up to the end of the prompt.
        priority: 0 to 100, as of a retention.
        duration_s: as of a retention.

    Raises:
        ConfigError: a value is out of range, or the range is empty.
    """

    start_tokens: int
    end_tokens: int | None
    priority: int
    duration_s: float | None = None

    def __post_init__(self) -> None:
        start, end = self.start_tokens, self.end_tokens
        if type(start) is not int or start < 0:
            raise ConfigError(f"retention range start_tokens {start!r} is no whole number from 0 on")
        if end is not None and (type(end) is not int or end <= start):
            raise ConfigError(
                f"retention range end_tokens {end!r} is no whole number above start_tokens {start}; "
                "use None for the end of the prompt"
            )
        _check_priority("retention range priority", self.priority)
        _check_duration("retention range duration_s", self.duration_s)


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention of the blocks that a sequence publishes.

    Attributes:
        priority: 0 to 100; free blocks of a lower priority are taken first.
        duration_s: seconds after publication at which the priority falls back to the default; None: never.
        ranges: of the prompt, with a retention of their own; no two overlap. They may come in any order and are kept in
            that of their tokens.
        decode_priority: of the blocks that begin after the prompt; None: these are like the blocks in no range.
        decode_duration_s: of the blocks that begin after the prompt, if they have a priority of their own.

    Raises:
        ConfigError: a priority or a duration is out of range, ranges overlap or are too many, or there is a duration
            for blocks after the prompt without a priority.
    """

    priority: int = DEFAULT_PRIORITY
    duration_s: float | None = None
    ranges: tuple[RetentionRange, ...] = ()
    decode_priority: int | None = None
    decode_duration_s: float | None = None

    def __post_init__(self) -> None:
        _check_priority("retention priority", self.priority)
        _check_duration("retention duration_s", self.duration_s)
        if self.decode_priority is not None:
            _check_priority("retention decode_priority", self.decode_priority)
            _check_duration("retention decode_duration_s", self.decode_duration_s)
        elif self.decode_duration_s is not None:
            raise ConfigError(
                f"retention decode_duration_s {self.decode_duration_s!r} without a decode_priority: name the priority "
                "that is to fall back"
            )
        object.__setattr__(self, "ranges", _in_order(self.ranges))

    def for_blocks(
        self, start_block: int, end_block: int, block_tokens: int, prompt_tokens: int
    ) -> tuple[int | NDArray[np.uint8], float | NDArray[np.float64] | None]:
        """The retention of each of some blocks of a sequence.

        Args:
            start_block: the first of them.
            end_block: the one after the last.
            block_tokens: tokens of a block.
            prompt_tokens: tokens of the sequence's prompt.

        Returns:
            the priority and the duration in seconds of every block: one value where all are equal, else arrays
            [blocks], in which an infinite duration stands for none.
        """
        if self.decode_priority is None and not self.ranges:
            return self.priority, self.duration_s
        ends, priorities, durations_s = [start_block], [], []
        for end_tokens, priority, duration_s in self._stretches(start_block * block_tokens, prompt_tokens):
            end = end_block if end_tokens is None else min(-(-end_tokens // block_tokens), end_block)
            if end > ends[-1]:
                ends.append(end)
                priorities.append(priority)
                durations_s.append(duration_s)
            if end == end_block:
                break
        if len(priorities) <= 1:
            return (priorities[0], durations_s[0]) if priorities else (self.priority, self.duration_s)
        lengths = np.diff(ends)
        return _spread(priorities, lengths), _spread_durations(durations_s, lengths)

    def _stretches(self, from_token: int, prompt_tokens: int) -> Iterator[tuple[int | None, int, float | None]]:
        """Where each stretch of equal retention ends, its priority and its duration, from a token on; None: nowhere.

        The first ones may be empty, or end before the token.
        """
        if from_token < prompt_tokens:
            first = bisect_right(self.ranges, from_token, key=lambda each: each.start_tokens) - 1
            for each in self.ranges[max(0, first) :]:
                if each.start_tokens >= prompt_tokens:
                    break
                yield each.start_tokens, self.priority, self.duration_s
                end = prompt_tokens if each.end_tokens is None else min(each.end_tokens, prompt_tokens)
                yield end, each.priority, each.duration_s
            yield prompt_tokens, self.priority, self.duration_s
        if self.decode_priority is None:
            yield None, self.priority, self.duration_s
        else:
            yield None, self.decode_priority, self.decode_duration_s


# -- checks ------------------------------------------------------------------------------------------------------------


def _check_priority(name: str, priority: int) -> None:
    if type(priority) is not int or not LOWEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
        raise ConfigError(
            f"{name} {priority!r} is no whole number from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}; "
            f"the default is {DEFAULT_PRIORITY}"
        )


def _check_duration(name: str, duration_s: float | None) -> None:
    if duration_s is None:
        return
    if type(duration_s) not in (int, float) or not 0 < duration_s <= LONGEST_DURATION_S:
        raise ConfigError(
            f"{name} {duration_s!r} is no positive number of seconds up to {LONGEST_DURATION_S:.0e}; "
            "use None to keep the priority for good"
        )


def _in_order(ranges: tuple[RetentionRange, ...]) -> tuple[RetentionRange, ...]:
    """The ranges in order of their tokens, unless they overlap."""
    if type(ranges) is not tuple or not all(type(each) is RetentionRange for each in ranges):
        raise ConfigError(f"retention ranges {ranges!r:.200} are no tuple of RetentionRange")
    if len(ranges) > MOST_RANGES:
        raise ConfigError(f"{len(ranges)} retention ranges are more than {MOST_RANGES}: join neighbours")
    ordered = tuple(sorted(ranges, key=lambda each: each.start_tokens))
    for before, after in pairwise(ordered):
        if before.end_tokens is None or before.end_tokens > after.start_tokens:
            raise ConfigError(
                f"retention ranges overlap: one of tokens {before.start_tokens} to {before.end_tokens} and one that "
                f"begins at {after.start_tokens}; a token may be in one range, and only the last may have no end"
            )
    return ordered


# -- values of many blocks ---------------------------------------------------------------------------------------------


def _spread(priorities: list[int], lengths: NDArray[np.int64]) -> int | NDArray[np.uint8]:
    if len(set(priorities)) == 1:
        return priorities[0]
    return np.array(priorities, np.uint8).repeat(lengths)


def _spread_durations(
    durations_s: list[float | None], lengths: NDArray[np.int64]
) -> float | NDArray[np.float64] | None:
    if len(set(durations_s)) == 1:
        return durations_s[0]
    return np.array([np.inf if each is None else each for each in durations_s], np.float64).repeat(lengths)


DEFAULT_RETENTION = Retention()
