"""What ranks say of themselves before pools are sized: their groups, the bytes of their blocks, their memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtroupe.coordinator.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvtroupe.coordinator.block_bytes import GroupBytes
    from kvtroupe.coordinator.config import Config, GroupConfig


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank can hold.

    Attributes:
        rank: its number.
        groups: the window groups as this rank was started with; the same on all ranks, also where a rank holds no layer
            of a group.
        block_tokens: of the groups that have no block size of their own.
        group_bytes: what the rank holds in each block, group by group.
        tier_bytes: for each tier the bytes that pools may take there.
    """

    rank: int
    groups: tuple[GroupConfig, ...]
    block_tokens: int
    group_bytes: tuple[GroupBytes, ...]
    tier_bytes: Mapping[str, int]


def check_reports(config: Config, reports: Sequence[RankReport]) -> None:
    """Refuse reports that do not belong to one replica.

    Raises:
        ConfigError: ranks are missing, or differ; which ones, and in what.
    """
    ranks = sorted(report.rank for report in reports)
    if ranks != list(range(config.ranks)):
        raise ConfigError(f"ranks {ranks} have reported; each rank from 0 to {config.ranks - 1} reports once")
    differences = [f"rank {report.rank} {what}" for report in reports for what in _differences(config, report)]
    if differences:
        raise ConfigError(
            f"slots must mean the same on all ranks, but {'; '.join(differences)}; "
            "start all ranks with one configuration"
        )
    for report in reports:
        for pool in config.pools:
            available = report.tier_bytes.get(pool.tier)
            if type(available) is not int or available < 0:
                raise ConfigError(
                    f"rank {report.rank} reports {available!r} bytes for tier {pool.tier!r} of pool {pool.name!r}; "
                    "every rank reports a whole number for every tier that has a pool"
                )


def _differences(config: Config, report: RankReport) -> list[str]:
    """In what a rank differs from the configuration."""
    found = []
    if report.block_tokens != config.block_tokens:
        found.append(f"has block_tokens {report.block_tokens} instead of {config.block_tokens}")
    names, expected = [group.name for group in report.groups], [group.name for group in config.groups]
    if names != expected:
        return [*found, f"has the groups {names} instead of {expected}"]
    if len(report.group_bytes) != len(names):
        found.append(f"reports the bytes of {len(report.group_bytes)} groups instead of {len(names)}")
    for here, there in zip(report.groups, config.groups, strict=True):
        found += [
            f"has group {here.name!r} with {field} {getattr(here, field)!r} instead of {getattr(there, field)!r}"
            for field in type(here).model_fields
            if getattr(here, field) != getattr(there, field)
        ]
    return found
