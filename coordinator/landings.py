"""What follows the end of a copy: its blocks land in the index, or all that was said of them is taken back.

What was copied below the device and does not land is dropped there: a tier that outlives this coordinator must not tell
of it, since its bytes may be wrong, or an index has the block elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.ledger import Holder
from kvtroupe.coordinator.messages import LandRequest
from kvtroupe.coordinator.traffic import by_group

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtroupe.coordinator.arriving import Batch
    from kvtroupe.coordinator.demotions import Demotions
    from kvtroupe.coordinator.mail import Mail
    from kvtroupe.coordinator.messages import Generations, Output, PublishReply, Slots
    from kvtroupe.coordinator.numbers import Numbers
    from kvtroupe.coordinator.traffic import Traffic
    from kvtroupe.coordinator.transfer import Finished


@dataclass(frozen=True, slots=True)
class Copied:
    """Blocks that a copy was to bring to a pool.

    Attributes:
        pool: number of the pool.
        batch: the blocks, in their slots there.
        source_pool: number of the pool that they come from.
        sources: slots there.
        source_generations: of these slots when the copy began.
    """

    pool: int
    batch: Batch
    source_pool: int
    sources: Slots
    source_generations: Generations

    def only(self, chosen: NDArray[np.bool_] | slice) -> Copied:
        """Some of the blocks."""
        return Copied(
            self.pool,
            self.batch.only(chosen),
            self.source_pool,
            self.sources[chosen],
            self.source_generations[chosen],
        )


class Landings:
    """See the module.

    Args:
        traffic: between the pools.
        demotions: what goes on down as it arrives.
        mail: to the groups.
        numbers: of publications.
    """

    def __init__(self, traffic: Traffic, demotions: Demotions, mail: Mail, numbers: Numbers) -> None:
        self._traffic = traffic
        self._demotions = demotions
        self._mail = mail
        self._numbers = numbers
        self._open: dict[int, tuple[int, Copied]] = {}  # by the number of the question: group, blocks

    def finished(self, done: Finished, now_s: float) -> list[Output]:
        """All ranks have answered for a transfer: questions to the groups about what has come."""
        copied, failed = self._copied(done)
        if copied is None:
            return []
        arriving = self._traffic.arriving[copied.pool]
        assert arriving is not None
        void = arriving.is_void(copied.batch.slots)
        outputs: list[Output] = []
        arrived = copied.only(~(failed | void))
        if len(arrived.batch):
            arriving.copied(arrived.batch.slots)
            for group, chosen in by_group(arrived.batch.groups):
                publish_id = self._numbers.next()
                part = arrived.only(chosen)
                self._open[publish_id] = group, part
                level = self._traffic.places[part.pool].level
                outputs.append(
                    self._mail.to(group, LandRequest(publish_id, level, part.batch.slots, part.batch.generations))
                )
        if failed.any():
            outputs += self._fail(copied.only(failed), now_s)
        return outputs + self._end(copied.only(failed | void), is_there=False)

    def _copied(self, done: Finished) -> tuple[Copied | None, NDArray[np.bool_]]:
        """What a transfer was to bring that an index waits for, and which of it has failed."""
        copies = done.copies
        arriving = self._traffic.arriving[copies.destination_pool]
        failed = np.zeros(len(copies.destinations), np.bool_) if done.failed is None else done.failed
        if arriving is None:
            return None, failed
        brought = arriving.brought_by(done.transfer_id, copies.destinations)
        slots = copies.destinations.compress(brought)
        if not len(slots):
            return None, failed
        copied = Copied(copies.destination_pool, arriving.batch(slots), *arriving.sources(slots))
        return copied, failed.compress(brought)

    def _fail(self, copied: Copied, now_s: float) -> list[Output]:
        """Copies have failed: what arrives is forgotten; what could not be read up is gone, too."""
        traffic = self._traffic
        level = traffic.places[copied.pool].level
        for group, chosen in by_group(copied.batch.groups):
            part = copied.only(chosen)
            traffic.binds.lost(group, level, part.batch.slots, part.batch.generations)
        traffic.counters.copies_failed += len(copied.batch)
        if traffic.places[copied.source_pool].level < level:
            traffic.rest(copied.pool, now_s)
            return []
        is_first = np.zeros(len(copied.sources), np.bool_)
        is_first[np.unique(copied.sources, return_index=True)[1]] = True  # one that was copied twice is lost once
        return self._lose_sources(copied.only(is_first))

    def _lose_sources(self, copied: Copied) -> list[Output]:
        traffic = self._traffic
        for group, chosen in by_group(copied.batch.groups):
            part = copied.only(chosen)
            level = traffic.places[copied.source_pool].level
            traffic.binds.lost(group, level, part.sources, part.source_generations)
        arriving = traffic.arriving[copied.source_pool]
        assert arriving is not None
        arriving.void_under(copied.sources, copied.source_generations)  # it may be about to land there
        ledger = traffic.pools[copied.source_pool].ledger
        there = (ledger.generation.take(copied.sources) == copied.source_generations) & (
            ledger.published.take(copied.sources) != 0
        )
        unreadable = copied.sources.compress(there)
        ledger.unpublish(unreadable)
        return traffic.drop(copied.source_pool, unreadable)

    def answered(self, reply: PublishReply, now_s: float) -> list[Output] | None:
        """Publish what has entered the index of a group; None: the answer is to no such question."""
        found = self._open.get(reply.publish_id)
        if found is None or found[0] != reply.group:
            return None
        del self._open[reply.publish_id]
        group, copied = found
        arriving = self._traffic.arriving[copied.pool]
        assert arriving is not None
        void = arriving.is_void(copied.batch.slots)
        if reply.entered is None and not void.any():
            self._publish(group, copied, now_s)
            return self._end(copied)
        is_there = ~void if reply.entered is None else reply.entered & ~void
        entered = copied.only(is_there)
        if len(entered.batch):
            self._publish(group, entered, now_s)
        self._traffic.pools[copied.pool].ledger.give_up(copied.batch.slots.compress(void))
        return self._end(entered) + self._end(copied.only(~is_there), is_there=False)

    def _publish(self, group: int, entered: Copied, now_s: float) -> None:
        traffic, batch = self._traffic, entered.batch
        ledger = traffic.pools[entered.pool].ledger
        expires_s = batch.expires_s if np.isfinite(batch.expires_s).any() else None
        ledger.note_parents(batch.slots, batch.parents)
        ledger.publish(batch.slots, batch.digests, batch.priorities, expires_s, group)
        traffic.counters.landed += len(batch)
        source_ledger = traffic.pools[entered.source_pool].ledger
        there = (source_ledger.generation.take(entered.sources) == entered.source_generations) & (
            source_ledger.published.take(entered.sources) != 0
        )
        linked = entered.only(there)
        slots, generations = linked.batch.slots, linked.batch.generations
        if traffic.places[entered.source_pool].level < traffic.places[entered.pool].level:
            if len(slots):
                source_ledger.link_below(linked.sources, slots, generations)
            self._demotions.published(entered.pool, batch.slots, now_s)
        elif len(slots):
            ledger.link_below(slots, linked.sources, linked.source_generations)

    def _end(self, copied: Copied, *, is_there: bool = True) -> list[Output]:
        """Nothing of these copies is under way any more."""
        slots = copied.batch.slots
        if not len(slots):
            return []
        traffic = self._traffic
        arriving = traffic.arriving[copied.pool]
        assert arriving is not None
        arriving.forget(slots)
        traffic.pools[copied.pool].ledger.release(slots, Holder.TRANSFER)
        is_up = traffic.places[copied.source_pool].level > traffic.places[copied.pool].level
        traffic.left(copied.source_pool, copied.sources, copied.source_generations, is_up=is_up)
        return [] if is_there else traffic.drop(copied.pool, slots)

    def give_up_group(self, group: int | None = None) -> list[Output]:
        """The index of a group is gone, or all of them are: whatever would land there does not."""
        for arriving in self._traffic.arriving:
            if arriving is not None:
                arriving.void(arriving.of_group(group))
        return self._give_up({number for number, one in self._open.items() if group in (None, one[0])})

    def give_up_pool(self, pool: int) -> list[Output]:
        """The memory of a pool is lost: what is copied into it or from it does not land."""
        for number, arriving in enumerate(self._traffic.arriving):
            if arriving is not None:
                if number == pool:
                    arriving.void(arriving.of_group())
                else:
                    arriving.void_from(pool)
        gone = {number for number, (_, copied) in self._open.items() if copied.pool == pool}
        for group, copied in [self._open[number] for number in gone]:
            level = self._traffic.places[pool].level
            self._traffic.binds.lost(group, level, copied.batch.slots, copied.batch.generations)
        return self._give_up(gone)

    def _give_up(self, numbers: set[int]) -> list[Output]:
        outputs: list[Output] = []
        for number in sorted(numbers):
            _, copied = self._open.pop(number)
            self._traffic.pools[copied.pool].ledger.give_up(copied.batch.slots)
            outputs += self._end(copied, is_there=False)
        return outputs
