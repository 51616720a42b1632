"""Places that a prefix index knows besides the published ones on the device, level 0.

There are two kinds: blocks published on a level below the device, and blocks arriving on any level, which are
remembered until they land and never answered. A block has at most one place of each kind on each level.

As on the device, whether a place still counts is not written into the run: it counts while its slot is named under the
generation that the run names. So a loss is one scatter, and arrays that were lent out as evidence never change.

- A run keeps arrays for a kind and level only while it has such places; a run on the device alone has none.
- The arrays over the slots of a level are made when its first place is noted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.messages import Places

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kvtroupe.coordinator.messages import Generations, Slots
    from kvtroupe.coordinator.prefix_index import Run

NO_PLACE = -1  # generation of a slot that names no block
HOLE = -2  # generation in a run of a block that has no place


@dataclass(frozen=True, slots=True)
class Placement:
    """Blocks of one run, and a slot for each.

    Attributes:
        run: that the blocks are in.
        blocks: which blocks of it, none twice.
        slots: one for each.
        generations: of these slots.
    """

    run: Run
    blocks: NDArray[np.int64]
    slots: Slots
    generations: Generations


class RunPlaces:
    """Places of one kind and level that a run names.

    Attributes:
        slots: [blocks of the run]; never written in place, as arrays are lent out as evidence.
        generations: [blocks of the run]; as slots.
        live: how many of them still count.
    """

    __slots__ = ("generations", "live", "slots")

    def __init__(self, slots: Slots, generations: Generations, live: int) -> None:
        self.slots = slots
        self.generations = generations
        self.live = live


class PlaceMap:
    """All places of one kind on one level.

    Args:
        slots: of the pool of this level.

    Attributes:
        generation_of: by slot, the generation under which it is named; NO_PLACE where it is not.
        run_of: by slot, the number of the run that names it, if it is named.
        block_of: by slot, which block of the run it is, if it is named.
        count: places that count.
    """

    def __init__(self, slots: int) -> None:
        self.generation_of = np.full(slots, NO_PLACE, np.int64)
        self.run_of = np.zeros(slots, np.int32)
        self.block_of = np.zeros(slots, np.int32)
        self.count = 0

    def named(self, slots: Slots, generations: Generations | None) -> NDArray[np.bool_]:
        """Which slots are named under these generations; None: under any."""
        known = self.generation_of.take(slots)
        fits: NDArray[np.bool_] = known != NO_PLACE if generations is None else known == generations
        return fits

    def there(self, run: Run) -> NDArray[np.bool_]:
        """Which blocks of a run have a place here."""
        held = self.of(run)
        if held is None:
            return np.zeros(len(run.slots), np.bool_)
        fits: NDArray[np.bool_] = self.generation_of.take(held.slots) == held.generations
        return fits

    def of(self, run: Run) -> RunPlaces | None:
        """What a run names here, if anything."""
        return run.further.get(self) if run.further is not None else None

    def put(self, placement: Placement) -> None:
        """Note places of blocks; none of the blocks has one here, and none of the slots is named here."""
        run, blocks, slots = placement.run, placement.blocks, placement.slots
        held = self.of(run)
        if held is None:
            length = len(run.slots)
            held = RunPlaces(np.zeros(length, np.int64), np.full(length, HOLE, np.int64), 0)
            if run.further is None:
                run.further = {}
            run.further[self] = held
        else:
            held.slots, held.generations = held.slots.copy(), held.generations.copy()
        held.slots[blocks] = slots
        held.generations[blocks] = placement.generations
        held.live += len(slots)
        self.generation_of[slots] = placement.generations
        self.run_of[slots] = run.number
        self.block_of[slots] = blocks
        self.count += len(slots)

    def forget(self, slots: Slots, runs: Sequence[Run | None]) -> list[Run]:
        """These slots, all named here, are named no more.

        Returns:
            runs that have no further place of any kind now.
        """
        numbers: list[int] = np.unique(self.run_of.take(slots)).tolist()
        self.generation_of[slots] = NO_PLACE
        bare = []
        for number in numbers:
            run = runs[number]
            assert run is not None, "a run stays while it has places"
            assert run.further is not None, "it has one here"
            held = run.further[self]
            live = int(np.count_nonzero(self.there(run)))
            self.count -= held.live - live
            held.live = live
            if not live:
                del run.further[self]
                if not run.further:
                    run.further = None
                    bare.append(run)
        return bare


class FurtherPlaces:
    """The places of all further kinds and levels of one index.

    Args:
        slots_of_levels: slots of the pools, from the device down.
        runs: of the index, by number.

    Attributes:
        below: by level, from the device down, the places published there; only levels that ever had one.
        arriving: by level the places that blocks are on their way to; only levels that ever had one.
    """

    def __init__(self, slots_of_levels: tuple[int, ...], runs: list[Run | None]) -> None:
        self._slots_of_levels = slots_of_levels
        self._runs = runs
        self.below: dict[int, PlaceMap] = {}
        self.arriving: dict[int, PlaceMap] = {}

    def published_on(self, level: int) -> PlaceMap:
        """The places published on a level below the device."""
        assert level, "what is published on the device is in the runs themselves"
        if level not in self.below:
            self.below = dict(sorted([*self.below.items(), (level, PlaceMap(self._slots_of_levels[level]))]))
        return self.below[level]

    def arriving_on(self, level: int) -> PlaceMap:
        """The places on a level that blocks are on their way to."""
        if level not in self.arriving:
            self.arriving[level] = PlaceMap(self._slots_of_levels[level])
        return self.arriving[level]

    def on(self, level: int) -> list[PlaceMap]:
        """The maps of a level that have ever been used: what is published there, if below the device, then arriving."""
        maps = (self.below.get(level), self.arriving.get(level))
        return [places for places in maps if places is not None]

    # -- evidence ------------------------------------------------------------------------------------------------------

    def along(self, path: list[tuple[Run, int]]) -> tuple[Places, ...]:
        """Where the blocks of a path are published below the device.

        Args:
            path: runs, each with how many of its blocks belong to the path.
        """
        found = []
        for level, places in self.below.items():
            if not any(run.further is not None and places in run.further for run, _ in path):
                continue
            parts = [_part(places, run, blocks) for run, blocks in path]
            slots = parts[0][0] if len(parts) == 1 else np.concatenate([part[0] for part in parts])
            generations = parts[0][1] if len(parts) == 1 else np.concatenate([part[1] for part in parts])
            present = as_bits(places.generation_of.take(slots) == generations)
            if present:
                found.append(Places(level, present, slots, generations))
        return tuple(found)

    # -- changes -------------------------------------------------------------------------------------------------------

    def drop(self, level: int, slots: Slots, generations: Generations | None) -> list[Run]:
        """Forget what is named in slots of a level under these generations; None: whatever it is.

        Returns:
            runs that have no further place now.
        """
        bare = []
        for places in self.on(level):
            if places.count:
                named = slots.compress(places.named(slots, generations))
                if len(named):
                    bare += places.forget(named, self._runs)
        return bare

    def settle(self, level: int, run: Run, blocks: NDArray[np.int64]) -> None:
        """Blocks of a run become published on a level: forget that they were arriving there."""
        places = self.arriving.get(level)
        held = None if places is None else places.of(run)
        if places is not None and held is not None:
            slots = held.slots.take(blocks)
            named = slots.compress(places.generation_of.take(slots) == held.generations.take(blocks))
            if len(named):
                places.forget(named, self._runs)

    # -- structure -----------------------------------------------------------------------------------------------------

    def end_of(self, run: Run) -> int:
        """How many blocks of a run there are up to the last one with a further place."""
        end = 0
        for places in run.further or ():
            there = places.there(run)
            if there[-1]:
                return len(run.slots)
            end = max(end, int(there.nonzero()[0][-1]) + 1)
        return end

    # -- inspection ----------------------------------------------------------------------------------------------------

    def entries(self, places: PlaceMap | None, digest_bytes: int) -> Iterator[tuple[bytes, int, int]]:
        """(digest, slot, generation) of all places of a map, in no particular order."""
        for run in self._runs:
            held = None if places is None or run is None else places.of(run)
            if places is None or run is None or held is None:
                continue
            for block in places.there(run).nonzero()[0].tolist():
                digest = run.digests[block * digest_bytes : (block + 1) * digest_bytes]
                yield digest, int(held.slots[block]), int(held.generations[block])


def lengthen(run: Run, blocks: int) -> None:
    """A run has got blocks at its end, without further places."""
    for held in (run.further or {}).values():
        held.slots = np.concatenate((held.slots, np.zeros(blocks, np.int64)))
        held.generations = np.concatenate((held.generations, np.full(blocks, HOLE, np.int64)))


def shorten(run: Run, blocks: int) -> None:
    """A run is cut to its first blocks; those after them have no further places."""
    for held in (run.further or {}).values():
        held.slots = held.slots[:blocks].copy()
        held.generations = held.generations[:blocks].copy()


def as_bits(mask: NDArray[np.bool_]) -> int:
    """Bit i of the result is mask[i]."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def _part(places: PlaceMap, run: Run, blocks: int) -> tuple[Slots, Generations]:
    held = places.of(run)
    if held is None:
        return np.zeros(blocks, np.int64), np.full(blocks, HOLE, np.int64)
    return held.slots[:blocks], held.generations[:blocks]
