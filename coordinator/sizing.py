"""How many blocks the pools of a replica get, and how many sequences fit into them.

Slots mean the same on all ranks, so that a pool gets as many blocks as the rank has room for that has the least. All
counts of blocks include the null block, which takes memory like any other.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from kvtroupe.coordinator.bands import Layout, Shape
from kvtroupe.coordinator.config import Config
from kvtroupe.coordinator.config_checks import AS_MANY_AS_FIT, check_sized
from kvtroupe.coordinator.errors import ConfigError, RequestError
from kvtroupe.coordinator.estimate_messages import PLAIN_PACE, Pace
from kvtroupe.coordinator.estimates import Run, slots_alone
from kvtroupe.coordinator.rank_reports import RankReport, check_reports
from kvtroupe.coordinator.tier_plans import TierPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WHOLE = Fraction(1)


def plan_pools(
    config: Config,
    reports: Sequence[RankReport],
    shares: Mapping[str, float] | None = None,
    fractions: Mapping[str, float] | None = None,
) -> Config:
    """Give each pool as many blocks as all ranks can hold.

    A pool with a number of blocks keeps it. Pools that have `AS_MANY_AS_FIT` divide what is left of their tier: by
    their shares, or, where there are none, in proportion to the bytes of the blocks that their groups have in one unit,
    so that all hold the same number of tokens. Groups that do not grow with their sequences count as one block then:
    give their pools a share or a number of blocks. A slot is as large as the largest block of its pool's groups.

    Args:
        config: of the replica.
        reports: one of each rank.
        shares: for each pool of a tier that has `AS_MANY_AS_FIT`, its share of what is left there, 0 to 1, all together
            1 at most; tiers none of whose pools is named are divided as above.
        fractions: for each tier the fraction of the bytes reported that pools may take; 1 for those not named.

    Returns:
        the configuration with a number of blocks for every pool.

    Raises:
        ConfigError: ranks are missing or differ, shares or fractions make no sense, or a rank has too little for a
            sequence of one unit; the message says how much it needs.
    """
    check_reports(config, reports)
    parts = {name: _part(f"share of pool {name!r}", share) for name, share in (shares or {}).items()}
    usable = {tier: _part(f"fraction of tier {tier!r}", part) for tier, part in (fractions or {}).items()}
    _check_names(config, parts, usable)
    layout, blocks = Layout(config), {pool.name: pool.blocks for pool in config.pools}
    for tier in dict.fromkeys(pool.tier for pool in config.pools):
        blocks |= TierPlan(config, layout, tier, usable.get(tier, WHOLE)).blocks(reports, parts)
    return config.changed(pools=tuple([pool.changed(blocks=blocks[pool.name]) for pool in config.pools]))


def _part(what: str, value: float) -> Fraction:
    """A part as it was written: 0.29 is 29 hundredths, so that 29 of 100 blocks are not 28."""
    if type(value) not in (int, float) or not 0 < value <= 1:
        raise ConfigError(f"{what} is {value!r}; give a number above 0, and 1 at most")
    return Fraction(str(value))


def _check_names(config: Config, shares: Mapping[str, Fraction], fractions: Mapping[str, Fraction]) -> None:
    """Shares for all pools of a tier that are to be sized, or for none, and no more than there is."""
    for name in fractions.keys() - {pool.tier for pool in config.pools}:
        raise ConfigError(f"a fraction is given for tier {name!r}, in which there is no pool; leave it out")
    open_pools = {pool.name: pool.tier for pool in config.pools if pool.blocks == AS_MANY_AS_FIT}
    for name in shares.keys() - open_pools.keys():
        raise ConfigError(
            f"a share is given for pool {name!r}, which is not to be sized; the pools with AS_MANY_AS_FIT are "
            f"{sorted(open_pools)}"
        )
    for tier in {open_pools[name] for name in shares}:
        names = [name for name, its_tier in open_pools.items() if its_tier == tier]
        missing = [name for name in names if name not in shares]
        if missing:
            raise ConfigError(f"pools {missing} of tier {tier!r} have no share, and others have; give all of them one")
        total = sum(shares[name] for name in names)
        if total > 1:
            raise ConfigError(f"the shares of tier {tier!r} add up to {float(total)}; they may be 1 together at most")


def largest_batch(config: Config, shape: Shape, new_tokens: int = 0, pace: Pace = PLAIN_PACE) -> int:
    """How many sequences of one kind run at one time without one of them being refused on the way.

    All are counted with the most that they hold at any time, and nothing is shared between them.

    Args:
        config: of the replica.
        shape: of each sequence: its prompt, its encoder input and its beams.
        new_tokens: that follow its prompt.
        pace: at which they do.

    Raises:
        RequestError: a sequence without a prompt or without beams, or a negative number of tokens.
        ConfigError: a pool is not sized yet.
    """
    fitting = config.limits.sequences_max
    for first, most, usable, reserved in _each_pool(config, shape, new_tokens, pace):
        # The last one leaves alone what is reserved when it comes; the others may use it by then.
        fitting = min(fitting, usable // most, (usable - reserved - first) // most + 1)
    return max(0, fitting)


def concurrency(config: Config, shape: Shape, new_tokens: int = 0, pace: Pace = PLAIN_PACE) -> float:
    """How many times the slots are there that a sequence holds at most: what the pools hold, as one number.

    Args:
        config: of the replica.
        shape: of the sequence.
        new_tokens: that follow its prompt.
        pace: at which they do.

    Returns:
        of the pool that has the fewest; reserved slots count as there. 0 for a sequence longer than any may be.

    Raises:
        RequestError: as `largest_batch` does.
        ConfigError: likewise.
    """
    return min([usable / most for _, most, usable, _ in _each_pool(config, shape, new_tokens, pace)])


def _each_pool(config: Config, shape: Shape, new_tokens: int, pace: Pace) -> list[tuple[int, int, int, int]]:
    """For each pool that a sequence takes slots of: those of its admission, the most, those usable and reserved."""
    check_sized(config)
    least = {"prompt_tokens": 1, "encoder_tokens": 0, "beams": 1}
    for name, value, at_least in [
        *[(name, getattr(shape, name), at_least) for name, at_least in least.items()],
        ("new_tokens", new_tokens, 0),
    ]:
        if type(value) is not int or value < at_least:
            raise RequestError(f"sequences with {name} {value!r}; give a whole number, {at_least} or more")
    layout = Layout(config)
    capacity_tokens = -(-shape.prompt_tokens // layout.unit_tokens) * layout.unit_tokens
    end_tokens = shape.prompt_tokens + new_tokens
    if -(-end_tokens // layout.unit_tokens) * layout.unit_tokens > config.limits.sequence_tokens_max:
        return [(1, 1, 0, 0)]
    run = Run(shape, shape.prompt_tokens, 0, capacity_tokens, end_tokens, pace)
    found = []
    for number, pool in enumerate(config.pools):
        first, most = slots_alone(layout, number, run)
        if most:
            found.append((first, most, pool.blocks - 1, pool.reserved_blocks))
    return found
