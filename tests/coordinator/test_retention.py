"""Retention: a priority from 0 to 100, and a duration that is a time or nothing."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from kvtroupe.coordinator.errors import ConfigError
from kvtroupe.coordinator.retention import DEFAULT_RETENTION, Retention


def test_the_default_is_priority_35_for_good() -> None:
    """Whoever says nothing gets the middle of the road."""
    assert Retention() == DEFAULT_RETENTION == Retention(priority=35, duration_s=None)


@pytest.mark.parametrize("priority", [0, 1, 35, 99, 100])
@pytest.mark.parametrize("duration_s", [None, 1e-9, 1, 3600.5])
def test_priorities_and_durations_in_range_are_kept(priority: int, duration_s: float | None) -> None:
    """The ends of the range belong to it."""
    made = Retention(priority, duration_s)

    assert (made.priority, made.duration_s) == (priority, duration_s)


@pytest.mark.parametrize("priority", [-1, 101, 1000, 35.0, 35.5, float("nan"), True, "35", None])
def test_a_priority_out_of_range_is_refused(priority: Any) -> None:  # noqa: ANN401 - bad values are of any type
    """The message names the value, the range and the default."""
    with pytest.raises(ConfigError, match=f"priority {priority!r} is .* 0 to 100; the default is 35"):
        Retention(priority)


@pytest.mark.parametrize("duration_s", [0, 0.0, -1.0, float("inf"), float("-inf"), float("nan"), True, "60"])
def test_a_duration_that_is_no_time_is_refused(duration_s: Any) -> None:  # noqa: ANN401 - bad values are of any type
    """The message names the value and says how to keep a priority for good."""
    with pytest.raises(ConfigError, match=f"duration_s {duration_s!r} is no positive number.*use None"):
        Retention(50, duration_s)


def test_a_retention_never_changes() -> None:
    """Sequences share them."""
    made = Retention(50, 1.0)

    with pytest.raises(FrozenInstanceError):
        made.priority = 3  # type: ignore[misc]

    assert made == Retention(50, 1.0)
