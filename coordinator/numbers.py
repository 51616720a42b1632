"""Numbers that are given once."""

from __future__ import annotations


class Numbers:
    """They count from 1."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        """One that was never given."""
        self.last += 1
        return self.last
