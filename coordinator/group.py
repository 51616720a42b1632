"""One window group: hosts ask it what is published of a chain, tell it what it lost, and offer it new blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.messages import BindEvent, MatchReply, MatchRequest, PublishReply
from kvtroupe.coordinator.prefix_index import PrefixIndex

if TYPE_CHECKING:
    from kvtroupe.coordinator.messages import ToGroup


class Group:
    """The state of a group actor. It knows no sequences and no uses, and chooses no victims.

    Args:
        number: the group's place in the configuration.
        blocks: slots of the pool that it draws from.
        digest_bytes: width of a digest.
    """

    def __init__(self, number: int, blocks: int, digest_bytes: int) -> None:
        self.number = number
        self.index = PrefixIndex(blocks, digest_bytes)

    def handle(self, message: ToGroup) -> MatchReply | PublishReply | None:
        """Apply a message from the coordinator; the answer, if it has one."""
        if isinstance(message, MatchRequest):
            match = self.index.match
            evidence = tuple([match(prompt.digests, prompt.limit_blocks) for prompt in message.prompts])
            return MatchReply(message.round_id, self.number, evidence)
        if isinstance(message, BindEvent):
            if len(message.evicted):
                self.index.evict(message.evicted)
            if len(message.stale_slots):
                self.index.drop(message.stale_slots, message.stale_generations)
            return None
        entered = self.index.insert(message.digests, message.start_block, message.slots, message.generations)
        return PublishReply(message.publish_id, self.number, entered)
