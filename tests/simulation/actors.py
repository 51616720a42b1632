"""Group and tier actors of a simulation, each with its channels to and from the coordinator."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtroupe.coordinator.group import Group
from kvtroupe.coordinator.messages import CopyReply, CopyRequest, LossAcknowledgedEvent
from tests.coordinator.cluster import TierRows
from tests.simulation.memory import GARBAGE

if TYPE_CHECKING:
    import random

    from kvtroupe.coordinator.messages import GroupOutput, TierOutput, ToSessions
    from tests.simulation.memory import Memory

REPEATED_SHARE = 0.1  # of the answers of tiers come twice


@dataclass
class GroupActor:
    """A group behind its channels.

    Attributes:
        group: the state of the actor.
        inbox: what it was sent.
        outbox: what it has answered.
        is_there: whether the coordinator has it for alive; what is sent to one that is not is lost.
    """

    group: Group
    inbox: deque[GroupOutput] = field(default_factory=deque)
    outbox: deque[ToSessions] = field(default_factory=deque)
    is_there: bool = True

    def work(self) -> None:
        """Handle a message."""
        output = self.inbox.popleft()
        answer = self.group.handle(output.message, output.number, output.epoch)
        if answer is not None:
            self.outbox.append(answer)

    def die(self) -> None:
        """All that it knows is gone, and so is what it was sent."""
        self.is_there = False
        self.inbox.clear()
        self.group = Group(self.group.number, self.group.index.slots_of_levels, self.group.index.digest_bytes)


@dataclass
class TierActor:
    """A tier actor of one pool and rank behind its channels; it copies when it comes to it, bytes and all.

    Attributes:
        rows: what it keeps of its blocks.
        memory: of all pools.
        inbox: what it was sent.
        outbox: what it has answered.
        is_there: whether the coordinator has it for alive; what is sent to one that is not is lost.
        earlier: how many messages of an earlier coordinator it has still to do; then it says that they are done.
    """

    rows: TierRows
    memory: Memory
    inbox: deque[TierOutput] = field(default_factory=deque)
    outbox: deque[ToSessions] = field(default_factory=deque)
    is_there: bool = True
    earlier: int = 0

    @property
    def process_id(self) -> str:
        """Of its process, which may write device memory."""
        return f"tier {self.rows.pool} {self.rows.rank}"

    def coordinator_lost(self) -> bool:
        """Another coordinator is there: whether something is left to be done for the earlier one."""
        self.earlier = len(self.inbox)
        return self.earlier > 0

    def work(self, chance: random.Random, failure_rate: float) -> None:
        """Handle a message; some copies fail, and spoil what they were to write."""
        self._handle(chance, failure_rate)
        if self.earlier:
            self._earlier_is_done(1)

    def _earlier_is_done(self, messages: int) -> None:
        self.earlier -= messages
        if not self.earlier:
            self.outbox.append(LossAcknowledgedEvent(self.process_id))

    def _handle(self, chance: random.Random, failure_rate: float) -> None:
        message = self.inbox.popleft().message
        if not isinstance(message, CopyRequest):
            answer = self.rows.handle(message)
            if answer is not None:
                self.outbox.append(answer)
            return
        failed = self._copy(message, chance, failure_rate)
        reply = CopyReply(message.transfer_id, message.epoch, self.rows.pool, self.rows.rank, failed)
        self.outbox.append(reply)
        if chance.random() < REPEATED_SHARE:
            self.outbox.append(reply)

    def _copy(self, message: CopyRequest, chance: random.Random, failure_rate: float) -> tuple[int, ...]:
        """Positions of what could not be copied; nothing is touched if the memory is not that which is meant."""
        copies, rank = message.copies, self.rows.rank
        ends = ((copies.source_pool, message.source_epoch), (copies.destination_pool, message.destination_epoch))
        if not all(self.memory.is_that_of(pool, rank, tier_epoch) for pool, tier_epoch in ends):
            return tuple(range(len(copies.sources)))
        failed = []
        pairs = zip(copies.sources.tolist(), copies.destinations.tolist(), strict=True)
        for position, (source, destination) in enumerate(pairs):
            content = self.memory.get((copies.source_pool, rank, source))
            if copies.tokens is not None:
                content = content[0], content[1][: copies.tokens.item(position)], content[2]
            if chance.random() < failure_rate:
                failed.append(position)
                content = GARBAGE
            self.memory.put((copies.destination_pool, rank, destination), content)
        self.rows.note(message, failed)
        return tuple(failed)

    def die(self, *, keeps_rows: bool) -> None:
        """The actor is gone with what it was asked; its bytes and rows too, unless it is a disk."""
        self.inbox.clear()
        if self.earlier:
            self._earlier_is_done(self.earlier)
        self.is_there = False
        self.memory.epochs[self.rows.pool, self.rows.rank] += 1
        if not keeps_rows:
            self.rows = TierRows(self.rows.pool, self.rows.rank)
            self.memory.lose(self.rows.pool, self.rows.rank)
