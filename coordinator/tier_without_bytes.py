"""What a tier actor would answer that has no bytes to copy and keeps nothing: for replicas without any tier actor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.inventories import nothing_held
from kvtroupe.coordinator.messages import (
    ContentEpochReply,
    ContentEpochRequest,
    CopyReply,
    CopyRequest,
    DropReply,
    DropRequest,
    InventoryReply,
    InventoryRequest,
)

if TYPE_CHECKING:
    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.messages import TierOutput
    from kvtroupe.coordinator.tier_messages import FromTier


def answer_without_bytes(output: TierOutput, config: Config) -> CopyReply | FromTier | None:
    """The answer to a message, if it has one: copies are done, nothing is held.

    Args:
        output: from the coordinator.
        config: of the replica.
    """
    message = output.message
    if isinstance(message, CopyRequest):
        return CopyReply(message.transfer_id, message.epoch, output.engine, output.rank)
    if isinstance(message, DropRequest):
        return DropReply(message.transfer_id, message.epoch, output.engine, output.rank)
    if isinstance(message, InventoryRequest):
        nothing = nothing_held(config.digest_bytes)
        return InventoryReply(output.engine, output.rank, message.epoch, message.content_epoch, nothing)
    if isinstance(message, ContentEpochRequest):
        return ContentEpochReply(output.engine, output.rank, message.content_epoch)
    return None
