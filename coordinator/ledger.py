"""The ledger of one pool: who uses a slot, what is published in it, and what is free.

All state is arrays indexed by slot. Slot 0 is the null block: it pads table positions that a window has left behind,
and is never free, published or handed out. A slot is free when nobody uses it. Uses are counted per kind of holder, and
what a holder does not hold it cannot give back.

A generation names what a slot held: taking a slot gives it a new one, so that a place noted earlier is known to be out
of date. Generations grow by one per take.

What was published in a slot can be read (`digests_of`, `priority_of`, `expires_of`) until something else is published
in it, so that a block which moves to another pool takes along what is known of it.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.free_order import FreeOrder
from kvtroupe.coordinator.retention import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvtroupe.coordinator.events import PoolEvents
    from kvtroupe.coordinator.messages import Generations, Slots

NULL_SLOT = 0


class Holder(IntEnum):
    """Who uses slots."""

    SEQUENCE = 0
    FENCE = 1  # given back, but steps of the engine that may touch them are still under way
    PIN = 2
    TRANSFER = 3  # read or written by a copy that some rank has not acknowledged
    QUARANTINE = 4  # in tables of a lost client, whose process may still run


class Ledger:
    """Slots of one pool.

    Args:
        blocks: slots, the null block included.
        digest_bytes: width of the digests of published blocks.

    Attributes:
        events: is told what is published and what is so no more; None: nobody wants to know.
    """

    def __init__(self, blocks: int, digest_bytes: int) -> None:
        self.blocks = blocks
        self.uses = np.zeros(blocks, np.int32)
        self.uses[NULL_SLOT] = 1
        self.generation = np.zeros(blocks, np.int64)
        self.published = np.zeros(blocks, np.int16)  # 0 where nothing is; else 1 + the number of the group
        self.digest = np.zeros(blocks, np.dtype((np.void, digest_bytes)))
        self.expires_s = np.full(blocks, np.inf)
        self.uses_by_holder = [0 for _ in Holder]
        self.free_order = FreeOrder(self.uses)
        self.last_generation = 0
        self.events: PoolEvents | None = None
        self._expiring: list[tuple[float, int, Slots, Generations]] = []  # heap by time, then order of publication
        self._publications = 0
        self._parent: NDArray[np.void] | None = None
        self._below: NDArray[np.int64] | None = None  # [own generation, slot below, generation below; slots]

    @property
    def free(self) -> int:
        """Slots that nobody uses."""
        return self.free_order.count

    # -- claim ---------------------------------------------------------------------------------------------------------

    def claim(self, slots: Slots, generations: Generations, holder: Holder) -> int:
        """Use published slots that were found under these generations, up to the first that has changed hands since.

        Args:
            slots: no slot twice.
            generations: one for each slot.
            holder: who uses them.

        Returns:
            how many slots, from the first on, are claimed.
        """
        count = self.fitting(slots, generations)
        self.hold(slots[:count], holder)
        return count

    def fitting(self, slots: Slots, generations: Generations) -> int:
        """How many slots, from the first on, have not changed hands since they were found under these generations."""
        fits = self.generation.take(slots) == generations
        return len(slots) if np.count_nonzero(fits) == len(slots) else int(fits.argmin())

    def hold(self, slots: Slots, holder: Holder) -> None:
        """Use published slots, none of them twice, of which it is known that they have not changed hands."""
        count = len(slots)
        uses = self.uses.take(slots)
        self.uses[slots] = uses + 1
        self.uses_by_holder[holder] += count
        in_use = np.count_nonzero(uses)
        if in_use != count:
            self.free_order.claimed(slots.compress(uses == 0) if in_use else slots)

    def undo_claim(self, slots: Slots, holder: Holder) -> None:
        """Take a claim back; every slot is again where it was in the free order. Good before the next take or release.

        Args:
            slots: as claimed.
            holder: as claimed.
        """
        uses = self._uses_after_giving_back(slots, holder)
        self.uses[slots] = uses
        self.free_order.unclaimed(slots.compress(uses == 0))

    # -- take ----------------------------------------------------------------------------------------------------------

    def take(self, count: int, holder: Holder) -> tuple[Slots, dict[int, Slots]]:
        """Use the next free slots; what was published in them is so no more.

        Args:
            count: at most `free`.
            holder: who uses them.

        Returns:
            the slots, and by group those among them that held published blocks.
        """
        if count > self.free:
            raise InvariantError(f"{count} slots to be taken, {self.free} free: count before you take")
        slots, unpublished = self.free_order.take(count)
        evicted = self._unpublish_by_group(slots[unpublished:]) if unpublished < count else {}
        self.last_generation += 1
        self.generation[slots] = self.last_generation
        self.uses[slots] = 1
        self.uses_by_holder[holder] += count
        return slots, evicted

    def take_these(self, slots: Slots, holder: Holder) -> Slots:
        """Use certain slots, of these those that nobody uses and nothing is published in.

        Args:
            slots: no slot twice.
            holder: who uses them.

        Returns:
            the slots that it got, in the order given.
        """
        taken = slots.compress((self.uses.take(slots) == 0) & (self.published.take(slots) == 0))
        self.free_order.take_out(taken)
        self.last_generation += 1
        self.generation[taken] = self.last_generation
        self.uses[taken] = 1
        self.uses_by_holder[holder] += len(taken)
        return taken

    def peek(self, count: int) -> Slots:
        """The next `count` free slots in the order in which they would be taken, or all of them; nothing changes."""
        return self.free_order.peek(min(count, self.free))[0]

    def droppable(self, count: int, worth_keeping: Callable[[Slots], NDArray[np.bool_]]) -> int:
        """How many of the next free slots can be taken before the first whose content should not be lost.

        Args:
            count: at most so many.
            worth_keeping: says which of some free, published slots should not be lost. Asked once, for all of the next
                `count` that are published, and not at all if none is.
        """
        slots, droppable = self.free_order.peek(min(count, self.free))
        published = slots[droppable:]  # the free order has the unpublished ones first
        if len(published):
            keep = worth_keeping(published)
            if len(keep) != len(published):
                raise InvariantError(f"asked which of {len(published)} slots to keep, {len(keep)} answers")
            first = keep.nonzero()[0][:1].tolist()
            droppable += first[0] if first else len(published)
        return droppable

    def take_droppable(
        self, count: int, holder: Holder, worth_keeping: Callable[[Slots], NDArray[np.bool_]]
    ) -> tuple[Slots, dict[int, Slots]]:
        """Use the next free slots, up to the first whose content should not be lost.

        Args:
            count: at most so many.
            holder: who uses them.
            worth_keeping: as for `droppable`.

        Returns:
            as `take` does.
        """
        return self.take(self.droppable(count, worth_keeping), holder)

    def _unpublish_by_group(self, slots: Slots) -> dict[int, Slots]:
        groups = self.published.take(slots)
        self.published[slots] = 0
        numbers = np.bincount(groups).nonzero()[0].tolist()
        if len(numbers) == 1:
            by_group = {numbers[0] - 1: slots}
        else:
            by_group = {number - 1: slots.compress(groups == number) for number in numbers}
        if self.events is not None:
            for group, its_slots in by_group.items():
                self.events.removed(group, self.digests_of(its_slots))
        return by_group

    # -- release -------------------------------------------------------------------------------------------------------

    def release(self, slots: Slots, holder: Holder) -> None:
        """Give back one use of each slot. Those that nobody uses then become free, in the order given.

        Args:
            slots: no slot twice; the last block of a sequence first, so that a prefix is lost from its end.
            holder: who used them.

        Raises:
            InvariantError: the holder does not hold them; nothing is given back.
        """
        uses = self._uses_after_giving_back(slots, holder)
        self.uses[slots] = uses
        if np.count_nonzero(uses):
            slots = slots.compress(uses == 0)
        published = self.published.take(slots)
        count = int(np.count_nonzero(published))
        if count < len(slots):
            self.free_order.push_front(slots.compress(published == 0) if count else slots)
            slots = slots.compress(published)
        if count:
            self.free_order.push_back(slots)

    def hand_over(self, count: int, giver: Holder, taker: Holder) -> None:
        """`count` uses change their kind of holder; the slots stay in use."""
        self._check_holds(count, giver)
        self.uses_by_holder[giver] -= count
        self.uses_by_holder[taker] += count

    def _uses_after_giving_back(self, slots: Slots, holder: Holder) -> NDArray[np.int32]:
        self._check_holds(len(slots), holder)
        uses = self.uses.take(slots) - 1
        if np.count_nonzero(uses) and int(uses.min()) < 0:
            raise InvariantError(f"{holder.name} gives back slots that nobody uses: {slots[uses < 0].tolist()}")
        self.uses_by_holder[holder] -= len(slots)
        return uses

    def _check_holds(self, count: int, holder: Holder) -> None:
        if count > self.uses_by_holder[holder]:
            raise InvariantError(f"{holder.name} gives back {count} uses and holds {self.uses_by_holder[holder]}")

    # -- publish -------------------------------------------------------------------------------------------------------

    def publish(
        self,
        slots: Slots,
        digests: NDArray[np.void],
        priority: int | NDArray[np.uint8] = DEFAULT_PRIORITY,
        expires_s: float | NDArray[np.float64] | None = None,
        group: int = 0,
    ) -> None:
        """Note that slots in use hold published blocks.

        Args:
            slots: in use, not published.
            digests: of the blocks.
            priority: retention priority; an array gives each slot its own.
            expires_s: time at which the priority falls back to the default; None: never. An array gives each slot its
                own, infinite where it never does.
            group: number of the group that has published them.

        Raises:
            InvariantError: an array is not as long as the slots are many; nothing is published.
        """
        if expires_s is not None and isinstance(expires_s, np.ndarray):
            _check_length("times of expiry", len(expires_s), slots)
        if isinstance(priority, np.ndarray):
            _check_length("priorities", len(priority), slots)
            self.free_order.set_priorities(slots, priority)
        else:
            self.free_order.set_priority(slots, priority)
        self.published[slots] = group + 1
        self.digest[slots] = digests
        if expires_s is not None:
            self._publications += 1
            self.expires_s[slots] = expires_s
            self._note_expiring(slots, expires_s)
        elif self._publications:
            self.expires_s[slots] = np.inf
        if self.events is not None:
            self.events.stored(group, digests, self.parents_of(slots))

    def note_parents(self, slots: Slots, parents: NDArray[np.void]) -> None:
        """Note the digests of the blocks before those about to be published in slots; zero for the first of a chain."""
        if self._parent is None:
            self._parent = np.zeros_like(self.digest)
        self._parent[slots] = parents

    def _note_expiring(self, slots: Slots, expires_s: float | NDArray[np.float64]) -> None:
        """Note when to look at slots again: once for each time, however many slots it has."""
        if isinstance(expires_s, np.ndarray):
            times_s: list[float] = np.unique(expires_s.compress(np.isfinite(expires_s))).tolist()
        else:
            times_s = [expires_s]
        generations = self.generation.take(slots)
        for time_s in times_s:
            heapq.heappush(self._expiring, (time_s, self._publications, slots, generations))
        if len(self._expiring) > 2 * self.blocks:
            self._expiring = [batch for batch in self._expiring if len(self._still_expiring(batch))]
            heapq.heapify(self._expiring)

    def unpublish(self, slots: Slots) -> None:
        """Forget published blocks whose group has lost them: their content is worth nothing, whoever uses them.

        Args:
            slots: published; no slot twice.
        """
        self._unpublish_by_group(slots)
        self._void(slots)

    def _void(self, slots: Slots) -> None:
        """What was published in slots is worth nothing."""
        self._renew(slots)
        in_use = self.uses.take(slots) > 0
        self.free_order.forget_places(slots.compress(in_use))
        self.free_order.move_front(slots.compress(~in_use))

    def give_up(self, slots: Slots) -> None:
        """Blocks that were offered to a group, or are on their way, are not to be published.

        The group may have answered somebody that they are there: such an answer must not fit any more.

        Args:
            slots: those that are published stay so, since they were offered by several sequences.
        """
        self._renew(slots.compress((self.published.take(slots) == 0) & (slots != NULL_SLOT)))

    def _renew(self, slots: Slots) -> None:
        self.last_generation += 1
        self.generation[slots] = self.last_generation  # a place noted earlier must not fit again

    def published_by_group(self) -> dict[int, Slots]:
        """The slots with published blocks, by the group that has published them; groups without any are left out."""
        published = self.published
        return {number - 1: (published == number).nonzero()[0] for number in np.unique(published).tolist() if number}

    def forget_group(self, group: int) -> Slots:
        """Unpublish everything that a group has published.

        Returns:
            the slots; those of them that nobody uses are now the first to be taken.
        """
        return self._forget((self.published == group + 1).nonzero()[0])

    def forget_all(self) -> Slots:
        """The same with the blocks of every group."""
        return self._forget(self.published.nonzero()[0])

    def _forget(self, slots: Slots) -> Slots:
        """Unpublish everything of those groups that have something in slots."""
        if self.events is not None:
            for number in np.unique(self.published.take(slots)).tolist():
                self.events.cleared(number - 1)
        self.published[slots] = 0
        self._void(slots)
        return slots

    # -- what was published --------------------------------------------------------------------------------------------

    def digests_of(self, slots: Slots) -> NDArray[np.void]:
        """Digests of the blocks published in slots, also after the slots were taken, until they are published again."""
        digests: NDArray[np.void] = self.digest[slots]
        return digests

    def parents_of(self, slots: Slots) -> NDArray[np.void]:
        """Digests of the blocks before the same blocks in their chains; zero where that was not told."""
        if self._parent is None:
            return np.zeros(len(slots), self.digest.dtype)
        parents: NDArray[np.void] = self._parent[slots]
        return parents

    def priority_of(self, slots: Slots) -> NDArray[np.uint8]:
        """Retention priorities of the same blocks; what has expired has the default."""
        return self.free_order.priority.take(slots)

    def expires_of(self, slots: Slots) -> NDArray[np.float64]:
        """When the priorities of the same blocks fall back to the default; infinite: never, or they have."""
        return self.expires_s.take(slots)

    # -- the pool below ------------------------------------------------------------------------------------------------

    def link_below(self, slots: Slots, below_slots: Slots, below_generations: Generations) -> None:
        """Note that what is published in slots is also in slots of the pool below, and need not be copied there.

        A link ends when its slot is taken or unpublished. What happens to the slot below does not end it: whether the
        content is still there is for the ledger below to say, by the generation.

        Args:
            slots: published; no slot twice.
            below_slots: one for each.
            below_generations: of the slots below when they were published.

        Raises:
            InvariantError: something is not published; nothing is linked.
        """
        published = self.published.take(slots) != 0
        if np.count_nonzero(published) != len(slots):
            raise InvariantError(f"nothing is published in slots to be linked: {slots.compress(~published).tolist()}")
        if self._below is None:
            self._below = np.zeros((3, self.blocks), np.int64)
        self._below[:, slots] = self.generation.take(slots), below_slots, below_generations

    def below_of(self, slots: Slots) -> tuple[Slots, Generations]:
        """Slots of the pool below with the same content, and their generations when linked; 0 and 0 where none is."""
        if self._below is None:
            return np.zeros(len(slots), np.int64), np.zeros(len(slots), np.int64)
        own, below_slots, below_generations = self._below.take(slots, axis=1)
        linked = own == self.generation.take(slots)  # taking and unpublishing give a slot a new generation
        return below_slots * linked, below_generations * linked

    # -- time ----------------------------------------------------------------------------------------------------------

    def expire(self, now_s: float) -> None:
        """Let priorities whose time has passed fall back to the default; free slots go to the end of its queue."""
        while self._expiring and self._expiring[0][0] <= now_s:
            slots = self._still_expiring(heapq.heappop(self._expiring))
            self.expires_s[slots] = np.inf
            free = self.uses.take(slots) == 0
            self.free_order.set_priority(slots.compress(~free), DEFAULT_PRIORITY)
            self.free_order.move_back(slots.compress(free), DEFAULT_PRIORITY)

    def _still_expiring(self, batch: tuple[float, int, Slots, Generations]) -> Slots:
        """The slots of a batch that still hold what was published with it."""
        expires_s, _, slots, generations = batch
        same = self.generation.take(slots) == generations
        same &= self.published.take(slots) != 0
        return slots.compress(same & (self.expires_s.take(slots) == expires_s))


def _check_length(what: str, count: int, slots: Slots) -> None:
    if count != len(slots):
        raise InvariantError(f"{len(slots)} slots to be published, {count} {what}: one for each")
