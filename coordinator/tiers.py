"""The tiers of a replica as its state sees them: what is taken, brought up, awaited, and what comes of copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.binds import Binds
from kvtroupe.coordinator.claims import Claimer
from kvtroupe.coordinator.copy_room import CopyRoom
from kvtroupe.coordinator.demotions import Demotions
from kvtroupe.coordinator.extensions import Extender
from kvtroupe.coordinator.landings import Landings
from kvtroupe.coordinator.ledger import Holder
from kvtroupe.coordinator.lifts import Lifts
from kvtroupe.coordinator.messages import NO_SLOTS, Copies
from kvtroupe.coordinator.tiered_claims import TieredClaimer
from kvtroupe.coordinator.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kvtroupe.coordinator.claims import Stale
    from kvtroupe.coordinator.messages import Output, Slots
    from kvtroupe.coordinator.parts import Parts
    from kvtroupe.coordinator.waits import Waits


class Tiers:
    """See the module.

    Args:
        parts: of the state.
        waits: who waits for copies.

    Attributes:
        binds: what groups are to be told.
        claimer: of what requests hit.
        copy_room: for copies within the device.
        extender: of hits that go on within a block.
        has_lower: whether there are pools below the device.
        lost_devices: numbers of the device pools whose memory is lost and not there again.
    """

    def __init__(self, parts: Parts, waits: Waits) -> None:
        self.binds = Binds(parts.mail)
        self.traffic = Traffic(parts.config, parts.pools, self.binds, parts.counters, parts.mail.epoch)
        self.demotions = Demotions(self.traffic)
        self.lifts = Lifts(self.traffic)
        self.landings = Landings(self.traffic, self.demotions, parts.mail, parts.publish_numbers)
        self.lost_devices: set[int] = set()
        self.has_lower = any(place.level for place in self.traffic.places)
        self.claimer = Claimer(parts.pools, parts.layout)
        if self.has_lower:
            self.claimer = TieredClaimer(parts.pools, parts.layout, self.lifts, waits)
        self._pools = parts.pools
        self._counters = parts.counters
        self._transfers = self.traffic.transfers
        self.copy_room = CopyRoom(len(parts.pools), self._transfers)
        self.extender = Extender(parts.pools, parts.layout, self.copy_room)

    # -- in a round ----------------------------------------------------------------------------------------------------

    def start(self, now_s: float) -> None:
        """A round is settled now."""
        if self.has_lower:
            self.lifts.start(now_s)
        self.copy_room.start()

    def take(self, wanted: Sequence[int], now_s: float) -> list[Slots]:
        """Take slots of every pool, once in a round; content that is worth it is demoted."""
        if self.has_lower:
            self.lifts.take_bounces()
        return [
            self.demotions.take(pool, count, Holder.SEQUENCE, now_s) if count else NO_SLOTS
            for pool, count in enumerate(wanted)
        ]

    def stale(self, stale: Stale) -> None:
        """Groups named places that had changed hands."""
        for (group, level), places in stale.items():
            self.binds.lost(group, level, np.array([*places], np.int64), np.array([*places.values()], np.int64))
            self._counters.stale_places += len(places)

    def copy_within(
        self, pool: int, sources: Slots, destinations: Slots, now_s: float, *, tokens: int | None = None
    ) -> NDArray[np.int64]:
        """Begin to copy slots of a device pool to others of it, for a request that waits.

        Args:
            pool: number of the pool.
            sources: to be read.
            destinations: one for each of them.
            now_s: the time now.
            tokens: how many of the first tokens of each are wanted; None: all.

        Returns:
            for each copy the transfer that carries it.
        """
        first_tokens = None if tokens is None else np.full(len(sources), tokens, np.int64)
        copies = Copies(pool, sources, pool, destinations, first_tokens)
        return self._transfers.begin(copies, now_s, urgent=True)

    def is_busy(self) -> bool:
        """Whether any copy is under way."""
        return self._transfers.is_open

    def reads_after(self, slots: Iterable[tuple[int, Slots]]) -> tuple[int, ...]:
        """What has to be awaited before slots of some pools are read."""
        found: set[int] = set()
        for pool, some in slots:
            found.update(self._transfers.awaited_before_reading(pool, some))
        return tuple(sorted(found))

    def writes_after(self, slots: Iterable[tuple[int, Slots]]) -> tuple[int, ...]:
        """What has to be awaited before slots of some pools are written."""
        found: set[int] = set()
        for pool, some in slots:
            found.update(self._transfers.awaited_before_writing(pool, some))
        return tuple(sorted(found))

    # -- after a round -------------------------------------------------------------------------------------------------

    def flush(self, now_s: float) -> list[Output]:
        """What is to be sent at the end of a step."""
        if self.has_lower:
            self.demotions.ahead(now_s)
        return self.binds.outputs() + self._transfers.flush()

    def holders(self, pool: int) -> list[tuple[str, str, Slots]]:
        """What copies hold in a pool, as (kind, id, slots), for inspection."""
        held: list[tuple[str, str, Slots]] = []
        for number, arriving in enumerate(self.traffic.arriving):
            if arriving is None:
                continue
            if number == pool:
                held.append(("transfer", "destinations", arriving.of_group(None)))
            elif self.traffic.is_up(pool, number):
                sources, counts = np.unique(arriving.sources_in(pool), return_counts=True)
                name = f"sources for pool {number}"
                times = range(int(counts.max(initial=0)))
                held += [("transfer", name, sources.compress(counts > several)) for several in times]
        return held
