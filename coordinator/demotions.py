"""What goes down: content whose slot is needed, content that was just published, and content that may be needed soon.

A demotion is never waited for: where there is no room below, or too much is on its way, content is dropped instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.arriving import batch_of
from kvtroupe.coordinator.messages import NO_SLOTS

if TYPE_CHECKING:
    from kvtroupe.coordinator.arriving import Batch
    from kvtroupe.coordinator.ledger import Holder
    from kvtroupe.coordinator.messages import Slots
    from kvtroupe.coordinator.traffic import Traffic


class Demotions:
    """See the module.

    Args:
        traffic: between the pools.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._ahead = [place.pool for place in traffic.places if place.low_water_blocks]

    def take(self, pool: int, count: int, holder: Holder, now_s: float) -> Slots:
        """Take slots of a device pool; content that is worth it is demoted.

        Args:
            pool: number of the pool.
            count: slots, no more than are free.
            holder: who uses them.
            now_s: the time now.
        """
        traffic = self._traffic
        ledger = traffic.pools[pool].ledger
        worth, batch, destinations = NO_SLOTS, None, NO_SLOTS
        if traffic.places[pool].copies_on_evict:
            worth = self._worth_keeping(pool, ledger.peek(count))
            batch, destinations = self._places_below(pool, worth, now_s)
        taken, evicted = ledger.take(count, holder)
        if evicted:
            traffic.binds.evicted(evicted)
            traffic.counters.evictions += sum([len(slots) for slots in evicted.values()])
        if len(worth):
            traffic.counters.demotions_given_up += len(worth) - len(destinations)
        if batch is not None:
            traffic.copy_down(batch, pool, destinations, now_s)
        return taken

    def published(self, pool: int, slots: Slots, now_s: float) -> None:
        """Blocks of a chain were published: copy them below if that is to happen at once."""
        if self._traffic.places[pool].copies_on_commit and len(slots):
            self.copy_down(pool, slots, now_s)

    def ahead(self, now_s: float) -> None:
        """Copy down what would be lost next, so that slots stand ready whose content may be dropped.

        They are looked for when a quarter of them has been taken, not each time.
        """
        traffic = self._traffic
        for pool in self._ahead:
            place = traffic.places[pool]
            assert place.below is not None
            if 4 * traffic.taken_below[pool] < place.low_water_blocks or not traffic.room(place.below, now_s):
                continue
            worth = self._worth_keeping(pool, traffic.pools[pool].ledger.peek(place.low_water_blocks))
            if len(self.copy_down(pool, worth, now_s)) == len(worth):
                traffic.taken_below[pool] = 0

    def copy_down(self, pool: int, slots: Slots, now_s: float) -> Slots:
        """Copy blocks below that are not there yet, the first ones if there is not room for all.

        Returns:
            the slots that are copied.
        """
        worth = self._worth_keeping(pool, slots)[::-1]
        batch, destinations = self._places_below(pool, worth, now_s)
        if batch is None:
            return NO_SLOTS
        self._traffic.copy_down(batch, pool, destinations, now_s)
        return batch.slots

    def _worth_keeping(self, pool: int, slots: Slots) -> Slots:
        published = slots.compress(self._traffic.pools[pool].ledger.published.take(slots) != 0)
        return published.compress(self._traffic.worth_keeping(pool, published)) if len(published) else published

    def _places_below(self, pool: int, worth: Slots, now_s: float) -> tuple[Batch | None, Slots]:
        """Of slots worth keeping those for which slots below were taken, and these.

        Where there are too few, the last ones are kept. In the order of the free slots these are of higher priority,
        were used later, or are nearer to the beginning of their chain.
        """
        traffic = self._traffic
        lower = traffic.places[pool].below
        assert lower is not None
        wanted = min(len(worth), traffic.room(lower, now_s)) if len(worth) else 0
        destinations = traffic.take_below(lower, wanted, now_s) if wanted else NO_SLOTS
        if not len(destinations):
            return None, destinations
        return batch_of(traffic.pools[pool].ledger, worth[len(worth) - len(destinations) :]), destinations
