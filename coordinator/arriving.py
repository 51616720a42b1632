"""Blocks on their way between pools: what is to be published where they arrive, and what is read where they leave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtroupe.coordinator.ledger import Ledger
    from kvtroupe.coordinator.messages import Generations, Slots

NOTHING = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Published blocks of one pool that are copied to another.

    Attributes:
        slots: where they are.
        generations: of these slots.
        groups: that have published them.
        digests: of the blocks.
        parents: digests of the blocks before them in their chains.
        priorities: retention priorities.
        expires_s: when these fall back to the default.
    """

    slots: Slots
    generations: Generations
    groups: NDArray[np.int16]
    digests: NDArray[np.void]
    parents: NDArray[np.void]
    priorities: NDArray[np.uint8]
    expires_s: NDArray[np.float64]

    def __len__(self) -> int:
        """Blocks."""
        return len(self.slots)

    def only(self, chosen: NDArray[np.bool_] | slice) -> Batch:
        """Some of the blocks."""
        return Batch(
            self.slots[chosen],
            self.generations[chosen],
            self.groups[chosen],
            self.digests[chosen],
            self.parents[chosen],
            self.priorities[chosen],
            self.expires_s[chosen],
        )

    def moved_to(self, slots: Slots, generations: Generations) -> Batch:
        """The same blocks in other slots."""
        return replace(self, slots=slots, generations=generations)


def batch_of(ledger: Ledger, slots: Slots) -> Batch:
    """What is published in slots now."""
    return Batch(
        slots,
        ledger.generation.take(slots),
        ledger.published.take(slots) - 1,
        ledger.digests_of(slots),
        ledger.parents_of(slots),
        ledger.priority_of(slots),
        ledger.expires_of(slots),
    )


class Arriving:
    """Slots of one pool that copies are filling, and what they will hold: arrays indexed by slot.

    Args:
        blocks: slots of the pool.
        digest_bytes: width of a digest.

    Attributes:
        count: how many slots.
    """

    def __init__(self, blocks: int, digest_bytes: int) -> None:
        self.count = 0
        self._group = np.zeros(blocks, np.int16)  # 1 + its number; 0 where nothing arrives
        self._generation = np.zeros(blocks, np.int64)
        self._digest = np.zeros(blocks, np.dtype((np.void, digest_bytes)))
        self._parent = np.zeros_like(self._digest)
        self._priority = np.zeros(blocks, np.uint8)
        self._expires_s = np.full(blocks, np.inf)
        self._is_void = np.zeros(blocks, np.bool_)
        self._source = np.zeros((3, blocks), np.int64)  # pool, slot, generation
        self._transfer = np.zeros(blocks, np.int64)

    def expect(self, batch: Batch, source_pool: int, source: Batch, transfer_ids: NDArray[np.int64]) -> None:
        """Blocks are on their way.

        Args:
            batch: in the slots that they will be in.
            source_pool: number of the pool that they are copied from.
            source: the same blocks there.
            transfer_ids: for each block the transfer that brings it.
        """
        slots = batch.slots
        self._group[slots] = batch.groups + 1
        self._generation[slots] = batch.generations
        self._digest[slots] = batch.digests
        self._parent[slots] = batch.parents
        self._priority[slots] = batch.priorities
        self._expires_s[slots] = batch.expires_s
        self._source[0, slots] = source_pool
        self._source[1, slots] = source.slots
        self._source[2, slots] = source.generations
        self._transfer[slots] = transfer_ids
        self.count += len(slots)

    def expected(self, slots: Slots) -> NDArray[np.bool_]:
        """In which of these slots something arrives."""
        expected: NDArray[np.bool_] = self._group.take(slots) != NOTHING
        return expected

    def brought_by(self, transfer_id: int, slots: Slots) -> NDArray[np.bool_]:
        """In which of the slots that a transfer writes it brings something.

        It may still write a slot that was given back meanwhile and that another one, held back until it is over, is to
        fill.
        """
        brought: NDArray[np.bool_] = self.expected(slots) & (self._transfer.take(slots) == transfer_id)
        return brought

    def copied(self, slots: Slots) -> None:
        """The bytes are there on every rank; only the index does not have the blocks yet."""
        self._transfer[slots] = NOTHING

    def batch(self, slots: Slots) -> Batch:
        """What arrives in slots."""
        return Batch(
            slots,
            self._generation.take(slots),
            self._group.take(slots) - 1,
            self._digest[slots],
            self._parent[slots],
            self._priority.take(slots),
            self._expires_s.take(slots),
        )

    def sources(self, slots: Slots) -> tuple[int, Slots, Generations]:
        """Where what arrives in slots comes from, all of it from one pool: the pool, slots, their generations then."""
        pools, sources, generations = self._source.take(slots, axis=1)
        return int(pools[0]), sources, generations

    def void(self, slots: Slots) -> None:
        """What arrives in slots is of no use any more: it must not land."""
        self._is_void[slots] = True

    def void_from(self, pool: int) -> None:
        """What is still being copied from a pool is of no use any more."""
        slots = self.from_pool(pool)
        self.void(slots.compress(self._transfer.take(slots) != NOTHING))

    def void_under(self, slots: Slots, generations: Generations) -> None:
        """What arrives in slots is of no use any more where it arrives under these generations."""
        self.void(slots.compress(self.expected(slots) & (self._generation.take(slots) == generations)))

    def is_void(self, slots: Slots) -> NDArray[np.bool_]:
        """In which slots something arrives that is of no use."""
        voids: NDArray[np.bool_] = self._is_void.take(slots)
        return voids

    def from_pool(self, pool: int) -> Slots:
        """Slots in which blocks arrive from a pool."""
        arriving = self.of_group()
        found: Slots = arriving.compress(self._source[0].take(arriving) == pool)
        return found

    def sources_in(self, pool: int) -> Slots:
        """Slots of a pool that what arrives here comes from; one more than once if it arrives in several slots."""
        found: Slots = self._source[1].take(self.from_pool(pool))
        return found

    def forget(self, slots: Slots) -> None:
        """It is there, or will never be."""
        self._group[slots] = NOTHING
        self._is_void[slots] = False
        self.count -= len(slots)

    def of_group(self, group: int | None = None) -> Slots:
        """Slots in which blocks of a group arrive; None: of any."""
        found: Slots = (self._group != NOTHING if group is None else self._group == group + 1).nonzero()[0]
        return found


class Leaving:
    """Slots of one pool that are being copied down, under the generation of what is copied.

    Args:
        blocks: slots of the pool.
    """

    def __init__(self, blocks: int) -> None:
        self._generation = np.zeros(blocks, np.int64)
        self._count = 0

    def begin(self, slots: Slots, generations: Generations) -> None:
        """Copies of these begin."""
        self._generation[slots] = generations
        self._count += len(slots)

    def end(self, slots: Slots, generations: Generations) -> None:
        """And end; where other content is being copied since, that goes on."""
        still = self._generation.take(slots) == generations
        self._generation[slots.compress(still)] = NOTHING
        self._count -= len(slots)

    def now(self, slots: Slots, generations: Generations) -> NDArray[np.bool_] | None:
        """Which of these are being copied under these generations; None: none of the pool."""
        return self._generation.take(slots) == generations if self._count else None
