"""The prefix index of one window group: which blocks of a chain are published, and where.

A path-compressed radix tree whose edges are runs: the digests of consecutive blocks as one `bytes`, their slots and
generations as arrays.

- Runs are never split. A chain that leaves a run hangs below it as a branch at that offset, so a hot prefix that
  thousands of requests leave at different places stays one run and one memory comparison.
- Whether a block of a run is still there is not written into the run: it is there while its slot is published under the
  generation that the run names. So an eviction is one scatter and one count per run, whatever runs the blocks are in;
  a run whose count equals its length has no holes and is not looked at block by block.
- Structure follows later. A run that ends in holes is trimmed when a chain passes it; one without any block is taken
  out a few per insert, so that no call pays for many.
- What is below the device, and what is on its way to a level, uses the same runs: see `index_levels`. A run stays while
  it has a place of any kind. An index of the device alone pays nothing for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.index_levels import HOLE, FurtherPlaces, as_bits, lengthen, shorten
from kvtroupe.coordinator.messages import NO_SLOTS, Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvtroupe.coordinator.index_levels import PlaceMap, Placement, RunPlaces
    from kvtroupe.coordinator.messages import Generations, Slots

DEVICE = 0  # the level whose places are in the runs themselves
NOT_PUBLISHED = -1  # generation of a slot that holds no block of this group
APPENDED_RUN_MAX = 1024  # blocks; a run grows in place up to here, which bounds what an append copies
REAPED_PER_INSERT = 4  # an insert makes at most one run that can die
NO_RUN = 0

NOTHING_KNOWN = Evidence(0, NO_SLOTS, NO_SLOTS, 0)


class Run:
    """Consecutive blocks of a chain.

    Attributes:
        number: names the run in the arrays of the index.
        parent: the run it hangs below; None for the root, which has no blocks.
        offset: blocks of the parent that come before this run.
        digests: of its blocks, one after the other.
        slots: [blocks] on the device; never written in place, as arrays are lent out as evidence.
        generations: [blocks]; as slots.
        branches: offset -> first digest -> run, of those that leave this run at the offset.
        further: what it names below the device or as arriving; None while that is nothing.
    """

    __slots__ = ("branches", "digests", "further", "generations", "number", "offset", "parent", "slots")

    def __init__(self, number: int, parent: Run | None, offset: int, digests: bytes) -> None:
        self.number = number
        self.parent = parent
        self.offset = offset
        self.digests = digests
        self.slots = NO_SLOTS
        self.generations: Generations = NO_SLOTS
        self.branches: dict[int, dict[bytes, Run]] = {}
        self.further: dict[PlaceMap, RunPlaces] | None = None


class PrefixIndex:
    """The blocks of one group.

    Args:
        slots_of_levels: slots of the pools that hold them, from the device down.
        digest_bytes: width of a digest.

    Attributes:
        size: blocks published on the device.
        generation_of: by device slot, the generation under which a block is published in it, or NOT_PUBLISHED.
        run_of: by device slot, the number of the run that names it, or NO_RUN.
        runs: by number.
        live: by number of a run, how many of its blocks are published on the device.
        dead: numbers of runs to be taken out, if they are still without places when their turn comes; a set in order.
        further: all other places.
    """

    def __init__(self, slots_of_levels: tuple[int, ...], digest_bytes: int) -> None:
        self.slots_of_levels = slots_of_levels
        self.digest_bytes = digest_bytes
        self.size = 0
        self.generation_of = np.full(slots_of_levels[DEVICE], NOT_PUBLISHED, np.int64)
        self.run_of = np.full(slots_of_levels[DEVICE], NO_RUN, np.int64)
        self.root = Run(NO_RUN, None, 0, b"")
        self.runs: list[Run | None] = [self.root]
        self.live = np.zeros(64, np.int64)
        self.further = FurtherPlaces(slots_of_levels, self.runs)
        self.dead: dict[int, None] = {}
        self._free_numbers: list[int] = []

    # -- match ---------------------------------------------------------------------------------------------------------

    def match(self, digests: bytes, limit_blocks: int) -> Evidence:
        """What is there of the first `limit_blocks` blocks of a chain.

        Args:
            digests: block digests of the chain.
            limit_blocks: at most as many as there are digests.
        """
        path, whole = self.walk(digests, limit_blocks)
        if len(path) == 1:
            run, blocks = path[0]
            slots, generations = run.slots[:blocks], run.generations[:blocks]
        elif path:
            slots = np.concatenate([run.slots[:blocks] for run, blocks in path])
            generations = np.concatenate([run.generations[:blocks] for run, blocks in path])
        else:
            return NOTHING_KNOWN
        length = len(slots)
        lower = self.further.along(path) if self.further.below else ()
        if whole:
            return Evidence((1 << length) - 1, slots, generations, length, lower)
        there = self.generation_of.take(slots) == generations
        for run, _ in path:
            self._trim(run)
        return Evidence(as_bits(there), slots, generations, length, lower)

    def walk(self, digests: bytes, limit_blocks: int) -> tuple[list[tuple[Run, int]], bool]:
        """The runs along a chain, each with how many of its blocks agree, and whether none of them has a hole."""
        width = self.digest_bytes
        path: list[tuple[Run, int]] = []
        whole = True
        at, end = 0, limit_blocks * width
        run, blocks = self.root, 0
        while at < end:
            branches = run.branches.get(blocks)
            child = branches.get(digests[at : at + width]) if branches else None
            if child is None:
                break
            run, blocks = child, len(child.slots)
            if self.live[run.number] != blocks:
                whole = False
            if digests.startswith(run.digests, at):
                blocks = min(blocks, (end - at) // width)
            else:
                blocks = self._agreeing(run, digests, at, end)
            path.append((run, blocks))
            at += blocks * width
        return path, whole

    def _agreeing(self, run: Run, digests: bytes, at: int, end: int) -> int:
        """How many blocks of a run agree with digests[at:end]. At least the first does.

        Digests are chained: where one agrees, all before it do. So the last one is found by bisection, and one
        comparison of all bytes makes sure of it: digests that somebody made up cost time, never a wrong block.
        """
        width = self.digest_bytes
        agrees, differs = 1, min(len(run.slots), (end - at) // width) + 1
        probe = differs - 1  # most chains agree up to the limit
        while differs - agrees > 1:
            low = (probe - 1) * width
            if digests.startswith(run.digests[low : low + width], at + low):
                agrees = probe
            else:
                differs = probe
            probe = (agrees + differs) // 2
        if digests.startswith(run.digests[: agrees * width], at):
            return agrees
        ours = np.frombuffer(run.digests, np.uint8, agrees * width)
        theirs = np.frombuffer(digests, np.uint8, agrees * width, at)
        return int((ours != theirs).argmax()) // width

    # -- insert --------------------------------------------------------------------------------------------------------

    def insert(
        self, digests: bytes, start_block: int, slots: Slots, generations: Generations
    ) -> NDArray[np.bool_] | None:
        """Publish blocks of a chain on the device, each unless its digest is published there already.

        Args:
            digests: block digests of the chain, from its first block to the last one of `slots`.
            start_block: the first block of `slots`.
            slots: of the blocks; none of them published in this index.
            generations: of these slots.

        Returns:
            a mask of the blocks that entered; None when all did.
        """
        self.reap(REAPED_PER_INSERT)
        if self.further.arriving:
            self.forget_further(DEVICE, slots)
        end_block = start_block + len(slots)
        path, _ = self.walk(digests, end_block)
        run, blocks, reached = self.root, 0, 0
        entered: NDArray[np.bool_] | None = None
        for run, blocks in path:
            low, high = max(reached, start_block), reached + blocks
            if low < high:
                if entered is None:
                    entered = np.zeros(len(slots), np.bool_)
                part = slice(low - start_block, high - start_block)
                entered[part] = self._fill(run, slice(low - reached, blocks), slots[part], generations[part])
            reached = high
        if reached == end_block:
            return entered
        tail = digests[reached * self.digest_bytes :]
        if reached < start_block:  # between them, blocks of the chain that nobody published or that are gone
            holes = start_block - reached
            held = np.concatenate((np.zeros(holes, np.int64), slots))
            run = self._extend(run, blocks, tail, held, np.concatenate((np.full(holes, HOLE, np.int64), generations)))
        else:
            known = reached - start_block
            if entered is not None:
                entered[known:] = True
            slots, generations = slots[known:], generations[known:]
            run = self._extend(run, blocks, tail, slots, generations)
        self._enter(run, slots, generations)
        return entered

    def _fill(self, run: Run, part: slice, slots: Slots, generations: Generations) -> NDArray[np.bool_]:
        """Publish into the holes of a part of a run: a mask of the blocks that entered."""
        missing: NDArray[np.bool_] = self.generation_of.take(run.slots[part]) != run.generations[part]
        if np.count_nonzero(missing):
            new = slots.compress(missing)
            held_slots, held_generations = run.slots.copy(), run.generations.copy()
            held_slots[part][missing] = new
            held_generations[part][missing] = generations.compress(missing)
            run.slots, run.generations = held_slots, held_generations
            self._enter(run, new, generations.compress(missing))
            if run.further is not None:
                self.further.settle(DEVICE, run, np.arange(len(run.slots))[part].compress(missing))
        return missing

    def _extend(self, run: Run, blocks: int, digests: bytes, slots: Slots, generations: Generations) -> Run:
        """Add blocks that follow the first `blocks` of a run, at its end if there is room, else as a branch.

        Returns:
            the run that they are in; they still have to enter it.
        """
        if run is not self.root and blocks == len(run.slots) and blocks + len(slots) <= APPENDED_RUN_MAX:
            run.digests += digests
            run.slots = np.concatenate((run.slots, slots))
            run.generations = np.concatenate((run.generations, generations))
            if run.further is not None:
                lengthen(run, len(slots))
        else:
            run = self._add(run, blocks, digests)
            run.slots, run.generations = slots, generations
        return run

    def _enter(self, run: Run, slots: Slots, generations: Generations) -> None:
        self.generation_of[slots] = generations
        self.run_of[slots] = run.number
        self.live[run.number] += len(slots)
        self.size += len(slots)

    def _add(self, parent: Run, offset: int, digests: bytes) -> Run:
        if self._free_numbers:
            number = self._free_numbers.pop()
        else:
            number = len(self.runs)
            self.runs.append(None)
            if number == len(self.live):
                self.live = np.concatenate((self.live, np.zeros_like(self.live)))
        run = Run(number, parent, offset, digests)
        self.runs[number] = run
        parent.branches.setdefault(offset, {})[digests[: self.digest_bytes]] = run
        return run

    def reach(self, digests: bytes, end_block: int) -> list[tuple[Run, int]]:
        """The runs of a whole chain, each with how many of its blocks are on it; what is missing is made of holes."""
        path, _ = self.walk(digests, end_block)
        reached = sum([blocks for _, blocks in path])
        holes = end_block - reached
        if holes:
            run, blocks = path[-1] if path else (self.root, 0)
            tail = digests[reached * self.digest_bytes : end_block * self.digest_bytes]
            last = self._extend(run, blocks, tail, np.zeros(holes, np.int64), np.full(holes, HOLE, np.int64))
            if last is run:
                path[-1] = run, blocks + holes
            else:
                path.append((last, holes))
        return path

    def place(self, level: int, placement: Placement) -> None:
        """Publish blocks of a run, none of which is published on this level.

        Args:
            level: where.
            placement: what is named in its slots, but published on the device, is forgotten.
        """
        run, slots = placement.run, placement.slots
        self.forget_further(level, slots)
        self.further.settle(level, run, placement.blocks)
        if level != DEVICE:
            self.further.published_on(level).put(placement)
            return
        held_slots, held_generations = run.slots.copy(), run.generations.copy()
        held_slots[placement.blocks] = slots
        held_generations[placement.blocks] = placement.generations
        run.slots, run.generations = held_slots, held_generations
        self._enter(run, slots, placement.generations)

    def published(self, level: int, run: Run) -> NDArray[np.bool_]:
        """Which blocks of a run are published on a level."""
        if level != DEVICE:
            return self.further.published_on(level).there(run)
        there: NDArray[np.bool_] = self.generation_of.take(run.slots) == run.generations
        return there

    def check_level(self, level: int) -> None:
        """Raise InvariantError if the group has no such level."""
        if not 0 <= level < len(self.slots_of_levels):
            raise InvariantError(f"level {level} of a group whose levels are 0 to {len(self.slots_of_levels) - 1}")

    # -- evict ---------------------------------------------------------------------------------------------------------

    def evict(self, slots: Slots) -> None:
        """These published slots, at least one and none twice, have changed hands."""
        runs = self.run_of.take(slots)
        self.generation_of[slots] = NOT_PUBLISHED
        self.run_of[slots] = NO_RUN
        self.size -= len(slots)
        live = self.live
        np.subtract.at(live, runs, 1)
        # Slots come in the order in which they were freed, so those of a run lie together: look at each stretch once.
        ends = runs[:-1].compress(runs[1:] != runs[:-1])
        if len(ends):
            self.dead.update(dict.fromkeys(ends.compress(live.take(ends) == 0).tolist()))
        last = runs.item(-1)
        if not live.item(last):
            self.dead[last] = None

    def drop(self, slots: Slots, generations: Generations | None = None, level: int = DEVICE) -> None:
        """Places, published or arriving, are no more.

        Args:
            slots: none of them twice.
            generations: of the places; what the slots hold since stays. None: whatever is named there goes.
            level: of the slots.
        """
        self.check_level(level)
        if level == DEVICE:
            known = self.generation_of.take(slots)
            named = slots.compress(known != NOT_PUBLISHED if generations is None else known == generations)
            if len(named):
                self.evict(named)
        self.forget_further(level, slots, generations)

    def forget_further(self, level: int, slots: Slots, generations: Generations | None = None) -> None:
        """The same, but for what is published on the device."""
        for run in self.further.drop(level, slots, generations):
            if not self.live.item(run.number):
                self.dead[run.number] = None

    # -- structure -----------------------------------------------------------------------------------------------------

    def reap(self, budget: int) -> None:
        """Take out up to `budget` of the runs that lost their last block, the latest losses first.

        One that still leads somewhere stays, cut to what leads there; it is looked at again when its last branch goes.
        """
        while self.dead and budget:
            budget -= 1
            number, _ = self.dead.popitem()
            run = self.runs[number]
            assert run is not None, "only here runs are taken out"
            if self.live[number] or run.further is not None:
                continue
            if run.branches:
                self._cut(run, 0)
            else:
                self._take_out(run)

    def _take_out(self, run: Run) -> None:
        parent = run.parent
        assert parent is not None, "the root is never queued"
        siblings = parent.branches[run.offset]
        del siblings[run.digests[: self.digest_bytes]]
        if not siblings:
            del parent.branches[run.offset]
        self.runs[run.number] = None
        self._free_numbers.append(run.number)
        if parent is not self.root and not self.live[parent.number] and not parent.branches:
            self.dead[parent.number] = None

    def _trim(self, run: Run) -> None:
        """Cut off the holes at the end of a run that do not lead to a branch."""
        if self.generation_of[run.slots[-1]] == run.generations[-1]:
            return
        blocks = self.further.end_of(run) if run.further is not None else 0
        if blocks == len(run.slots):
            return
        there = (self.generation_of.take(run.slots) == run.generations).nonzero()[0]
        if len(there):
            blocks = max(blocks, int(there[-1]) + 1)
        if blocks:
            self._cut(run, blocks)

    def _cut(self, run: Run, blocks: int) -> None:
        """Shorten a run to `blocks`, or to its last branch if that is further; never below one block."""
        blocks = max(blocks, max(run.branches, default=0), 1)
        if blocks < len(run.slots):
            run.digests = run.digests[: blocks * self.digest_bytes]
            run.slots = run.slots[:blocks].copy()
            run.generations = run.generations[:blocks].copy()
            if run.further is not None:
                shorten(run, blocks)

    # -- inspection ----------------------------------------------------------------------------------------------------

    def entries(self) -> Iterator[tuple[bytes, int, int]]:
        """(digest, slot, generation) of every block published on the device, in no particular order."""
        width = self.digest_bytes
        for run in self.runs[1:]:
            if run is None:
                continue
            for block in (self.generation_of.take(run.slots) == run.generations).nonzero()[0].tolist():
                digest = run.digests[block * width : (block + 1) * width]
                yield digest, int(run.slots[block]), int(run.generations[block])

    def entries_below(self, level: int) -> Iterator[tuple[bytes, int, int]]:
        """The same of every block published on a level below the device."""
        return self.further.entries(self.further.below.get(level), self.digest_bytes)

    def arriving(self, level: int) -> Iterator[tuple[bytes, int, int]]:
        """The same of every place on a level that a block is on its way to."""
        return self.further.entries(self.further.arriving.get(level), self.digest_bytes)
