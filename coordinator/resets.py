"""Resets: all cached content is thrown away, and a new content epoch begins.

It counts when every tier that outlives a restart has made the new epoch durable. Whatever is of an older one then is
refused: publications and landings by this coordinator, which has given them up, and copies by the tiers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtroupe.coordinator.messages import ContentEpochRequest, ForgetEvent, ResetReply, TierOutput

if TYPE_CHECKING:
    from kvtroupe.coordinator.messages import ContentEpochReply, InventoryReply, Output, ResetRequest
    from kvtroupe.coordinator.outcomes import Outcomes
    from kvtroupe.coordinator.parts import Parts
    from kvtroupe.coordinator.publications import Publications
    from kvtroupe.coordinator.records import Records
    from kvtroupe.coordinator.takeovers import Takeovers
    from kvtroupe.coordinator.tiers import Tiers


@dataclass(slots=True)
class _Pending:
    """A reset that some tiers have not made durable."""

    request_id: int
    content_epoch: int
    missing: set[tuple[int, int]]  # pool, rank


@dataclass
class Resets:
    """See the module.

    Attributes:
        parts: of the state.
        records: of who holds slots.
        tiers: that copy.
        publications: that some group has not answered.
        outcomes: for those who wait.
        takeovers: of what is below the device.
        content_epoch: of what is published now.
    """

    parts: Parts
    records: Records
    tiers: Tiers
    publications: Publications
    outcomes: Outcomes
    takeovers: Takeovers
    content_epoch: int = 0

    def __post_init__(self) -> None:
        self._pending: list[_Pending] = []

    def reset(self, message: ResetRequest) -> list[Output]:
        """Throw everything away that is published, or is about to be."""
        outputs: list[Output] = self.tiers.landings.give_up_group()
        given_up, _ = self.publications.give_up(self.parts.layout.indexed)
        outputs += self.outcomes.published(given_up)
        for number, pool_of_number in enumerate(self.parts.pools):
            self.takeovers.give_up_pool(number)
            pool_of_number.ledger.forget_all()
        for sequence in self.records.sequences.values():
            sequence.is_void = True
        outputs += [self.parts.mail.to(group, ForgetEvent()) for group in self.parts.layout.indexed]
        self.adopt(self.content_epoch + 1)
        lower = [place.pool for place in self.tiers.traffic.places if place.level]
        missing = {(pool, rank) for pool in lower for rank in range(self.parts.config.ranks)}
        self._pending.append(_Pending(message.request_id, self.content_epoch, missing))
        for pool in lower:
            outputs += self.make_durable(pool)
        return outputs + self._complete()

    def adopt(self, content_epoch: int) -> None:
        """What is published from now on is of this content epoch."""
        self.content_epoch = content_epoch
        self.tiers.traffic.transfers.begin_content_epoch(content_epoch)

    def make_durable(self, pool: int) -> list[Output]:
        """Tell every rank of a pool of the content epoch."""
        request = ContentEpochRequest(self.parts.mail.epoch, self.content_epoch)
        return [TierOutput(pool, rank, request) for rank in range(self.parts.config.ranks)]

    def durable(self, reply: ContentEpochReply | InventoryReply) -> list[Output]:
        """A rank has made a content epoch durable: the replies to resets that all ranks know of."""
        for pending in self._pending:
            if reply.content_epoch >= pending.content_epoch:
                pending.missing.discard((reply.pool, reply.rank))
        return self._complete()

    def _complete(self) -> list[Output]:
        done = [one for one in self._pending if not one.missing]
        self._pending = [one for one in self._pending if one.missing]
        return [ResetReply(one.request_id, one.content_epoch) for one in done]
