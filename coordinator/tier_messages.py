"""Messages between the coordinator and its tiers about what they hold. `messages` exports them with all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from kvtroupe.coordinator.actor_messages import Slots
    from kvtroupe.coordinator.inventories import Inventory


@dataclass(frozen=True, slots=True)
class InventoryRequest:
    """What is in the slots of the pool? Asked when nothing is being copied into it.

    Attributes:
        epoch: of the coordinator.
        content_epoch: blocks of an older one are not told, and go; it is durable before the answer.
    """

    epoch: int
    content_epoch: int


@dataclass(frozen=True, slots=True)
class InventoryReply:
    """What a tier actor holds.

    Attributes:
        pool: number of the pool.
        rank: that answers.
        epoch: of the request.
        content_epoch: of all that is told: that of the request, or a newer one that the rank knew already.
        inventory: of the rank.
    """

    pool: int
    rank: int
    epoch: int
    content_epoch: int
    inventory: Inventory


@dataclass(frozen=True, slots=True)
class DropEvent:
    """What is in these slots is of no use: a tier that survives a restart must not tell of it again."""

    slots: Slots


@dataclass(frozen=True, slots=True)
class DropRequest:
    """Another tier actor is about to write into these slots of the pool: forget what they hold, and answer.

    An actor that survives its process has forgotten durably before it answers.

    Attributes:
        transfer_id: of the copies that wait for the answers of all ranks.
        epoch: of the coordinator.
        slots: that will be written.
    """

    transfer_id: int
    epoch: int
    slots: Slots


@dataclass(frozen=True, slots=True)
class DropReply:
    """A rank tells nothing of these slots any more.

    Attributes:
        transfer_id: of the request.
        epoch: of the request.
        pool: number of the pool.
        rank: that answers.
    """

    transfer_id: int
    epoch: int
    pool: int
    rank: int


@dataclass(frozen=True, slots=True)
class ContentEpochRequest:
    """Content of an older epoch is void, durably before the answer, and is never told or read again."""

    epoch: int
    content_epoch: int


@dataclass(frozen=True, slots=True)
class ContentEpochReply:
    """A rank has made the content epoch durable."""

    pool: int
    rank: int
    content_epoch: int


FromTier: TypeAlias = InventoryReply | DropReply | ContentEpochReply
