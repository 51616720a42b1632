"""Device slots after the coordinator was lost: processes may still write into what the old one gave them.

Nothing is known of which slots that are, so that all of them are in quarantine until every process that maps device
memory is known to be dead, or has acknowledged that it holds none of them any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.ledger import Holder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtroupe.coordinator.ledger import Ledger
    from kvtroupe.coordinator.messages import Slots


class Recovery:
    """See the module.

    Args:
        ledgers: of the device pools, by number.
    """

    def __init__(self, ledgers: dict[int, Ledger]) -> None:
        self._ledgers = ledgers
        self._processes: set[str | int] = set()
        self._held: dict[int, Slots] = {}

    def begin(self, process_ids: Iterable[str | int]) -> None:
        """Keep all device slots, none of which is in use, until these processes have acknowledged the loss."""
        self._processes = set(process_ids)
        if self._processes:
            self._held = {
                pool: ledger.take(ledger.free, Holder.QUARANTINE)[0] for pool, ledger in self._ledgers.items()
            }

    def acknowledged(self, process_id: str | int) -> None:
        """A process is dead, or writes into nothing that the old coordinator gave it."""
        self._processes.discard(process_id)
        if self._processes:
            return
        for pool, slots in self._held.items():
            self._ledgers[pool].release(slots[::-1], Holder.QUARANTINE)
        self._held = {}

    def holders(self, pool: int) -> list[tuple[str, str, Slots]]:
        """What is held in a pool, as (kind, id, slots), for inspection."""
        return [("quarantine", "earlier epoch", self._held[pool])] if pool in self._held else []
