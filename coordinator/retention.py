"""How long a published block is worth keeping: a priority, and optionally a time after which it falls back."""

from __future__ import annotations

from dataclasses import dataclass

from kvtroupe.coordinator.errors import ConfigError

DEFAULT_PRIORITY = 35
LOWEST_PRIORITY = 0
HIGHEST_PRIORITY = 100
LONGEST_DURATION_S = 1e12  # 31,000 years


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention of the blocks that a sequence publishes.

    Attributes:
        priority: 0 to 100; free blocks of a lower priority are taken first.
        duration_s: seconds after publication at which the priority falls back to the default; None: never.

    Raises:
        ConfigError: the priority or the duration is out of range.
    """

    priority: int = DEFAULT_PRIORITY
    duration_s: float | None = None

    def __post_init__(self) -> None:
        if type(self.priority) is not int or not LOWEST_PRIORITY <= self.priority <= HIGHEST_PRIORITY:
            raise ConfigError(
                f"retention priority {self.priority!r} is no whole number from {LOWEST_PRIORITY} to "
                f"{HIGHEST_PRIORITY}; the default is {DEFAULT_PRIORITY}"
            )
        if self.duration_s is None:
            return
        if type(self.duration_s) not in (int, float) or not 0 < self.duration_s <= LONGEST_DURATION_S:
            raise ConfigError(
                f"retention duration_s {self.duration_s!r} is no positive number of seconds up to "
                f"{LONGEST_DURATION_S:.0e}; use None to keep the priority for good"
            )


DEFAULT_RETENTION = Retention()
