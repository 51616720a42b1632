"""Room for the copies within the device that the requests of one round need, counted before any of them begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.transfers import Transfers


class CopyRoom:
    """See the module.

    Args:
        pools: how many there are.
        transfers: that copy.
    """

    def __init__(self, pools: int, transfers: Transfers) -> None:
        self._transfers = transfers
        self._planned = [0] * pools

    def start(self) -> None:
        """A round is settled now."""
        self._planned = [0] * len(self._planned)

    def plan(self, blocks: Sequence[int]) -> bool:
        """Count the copies of a request, which keep their place even if the request gets nothing.

        Args:
            blocks: for each pool how many.

        Returns:
            whether there is room for them beside all others.
        """
        for pool, count in enumerate(blocks):
            self._planned[pool] += count
        return all(
            not count or planned <= self._transfers.room(pool)
            for pool, (count, planned) in enumerate(zip(blocks, self._planned, strict=True))
        )
