"""What the loss of an actor means for content and sequences, and what is done when another one has taken its place.

- A group: its index is gone. Its blocks on the device count no more; when it is back, it is offered what running
  sequences hold, and what is below the device.
- A pool below the device: its blocks are gone. When all ranks are back, what they all hold is taken over.
- A device pool: its blocks are gone, and every sequence fails.
- The coordinator: the new one begins with nothing. Groups are emptied, pools below the device are taken over, and no
  device slot is handed out before every process that may write into one has acknowledged it, or is dead.

Saying the same loss twice is as good as once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtroupe.coordinator.errors import RequestError, TierLost
from kvtroupe.coordinator.messages import ForgetEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.messages import InventoryReply, Output
    from kvtroupe.coordinator.outcomes import Outcomes
    from kvtroupe.coordinator.parts import Parts
    from kvtroupe.coordinator.publications import Publications
    from kvtroupe.coordinator.records import Records
    from kvtroupe.coordinator.resets import Resets
    from kvtroupe.coordinator.takeovers import Takeovers
    from kvtroupe.coordinator.tiers import Tiers


@dataclass(frozen=True)
class Losses:
    """See the module.

    Attributes:
        parts: of the state.
        records: of who holds slots.
        tiers: that copy.
        publications: that some group has not answered.
        outcomes: for those who wait.
        takeovers: of what is below the device.
        resets: that know the content epoch.
    """

    parts: Parts
    records: Records
    tiers: Tiers
    publications: Publications
    outcomes: Outcomes
    takeovers: Takeovers
    resets: Resets
    _away: dict[int, set[int]] = field(default_factory=dict)  # by pool, ranks that are not back
    _copying: dict[int, set[int]] = field(default_factory=dict)  # by pool, ranks that may copy for an earlier one

    # -- groups --------------------------------------------------------------------------------------------------------

    def group_lost(self, group: int) -> list[Output]:
        """The index of a group is gone.

        Raises:
            RequestError: there is no such group.
        """
        self._check_group(group)
        if group in self.parts.mail.lost:
            return []
        self.parts.mail.lost.add(group)
        outputs = self.tiers.landings.give_up_group(group)
        self.takeovers.give_up_groups({group})
        given_up, _ = self.publications.give_up({group})
        for number, pool in enumerate(self.parts.pools):
            if self.tiers.traffic.places[number].level:
                slots = pool.ledger.published_by_group().get(group)
                if slots is not None:
                    self.takeovers.remember(number, group, slots)
            else:
                pool.ledger.forget_group(group)
        return outputs + self.outcomes.published(given_up)

    def group_ready(self, group: int, now_s: float) -> list[Output]:
        """A group without any content is there.

        Raises:
            RequestError: there is no such group.
        """
        outputs = self.group_lost(group)  # it may have been replaced before anybody has noticed
        self.parts.mail.lost.remove(group)
        outputs.append(self.parts.mail.to(group, ForgetEvent()))
        waits = self.records.waits
        computing = [one for one in self.records.sequences.values() if not waits.reads(one.sequence_id)]
        return [
            *outputs,
            *self.publications.offer_again(group, computing, now_s),
            *self.takeovers.offer_orphans(group),
        ]

    # -- tiers ---------------------------------------------------------------------------------------------------------

    def tier_lost(self, pool: int, rank: int, now_s: float) -> list[Output]:
        """The tier actor of a pool on one rank is dead.

        Raises:
            RequestError: there is no such pool or rank.
        """
        self._check_rank(pool, rank)
        away = self._away.setdefault(pool, set())
        if rank in away:
            return []
        away.add(rank)
        self.takeovers.forget(pool)
        outputs = self.forget_content(pool)
        if not self.tiers.traffic.places[pool].level:
            self.tiers.lost_devices.add(pool)
            outputs += self._fail_sequences(pool)
        outputs += self.outcomes.finished(self.tiers.traffic.transfers.rank_lost(pool, rank), now_s)
        return outputs + self._ends_copying(pool, rank)

    def forget_content(self, pool: int) -> list[Output]:
        """Nothing that is published in a pool, or on its way into it or out of it, counts any more."""
        traffic = self.tiers.traffic
        level = traffic.places[pool].level
        outputs = self.tiers.landings.give_up_pool(pool)
        gone = self.takeovers.give_up_pool(pool)
        if not level:
            given_up, offered = self.publications.give_up(self.parts.pools[pool].groups)
            outputs += self.outcomes.published(given_up)
            gone += offered
        ledger = self.parts.pools[pool].ledger
        gone += ledger.published_by_group().items()
        ledger.forget_all()
        for group, slots in gone:
            traffic.binds.lost(group, level, slots.compress(slots))
        return outputs

    def _fail_sequences(self, pool: int) -> list[Output]:
        name = self.parts.pools[pool].name
        running = list(self.records.sequences.values())
        return [self.outcomes.undo(one, TierLost(one.sequence_id, name)) for one in running]

    def tier_ready(self, pool: int, rank: int, tier_epoch: int, now_s: float) -> list[Output]:
        """A new tier actor is there; one that is not new is counted as a late answer, and no more.

        Raises:
            RequestError: there is no such pool or rank.
        """
        self._check_rank(pool, rank)
        transfers = self.tiers.traffic.transfers
        if tier_epoch <= transfers.tier_epoch(pool, rank):
            self.parts.counters.late_answers += 1
            return []
        outputs = self.tier_lost(pool, rank, now_s)  # it may have been replaced before anybody has noticed
        transfers.begin_tier_epoch(pool, rank, tier_epoch)
        away = self._away[pool]
        away.remove(rank)
        if away:
            return outputs
        if self.tiers.traffic.places[pool].level:
            return outputs + self._ask(pool)
        self._back(pool)
        return outputs

    def _back(self, pool: int) -> None:
        self.tiers.lost_devices.discard(pool)
        transfers = self.tiers.traffic.transfers
        for rank in transfers.lost_ranks(pool):
            transfers.rank_back(pool, rank)

    def told(self, reply: InventoryReply) -> list[Output]:
        """A rank has told what it holds; what all of them hold is taken over, and the pool is in use again.

        Raises:
            RequestError: the inventory is malformed; nothing has changed.
        """
        replies = self.takeovers.told(reply)
        outputs = self._take_over(reply.pool, replies) if replies else []
        return outputs + (self._ends_copying(reply.pool, reply.rank) if reply.epoch == self.parts.mail.epoch else [])

    def _take_over(self, pool: int, replies: Sequence[InventoryReply]) -> list[Output]:
        outputs: list[Output] = []
        for one in replies:
            outputs += self.resets.durable(one)
        newest = max(one.content_epoch for one in replies)
        if newest > self.resets.content_epoch:  # an earlier coordinator has begun a reset that others have not heard of
            self.resets.adopt(newest)
            lower = [place.pool for place in self.tiers.traffic.places if place.level and place.pool != pool]
            for other in lower:
                outputs += self.forget_content(other)
                outputs += self.resets.make_durable(other)
        if any(one.content_epoch < self.resets.content_epoch for one in replies):
            outputs += self.resets.make_durable(pool)
        else:
            outputs += self.takeovers.take_over(pool, [one.inventory for one in replies])
        self._back(pool)
        return outputs

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def recover(self, tier_epochs: Sequence[tuple[int, int, int]]) -> list[Output]:
        """This coordinator follows another one: empty the groups, and ask for what is below the device.

        A tier actor that is asked does what it was asked before, or gives it up, and answers then. What others have
        still to copy into a pool may end in any slot of it, so that a pool is asked for after those below it.

        Args:
            tier_epochs: pool, rank and epoch of tier actors.

        Raises:
            RequestError: there is no such pool or rank; nothing has changed.
        """
        transfers = self.tiers.traffic.transfers
        for pool, rank, _ in tier_epochs:
            self._check_rank(pool, rank)
        for pool, rank, tier_epoch in tier_epochs:
            transfers.begin_tier_epoch(pool, rank, tier_epoch)
        outputs: list[Output] = [self.parts.mail.to(group, ForgetEvent()) for group in self.parts.layout.indexed]
        lower = [place.pool for place in self.tiers.traffic.places if place.level]
        for pool in lower:
            self._copying[pool] = set(range(self.parts.config.ranks))
            for rank in range(self.parts.config.ranks):
                transfers.rank_lost(pool, rank)
        for pool in lower:
            outputs += self._ask(pool)
        return outputs

    def _ask(self, pool: int) -> list[Output]:
        """Ask what is in a pool, once its ranks are there and nobody copies into it for an earlier coordinator."""
        below = self.tiers.traffic.places[pool].below
        if self._away.get(pool) or (below is not None and self._copying.get(below)):
            return []
        return self.takeovers.ask(pool, self.resets.content_epoch)

    def _ends_copying(self, pool: int, rank: int) -> list[Output]:
        """A rank of a pool has answered this coordinator, or is dead: it copies nothing for an earlier one any more."""
        copying, place = self._copying.get(pool), self.tiers.traffic.places[pool]
        if copying is None or rank not in copying:
            return []
        copying.remove(rank)
        if copying or place.level < 2:
            return []
        assert place.above is not None, "there is a pool above every one below the device"
        return self._ask(place.above)

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check_group(self, group: int) -> None:
        if group not in self.parts.layout.indexed:
            raise RequestError(f"{group!r} is no group with an index; those are {sorted(self.parts.layout.indexed)}")

    def _check_rank(self, pool: int, rank: int) -> None:
        ranks = self.parts.config.ranks
        if pool not in range(len(self.parts.pools)) or rank not in range(ranks):
            raise RequestError(
                f"no tier actor of pool {pool!r} on rank {rank!r}: {len(self.parts.pools)} pools, {ranks} ranks"
            )
