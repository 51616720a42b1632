"""A coordinator, its groups and the tier actors of every rank in one process, any of which can stop answering, or die.

The tier actors have no bytes, but they keep what such actors keep: which block is in which of their slots.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.event_mirror import Mirror
from kvtroupe.coordinator.inventories import Inventory
from kvtroupe.coordinator.messages import (
    AdmitReply,
    AdmitRequest,
    Admitted,
    CommitRequest,
    ContentEpochReply,
    ContentEpochRequest,
    CopyReply,
    CopyRequest,
    DropEvent,
    DropReply,
    DropRequest,
    GroupLostEvent,
    GroupOutput,
    GroupReadyEvent,
    InventoryReply,
    InventoryRequest,
    ReleaseEvent,
    TierLostEvent,
    TierOutput,
    TierReadyEvent,
)
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.support import BLOCK_TOKENS, chain, new

if TYPE_CHECKING:
    from collections.abc import Container

    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.messages import (
        AdmitResult,
        NewSequence,
        SequenceId,
        SessionsOutput,
        ToCoordinator,
        ToSessions,
        ToTier,
    )

Actor: TypeAlias = tuple[str, int, int]  # "group" or "tier"; number of the group or pool; rank


@dataclass
class TierRows:
    """What a tier actor of one rank keeps of the blocks in its slots.

    Attributes:
        pool: number of its pool.
        rank: its rank.
        content_epoch: of what it holds.
        rows: by slot: group, digest, digest of the block before it.
        failing: whether the copies that it is asked for fail.
        unreadable: digests of blocks whose bytes in its slots cannot be read, or are not what they should be.
    """

    pool: int
    rank: int
    content_epoch: int = 0
    rows: dict[int, tuple[int, bytes, bytes]] = field(default_factory=dict)
    failing: bool = False
    unreadable: set[bytes] = field(default_factory=set)

    def handle(self, message: ToTier) -> ToCoordinator | None:
        """Do what is asked: the answer, if there is one."""
        if isinstance(message, CopyRequest):
            return self._copy(message)
        if isinstance(message, DropEvent | DropRequest):
            for slot in message.slots.tolist():
                self.rows.pop(slot, None)
            if isinstance(message, DropEvent):
                return None
            return DropReply(message.transfer_id, message.epoch, self.pool, self.rank)
        assert isinstance(message, InventoryRequest | ContentEpochRequest)
        if message.content_epoch > self.content_epoch:
            self.content_epoch = message.content_epoch
            self.rows.clear()
        if isinstance(message, ContentEpochRequest):
            return ContentEpochReply(self.pool, self.rank, self.content_epoch)
        return InventoryReply(self.pool, self.rank, message.epoch, self.content_epoch, self.inventory())

    def _copy(self, message: CopyRequest) -> CopyReply:
        failed = tuple(range(len(message.copies.sources))) if self.failing else self._unreadable(message)
        self.note(message, failed)
        return CopyReply(message.transfer_id, message.epoch, self.pool, self.rank, failed)

    def _unreadable(self, message: CopyRequest) -> tuple[int, ...]:
        copies = message.copies
        if copies.source_pool != self.pool or copies.digests is None:
            return ()
        return tuple([at for at, one in enumerate(copies.digests) if one.tobytes() in self.unreadable])

    def note(self, message: CopyRequest, failed: Container[int]) -> None:
        """Copies are done, but for some that failed: what was in the slots before is gone, and what is new is kept."""
        copies = message.copies
        if copies.destination_pool != self.pool:
            return
        is_kept = copies.digests is not None and message.content_epoch >= self.content_epoch
        for position, slot in enumerate(copies.destinations.tolist()):
            self.rows.pop(slot, None)
            if is_kept and position not in failed:
                assert copies.groups is not None
                assert copies.digests is not None
                assert copies.parents is not None
                digest, parent = copies.digests[position].tobytes(), copies.parents[position].tobytes()
                self.rows[slot] = int(copies.groups[position]), digest, parent

    def inventory(self) -> Inventory:
        """All that it keeps."""
        width = np.dtype((np.void, len(chain("a"))))
        return Inventory(
            np.array([*self.rows], np.int64),
            np.array([group for group, _, _ in self.rows.values()], np.int64),
            np.frombuffer(b"".join(digest for _, digest, _ in self.rows.values()), width),
            np.frombuffer(b"".join(parent for _, _, parent in self.rows.values()), width),
            np.full(len(self.rows), 35, np.uint8),
        )


class Cluster:
    """See the module.

    Args:
        config: of the replica.

    Attributes:
        replica: the coordinator and its groups; its direct face must not be used.
        tiers: by pool and rank.
        silent: actors that do not answer; what they are sent waits.
        events: all that clients were sent, in order.
        mirror: of the block events, where these are on.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.replica = Replica(config)
        ranks = range(config.ranks)
        self.tiers = {(pool, rank): TierRows(pool, rank) for pool in range(len(config.pools)) for rank in ranks}
        self.silent: set[Actor] = set()
        self.events: list[SessionsOutput] = []
        self.mirror = Mirror(config.digest_bytes)
        self.now_s = 0.0
        self._inboxes: dict[Actor, deque[GroupOutput | TierOutput]] = {}
        self._tier_epochs: Counter[tuple[int, int]] = Counter()
        self._last_id = 0

    # -- messages ------------------------------------------------------------------------------------------------------

    def send(self, message: ToSessions) -> list[SessionsOutput]:
        """Step, and deliver what comes of it to all who are not silent: what clients are sent."""
        before = len(self.events)
        self._take(self.replica.step(message, self.now_s))
        self.deliver()
        return self.events[before:]

    def deliver(self) -> None:
        """Deliver what waits for actors that are not silent."""
        while busy := [actor for actor, inbox in self._inboxes.items() if inbox and actor not in self.silent]:
            for actor in busy:
                self.deliver_one(actor)

    def deliver_one(self, actor: Actor) -> None:
        """Deliver the next message to an actor, silent or not, and its answer."""
        output = self._inboxes[actor].popleft()
        answer: ToCoordinator | None
        if isinstance(output, GroupOutput):
            answer = self.replica.groups[output.group].handle(output.message, output.number, output.epoch)
        else:
            answer = self.tiers[output.engine, output.rank].handle(output.message)
        if answer is not None:
            self._take(self.replica.step(answer, self.now_s))

    def inbox(self, actor: Actor) -> list[GroupOutput | TierOutput]:
        """What waits for an actor."""
        return list(self._inboxes.get(actor, ()))

    def waiting(self, actor: Actor) -> int:
        """How many messages wait for an actor."""
        return len(self._inboxes.get(actor, ()))

    def _take(self, outputs: list[SessionsOutput]) -> None:
        for output in outputs:
            if isinstance(output, GroupOutput):
                self._inboxes.setdefault(("group", output.group, 0), deque()).append(output)
            elif isinstance(output, TierOutput):
                self._inboxes.setdefault(("tier", output.engine, output.rank), deque()).append(output)
            else:
                self.events.append(output)

    # -- what clients do -----------------------------------------------------------------------------------------------

    def admit(self, *sequences: NewSequence) -> list[AdmitResult]:
        """Admit sequences; none may have to wait."""
        self._last_id += 1
        (reply,) = [one for one in self.send(AdmitRequest(self._last_id, sequences)) if isinstance(one, AdmitReply)]
        return list(reply.results)

    def run(self, sequence_id: SequenceId, words: str) -> Admitted:
        """Admit a sequence of exactly these blocks, and commit all of them."""
        (result,) = self.admit(new(sequence_id, words, extra_tokens=0))
        assert isinstance(result, Admitted), result
        self.commit(sequence_id, len(words) * BLOCK_TOKENS)
        return result

    def commit(self, sequence_id: SequenceId, tokens: int) -> None:
        """Commit."""
        self._last_id += 1
        self.send(CommitRequest(self._last_id, sequence_id, tokens))

    def cache(self, *chains: str) -> None:
        """Let sequences of exactly these blocks run and end, one after the other."""
        for words in chains:
            self.run(f"cache {words}", words)
            self.send(ReleaseEvent(f"cache {words}"))

    def hit(self, words: str) -> int:
        """How many tokens a prompt of these words and one more token hits; it ends at once."""
        (result,) = self.admit(new("probe", words))
        assert isinstance(result, Admitted), result
        self.send(ReleaseEvent("probe"))
        return result.cached_tokens

    # -- losses --------------------------------------------------------------------------------------------------------

    def lose_group(self, group: int) -> list[SessionsOutput]:
        """A group dies with all that it was sent and has not read."""
        self._inboxes.pop(("group", group, 0), None)
        slots = self.replica.groups[group].index.slots_of_levels
        self.replica.groups[group] = type(self.replica.groups[group])(group, slots, self.config.digest_bytes)
        return self.send(GroupLostEvent(group))

    def group_ready(self, group: int) -> list[SessionsOutput]:
        """Another one is there."""
        return self.send(GroupReadyEvent(group))

    def lose_tier(self, pool: int, rank: int, *, keeps_rows: bool) -> list[SessionsOutput]:
        """A tier actor dies with all that it was asked and has not done."""
        self._inboxes.pop(("tier", pool, rank), None)
        if not keeps_rows:
            self.tiers[pool, rank] = TierRows(pool, rank)
        return self.send(TierLostEvent(pool, rank))

    def tier_ready(self, pool: int, rank: int) -> list[SessionsOutput]:
        """Another one is there."""
        self._tier_epochs[pool, rank] += 1
        return self.send(TierReadyEvent(pool, rank, self._tier_epochs[pool, rank]))

    def restart(self, epoch: int) -> None:
        """The coordinator dies with its groups and what waits for anybody; another one is there, and has to be told."""
        self._inboxes.clear()
        tiers = self.tiers
        groups = self.replica.groups
        self.replica = Replica(self.config)
        self.replica.restart(epoch)
        self.replica.groups = groups
        self.tiers = tiers

    def check(self) -> None:
        """Every invariant, if nothing is under way to a group."""
        if not any(self.waiting(("group", group, 0)) for group in range(len(self.replica.groups))):
            check(self.replica, self.mirror)
