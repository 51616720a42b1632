"""Published blocks that are copied between the pools of a stack: how a copy begins, and what is true while it runs.

Where a copy writes, the slot is held by it until the block has landed: all ranks have the bytes and the index has the
place. What a copy down reads is not held: whoever takes the slot meanwhile waits for the copy before writing, as with
every copy. What a copy up reads is held, so that a second request for the same block can join it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.arriving import Arriving, Batch, Leaving
from kvtroupe.coordinator.ledger import Holder
from kvtroupe.coordinator.messages import Arrival, Copies, DropEvent, TierOutput
from kvtroupe.coordinator.stacks import engines_of, places_of
from kvtroupe.coordinator.transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtroupe.coordinator.binds import Binds
    from kvtroupe.coordinator.claims import Pool
    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.counters import Counters
    from kvtroupe.coordinator.messages import Generations, Output, Slots


@dataclass(frozen=True, slots=True)
class Leg:
    """Blocks that are copied from one pool to another.

    Attributes:
        batch: in slots of the source pool.
        source_pool: its number.
        pool: number of the pool that they are copied to.
        destinations: slots there, used by those who copy or who wait for them.
    """

    batch: Batch
    source_pool: int
    pool: int
    destinations: Slots


class Traffic:
    """See the module.

    Args:
        config: of the replica.
        pools: of the replica.
        binds: what groups are to be told.
        counters: of the replica.
        epoch: of the coordinator.

    Attributes:
        places: of the pools in their stacks.
        transfers: all copies that are not acknowledged.
        arriving: for each pool what arrives there; None for pools of stacks of one.
        resting: of pools that copies down have failed to write to, when they are tried again.
        planned: by tier actor that copies, blocks that will be begun in this round, whatever else is.
        taken_below: for each pool the slots that copies have taken since it was last looked after.
    """

    def __init__(self, config: Config, pools: Sequence[Pool], binds: Binds, counters: Counters, epoch: int) -> None:
        limits = config.limits
        engine_of, in_flight_max = engines_of(config)
        self.places = places_of(config)
        self.transfers = Transfers(
            [pool.blocks for pool in config.pools],
            engine_of,
            config.ranks,
            in_flight_max,
            limits.transfer_deadline_s,
            epoch,
            {place.pool for place in self.places if place.level},
        )
        self.pools = pools
        self.counters = counters
        self.binds = binds
        self.resting: dict[int, float] = {}
        self.planned: dict[int, int] = {}
        self.taken_below = [0 for _ in pools]
        self._arriving_max = limits.arriving_blocks_max
        self._retry_s = limits.tier_retry_s
        stacked = [place.level > 0 or place.below is not None for place in self.places]
        self.arriving = [
            Arriving(pool.blocks, config.digest_bytes) if used else None
            for pool, used in zip(config.pools, stacked, strict=True)
        ]
        self._leaving = [
            Leaving(pool.blocks) if place.below is not None else None
            for pool, place in zip(config.pools, self.places, strict=True)
        ]

    # -- what may move -------------------------------------------------------------------------------------------------

    def room(self, lower: int, now_s: float) -> int:
        """Blocks whose copies between a pool and the one above it may begin now."""
        above = self.places[lower].above
        if self.resting.get(lower, -np.inf) > now_s or (above is not None and self.transfers.lost_ranks(above)):
            return 0
        arriving = sum([one.count for one in self.arriving if one is not None]) + sum(self.planned.values())
        return max(0, min(self.transfers.room(lower) - self.planned.get(lower, 0), self._arriving_max - arriving))

    def plan(self, engine: int, blocks: int) -> None:
        """A tier actor will be asked for so many more copies in this round; a negative number: for fewer."""
        self.planned[engine] = self.planned.get(engine, 0) + blocks

    def rest(self, pool: int, now_s: float) -> None:
        """A copy into a pool has failed: leave it alone for a while."""
        self.resting[pool] = now_s + self._retry_s

    def worth_keeping(self, pool: int, slots: Slots) -> NDArray[np.bool_]:
        """Which published slots hold something that is nowhere below, and should be.

        Args:
            pool: with a pool below it.
            slots: published there.
        """
        place = self.places[pool]
        ledger, leaving = self.pools[pool].ledger, self._leaving[pool]
        assert place.below is not None
        assert leaving is not None
        keep = ~self.is_below(pool, slots)
        if place.min_priority:
            keep &= ledger.priority_of(slots) >= place.min_priority
        under_way = leaving.now(slots, ledger.generation.take(slots))
        return keep if under_way is None else keep & ~under_way

    def droppable(self, pool: int, slots: Slots, now_s: float) -> NDArray[np.bool_]:
        """Which published slots of a pool below the device may be taken: nothing is lost, or it has to be.

        A slot that is being read is not taken either, since whoever got it would wait for the reader.
        """
        place = self.places[pool]
        leaving = self._leaving[pool]
        if place.below is None or leaving is None:
            return np.ones(len(slots), np.bool_)
        keep = np.zeros(len(slots), np.bool_)
        if place.copies_on_evict and self.room(place.below, now_s):
            keep = self.worth_keeping(pool, slots)
        under_way = leaving.now(slots, self.pools[pool].ledger.generation.take(slots))
        return ~keep if under_way is None else ~(keep | under_way)

    def is_below(self, pool: int, slots: Slots) -> NDArray[np.bool_]:
        """Which published slots of a pool hold something that the pool below it has, too."""
        below = self.places[pool].below
        assert below is not None
        below_slots, generations = self.pools[pool].ledger.below_of(slots)
        lower = self.pools[below].ledger
        is_there: NDArray[np.bool_] = (lower.generation.take(below_slots) == generations) & (
            lower.published.take(below_slots) != 0
        )
        return is_there

    # -- copies --------------------------------------------------------------------------------------------------------

    def take_below(self, pool: int, count: int, now_s: float) -> Slots:
        """Take slots of a pool below the device for copies to write: up to `count`, and none that should be kept."""
        taken, dropped = self.pools[pool].ledger.take_droppable(
            count, Holder.TRANSFER, lambda slots: ~self.droppable(pool, slots, now_s)
        )
        self.taken_below[pool] += len(taken)
        level = self.places[pool].level
        for group, slots in dropped.items():
            self.binds.lost(group, level, slots)
            self.counters.dropped += len(slots)
        return taken

    def copy_down(self, batch: Batch, upper: int, destinations: Slots, now_s: float) -> None:
        """Begin to copy blocks to the pool below.

        Args:
            batch: in slots of the upper pool, some of which may have been taken for other content just now.
            upper: number of the pool that they are in.
            destinations: slots of the pool below it, taken for this.
            now_s: the time now.
        """
        leaving, lower = self._leaving[upper], self.places[upper].below
        assert leaving is not None
        assert lower is not None
        leaving.begin(batch.slots, batch.generations)
        leg = Leg(batch, upper, lower, destinations)
        self._remember(leg, self._begin(leg, now_s, urgent=False), upper, batch)
        self.counters.demoted += len(batch)

    def copy_up(self, leg: Leg, now_s: float, known_pool: int, known: Batch) -> None:
        """Begin to copy blocks to a pool above.

        Args:
            leg: what, from where, and to where; sources and destinations are held by the caller for the copy, which
                gives them back when the blocks have landed.
            now_s: the time now.
            known_pool: where the index knows the blocks.
            known: the same blocks there.
        """
        self._remember(leg, self._begin(leg, now_s, urgent=True), known_pool, known)
        self.counters.promoted += len(leg.batch)

    def _begin(self, leg: Leg, now_s: float, *, urgent: bool) -> NDArray[np.int64]:
        """For each block the transfer that brings it."""
        batch = leg.batch
        return self.transfers.begin(
            Copies(
                leg.source_pool,
                batch.slots,
                leg.pool,
                leg.destinations,
                groups=batch.groups.astype(np.int64),
                digests=batch.digests,
                parents=batch.parents,
            ),
            now_s,
            urgent=urgent,
        )

    def _remember(self, leg: Leg, transfer_ids: NDArray[np.int64], known_pool: int, known: Batch) -> None:
        arriving, ledger = self.arriving[leg.pool], self.pools[leg.pool].ledger
        assert arriving is not None
        generations = ledger.generation.take(leg.destinations)
        there = leg.batch.moved_to(leg.destinations, generations)
        arriving.expect(there, leg.source_pool, leg.batch, transfer_ids)
        for group, chosen in by_group(there.groups):
            self.binds.arrives(
                group,
                Arrival(
                    self.places[known_pool].level,
                    known.slots[chosen],
                    self.places[leg.pool].level,
                    leg.destinations[chosen],
                    generations[chosen],
                    known.generations[chosen],
                ),
            )

    def is_up(self, source_pool: int, pool: int) -> bool:
        """Whether copies between these pools go towards the device."""
        return self.places[source_pool].level > self.places[pool].level

    def drop(self, pool: int, slots: Slots) -> list[Output]:
        """What was copied into slots of a pool is of no use: tell its tiers, unless they lose it with the memory."""
        outputs: list[Output] = []
        if self.places[pool].level:
            for rank in range(self.transfers.ranks):
                outputs += self.drop_on_rank(pool, rank, slots)
        return outputs

    @staticmethod
    def drop_on_rank(pool: int, rank: int, slots: Slots) -> list[Output]:
        """The same on one rank."""
        return [TierOutput(pool, rank, DropEvent(slots))] if len(slots) else []

    def left(self, source_pool: int, sources: Slots, generations: Generations, *, is_up: bool) -> None:
        """Copies from these slots are over."""
        if is_up:
            ledger = self.pools[source_pool].ledger
            while len(sources):  # one that was copied twice is held twice
                _, first = np.unique(sources, return_index=True)
                ledger.release(sources.take(np.sort(first)), Holder.TRANSFER)
                sources = np.delete(sources, first)
            return
        leaving = self._leaving[source_pool]
        assert leaving is not None
        leaving.end(sources, generations)


def by_group(groups: NDArray[np.int16]) -> list[tuple[int, NDArray[np.bool_] | slice]]:
    """Which of some blocks belong to which group."""
    numbers: list[int] = np.unique(groups).tolist()
    if len(numbers) == 1:
        return [(numbers[0], slice(None))]
    return [(number, groups == number) for number in numbers]
