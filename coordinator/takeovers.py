"""Content of pools below the device that outlived an actor: it is told, and published anew.

Tiers tell what they hold after they, or the coordinator, were lost. Of a group that has lost its index, the ledgers of
these pools know as much. A block counts only if all ranks report it in the same slot, and if all blocks before it in
its chain are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.inventories import Inventory, agreed, chains_of, check_inventory
from kvtroupe.coordinator.ledger import Holder
from kvtroupe.coordinator.messages import InventoryRequest, PublishRequest, TierOutput

if TYPE_CHECKING:
    from collections.abc import Container

    from kvtroupe.coordinator.inventories import Chain
    from kvtroupe.coordinator.messages import Generations, InventoryReply, Output, PublishReply, Slots
    from kvtroupe.coordinator.parts import Parts
    from kvtroupe.coordinator.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Takeover:
    """Blocks of one chain on their way into the index of their group.

    Attributes:
        pool: number of the pool that they are in.
        group: number of the group.
        blocks: what is known of them; in the order of the chain.
    """

    pool: int
    group: int
    blocks: Inventory


@dataclass(frozen=True, slots=True)
class Orphans:
    """Blocks below the device of a group that has lost its index. Whatever is taken for other content is one no more.

    Attributes:
        pool: number of the pool that they are in.
        blocks: what is known of them.
        generations: of their slots since they were unpublished.
    """

    pool: int
    blocks: Inventory
    generations: Generations


class Takeovers:
    """See the module.

    Args:
        parts: of the state.
        traffic: between the pools.
    """

    def __init__(self, parts: Parts, traffic: Traffic) -> None:
        self._parts = parts
        self._traffic = traffic
        self._told: dict[int, dict[int, InventoryReply | None]] = {}  # by pool that is asked, then by rank
        self._open: dict[int, Takeover] = {}  # by the number of the question to the group
        self._orphans: dict[int, list[Orphans]] = {}  # by group

    # -- what tiers tell -----------------------------------------------------------------------------------------------

    def ask(self, pool: int, content_epoch: int) -> list[Output]:
        """Ask all ranks what they hold in a pool; whatever was told before does not count."""
        ranks = range(self._parts.config.ranks)
        self._told[pool] = dict.fromkeys(ranks)
        request = InventoryRequest(self._parts.mail.epoch, content_epoch)
        return [TierOutput(pool, rank, request) for rank in ranks]

    def forget(self, pool: int) -> None:
        """A rank is lost: what the others have told or will tell is of no use."""
        self._told.pop(pool, None)

    def told(self, reply: InventoryReply) -> list[InventoryReply]:
        """A rank has told what it holds.

        Returns:
            what all ranks have told, once the last one has; [] before.

        Raises:
            RequestError: the inventory is malformed; nothing has changed.
        """
        told = self._told.get(reply.pool)
        if told is None or reply.epoch != self._parts.mail.epoch or told.get(reply.rank, reply) is not None:
            self._parts.counters.late_answers += 1
            return []
        config = self._parts.config
        pool_blocks = self._parts.pools[reply.pool].ledger.blocks
        check_inventory(reply.inventory, pool_blocks, len(config.groups), config.digest_bytes)
        told[reply.rank] = reply
        replies = [one for one in told.values() if one is not None]
        if len(replies) < len(told):
            return []
        del self._told[reply.pool]
        return replies

    def take_over(self, pool: int, inventories: list[Inventory]) -> list[Output]:
        """Offer to the groups what all ranks of a pool hold.

        Args:
            pool: number of the pool, in which nothing is published.
            inventories: of its ranks, in order.
        """
        common, disputed = agreed(inventories)
        outputs: list[Output] = []
        for rank, slots in enumerate(disputed):
            outputs += self._traffic.drop_on_rank(pool, rank, slots)
        device = self._traffic.places[pool].device
        groups = [group for group in self._parts.pools[device].groups if group not in self._parts.mail.lost]
        wanted = common.only(np.isin(common.groups, groups))
        taken = self._parts.pools[pool].ledger.take_these(wanted.slots, Holder.TRANSFER)
        there = np.isin(common.slots, taken)
        outputs += self._traffic.drop(pool, common.slots.compress(~there))
        for group in groups:
            outputs += self._offer(pool, group, common.only(there & (common.groups == group)))
        return outputs

    # -- what the ledgers know -----------------------------------------------------------------------------------------

    def remember(self, pool: int, group: int, slots: Slots) -> None:
        """All slots that a group has published in a pool below the device, which are unpublished."""
        ledger = self._parts.pools[pool].ledger
        blocks = Inventory(
            slots,
            np.full(len(slots), group, np.int64),
            ledger.digests_of(slots),
            ledger.parents_of(slots),
            ledger.priority_of(slots),
        )
        ledger.forget_group(group)
        self._orphans.setdefault(group, []).append(Orphans(pool, blocks, ledger.generation.take(slots)))

    def offer_orphans(self, group: int) -> list[Output]:
        """The index of a group is there again, and empty: offer what is still below the device."""
        outputs: list[Output] = []
        for orphans in self._orphans.pop(group, ()):
            ledger = self._parts.pools[orphans.pool].ledger
            same = ledger.generation.take(orphans.blocks.slots) == orphans.generations
            there = orphans.blocks.only(same)
            taken = ledger.take_these(there.slots, Holder.TRANSFER)
            outputs += self._offer(orphans.pool, group, there.only(np.isin(there.slots, taken)))
        return outputs

    # -- into the indexes ----------------------------------------------------------------------------------------------

    def _offer(self, pool: int, group: int, blocks: Inventory) -> list[Output]:
        """Offer blocks whose slots are taken for it to their group."""
        chains, unreachable = chains_of(blocks, group)
        outputs = self._give_back(pool, unreachable)
        for chain in chains:
            outputs.append(self._offer_chain(pool, group, chain, blocks.only(chain.positions)))
        return outputs

    def _offer_chain(self, pool: int, group: int, chain: Chain, blocks: Inventory) -> Output:
        publish_id = self._parts.publish_numbers.next()
        self._open[publish_id] = Takeover(pool, group, blocks)
        request = PublishRequest(
            publish_id,
            chain.digests,
            chain.start_block,
            blocks.slots,
            self._parts.pools[pool].ledger.generation.take(blocks.slots),
            level=self._traffic.places[pool].level,
        )
        return self._parts.mail.to(group, request)

    def answered(self, reply: PublishReply) -> list[Output] | None:
        """Publish what has entered the index of a group; None: the answer is to no such question."""
        takeover = self._open.get(reply.publish_id)
        if takeover is None or takeover.group != reply.group:
            return None
        del self._open[reply.publish_id]
        blocks = takeover.blocks
        mask = np.ones(len(blocks.slots), np.bool_) if reply.entered is None else reply.entered
        entered = blocks.only(mask)
        ledger = self._parts.pools[takeover.pool].ledger
        if len(entered.slots):
            ledger.note_parents(entered.slots, entered.parents)
            ledger.publish(entered.slots, entered.digests, entered.priorities, None, takeover.group)
            ledger.release(entered.slots[::-1], Holder.TRANSFER)
        return self._give_back(takeover.pool, blocks.slots.compress(~mask))

    def _give_back(self, pool: int, slots: Slots) -> list[Output]:
        """Free slots whose content is of no use."""
        self._parts.pools[pool].ledger.release(slots, Holder.TRANSFER)
        return self._traffic.drop(pool, slots)

    def give_up_groups(self, groups: Container[int]) -> None:
        """The indexes of some groups are gone: what is on its way to them waits for their return."""
        for publish_id in [number for number, one in self._open.items() if one.group in groups]:
            takeover = self._open.pop(publish_id)
            pool, slots = takeover.pool, takeover.blocks.slots
            ledger = self._parts.pools[pool].ledger
            ledger.give_up(slots)
            ledger.release(slots[::-1], Holder.TRANSFER)
            orphans = Orphans(pool, takeover.blocks, ledger.generation.take(slots))
            self._orphans.setdefault(takeover.group, []).append(orphans)

    def give_up_pool(self, pool: int) -> list[tuple[int, Slots]]:
        """The content of a pool is void: groups, and the slots of what is on its way to them, which is given back."""
        for group, kept in self._orphans.items():
            self._orphans[group] = [one for one in kept if one.pool != pool]
        gone = []
        for publish_id in [number for number, one in self._open.items() if one.pool == pool]:
            takeover = self._open.pop(publish_id)
            ledger, slots = self._parts.pools[pool].ledger, takeover.blocks.slots
            ledger.give_up(slots)
            ledger.release(slots, Holder.TRANSFER)
            gone.append((takeover.group, slots))
        return gone

    def holders(self, pool: int) -> list[tuple[str, str, Slots]]:
        """What is held in a pool meanwhile, as (kind, id, slots), for inspection."""
        return [
            ("transfer", f"takeover {number}", one.blocks.slots)
            for number, one in self._open.items()
            if one.pool == pool
        ]
