"""Where a pool is in its stack, and what is to happen with its content there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtroupe.coordinator.config_stacks import stacks_of

if TYPE_CHECKING:
    from kvtroupe.coordinator.config import Config, PoolConfig

LOW_WATER_DIVISOR = 16


@dataclass(frozen=True, slots=True)
class Place:
    """A pool in its stack.

    Attributes:
        pool: its number.
        level: 0 for the device pool.
        device: number of the device pool of the stack.
        above: number of the pool above it; None for a device pool.
        below: number of the pool below it; None for the last one.
        copies_on_evict: content that is worth it is copied below when its slot is needed.
        copies_on_commit: content is copied below as it is published.
        min_priority: content of a lower priority is not copied below.
        low_water_blocks: slots kept ready whose content may be dropped.
        waiting_max_blocks: slots that requests which wait for bytes may hold.
    """

    pool: int
    level: int
    device: int
    above: int | None
    below: int | None
    copies_on_evict: bool
    copies_on_commit: bool
    min_priority: int
    low_water_blocks: int
    waiting_max_blocks: int


def places_of(config: Config) -> list[Place]:
    """The place of every pool, in the order of the configuration."""
    places: dict[int, Place] = {}
    for stack in stacks_of(config.pools):
        for level, number in enumerate(stack):
            pool = config.pools[number]
            places[number] = Place(
                pool=number,
                level=level,
                device=stack[0],
                above=stack[level - 1] if level else None,
                below=stack[level + 1] if level + 1 < len(stack) else None,
                copies_on_evict=pool.below is not None and pool.offload == "on_evict",
                copies_on_commit=pool.below is not None and pool.offload == "on_commit",
                min_priority=pool.offload_min_priority,
                low_water_blocks=_low_water(pool),
                waiting_max_blocks=int(pool.waiting_share * (pool.blocks - 1)),
            )
    return [places[number] for number in range(len(config.pools))]


def engines_of(config: Config) -> tuple[dict[tuple[int, int], int], dict[int, int]]:
    """Who copies between which pools, and how many blocks at one time.

    Returns:
        (source pool, destination pool) -> number of the pool whose tier actor does it: the lower of the two; and for
        each of these the blocks in flight at most.
    """
    engines: dict[tuple[int, int], int] = {}
    in_flight_max: dict[int, int] = {}
    for place in places_of(config):
        pool = config.pools[place.pool]
        engines[place.pool, place.pool] = place.pool
        in_flight_max.setdefault(place.pool, pool.blocks)  # within a device pool; without room, a hit is given up
        if place.below is not None:
            engines[place.pool, place.below] = engines[place.below, place.pool] = place.below
            in_flight_max[place.below] = pool.copies_max_blocks
    return engines, in_flight_max


def _low_water(pool: PoolConfig) -> int:
    """As configured; where nothing is, a sixteenth of a pool whose content is copied below before it is dropped."""
    if pool.tier == "device" or pool.below is None or pool.offload != "on_evict":
        return 0
    return pool.low_water_blocks or max(1, pool.blocks // LOW_WATER_DIVISOR)
