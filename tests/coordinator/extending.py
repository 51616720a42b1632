"""What tests of hits within a block share: a cluster whose groups are told tokens, and prompts with them.

Blocks have four tokens. A prompt is the tokens of its blocks; the digest of a block stands for its tokens and for all
before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.messages import (
    Admitted,
    BindEvent,
    Content,
    CopyRequest,
    NewSequence,
    ReleaseEvent,
    TierOutput,
)
from kvtroupe.coordinator.reference_partial import as_bytes
from tests.coordinator.cluster import Cluster
from tests.coordinator.support import (
    DIGEST_BYTES,
    chain,
    listed,
    slots,
    tables,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

FULL = GroupConfig(name="full")
TIER = ("tier", 0, 0)

FIRST = (1, 2, 3, 4)
OTHER = (5, 6, 7, 8)
CLOSE = (5, 6, 7, 9)  # shares three tokens with OTHER
CLOSER_NOT = (5, 6, 0, 0)  # and this one two


def make_config(*groups: GroupConfig, blocks: int = 21, host_blocks: int = 0, partial_reuse: str = "copy") -> Config:
    """A replica that reuses parts of blocks."""
    pools: list[dict[str, object]] = [{"name": "device", "blocks": blocks}]
    pools += [{"name": name, "blocks": blocks} for name in {group.pool for group in groups} - {"device"}]
    if host_blocks:
        pools[0]["below"] = "host"
        pools.append({"name": "host", "tier": "host", "blocks": host_blocks})
    return Config.model_validate(
        {
            "namespace": "test",
            "block_tokens": 4,
            "digest_bytes": DIGEST_BYTES,
            "groups": groups or (FULL,),
            "pools": tuple(PoolConfig.model_validate(pool) for pool in pools),
            "partial_reuse": partial_reuse,
        }
    )


def digests_of(tokens: Sequence[int]) -> bytes:
    """Digests of the whole blocks of a prompt."""
    return chain([tokens[at : at + 4] for at in range(0, len(tokens) - 3, 4)])


def prompt(
    sequence_id: str, *blocks: tuple[int, ...], extras: tuple[bytes, ...] = (), spare_blocks: int = 0, beams: int = 1
) -> NewSequence:
    """A prompt of these tokens, whose content is told."""
    tokens = tuple(token for block in blocks for token in block)
    content = Content(as_bytes(tokens), 4, extras)
    return NewSequence(sequence_id, len(tokens), digests_of(tokens), spare_blocks, beams=beams, content=content)


class Replicas(Cluster):
    """A cluster whose groups are told tokens."""

    def keep(self, *blocks: tuple[int, ...], extras: tuple[bytes, ...] = ()) -> list[list[int]]:
        """Let a prompt run and end, so that its blocks stay as cache: its tables."""
        (result,) = self.admit(prompt("kept", *blocks, extras=extras))
        self.commit("kept", 4 * len(blocks))
        self.send(ReleaseEvent("kept"))
        return tables(result)

    def cached(self, *blocks: tuple[int, ...], extras: tuple[bytes, ...] = ()) -> int:
        """How many tokens of a prompt are hit; it ends at once."""
        (result,) = self.admit(prompt("probe", *blocks, extras=extras))
        self.send(ReleaseEvent("probe"))
        assert isinstance(result, Admitted)
        return result.cached_tokens

    def one(self, new: NewSequence) -> Admitted:
        """Admit one that must fit."""
        (result,) = self.admit(new)
        assert isinstance(result, Admitted), result
        return result

    def copies(self) -> list[tuple[list[int], list[int], list[int]]]:
        """What the device's tier actor is asked to copy: sources, destinations, tokens of each."""
        asked = []
        for output in self.inbox(TIER):
            assert isinstance(output, TierOutput)
            assert isinstance(output.message, CopyRequest)
            copies = output.message.copies
            assert copies.tokens is not None
            asked.append((listed(copies.sources), listed(copies.destinations), listed(copies.tokens)))
        return asked

    def uses(self, *of: int) -> list[int]:
        """How many holders slots of the device have."""
        return [self.replica.pool("device").ledger.uses.item(slot) for slot in of]


def make(*groups: GroupConfig, blocks: int = 21, host_blocks: int = 0) -> Replicas:
    """A cluster of these groups."""
    return Replicas(make_config(*groups, blocks=blocks, host_blocks=host_blocks))


def forget(cluster: Replicas, group: int, slot: int) -> None:
    """A published block of one group is gone."""
    cluster.replica.pool("device").ledger.unpublish(slots(slot))
    cluster.replica.groups[group].handle(BindEvent(slots(slot)))
