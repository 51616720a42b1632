"""How the pools of one tier divide the bytes that ranks have there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.bands import Shape
from kvtroupe.coordinator.config_checks import AS_MANY_AS_FIT
from kvtroupe.coordinator.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from kvtroupe.coordinator.bands import Layout
    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.rank_reports import RankReport


class TierPlan:
    """See the module.

    Args:
        config: of the replica.
        layout: of its tables.
        tier: of the pools.
        fraction: of the bytes reported that pools may take.
    """

    def __init__(self, config: Config, layout: Layout, tier: str, fraction: Fraction) -> None:
        self._config = config
        self._tier = tier
        self._fraction = fraction
        numbers = [number for number, pool in enumerate(config.pools) if pool.tier == tier]
        self._given = [number for number in numbers if config.pools[number].blocks != AS_MANY_AS_FIT]
        self._open = [number for number in numbers if config.pools[number].blocks == AS_MANY_AS_FIT]
        device = {number: config.pools[config.stack_of(number)[0]].name for number in numbers}
        self._groups = {
            number: [place for place, group in enumerate(config.groups) if group.pool == device[number]]
            for number in numbers
        }
        # Blocks of one unit; a group that does not grow with its sequences counts as one block.
        self._rows = {
            number: sum([max(1, layout.strides[group]) for group in groups]) for number, groups in self._groups.items()
        }
        self._least = {number: self._least_blocks(layout, number) for number in self._open}

    def _least_blocks(self, layout: Layout, number: int) -> int:
        """The null block, what must stay free, and a sequence of one unit; below the device, one block."""
        pool = self._config.pools[number]
        if pool.tier != "device":
            return 2 + pool.low_water_blocks
        shape = Shape(layout.unit_tokens, encoder_tokens=1)
        taken = layout.slots_at_admission(number, 0, layout.unit_tokens, shape, cross_hit=False)
        return max(2, 1 + pool.reserved_blocks + taken)

    def blocks(self, reports: Sequence[RankReport], shares: Mapping[str, Fraction]) -> dict[str, int]:
        """The blocks of the pools that have no number of their own, by name.

        Args:
            reports: one of each rank.
            shares: for all of these pools, or for none.

        Raises:
            ConfigError: a rank has too little.
        """
        sizes = [self._slot_bytes(report) for report in reports]
        left = [self._left(report, its_sizes) for report, its_sizes in zip(reports, sizes, strict=True)]
        if not self._open:
            return {}
        parts = {number: shares[name] for number in self._open if (name := self._config.pools[number].name) in shares}
        found = _by_shares(parts, left, sizes) if parts else self._evenly(left, sizes)
        if any(found[number] < self._least[number] for number in self._open):
            self._refuse(reports, sizes, parts)
        return {self._config.pools[number].name: min(found[number], AS_MANY_AS_FIT) for number in self._open}

    def _slot_bytes(self, report: RankReport) -> dict[int, int]:
        """For each pool the bytes of a slot on a rank: of the largest block of its groups."""
        block_bytes = [
            held.of_block(self._config.group_block_tokens(group)) for group, held in enumerate(report.group_bytes)
        ]
        return {number: max([block_bytes[group] for group in groups]) for number, groups in self._groups.items()}

    def _usable(self, report: RankReport) -> int:
        return int(report.tier_bytes[self._tier] * self._fraction)

    def _given_bytes(self, sizes: Mapping[int, int]) -> int:
        return sum([self._config.pools[number].blocks * sizes[number] for number in self._given])

    def _left(self, report: RankReport, sizes: Mapping[int, int]) -> int:
        """Bytes of a rank that pools with a number of blocks leave."""
        usable, given = self._usable(report), self._given_bytes(sizes)
        if given > usable:
            names = [self._config.pools[number].name for number in self._given]
            raise ConfigError(
                f"pools {names} have blocks of {given} bytes on rank {report.rank}, which has {usable} for tier "
                f"{self._tier!r}; give them fewer blocks"
            )
        return usable - given

    def _evenly(self, left: Sequence[int], sizes: Sequence[Mapping[int, int]]) -> dict[int, int]:
        """As many units for each pool as fit, and then single blocks, in order of the pools, as long as one fits."""
        units = _fewest([(there, self._unit_bytes(its_sizes)) for there, its_sizes in zip(left, sizes, strict=True)])
        found = {number: units * self._rows[number] for number in self._open}
        still_left = [there - units * self._unit_bytes(its_sizes) for there, its_sizes in zip(left, sizes, strict=True)]
        for number in self._open:
            more = _fewest([(there, its_sizes[number]) for there, its_sizes in zip(still_left, sizes, strict=True)])
            found[number] += more
            still_left = [there - more * its_sizes[number] for there, its_sizes in zip(still_left, sizes, strict=True)]
        return found

    def _unit_bytes(self, sizes: Mapping[int, int]) -> int:
        return sum([self._rows[number] * sizes[number] for number in self._open])

    def _refuse(
        self, reports: Sequence[RankReport], sizes: Sequence[Mapping[int, int]], parts: Mapping[int, Fraction]
    ) -> None:
        """Say which ranks have too little, and how much is enough."""
        short = []
        for report, its_sizes in zip(reports, sizes, strict=True):
            if parts:
                enough = max([-(-self._least[number] * its_sizes[number] // part) for number, part in parts.items()])
            else:
                units = max([-(-self._least[number] // self._rows[number]) for number in self._open])
                enough = units * self._unit_bytes(its_sizes)
            enough = -(-(enough + self._given_bytes(its_sizes)) // self._fraction)
            if enough > report.tier_bytes[self._tier]:
                short.append(f"rank {report.rank} reports {report.tier_bytes[self._tier]} bytes and needs {enough}")
        raise ConfigError(
            f"tier {self._tier!r} is too small for the null block and a sequence of one unit in each pool: "
            f"{'; '.join(short)}"
        )


def _by_shares(
    parts: Mapping[int, Fraction], left: Sequence[int], sizes: Sequence[Mapping[int, int]]
) -> dict[int, int]:
    return {
        number: _fewest([(int(there * part), its_sizes[number]) for there, its_sizes in zip(left, sizes, strict=True)])
        for number, part in parts.items()
    }


def _fewest(ranks: Sequence[tuple[int, int]]) -> int:
    """How often something fits on all ranks, each with the bytes it has and the bytes it takes there.

    Raises:
        ConfigError: it takes none on any rank.
    """
    counts = [there // taken for there, taken in ranks if taken]
    if not counts:
        raise ConfigError("a pool that is to be sized has no bytes on any rank; report those of its groups")
    return min(counts)
