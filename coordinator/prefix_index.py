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
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.messages import NO_SLOTS, Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvtroupe.coordinator.messages import Generations, Slots

NOT_PUBLISHED = -1  # generation of a slot that holds no block of this group
HOLE = -2  # generation in a run of a block that was never published
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
        slots: [blocks]; never written in place, as arrays are lent out as evidence.
        generations: [blocks]; as slots.
        branches: offset -> first digest -> run, of those that leave this run at the offset.
    """

    __slots__ = ("branches", "digests", "generations", "number", "offset", "parent", "slots")

    def __init__(self, number: int, parent: Run | None, offset: int, digests: bytes) -> None:
        self.number = number
        self.parent = parent
        self.offset = offset
        self.digests = digests
        self.slots = NO_SLOTS
        self.generations: Generations = NO_SLOTS
        self.branches: dict[int, dict[bytes, Run]] = {}


class PrefixIndex:
    """The published blocks of one group.

    Args:
        blocks: slots of the pool that the group draws from.
        digest_bytes: width of a digest.
    """

    def __init__(self, blocks: int, digest_bytes: int) -> None:
        self.digest_bytes = digest_bytes
        self.size = 0  # published blocks
        self.generation_of = np.full(blocks, NOT_PUBLISHED, np.int64)
        self.run_of = np.full(blocks, NO_RUN, np.int64)  # number of the run that names a published slot
        self.root = Run(NO_RUN, None, 0, b"")
        self.runs: list[Run | None] = [self.root]
        self.live = np.zeros(64, np.int64)  # published blocks of a run, by its number
        # Numbers of runs to be taken out, if they are still without blocks when their turn comes; a set in order.
        self.dead: dict[int, None] = {}
        self._free_numbers: list[int] = []

    # -- match ---------------------------------------------------------------------------------------------------------

    def match(self, digests: bytes, limit_blocks: int) -> Evidence:
        """What is there of the first `limit_blocks` blocks of a chain.

        Args:
            digests: block digests of the chain.
            limit_blocks: at most as many as there are digests.
        """
        path, whole = self._walk(digests, limit_blocks)
        if len(path) == 1:
            run, blocks = path[0]
            slots, generations = run.slots[:blocks], run.generations[:blocks]
        elif path:
            slots = np.concatenate([run.slots[:blocks] for run, blocks in path])
            generations = np.concatenate([run.generations[:blocks] for run, blocks in path])
        else:
            return NOTHING_KNOWN
        length = len(slots)
        if whole:
            return Evidence((1 << length) - 1, slots, generations, length)
        there = self.generation_of.take(slots) == generations
        for run, _ in path:
            self._trim(run)
        return Evidence(_as_bits(there), slots, generations, length)

    def _walk(self, digests: bytes, limit_blocks: int) -> tuple[list[tuple[Run, int]], bool]:
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
        """Publish blocks of a chain, each unless a block of its digest is published already.

        Args:
            digests: block digests of the chain, from its first block to the last one of `slots`.
            start_block: the first block of `slots`.
            slots: of the blocks; none of them published in this index.
            generations: of these slots.

        Returns:
            a mask of the blocks that entered; None when all did.
        """
        self.reap(REAPED_PER_INSERT)
        end_block = start_block + len(slots)
        path, _ = self._walk(digests, end_block)
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

    def drop(self, slots: Slots, generations: Generations) -> None:
        """These slots are no longer what they were under these generations; what they hold since stays."""
        named = slots.compress(self.generation_of.take(slots) == generations)
        if len(named):
            self.evict(named)

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
            if self.live[number]:
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
        there = (self.generation_of.take(run.slots) == run.generations).nonzero()[0]
        if len(there):
            self._cut(run, int(there[-1]) + 1)

    def _cut(self, run: Run, blocks: int) -> None:
        """Shorten a run to `blocks`, or to its last branch if that is further; never below one block."""
        blocks = max(blocks, max(run.branches, default=0), 1)
        if blocks < len(run.slots):
            run.digests = run.digests[: blocks * self.digest_bytes]
            run.slots = run.slots[:blocks].copy()
            run.generations = run.generations[:blocks].copy()

    # -- inspection ----------------------------------------------------------------------------------------------------

    def entries(self) -> Iterator[tuple[bytes, int, int]]:
        """(digest, slot, generation) of every published block, in no particular order."""
        width = self.digest_bytes
        for run in self.runs[1:]:
            if run is None:
                continue
            for block in (self.generation_of.take(run.slots) == run.generations).nonzero()[0].tolist():
                digest = run.digests[block * width : (block + 1) * width]
                yield digest, int(run.slots[block]), int(run.generations[block])


def _as_bits(mask: NDArray[np.bool_]) -> int:
    """Bit i of the result is mask[i]."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")
