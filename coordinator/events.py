"""Block events of a replica: facts about published places, numbered, for readers that follow or come late.

The ledgers tell them, at the moment at which a place is published or is so no more, as every change of an index passes
through them: publications, landings, takeovers, evictions, losses, resets. So a request that is refused, which leaves
the ledgers as they were, is not heard of. Token ids and priorities are no part of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from kvtroupe.coordinator.errors import RequestError
from kvtroupe.coordinator.inventories import same_digests, sorted_by_chain
from kvtroupe.coordinator.messages import Cleared, Events, EventsReply, Removed, Snapshot, Stored

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvtroupe.coordinator.messages import BlockFact, EventsRequest, Output
    from kvtroupe.coordinator.parts import Parts


class EventLog:
    """The newest facts of one epoch of a coordinator.

    Args:
        epoch: of the coordinator.
        blocks_max: blocks that the facts which are kept name at most; a fact that names none counts as one.

    Attributes:
        number: of the newest fact; they are counted from 1 on.
    """

    def __init__(self, epoch: int, blocks_max: int) -> None:
        self.epoch = epoch
        self.number = 0
        self._blocks_max = blocks_max
        self._blocks = 0
        self._kept: deque[tuple[BlockFact, int]] = deque()  # with the blocks that each counts

    def add(self, fact: BlockFact, blocks: int = 1) -> None:
        """A fact has come true that names so many blocks; the oldest ones are forgotten for it."""
        self.number += 1
        self._kept.append((fact, blocks))
        self._blocks += blocks
        while self._blocks > self._blocks_max:
            self._blocks -= self._kept.popleft()[1]

    def since(self, number: int) -> Events | None:
        """What follows a fact; None: that is not known any more, or there was no such fact yet."""
        count = self.number - number
        first = len(self._kept) - count
        if count < 0 or first < 0:
            return None
        return Events(self.epoch, number, tuple([fact for fact, _ in islice(self._kept, first, None)]))


@dataclass(frozen=True, slots=True)
class PoolEvents:
    """What the ledger of one pool tells.

    Attributes:
        log: that keeps it.
        medium: the tier of the pool.
    """

    log: EventLog
    medium: str

    def stored(self, group: int, digests: NDArray[np.void], parents: NDArray[np.void]) -> None:
        """Blocks of a group are published."""
        for fact in runs(group, self.medium, digests, parents):
            self.log.add(fact, len(fact.digests) // digests.itemsize)

    def removed(self, group: int, digests: NDArray[np.void]) -> None:
        """Blocks of a group are published no more; at least one."""
        self.log.add(Removed(group, self.medium, digests.tobytes()), len(digests))

    def cleared(self, group: int) -> None:
        """No block of a group is published any more."""
        self.log.add(Cleared(group, self.medium))


class BlockEvents:
    """See the module.

    Args:
        parts: of the state.
    """

    def __init__(self, parts: Parts) -> None:
        self._pools = [(pool.ledger, config.tier) for pool, config in zip(parts.pools, parts.config.pools, strict=True)]
        self._log = None
        if parts.config.events:
            self._log = EventLog(parts.mail.epoch, parts.config.limits.event_blocks_kept_max)
            self._log.add(Cleared())
            for ledger, medium in self._pools:
                ledger.events = PoolEvents(self._log, medium)

    def reply(self, message: EventsRequest) -> list[Output]:
        """Tell a reader what it does not know; see `since`."""
        return [EventsReply(message.request_id, self.since(message.since))]

    def since(self, position: tuple[int, int] | None) -> Events | Snapshot:
        """What has happened since a fact, or, where that is not known, what is there now.

        Args:
            position: epoch and number of the fact; None: none is known.

        Raises:
            RequestError: events are off, or the position is malformed.
        """
        if self._log is None:
            raise RequestError("this replica has no block events; switch them on with events=True in its Config")
        if position is None:
            return self._snapshot(self._log)
        _check_position(position)
        epoch, number = position
        events = self._log.since(number) if epoch == self._log.epoch else None
        return events or self._snapshot(self._log)

    def _snapshot(self, log: EventLog) -> Snapshot:
        stored: list[Stored] = []
        for ledger, medium in self._pools:
            for group, slots in ledger.published_by_group().items():
                stored += runs(group, medium, ledger.digests_of(slots), ledger.parents_of(slots))
        return Snapshot(log.epoch, log.number, tuple(stored))


def _check_position(position: object) -> None:
    values = position if isinstance(position, tuple) else ()
    if len(values) != 2 or any(type(value) is not int or value < 0 for value in values):
        raise RequestError(
            f"events are asked for since {position!r:.60}: give the epoch and the number of the last one known, "
            "both whole numbers from 0 on, or None for a snapshot"
        )


def runs(group: int, medium: str, digests: NDArray[np.void], parents: NDArray[np.void]) -> list[Stored]:
    """Published blocks as facts, one for blocks that follow one another in their chain.

    Args:
        group: number of their group.
        medium: the tier that they are in.
        digests: of the blocks.
        parents: for each block the digest of the one before it in its chain; zero for the first.
    """
    if not len(digests):
        return []
    if parents[1:].tobytes() == digests[:-1].tobytes():  # blocks of one commit
        return [Stored(group, medium, _parent(parents[0].tobytes()), digests.tobytes())]
    order = sorted_by_chain(digests, parents)  # what was copied down comes with the last of its chain first
    digests, parents = digests.take(order), parents.take(order)
    cuts = (~same_digests(parents[1:], digests[:-1])).nonzero()[0] + 1
    return [
        Stored(group, medium, _parent(parents[start].tobytes()), digests[start:end].tobytes())
        for start, end in pairwise([0, *cuts.tolist(), len(digests)])
    ]


def _parent(digest: bytes) -> bytes:
    return digest if any(digest) else b""
