"""How blocks get places in a prefix index other than by a plain insert: with gaps, below the device, by landing.

A block on its way to a level is first noted as arriving there, by where it is now. It enters the index when it lands,
unless its digest was published on that level meanwhile: what is published wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.index_levels import NO_PLACE, Placement
from kvtroupe.coordinator.prefix_index import DEVICE, NOT_PUBLISHED, REAPED_PER_INSERT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kvtroupe.coordinator.index_levels import PlaceMap
    from kvtroupe.coordinator.messages import Arrival, Generations, LandRequest, PublishRequest, Slots
    from kvtroupe.coordinator.prefix_index import PrefixIndex, Run


def insert_some(index: PrefixIndex, request: PublishRequest) -> NDArray[np.bool_] | None:
    """Publish blocks of a chain on any level, each unless its slot is 0 or its digest is published there already.

    Args:
        index: of the group.
        request: what an index names in its slots of an earlier content is forgotten; on the device there is nothing.

    Returns:
        a mask of the blocks that entered; None when all did.
    """
    index.check_level(request.level)
    index.reap(REAPED_PER_INSERT)
    entered = np.zeros(len(request.slots), np.bool_)
    offered = request.slots.nonzero()[0]
    if len(offered):
        at_block = offered + request.start_block
        reached = 0
        for run, blocks in index.reach(request.digests, at_block.item(-1) + 1):
            low, high = at_block.searchsorted((reached, reached + blocks)).tolist()
            inside = at_block[low:high] - reached
            missing = ~index.published(request.level, run).take(inside)
            chosen = offered[low:high].compress(missing)
            if len(chosen):
                entered[chosen] = True
                index.place(request.level, _placement(run, inside.compress(missing), request, chosen))
            reached += blocks
    return None if entered.all() else entered


def arrive(index: PrefixIndex, arrivals: Sequence[Arrival]) -> None:
    """Blocks are on their way to other levels.

    Sources mean what the index names in them before any of this. A block that is published on the level that it goes
    to, or arriving there, is not noted again. Whatever else was on its way to one of the slots has lost it.

    Args:
        index: of the group.
        arrivals: no slot of a level is gone to twice.
    """
    found = []
    for arrival in arrivals:
        index.check_level(arrival.source_level)
        index.check_level(arrival.level)
        found.append(list(_locate(index, arrival.source_level, arrival.source_slots, arrival.source_generations)))
    for arrival, sources in zip(arrivals, found, strict=True):
        _forget_earlier(index, arrival)
        places = index.further.arriving_on(arrival.level)
        for run, chosen, blocks in sources:
            new = ~(index.published(arrival.level, run) | places.there(run)).take(blocks)
            for named_in in index.further.on(arrival.level):
                new &= ~named_in.named(arrival.slots[chosen], None)
            new_blocks, first = np.unique(blocks.compress(new), return_index=True)
            if len(new_blocks):
                places.put(_placement(run, new_blocks, arrival, chosen.compress(new)[first]))


def land(index: PrefixIndex, request: LandRequest) -> NDArray[np.bool_] | None:
    """Arriving blocks are there: publish them.

    Args:
        index: of the group.
        request: no slot twice.

    Returns:
        a mask of the blocks that entered; None when all did.
    """
    index.check_level(request.level)
    entered = np.zeros(len(request.slots), np.bool_)
    arriving = index.further.arriving.get(request.level)
    if arriving is not None:
        known = arriving.named(request.slots, request.generations)
        for run, chosen, blocks in list(_in_runs(index, arriving, request.slots, known)):
            entered[chosen] = True
            index.place(request.level, _placement(run, blocks, request, chosen))
    return None if entered.all() else entered


def _placement(
    run: Run, blocks: NDArray[np.int64], message: PublishRequest | Arrival | LandRequest, chosen: NDArray[np.int64]
) -> Placement:
    return Placement(run, blocks, message.slots[chosen], message.generations[chosen])


def _forget_earlier(index: PrefixIndex, arrival: Arrival) -> None:
    """Forget what the slots of an arrival were to hold, or held below the device, under other generations.

    What is published in them on the device stays: that it was evicted is said by itself.
    """
    for places in index.further.on(arrival.level):
        known = places.generation_of.take(arrival.slots)
        passed = (known != NO_PLACE) & (known != arrival.generations)
        if passed.any():
            index.forget_further(arrival.level, arrival.slots.compress(passed))


def _locate(
    index: PrefixIndex, level: int, slots: Slots, generations: Generations | None
) -> Iterator[tuple[Run, NDArray[np.int64], NDArray[np.int64]]]:
    """The blocks named in slots, run by run: the run, positions in `slots`, which blocks of the run these are."""
    left = np.ones(len(slots), np.bool_)
    if level == DEVICE:
        known = index.generation_of.take(slots)
        left = known == NOT_PUBLISHED if generations is None else known != generations
        for number, chosen in _by_run(index.run_of.take(slots), ~left):
            run = index.runs[number]
            assert run is not None, "a run stays while it has places"
            yield run, chosen, _blocks_on_device(index, run, slots[chosen])
    for places in index.further.on(level):
        yield from _in_runs(index, places, slots, left & places.named(slots, generations))


def _blocks_on_device(index: PrefixIndex, run: Run, slots: Slots) -> NDArray[np.int64]:
    """Which blocks of a run are published in these device slots; all of them are in it."""
    there = index.published(DEVICE, run).nonzero()[0]
    held = run.slots.take(there)
    order = held.argsort()
    return there.take(order.take(held.searchsorted(slots, sorter=order)))


def _in_runs(
    index: PrefixIndex, places: PlaceMap, slots: Slots, known: NDArray[np.bool_]
) -> Iterator[tuple[Run, NDArray[np.int64], NDArray[np.int64]]]:
    for number, chosen in _by_run(places.run_of.take(slots), known):
        run = index.runs[number]
        assert run is not None, "a run stays while it has places"
        yield run, chosen, places.block_of.take(slots[chosen]).astype(np.int64)


def _by_run(numbers: NDArray[np.integer], known: NDArray[np.bool_]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The known positions of an array of run numbers, run by run."""
    chosen = known.nonzero()[0]
    if not len(chosen):
        return
    chosen = chosen.take(numbers.take(chosen).argsort(kind="stable"))
    in_order = numbers.take(chosen)
    for part in np.split(chosen, (in_order[1:] != in_order[:-1]).nonzero()[0] + 1):
        yield numbers.item(part.item(0)), part
