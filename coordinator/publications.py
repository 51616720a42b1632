"""Publications: blocks of a commit on their way into the indexes.

A block counts as published once its group says that it took it. Until every group has answered, none of the slots of
the sequence is freed, so that an index never names a slot that has been handed out again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtroupe.coordinator.contents import of_blocks
from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.ledger import NULL_SLOT
from kvtroupe.coordinator.messages import CommitReply, PublishRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from numpy.typing import NDArray

    from kvtroupe.coordinator.bands import Band
    from kvtroupe.coordinator.demotions import Demotions
    from kvtroupe.coordinator.messages import GroupOutput, Output, PublishReply, Slots
    from kvtroupe.coordinator.parts import Parts
    from kvtroupe.coordinator.sequences import Sequence as RunningSequence


@dataclass(slots=True)
class Offer:
    """What one group is offered; the last blocks of a chain.

    Attributes:
        slots: of the blocks; null where a block is not offered.
        digests: of the blocks.
        priority: one value, or one for each block.
        expires_s: when the priority falls back to the default, likewise; None: never.
        parents: digests of the blocks before them; None where nobody keeps them.
        is_sparse: whether some slots are null.
    """

    slots: Slots
    digests: NDArray[np.void]
    priority: int | NDArray[np.uint8]
    expires_s: float | NDArray[np.float64] | None
    parents: NDArray[np.void] | None
    is_sparse: bool

    def last(self, count: int) -> Offer:
        """Of the same chain, only the last blocks."""
        first = len(self.slots) - count
        if not first:
            return self
        return self._replaced(
            self.slots[first:], self.digests[first:], lambda values: values[first:], is_sparse=self.is_sparse
        )

    def entered(self, mask: NDArray[np.bool_]) -> Offer:
        """Only some of the blocks."""
        return self._replaced(
            self.slots.compress(mask),
            self.digests.compress(mask),
            lambda values: values.compress(mask),
            is_sparse=False,
        )

    def _replaced(
        self,
        slots: Slots,
        digests: NDArray[np.void],
        choose: Callable[[NDArray[Any]], NDArray[Any]],
        *,
        is_sparse: bool,
    ) -> Offer:
        priority, expires_s = self.priority, self.expires_s
        if isinstance(priority, np.ndarray):
            priority = choose(priority)
        if isinstance(expires_s, np.ndarray):
            expires_s = choose(expires_s)
        parents = None if self.parents is None else choose(self.parents)
        return Offer(slots, digests, priority, expires_s, parents, is_sparse)


@dataclass(slots=True, eq=False)
class Publication:
    """One commit's blocks.

    Attributes:
        publish_id: names the answers of the groups.
        request_id: of the commit; None: nobody waits for it.
        sequence: whose blocks they are.
        offers: by group, what it has not answered yet.
        published_blocks: by group, how many entered the index so far.
        only_group: the one group that is asked; None: all are.
    """

    publish_id: int
    request_id: int | None
    sequence: RunningSequence
    offers: dict[int, Offer]
    published_blocks: list[int]
    only_group: int | None = None


class Publications:
    """Those that some group has not answered yet.

    Args:
        parts: of the state.
        demotions: that copy down what is published, where that is wanted.
    """

    def __init__(self, parts: Parts, demotions: Demotions) -> None:
        self._demotions = demotions
        self._layout = layout = parts.layout
        self._ledgers_of_pools = [pool.ledger for pool in parts.pools]
        self._ledgers = [parts.pools[band.pool].ledger for band in layout.bands]
        self._pool_of = {group: number for number, pool in enumerate(parts.pools) for group in pool.groups}
        stacked = {pool.name for pool in parts.config.pools if pool.below is not None}
        self._keeps_parents = [parts.config.events or parts.pools[band.pool].name in stacked for band in layout.bands]
        self._bands_of_scale = [
            [number for number, band in enumerate(layout.bands) if band.scale == scale and _publishes(band)]
            for scale in range(len(layout.scales) + layout.has_cross)
        ]
        self._digest_type = np.dtype((np.void, parts.config.digest_bytes))
        self._counters = parts.counters
        self._mail = parts.mail
        self._numbers = parts.publish_numbers
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
        publication = Publication(self._numbers.next(), request_id, sequence, {}, [0] * len(self._layout.rules))
        outputs: list[Output] = []
        for scale, bands in enumerate(self._bands_of_scale):
            start, end = sequence.considered_blocks[scale], self._complete_blocks(sequence, scale)
            if end > start:
                sequence.considered_blocks[scale] = end
                for number in () if sequence.is_void else bands:
                    outputs += self._offers(publication, number, range(start, end), now_s)
        if not publication.offers:
            return [CommitReply(request_id, tuple(publication.published_blocks))]
        self._await_answers(publication)
        return outputs

    def offer_again(self, group: int, sequences: Iterable[RunningSequence], now_s: float) -> list[Output]:
        """Offer to a group whose index is empty all blocks that sequences hold and that were offered or hit before."""
        (number,) = [
            number for bands in self._bands_of_scale for number in bands if group in self._layout.bands[number].groups
        ]
        outputs: list[Output] = []
        for sequence in sequences:
            end = sequence.considered_blocks[self._layout.bands[number].scale]
            if end and not sequence.is_void:
                published_blocks = [0] * len(self._layout.rules)
                publication = Publication(self._numbers.next(), None, sequence, {}, published_blocks, group)
                outputs += self._offers(publication, number, range(end), now_s)
                if publication.offers:
                    self._await_answers(publication)
        return outputs

    def _await_answers(self, publication: Publication) -> None:
        self._unanswered[publication.publish_id] = publication
        publication.sequence.publishing += 1

    def _complete_blocks(self, sequence: RunningSequence, scale: int) -> int:
        """How many blocks of a scale, from the first on, are committed and have a digest."""
        known = len(sequence.digests[scale]) // self._digest_type.itemsize
        if scale == len(self._layout.scales):
            return known  # the encoder has run before the first commit
        tokens = sequence.committed_tokens
        if sequence.shape.beams > 1:
            tokens = min(tokens, sequence.shape.prompt_tokens)
        return min(tokens // self._layout.scales[scale], known)

    def _offers(self, publication: Publication, number: int, blocks: range, now_s: float) -> list[GroupOutput]:
        """What is offered to the groups of a band of some blocks: noted, and as messages."""
        sequence, start, end = publication.sequence, blocks.start, blocks.stop
        band, table = self._layout.bands[number], sequence.tables[number]
        chain = sequence.digests[band.scale][: end * self._digest_type.itemsize]
        digests = np.frombuffer(chain, self._digest_type)[start:]
        parents = self._parents(chain)[start:] if self._keeps_parents[number] else None
        slots = table.first_beams[:, start:end].copy()
        generations = self._ledgers[number].generation.take(slots)
        retention = sequence.retention
        priority: int | NDArray[np.uint8] = retention.priority
        duration_s: float | NDArray[np.float64] | None = retention.duration_s
        if band.rule.participates:  # ranges are of the prompt: they say nothing about the encoder's input
            priority, duration_s = retention.for_blocks(
                start, end, band.rule.block_tokens, sequence.shape.prompt_tokens
            )
        expires_s = None if duration_s is None else now_s + duration_s
        content = sequence.content if band.columns == "dense" else None  # encoder blocks are hit whole
        outputs = []
        for row, group in enumerate(band.groups):
            if group in self._mail.lost or publication.only_group not in (None, group):
                continue
            left = end - max(table.first_blocks[row], start)  # a window has left the others behind
            if left <= 0 or (table.sparse and not slots[row].any()):
                continue
            whole = Offer(slots[row], digests, priority, expires_s, parents, table.sparse)
            publication.offers[group] = offered = whole.last(left)
            request = PublishRequest(
                publication.publish_id,
                chain,
                end - left,
                offered.slots,
                generations[row, -left:],
                sparse=table.sparse,
                content=None if content is None else of_blocks(content, end - left, end),
            )
            outputs.append(self._mail.to(group, request))
        return outputs

    def _parents(self, chain: bytes) -> NDArray[np.void]:
        """For each block of a chain the digest of the one before it."""
        width = self._digest_type.itemsize
        return np.frombuffer(bytes(width) + chain[:-width], self._digest_type)

    def answered(self, reply: PublishReply, now_s: float) -> Publication | None:
        """Note which blocks entered the index of a group.

        Returns:
            the publication that it answers; None if there is no such question, or no more: then nothing is changed.

        Raises:
            InvariantError: the answer is about another number of blocks than were offered.
        """
        publication = self._unanswered.get(reply.publish_id)
        group = reply.group
        if publication is None or group not in publication.offers:
            self._counters.late_answers += 1
            return None
        offer = publication.offers[group]
        offered = int(np.count_nonzero(offer.slots)) if offer.is_sparse else len(offer.slots)
        if reply.entered is not None:
            if len(reply.entered) != len(offer.slots):
                raise InvariantError(
                    f"group {group} answers for {len(reply.entered)} of {len(offer.slots)} blocks offered"
                )
            offer = offer.entered(reply.entered)
        elif offer.is_sparse:
            offer = offer.entered(offer.slots != NULL_SLOT)
        pool = self._pool_of[group]
        ledger = self._ledgers_of_pools[pool]
        if offer.parents is not None:
            ledger.note_parents(offer.slots, offer.parents)
        ledger.publish(offer.slots, offer.digests, offer.priority, offer.expires_s, group)
        self._demotions.published(pool, offer.slots, now_s)
        del publication.offers[group]
        publication.published_blocks[group] = len(offer.slots)
        self._counters.published += len(offer.slots)
        self._counters.duplicates += offered - len(offer.slots)
        self._close_if_complete(publication)
        return publication

    def _close_if_complete(self, publication: Publication) -> None:
        if not publication.offers:
            del self._unanswered[publication.publish_id]
            publication.sequence.publishing -= 1

    def give_up(self, groups: Container[int]) -> tuple[list[Publication], list[tuple[int, Slots]]]:
        """Some groups will not answer, or their answers do not count any more: nothing that they were offered enters.

        Returns:
            the publications that they were asked about, and the groups and slots of their offers.
        """
        concerned: list[Publication] = []
        slots: list[tuple[int, Slots]] = []
        for publication in list(self._unanswered.values()):
            mine = [group for group in publication.offers if group in groups]
            for group in mine:
                offered = publication.offers.pop(group).slots
                self._ledgers_of_pools[self._pool_of[group]].give_up(offered)
                slots.append((group, offered))
            if mine:
                self._close_if_complete(publication)
                concerned.append(publication)
        return concerned, slots

    def unanswered(self) -> list[Publication]:
        """For inspection."""
        return list(self._unanswered.values())


def _publishes(band: Band) -> bool:
    return band.columns in ("dense", "sparse", "cross")
