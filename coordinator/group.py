"""One window group: hosts ask it what is there of a chain, tell it what moved or is lost, and offer it new blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.index_children import Children
from kvtroupe.coordinator.index_placements import arrive, insert_some, land
from kvtroupe.coordinator.messages import BindEvent, ForgetEvent, LandRequest, MatchReply, MatchRequest, PublishReply
from kvtroupe.coordinator.prefix_index import PrefixIndex

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvtroupe.coordinator.messages import PublishRequest, ToGroup


class Group:
    """The state of a group actor. It knows no sequences and no uses, and chooses no victims.

    Args:
        number: the group's place in the configuration.
        slots_of_levels: slots of the pools that hold its blocks, from the device down.
        digest_bytes: width of a digest.

    Attributes:
        index: which of its blocks are where.
        children: the tokens of its blocks, where it is told.
        applied: number of the last message that changed it, of an unbroken row. After a message that does not follow
            the one before, it stays as it is, so that every answer shows the gap, until the group forgets everything.
        epoch: the newest of the coordinators that it has heard of; messages of older ones are refused.
    """

    def __init__(self, number: int, slots_of_levels: tuple[int, ...], digest_bytes: int) -> None:
        self.number = number
        self.index = PrefixIndex(slots_of_levels, digest_bytes)
        self.children = Children(self.index)
        self.applied = 0
        self.epoch = 0

    def handle(self, message: ToGroup, number: int | None = None, epoch: int = 0) -> MatchReply | PublishReply | None:
        """Apply a message from the coordinator.

        Args:
            message: from the coordinator.
            number: that it came under; None: it came under none.
            epoch: of the coordinator.

        Returns:
            the answer, if it has one; a message of a coordinator that was followed by another one has none.

        Raises:
            InvariantError: it names a level that the group does not have.
        """
        if epoch < self.epoch:
            return None
        self.epoch = epoch
        if isinstance(message, MatchRequest):
            return self._match(message, number)
        if number and (number == self.applied + 1 or isinstance(message, ForgetEvent)):
            self.applied = number
        if isinstance(message, BindEvent):
            self._bind(message)
            return None
        if isinstance(message, ForgetEvent):
            self.index = PrefixIndex(self.index.slots_of_levels, self.index.digest_bytes)
            self.children = Children(self.index)
            return None
        if isinstance(message, LandRequest):
            return PublishReply(message.publish_id, self.number, land(self.index, message), epoch)
        return PublishReply(message.publish_id, self.number, self._publish(message), epoch)

    def _match(self, message: MatchRequest, number: int | None) -> MatchReply:
        match, match_in_part = self.index.match, self.children.match
        evidence = tuple(
            [
                match(prompt.digests, prompt.limit_blocks) if prompt.content is None else match_in_part(prompt)
                for prompt in message.prompts
            ]
        )
        return MatchReply(message.round_id, self.number, evidence, None if number is None else self.applied, self.epoch)

    def _bind(self, message: BindEvent) -> None:
        if message.arrivals:
            arrive(self.index, message.arrivals)
        if len(message.evicted):
            self.index.evict(message.evicted)
        for lost in message.lost:
            self.index.drop(lost.slots, lost.generations, lost.level)

    def _publish(self, message: PublishRequest) -> NDArray[np.bool_] | None:
        if not len(message.slots):
            return None
        if message.sparse or message.level:
            entered = insert_some(self.index, message)
        else:
            entered = self.index.insert(message.digests, message.start_block, message.slots, message.generations)
        if message.content is not None:
            self.children.note(message)
        return entered
