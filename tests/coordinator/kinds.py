"""What tests of the kinds of window group share: replicas of any groups, and what is to be seen of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.messages import Admitted, GroupOutput, TierOutput
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.support import BLOCK_TOKENS, DIGEST_BYTES, listed

if TYPE_CHECKING:
    from kvtroupe.coordinator.messages import NewSequence, SessionsOutput, ToCoordinator

FULL = GroupConfig(name="full")


def sliding(window_tokens: int, **more: object) -> GroupConfig:
    """A group of this kind."""
    return GroupConfig.model_validate({"name": "sliding", "kind": "sliding", "window_tokens": window_tokens, **more})


def chunked(chunk_tokens: int, **more: object) -> GroupConfig:
    """A group of this kind."""
    return GroupConfig.model_validate({"name": "chunked", "kind": "chunked", "chunk_tokens": chunk_tokens, **more})


def recurrent(snapshot_tokens: int | None = None, **more: object) -> GroupConfig:
    """A group of this kind."""
    values = {"name": "recurrent", "kind": "recurrent", "snapshot_tokens": snapshot_tokens, **more}
    return GroupConfig.model_validate(values)


def cross(**more: object) -> GroupConfig:
    """A group of this kind."""
    return GroupConfig.model_validate({"name": "cross", "kind": "cross", **more})


def fixed(blocks: int, **more: object) -> GroupConfig:
    """A group of this kind."""
    return GroupConfig.model_validate({"name": "fixed", "kind": "fixed", "blocks": blocks, **more})


def replica_of(
    *groups: GroupConfig, usable: int | dict[str, int] = 30, block_tokens: int = BLOCK_TOKENS, hash_tokens: int = 0
) -> Replica:
    """A replica of these groups.

    Args:
        groups: of it.
        usable: slots of its pool, or of every pool, the null block left out.
        block_tokens: of groups that do not say otherwise.
        hash_tokens: tokens of a digest; 0: as many as of a block.
    """
    sizes = usable if isinstance(usable, dict) else {"device": usable}
    return Replica(
        Config(
            namespace="test",
            block_tokens=block_tokens,
            hash_block_tokens=hash_tokens or None,
            digest_bytes=DIGEST_BYTES,
            groups=groups,
            pools=tuple(PoolConfig(name=name, blocks=size + 1) for name, size in sizes.items()),
        )
    )


def run(replica: Replica, sequence: NewSequence) -> Admitted:
    """Admit a sequence that must fit."""
    (result,) = replica.admit([sequence])
    assert isinstance(result, Admitted), result
    check(replica)
    return result


def free(replica: Replica) -> int:
    """Free slots of all pools."""
    return sum(pool.ledger.free for pool in replica.state.pools)


def table(replica: Replica, sequence_id: str, group: int = 0) -> list[int]:
    """The table of a sequence in a group."""
    return listed(replica.tables(sequence_id)[group])


def published(replica: Replica, group: str) -> dict[bytes, int]:
    """Slots of the published blocks of a group by digest."""
    return {digest: slot for digest, (slot, _) in replica.published(group).items()}


def end_all(replica: Replica) -> None:
    """End every sequence: then everything is free."""
    for sequence_id in replica.sequences():
        replica.release(sequence_id)
    check(replica)
    assert quiescent(replica)


def step(replica: Replica, message: ToCoordinator) -> list[SessionsOutput]:
    """Apply a message and let the groups answer: what goes to clients and tiers."""
    outputs = replica.step(message, 0.0)
    for output in outputs:  # grows while it is gone through
        if isinstance(output, GroupOutput):
            answer = replica.groups[output.group].handle(output.message, output.number, output.epoch)
            outputs += [] if answer is None else replica.step(answer, 0.0)
    return [output for output in outputs if not isinstance(output, GroupOutput)]


def copies_of(outputs: list[SessionsOutput]) -> list[TierOutput]:
    """What tier actors are to copy."""
    return [output for output in outputs if isinstance(output, TierOutput)]
