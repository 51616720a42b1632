"""Copies up: blocks that a hit needs on the device and that are below it only.

A block that is on its way up already is not copied again: whoever needs it next uses the slot that it will be in.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.arriving import batch_of
from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.ledger import Holder
from kvtroupe.coordinator.messages import NO_SLOTS
from kvtroupe.coordinator.traffic import Leg

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtroupe.coordinator.claims import Claim, Lift
    from kvtroupe.coordinator.messages import Slots
    from kvtroupe.coordinator.traffic import Traffic


class Lifts:
    """See the module.

    Args:
        traffic: between the pools.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self._now_s = 0.0
        lower = [place.pool for place in traffic.places if place.level]
        blocks = {pool: traffic.pools[pool].ledger.blocks for pool in lower}
        self._planned = {pool: np.zeros(blocks[pool], np.bool_) for pool in lower}
        # By source slot, where it is being copied to: slot and its generation. One that has passed means nothing.
        self._destination = {pool: np.zeros((2, blocks[pool]), np.int64) for pool in lower}
        self._planned_blocks = dict.fromkeys(lower, 0)
        self._bounce = dict.fromkeys(lower, NO_SLOTS)

    # -- planning, within one round ------------------------------------------------------------------------------------

    def start(self, now_s: float) -> None:
        """A round is settled now."""
        self._now_s = now_s

    def plan(self, claim: Claim) -> None:
        """A claim needs these copies, if it is granted."""
        for lift in claim.lifts:
            self._planned[lift.pool][lift.sources] = True
            self._count(lift, len(lift.sources))

    def unplan(self, claim: Claim) -> None:
        """It does not, or they have begun."""
        for lift in claim.lifts:
            self._planned[lift.pool][lift.sources] = False
            self._count(lift, -len(lift.sources))

    def _count(self, lift: Lift, blocks: int) -> None:
        self._planned_blocks[lift.pool] += blocks
        for engine in self.engines(lift.pool):
            self.traffic.plan(engine, blocks)

    def is_planned(self, pool: int, sources: Slots) -> bool:
        """Whether an earlier request of this round needs one of these blocks, too."""
        return bool(self._planned[pool].take(sources).any())

    def joined(self, pool: int, sources: Slots) -> Slots:
        """For each of these slots the device slot that its block is on its way to; 0 where it is not."""
        device = self.traffic.places[pool].device
        arriving = self.traffic.arriving[device]
        assert arriving is not None
        destinations, generations = self._destination[pool].take(sources, axis=1)
        there = arriving.expected(destinations) & ~arriving.is_void(destinations)
        there &= self.traffic.pools[device].ledger.generation.take(destinations) == generations
        joined: Slots = destinations * there
        return joined

    def engines(self, pool: int) -> tuple[int, ...]:
        """The pools whose tier actors bring blocks from a pool to the device."""
        path = [pool]
        while (above := self.traffic.places[path[-1]].above) is not None and self.traffic.places[above].level:
            path.append(above)
        return tuple(path)

    def room(self, engine: int) -> int:
        """Blocks that a request may still have brought up by a tier actor."""
        return self.traffic.room(engine, self._now_s)

    def bounced(self, pool: int) -> int:
        """How many blocks are planned to come through a pool from one below it."""
        return sum([count for lower, count in self._planned_blocks.items() if pool in self.engines(lower)[1:]])

    def bounces_fit(self) -> bool:
        """Whether there are slots for all blocks that are planned to come through a pool between."""
        for pool in self._planned_blocks:
            count = self.bounced(pool)
            ledger = self.traffic.pools[pool].ledger
            if count and ledger.droppable(count, partial(self._keep, pool)) < count:
                return False
        return True

    def _keep(self, pool: int, slots: Slots) -> NDArray[np.bool_]:
        return ~self.traffic.droppable(pool, slots, self._now_s)

    # -- copies --------------------------------------------------------------------------------------------------------

    def take_bounces(self) -> None:
        """Take the slots that blocks of this round come through, before anything else is taken there."""
        for pool in self._bounce:
            count = self.bounced(pool)
            self._bounce[pool] = self.traffic.take_below(pool, count, self._now_s) if count else NO_SLOTS
            if len(self._bounce[pool]) != count:
                there = len(self._bounce[pool])
                raise InvariantError(f"{count} slots of pool {pool} were counted on, {there} are there")

    def begin(self, claim: Claim) -> None:
        """Begin the copies of a claim whose slots are all there."""
        for lift in claim.lifts:
            self._begin(lift, claim.slots[lift.device][lift.positions])
        self.unplan(claim)

    def note(self, pool: int, sources: Slots, destinations: Slots) -> None:
        """Blocks of a pool are being copied to slots of the device: who hits them uses these slots."""
        device = self.traffic.places[pool].device
        generations = self.traffic.pools[device].ledger.generation.take(destinations)
        self._destination[pool][:, sources] = destinations, generations

    def _begin(self, lift: Lift, destinations: Slots) -> None:
        traffic = self.traffic
        batch = batch_of(traffic.pools[lift.pool].ledger, lift.sources)
        device_ledger = traffic.pools[lift.device].ledger
        generations = device_ledger.generation.take(destinations)
        device_ledger.claim(destinations, generations, Holder.TRANSFER)
        self.note(lift.pool, lift.sources, destinations)
        source_pool, source = lift.pool, batch
        for between in self.engines(lift.pool)[1:]:
            slots = self._bounce[between][: len(batch)]
            self._bounce[between] = self._bounce[between][len(batch) :]
            ledger = traffic.pools[between].ledger
            traffic.copy_up(Leg(source, source_pool, between, slots), self._now_s, lift.pool, batch)
            source_pool, source = between, batch.moved_to(slots, ledger.generation.take(slots))
            ledger.claim(slots, source.generations, Holder.TRANSFER)  # once as a destination, once as a source
        traffic.copy_up(Leg(source, source_pool, lift.device, destinations), self._now_s, lift.pool, batch)
