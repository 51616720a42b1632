"""Hits that go on within a block: its first tokens are copied from a block that has the same ones.

First the length that whole blocks serve is agreed and claimed, as always. It may be extended where it ends where the
path of every group does: each group has told which blocks follow there and how many leading tokens they share with the
prompt. The block that serves the most tokens in all groups is the source.

- The copy goes into the new block that the request needs there anyway: an extension costs no slot.
- Sources are held until the copy is over. That may take the last free slot from the request itself, or from another one
  of the round: an extension is given up rather than that anybody is refused because of it.
- Only sources on the device are used. What is below would have to come up for tokens that are computed in less time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.ledger import Holder
from kvtroupe.coordinator.prefix_index import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtroupe.coordinator.bands import Layout
    from kvtroupe.coordinator.claims import Ask, Claim, Pool, Stale
    from kvtroupe.coordinator.copy_room import CopyRoom
    from kvtroupe.coordinator.messages import Child, Evidence, Generations, Slots
    from kvtroupe.coordinator.sequences import Sequence as RunningSequence


@dataclass(frozen=True, slots=True)
class Extension:
    """The first tokens of a block, beyond a hit of whole blocks.

    Attributes:
        tokens: how many; fewer than a block.
        sources: for each group that takes part the slot of the block that they are copied from.
        generations: of these slots.
        beams: how often each is copied at most.
    """

    tokens: int
    sources: dict[int, int]
    generations: dict[int, int]
    beams: int

    def in_pool(self, pool: Pool) -> tuple[Slots, Generations]:
        """The sources in a pool, in the order of its groups."""
        groups = [group for group in pool.groups if group in self.sources]
        slots, generations = [self.sources[one] for one in groups], [self.generations[one] for one in groups]
        return np.array(slots, np.int64), np.array(generations, np.int64)


class Extender:
    """Extends claims.

    Args:
        pools: of the replica.
        layout: of its tables.
        room: for copies.
    """

    def __init__(self, pools: Sequence[Pool], layout: Layout, room: CopyRoom) -> None:
        self._pools = pools
        self._layout = layout
        self._room = room

    # -- within a round ------------------------------------------------------------------------------------------------

    def extend(self, claim: Claim, ask: Ask, evidence: Sequence[Evidence | None], stale: Stale) -> None:
        """Extend a claim if its prompt goes on with tokens that every group has.

        Args:
            claim: of whole blocks.
            ask: who claims; its first prompt has content.
            evidence: of every group; None: it did not answer.
            stale: gets the places that have changed hands; then the claim stays as it is.
        """
        best, chosen = 0, None
        for offered in _offered_by_all(self._children(claim.hit_tokens, evidence)):
            common_tokens = min([child.common_tokens for child in offered])
            if common_tokens > best:  # of equally good ones the first
                best, chosen = common_tokens, offered
        # A whole block is no part of one, and the last token is always computed.
        tokens = min(best, self._layout.unit_tokens - 1, ask.shape.prompt_tokens - 1 - claim.hit_tokens)
        if chosen is None or tokens < 1:
            return
        groups = self._layout.participating
        extension = Extension(
            tokens,
            {group: child.slot for group, child in zip(groups, chosen, strict=True)},
            {group: child.generation for group, child in zip(groups, chosen, strict=True)},
            ask.shape.beams,
        )
        if self._plan(extension) and self._claim(extension, stale):
            claim.extension = extension

    def _children(self, hit_tokens: int, evidence: Sequence[Evidence | None]) -> list[tuple[Child, ...]]:
        """For each group that takes part the children at the end of the hit; nothing if a path ends elsewhere."""
        children = []
        for group in self._layout.participating:
            found = evidence[group]
            if found is None or found.path_blocks * self._layout.unit_tokens != hit_tokens:
                return []
            children.append(found.children)
        return children

    def _plan(self, extension: Extension) -> bool:
        """Whether there is room for the copies of an extension, and those of others of this round."""
        return self._room.plan([len(extension.in_pool(pool)[0]) * extension.beams for pool in self._pools])

    def _claim(self, extension: Extension, stale: Stale) -> bool:
        """Hold the sources for the copy; False: one has changed hands, and none is held."""
        for number, pool in enumerate(self._pools):
            slots, generations = extension.in_pool(pool)
            good = pool.ledger.claim(slots, generations, Holder.TRANSFER)
            if good < len(slots):
                pool.ledger.undo_claim(slots[:good], Holder.TRANSFER)
                for earlier in self._pools[:number]:
                    earlier.ledger.undo_claim(extension.in_pool(earlier)[0], Holder.TRANSFER)
                (group,) = [one for one in pool.groups if extension.sources.get(one) == slots[good]]
                stale.setdefault((group, DEVICE), {})[int(slots[good])] = int(generations[good])
                return False
        return True

    def undo(self, claim: Claim) -> None:
        """Take an extension back, if there is one: no trace of it is left."""
        if claim.extension is not None:
            for pool in self._pools:
                pool.ledger.undo_claim(claim.extension.in_pool(pool)[0], Holder.TRANSFER)

    def redo(self, claim: Claim) -> None:
        """Claim again what has just been undone."""
        if claim.extension is not None:
            for pool in self._pools:
                pool.ledger.claim(*claim.extension.in_pool(pool), Holder.TRANSFER)

    def drop(self, claim: Claim) -> bool:
        """Go without an extension: whether there was one."""
        self.undo(claim)
        had_one = claim.extension is not None
        claim.extension = None
        return had_one

    # -- after it ------------------------------------------------------------------------------------------------------

    def begun(self, extension: Extension) -> None:
        """Its copies have begun, and hold their sources themselves."""
        for pool in self._pools:
            pool.ledger.release(extension.in_pool(pool)[0], Holder.TRANSFER)

    def copies(
        self, sequence: RunningSequence, extension: Extension, hit_tokens: int
    ) -> Iterator[tuple[int, Slots, Slots]]:
        """What is to be copied: pool, slots to be read, and as many of the sequence's own to be written."""
        column = hit_tokens // self._layout.unit_tokens
        for band, table in zip(self._layout.bands, sequence.tables, strict=True):
            if band.columns == "dense":
                step = table.beams if column < table.shared_blocks else 1
                destinations = table.rows[::step, column].copy()
                sources = np.array([extension.sources[group] for group in band.groups], np.int64)
                yield band.pool, sources.repeat(len(destinations) // len(sources)), destinations


def _offered_by_all(children: list[tuple[Child, ...]]) -> Iterator[tuple[Child, ...]]:
    """Blocks on the device that every group offers, each as every group offers it, in the order of the first group."""
    by_digest = [{child.digest: child for child in offered if child.level == DEVICE} for offered in children]
    for child in children[0] if children else ():
        if all(child.digest in offered for offered in by_digest):
            yield tuple([offered[child.digest] for offered in by_digest])
