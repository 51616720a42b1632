"""What a tier actor has to forget before another one writes into slots of its pool.

A tier actor knows what its own copies have brought, and tells of it after a coordinator was lost. Of what other actors
write into its slots, as those of the disk do into the host's, it knows nothing: it would tell of a block whose bytes
are gone. So it is asked to forget, and such a copy is not sent before all ranks have answered that they have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtroupe.coordinator.actor_messages import TierOutput
from kvtroupe.coordinator.tier_messages import DropRequest

if TYPE_CHECKING:
    from collections.abc import Container

    from kvtroupe.coordinator.tier_messages import DropReply
    from kvtroupe.coordinator.transfer import Transfer


@dataclass
class RowDrops:
    """See the module.

    Attributes:
        tellers: numbers of the pools whose tier actors tell what they hold.
        epoch: of the coordinator.
    """

    tellers: Container[int]
    epoch: int
    _missing: dict[int, tuple[int, set[int]]] = field(default_factory=dict)  # by transfer: pool, ranks

    def ask(self, transfer: Transfer, lost: Container[int]) -> list[TierOutput]:
        """Have the ranks that are not lost forget what is in the slots that a transfer is about to write.

        Args:
            transfer: from here on it carries no other copies.
            lost: ranks of its destination that are lost: with what they knew.

        Returns:
            what is to be sent; [] if nobody else's slots are written, or it was asked before.
        """
        pool = transfer.copies.destination_pool
        if pool == transfer.engine or pool not in self.tellers or transfer.transfer_id in self._missing:
            return []
        ranks = [rank for rank in range(len(transfer.destination_epochs)) if rank not in lost]
        self._missing[transfer.transfer_id] = pool, set(ranks)
        request = DropRequest(transfer.transfer_id, self.epoch, transfer.copies.destinations)
        return [TierOutput(pool, rank, request) for rank in ranks]

    def awaits(self, transfer: Transfer) -> bool:
        """Whether some rank that was asked has not answered."""
        _, ranks = self._missing.get(transfer.transfer_id, (0, None))
        return bool(ranks)

    def answered(self, reply: DropReply) -> bool:
        """A rank has forgotten; False: it was not asked, or is not waited for any more."""
        pool, ranks = self._missing.get(reply.transfer_id, (0, set()))
        if reply.epoch != self.epoch or reply.pool != pool or reply.rank not in ranks:
            return False
        ranks.remove(reply.rank)
        return True

    def rank_lost(self, pool: int, rank: int) -> None:
        """The tier actor of a rank is dead: it tells nothing."""
        for asked, ranks in self._missing.values():
            if asked == pool:
                ranks.discard(rank)

    def over(self, transfer: Transfer) -> None:
        """A transfer is finished."""
        self._missing.pop(transfer.transfer_id, None)
