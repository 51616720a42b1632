"""Publications: blocks of a commit on their way into the indexes.

A block counts as published once its group says that it took it. Until every group has answered, none of the slots of
the sequence is freed, so that an index never names a slot that has been handed out again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.messages import NO_SLOTS, CommitReply, GroupOutput, PublishRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.counters import Counters
    from kvtroupe.coordinator.messages import Output, PublishReply, Slots
    from kvtroupe.coordinator.round import Pool
    from kvtroupe.coordinator.sequences import Sequence as RunningSequence


@dataclass(slots=True, eq=False)
class Publication:
    """One commit's blocks.

    Attributes:
        request_id: of the commit.
        sequence: whose blocks they are.
        digests: of the chain, up to the last block offered.
        slots: by group, of the blocks offered; they are the last ones of the chain.
        priority: of the blocks offered: one value, or one for each.
        expires_s: when their priority falls back to the default, likewise; None: never.
        published_blocks: by group, how many entered the index so far.
        missing: numbers of the groups that have not answered.
    """

    request_id: int
    sequence: RunningSequence
    digests: NDArray[np.void]
    slots: list[Slots]
    priority: int | NDArray[np.uint8]
    expires_s: float | NDArray[np.float64] | None
    published_blocks: list[int]
    missing: set[int]


class Publications:
    """Those that some group has not answered yet.

    Args:
        pools: of the replica.
        config: of the replica.
        counters: of the replica.
    """

    def __init__(self, pools: Sequence[Pool], config: Config, counters: Counters) -> None:
        self._pools = pools
        self._ledger_of = {group: pool.ledger for pool in pools for group in pool.groups}
        self._block_tokens = config.block_tokens
        self._digest_type = np.dtype((np.void, config.digest_bytes))
        self._counters = counters
        self._last_id = 0
        self._unanswered: dict[int, Publication] = {}

    def offer(self, request_id: int, sequence: RunningSequence, now_s: float) -> list[Output]:
        """Offer to each group the blocks that are committed, have a digest and were not offered before.

        Args:
            request_id: of the commit.
            sequence: whose blocks.
            now_s: the time now, at which their retention begins.

        Returns:
            the offers, or, if there is nothing to offer, the reply to the commit.
        """
        start = sequence.considered_blocks
        end = min(sequence.committed_tokens // self._block_tokens, len(sequence.digests) // self._digest_type.itemsize)
        groups = len(self._ledger_of)
        if end <= start:
            return [CommitReply(request_id, (0,) * groups)]
        sequence.considered_blocks = end
        self._last_id += 1
        digests = sequence.digests[: end * self._digest_type.itemsize]
        slots_of, offers = self._offers(sequence, digests, start, end)
        if not offers:
            return [CommitReply(request_id, (0,) * groups)]
        priority, duration_s = sequence.retention.for_blocks(start, end, self._block_tokens, sequence.prompt_tokens)
        expires_s = None if duration_s is None else now_s + duration_s
        self._unanswered[self._last_id] = Publication(
            request_id,
            sequence,
            np.frombuffer(digests, self._digest_type),
            slots_of,
            priority,
            expires_s,
            [0] * groups,
            {offer.group for offer in offers},
        )
        sequence.publishing += 1
        return [*offers]

    def _offers(
        self, sequence: RunningSequence, digests: bytes, start: int, end: int
    ) -> tuple[list[Slots], list[GroupOutput]]:
        """What is offered to each group of blocks start to end: the slots by group, and the messages."""
        slots_of = [NO_SLOTS] * len(self._ledger_of)
        offers: list[GroupOutput] = []
        for pool, table in zip(self._pools, sequence.tables, strict=True):
            slots = table.rows[:, start:end].copy()
            generations = pool.ledger.generation.take(slots)
            for row, group in enumerate(pool.groups):
                gone = max(0, table.first_blocks[row] - start)  # a window has left these behind
                if gone < end - start:
                    slots_of[group] = slots[row, gone:]
                    request = PublishRequest(
                        self._last_id, digests, start + gone, slots_of[group], generations[row, gone:]
                    )
                    offers.append(GroupOutput(group, request))
        return slots_of, offers

    def answered(self, reply: PublishReply) -> Publication | None:
        """Note which blocks entered the index of a group.

        Returns:
            the publication that it answers; None if there is no such question, or no more: then nothing is changed.

        Raises:
            InvariantError: the answer is about another number of blocks than were offered.
        """
        publication = self._unanswered.get(reply.publish_id)
        group = reply.group
        if publication is None or group not in publication.missing:
            self._counters.late_answers += 1
            return None
        offered = slots = publication.slots[group]
        digests = publication.digests[-len(offered) :]
        priority, expires_s = publication.priority, publication.expires_s
        if isinstance(priority, np.ndarray):
            priority = priority[-len(offered) :]
        if isinstance(expires_s, np.ndarray):
            expires_s = expires_s[-len(offered) :]
        if reply.entered is not None:
            if len(reply.entered) != len(offered):
                raise InvariantError(f"group {group} answers for {len(reply.entered)} of {len(offered)} blocks offered")
            slots, digests = slots.compress(reply.entered), digests.compress(reply.entered)
            if isinstance(priority, np.ndarray):
                priority = priority.compress(reply.entered)
            if isinstance(expires_s, np.ndarray):
                expires_s = expires_s.compress(reply.entered)
        self._ledger_of[group].publish(slots, digests, priority, expires_s, group)
        publication.published_blocks[group] = len(slots)
        self._counters.published += len(slots)
        self._counters.duplicates += len(offered) - len(slots)
        publication.missing.remove(group)
        if not publication.missing:
            del self._unanswered[reply.publish_id]
            publication.sequence.publishing -= 1
        return publication

    def unanswered(self) -> list[Publication]:
        """For inspection."""
        return list(self._unanswered.values())
