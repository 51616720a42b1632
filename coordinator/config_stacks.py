"""Stacks of pools: a device pool, the pool below it, and the one below that.

A block of a group lives in the pools of one stack, on level 0 in the device pool, and is demoted from each to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.config import PoolConfig

TIERS = ("device", "host", "disk")  # from the fastest down


def check_stacks(pools: Sequence[PoolConfig]) -> None:
    """Refuse pools that do not form stacks.

    Args:
        pools: with different names.

    Raises:
        ValueError: what is wrong, and what to do about it.
    """
    by_name = {pool.name: pool for pool in pools}
    parents: dict[str, str] = {}
    for pool in pools:
        if pool.below is None:
            continue
        if pool.below not in by_name:
            raise ValueError(
                f"pool {pool.name!r} has {pool.below!r} below it, which is not one of {list(by_name)}; add it"
            )
        _check_order(pool, by_name[pool.below])
        if pool.below in parents:
            raise ValueError(
                f"pools {parents[pool.below]!r} and {pool.name!r} both have {pool.below!r} below them: "
                "give each a pool of its own"
            )
        parents[pool.below] = pool.name
    for pool in pools:
        if pool.tier != "device" and pool.name not in parents:
            raise ValueError(
                f"{pool.tier} pool {pool.name!r} is below no pool; remove it or name it as below of a faster one"
            )


def _check_order(upper: PoolConfig, lower: PoolConfig) -> None:
    # Every step leads to a slower tier, so no chain of pools can come back to where it began.
    if TIERS.index(upper.tier) >= TIERS.index(lower.tier):
        raise ValueError(
            f"{upper.tier} pool {upper.name!r} has {lower.tier} pool {lower.name!r} below it: "
            f"a pool below another has a slower tier; from the fastest down: {', '.join(TIERS)}"
        )


def stacks_of(pools: Sequence[PoolConfig]) -> list[tuple[int, ...]]:
    """The stacks, in the order of their device pools; each the numbers of its pools from the device down.

    Args:
        pools: as `check_stacks` accepts them.
    """
    numbers = {pool.name: number for number, pool in enumerate(pools)}
    stacks = []
    for number, pool in enumerate(pools):
        if pool.tier == "device":
            stack = [number]
            while (below := pools[stack[-1]].below) is not None:
                stack.append(numbers[below])
            stacks.append(tuple(stack))
    return stacks
