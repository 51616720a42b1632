"""Moves that clients ask for: prefetch, onboard and offload of what a prefix would hit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.arriving import batch_of
from kvtroupe.coordinator.ledger import Holder
from kvtroupe.coordinator.messages import MoveReply
from kvtroupe.coordinator.traffic import Leg

if TYPE_CHECKING:
    from kvtroupe.coordinator.claims import Claim
    from kvtroupe.coordinator.messages import MoveRequest, Slots
    from kvtroupe.coordinator.tiers import Tiers


class Moves:
    """See the module.

    Args:
        tiers: that copy.
    """

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._traffic = tiers.traffic

    def begin(self, request: MoveRequest, claim: Claim, now_s: float) -> MoveReply:
        """Begin the copies of a move, as many as there is room for, and give its claim back.

        Args:
            request: what is asked for.
            claim: of what the prefix hits; given back here.
            now_s: the time now.
        """
        begun = missing = 0
        for place in self._traffic.places:
            if place.level or not len(claim.slots[place.pool]):
                continue
            where = {place.pool: claim.slots[place.pool].compress(claim.slots[place.pool])}
            where |= {lift.pool: lift.sources for lift in claim.lifts if lift.device == place.pool}
            for pool, slots in where.items():
                copied, left = self._bring(pool, slots, request.level, now_s)
                begun += copied
                missing += left
        self._give_back(claim)
        return MoveReply(request.request_id, claim.hit_tokens, begun, missing)

    def _bring(self, pool: int, slots: Slots, level: int, now_s: float) -> tuple[int, int]:
        """Copy published blocks of a pool one step towards a level: how many copies begin, and how many do not."""
        place = self._traffic.places[pool]
        if place.level < level and place.below is not None:
            copied, left = self._copy_down(pool, slots, now_s)
            if self._traffic.places[place.below].level < level:
                below, _ = self._traffic.pools[pool].ledger.below_of(slots)
                further = self._bring(place.below, below.compress(self._traffic.is_below(pool, slots)), level, now_s)
                return copied + further[0], left + further[1]
            return copied, left
        if place.level > level:
            copied = self._bring_up(pool, slots, now_s)
            return copied, len(slots) - copied
        return 0, 0

    def _copy_down(self, pool: int, slots: Slots, now_s: float) -> tuple[int, int]:
        wanted = int(np.count_nonzero(self._traffic.worth_keeping(pool, slots)))
        copied = len(self._tiers.demotions.copy_down(pool, slots, now_s)) if wanted else 0
        return copied, wanted - copied

    def _bring_up(self, pool: int, slots: Slots, now_s: float) -> int:
        traffic, above = self._traffic, self._traffic.places[pool].above
        assert above is not None, "there is a pool above every pool that something comes up from"
        room = min(len(slots), traffic.room(pool, now_s))
        if traffic.places[above].level:
            destinations = traffic.take_below(above, room, now_s)
        else:
            upper = traffic.pools[above]
            room = min(room, max(0, upper.ledger.free - upper.reserved_blocks))
            traffic.plan(pool, room)  # what is evicted for it may not use up the credits
            destinations = self._tiers.demotions.take(above, room, Holder.TRANSFER, now_s) if room else slots[:0]
            traffic.plan(pool, -room)
        sources = slots[: len(destinations)]
        if len(sources):
            ledger = traffic.pools[pool].ledger
            batch = batch_of(ledger, sources)
            ledger.claim(sources, batch.generations, Holder.TRANSFER)
            traffic.copy_up(Leg(batch, pool, above, destinations), now_s, pool, batch)
            if not traffic.places[above].level:
                self._tiers.lifts.note(pool, sources, destinations)
        return len(sources)

    def _give_back(self, claim: Claim) -> None:
        for pool, slots in zip(self._traffic.pools, claim.slots, strict=True):
            if len(slots):
                pool.ledger.release(slots.compress(slots)[::-1], Holder.SEQUENCE)
        for lift in claim.lifts:
            self._traffic.pools[lift.pool].ledger.release(lift.sources[::-1], Holder.TRANSFER)
