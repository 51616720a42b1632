"""What tests of block events share: replicas that tell them, and what was told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.config import Config, PoolConfig
from kvtroupe.coordinator.messages import Cleared, Events
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.losing import FULL
from tests.coordinator.support import DIGEST_BYTES, chain

if TYPE_CHECKING:
    from kvtroupe.coordinator.messages import BlockFact
    from tests.coordinator.cluster import Cluster

START = (0, 0)


def facts(cluster: Cluster, epoch: int = 0) -> list[BlockFact]:
    """All facts of an epoch but that it began with nothing."""
    events = cluster.replica.events_since((epoch, 0))
    assert isinstance(events, Events)
    assert events.facts[0] == Cleared()
    return list(events.facts[1:])


def next_facts(cluster: Cluster, known: int) -> list[BlockFact]:
    """All facts but the first ones."""
    return facts(cluster)[known:]


def part(words: str, first: int, end: int | None = None) -> bytes:
    """Digests of some blocks of a chain."""
    return chain(words)[first * DIGEST_BYTES : None if end is None else end * DIGEST_BYTES]


def backwards(words: str) -> bytes:
    """Digests of a chain, the last one first."""
    return b"".join(part(words, block, block + 1) for block in reversed(range(len(words))))


def make_one_pool(blocks: int, **values: object) -> Replica:
    """A replica with blocks of four tokens, all in one pool, with events."""
    pools = (PoolConfig(blocks=blocks),)
    config = {"namespace": "test", "block_tokens": 4, "digest_bytes": DIGEST_BYTES, "groups": (FULL,), "pools": pools}
    return Replica(Config.model_validate({**config, "events": True, **values}))
