"""How many slots a sequence takes now, and how many at most until it ends.

A sequence takes slots when it is admitted and whenever it outgrows its room, and gives some back whenever a commit
moves a window on. So the most that it has ever taken is not what it takes in all: it is looked for over the moments at
which it grows.

What a slot is worth to the pool decides what counts. A slot that others use as well costs nothing and brings nothing
back; a cached block that nobody uses is free, and a hit takes it out of what is free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.attention import FullAttention
from kvtroupe.coordinator.ledger import NULL_SLOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kvtroupe.coordinator.bands import Band, Layout, Shape
    from kvtroupe.coordinator.estimate_messages import Pace
    from kvtroupe.coordinator.sequences import Sequence as RunningSequence


@dataclass(frozen=True, slots=True)
class Run:
    """A sequence on the way to its end.

    Attributes:
        shape: of its tables.
        tokens: appended so far.
        committed_tokens: computed so far; of a new sequence its hit.
        capacity_tokens: that it has room for; of a new sequence once it is admitted.
        end_tokens: that it has at its end.
        pace: at which it gets there.
    """

    shape: Shape
    tokens: int
    committed_tokens: int
    capacity_tokens: int
    end_tokens: int
    pace: Pace

    def anew(self, unit_tokens: int) -> Run:
        """The same sequence as it is admitted without a hit and without spare room."""
        prompt_tokens = self.shape.prompt_tokens
        capacity_tokens = -(-prompt_tokens // unit_tokens) * unit_tokens
        return replace(self, tokens=prompt_tokens, committed_tokens=0, capacity_tokens=capacity_tokens)


def slots_for_step(layout: Layout, pool: int, run: Run) -> int:
    """The slots of a pool that the next step of a running sequence takes, drafts included."""
    missing_tokens = min(run.tokens + run.pace.step_tokens, run.end_tokens) - run.capacity_tokens
    units = -(-missing_tokens // layout.unit_tokens)
    return layout.slots_to_grow(pool, run.capacity_tokens, units, run.shape) if units > 0 else 0


def slots_alone(layout: Layout, pool: int, run: Run) -> tuple[int, int]:
    """The slots of a pool that a new sequence takes in an empty replica.

    Args:
        layout: of the replica.
        pool: number of the pool.
        run: of a new sequence without a hit.

    Returns:
        those of its admission, and the most at any time until its end.
    """
    taken = layout.slots_at_admission(pool, 0, run.capacity_tokens, run.shape, cross_hit=False)
    return taken, most_slots(layout, pool, run, held_at_admission(layout, pool, run, {}), taken)


def most_slots(layout: Layout, pool: int, run: Run, held: Mapping[int, NDArray[np.int64]], taken: int = 0) -> int:
    """The most slots of a pool that a sequence has taken of those that are free now, at any time until its end.

    Args:
        layout: of the replica.
        pool: number of the pool.
        run: of the sequence.
        held: for each group of the pool whose tables grow: of the columns that `run` has room for, how many slots each
            gives back to what is free.
        taken: what it takes for these.
    """
    bands = _growing(layout, pool)
    ends, committed = _moments_of_growth(layout.unit_tokens, run)
    if not bands or not len(ends):
        return taken
    if all(isinstance(layout.rules[group], FullAttention) for band in bands for group in band.groups):
        ends, committed = ends[-1:], committed[-1:]  # nothing comes back on the way
    more = np.zeros(len(ends), np.int64)
    for band in bands:
        block_tokens = band.rule.block_tokens
        fresh = band.costs(run.capacity_tokens // block_tokens, int(ends[-1]) // block_tokens, run.shape)
        for group in band.groups:
            before = np.concatenate([[0], np.cumsum(np.concatenate([held[group], fresh]))])
            more += before[ends // block_tokens] - before[layout.rules[group].first_block(committed)]
            more -= held[group].sum()
    return taken + max(0, int(more.max()))


def _moments_of_growth(unit_tokens: int, run: Run) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The times at which a sequence takes room until its end: the room that it then has, and the tokens committed.

    It takes a unit when a step no longer fits: with room for 8, a token a step and none behind, when 8 are committed
    and the ninth is to be appended.
    """
    step_tokens = run.pace.step_tokens
    first = max(run.capacity_tokens + 1, min(run.tokens + step_tokens, run.end_tokens))
    starts = np.arange((first - 1) // unit_tokens * unit_tokens, run.end_tokens, unit_tokens)
    tokens = np.maximum(starts + 1 - step_tokens, run.tokens)
    return starts + unit_tokens, np.maximum(tokens - run.pace.lag_tokens, run.committed_tokens)


def held_at_admission(
    layout: Layout, pool: int, run: Run, hits: Mapping[int, NDArray[np.bool_]]
) -> dict[int, NDArray[np.int64]]:
    """What a new sequence holds once it is admitted, as `most_slots` wants it.

    Args:
        layout: of the replica.
        pool: number of the pool.
        run: of the sequence.
        hits: for each group, of the blocks that its hit reads, which ones take a free slot.
    """
    held = {}
    for band in _growing(layout, pool):
        start, end = band.span(run.committed_tokens, run.capacity_tokens, run.shape)
        fresh = band.costs(start, end, run.shape)
        for group in band.groups:
            columns = held[group] = np.zeros(end, np.int64)
            columns[start:] = fresh
            if group in hits:
                columns[start - len(hits[group]) : start] = hits[group]
    return held


def held_by(
    layout: Layout, pool: int, sequence: RunningSequence, uses: NDArray[np.int32]
) -> dict[int, NDArray[np.int64]]:
    """What a running sequence holds and nobody else, as `most_slots` wants it.

    Args:
        layout: of the replica.
        pool: number of the pool.
        sequence: that runs.
        uses: of the slots of the pool.
    """
    held = {}
    for number in layout.bands_of[pool]:
        band, table = layout.bands[number], sequence.tables[number]
        if not band.grows:
            continue
        alone = (uses.take(table.rows) == 1) & (table.rows != NULL_SLOT)
        for place, group in enumerate(band.groups):
            rows = alone[place * table.beams : (place + 1) * table.beams]
            columns = held[group] = rows.sum(axis=0)
            columns[: table.shared_blocks] = rows[0, : table.shared_blocks]
    return held


def _growing(layout: Layout, pool: int) -> list[Band]:
    return [layout.bands[number] for number in layout.bands_of[pool] if layout.bands[number].grows]
