"""What the parts of a coordinator's state share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtroupe.coordinator.bands import Layout
from kvtroupe.coordinator.claims import Pool
from kvtroupe.coordinator.config_checks import check_sized
from kvtroupe.coordinator.counters import Counters
from kvtroupe.coordinator.ledger import Ledger
from kvtroupe.coordinator.mail import Mail
from kvtroupe.coordinator.numbers import Numbers

if TYPE_CHECKING:
    from kvtroupe.coordinator.config import Config


@dataclass(frozen=True, slots=True)
class Parts:
    """See the module.

    Attributes:
        config: of the replica.
        pools: of all tiers, in the order of the configuration.
        layout: of the tables.
        mail: to the groups.
        publish_numbers: of questions to groups about what enters their index.
        counters: of the replica.
    """

    config: Config
    pools: list[Pool]
    layout: Layout
    mail: Mail
    publish_numbers: Numbers
    counters: Counters


def make_parts(config: Config, epoch: int) -> Parts:
    """Empty pools, and nothing sent yet.

    Args:
        config: of the replica.
        epoch: of the coordinator.

    Raises:
        ConfigError: a pool is not sized yet.
    """
    check_sized(config)
    pools = [
        Pool(
            pool.name,
            Ledger(pool.blocks, config.digest_bytes),
            tuple([number for number, group in enumerate(config.groups) if group.pool == pool.name]),
            pool.reserved_blocks,
        )
        for pool in config.pools
    ]
    return Parts(config, pools, Layout(config), Mail(len(config.groups), epoch), Numbers(), Counters())
