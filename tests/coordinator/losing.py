"""What tests of losses share: a cluster of any depth, and what is there of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.messages import AdmitRequest, SequenceFailedEvent
from tests.coordinator.cluster import Cluster
from tests.coordinator.support import DIGEST_BYTES, chain, new, split

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtroupe.coordinator.messages import SessionsOutput

FULL = GroupConfig(name="full")
SLIDING = GroupConfig(name="sliding", kind="sliding", window_tokens=9)
HOST = 1
DISK = 2


def make(*groups: GroupConfig, blocks: tuple[int, ...] = (21,), ranks: int = 1, offload: str = "on_evict") -> Cluster:
    """A cluster with blocks of four tokens over a device pool, and perhaps a host pool and a disk pool."""
    names = ["device", "host", "disk"][: len(blocks)]
    pools = []
    for number, (name, size) in enumerate(zip(names, blocks, strict=True)):
        below = names[number + 1] if number + 1 < len(names) else None
        more = {"offload": offload} if below else {}
        pools.append(PoolConfig.model_validate({"name": name, "tier": name, "blocks": size, "below": below, **more}))
    return Cluster(
        Config(
            namespace="test",
            block_tokens=4,
            digest_bytes=DIGEST_BYTES,
            groups=groups or (FULL,),
            pools=tuple(pools),
            ranks=ranks,
            events=True,
        )
    )


def below(cluster: Cluster, level: int, group: int = 0) -> set[bytes]:
    """Digests that a group has on a level below the device."""
    return {digest for digest, _, _ in cluster.replica.groups[group].index.entries_below(level)}


def digests(*chains: str) -> set[bytes]:
    """Of all blocks of some chains."""
    return {one for words in chains for one in split(chain(words))}


def failed(outputs: Iterable[SessionsOutput]) -> dict[object, bool]:
    """Sequences that have failed, each with whether it has to be released."""
    return {one.sequence_id: one.must_be_released for one in outputs if isinstance(one, SequenceFailedEvent)}


def admission(sequence_id: str) -> AdmitRequest:
    """A request whose answer may have to wait."""
    return AdmitRequest(77, (new(sequence_id, "ab"),))
