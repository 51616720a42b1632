"""What tests of the coordinator share: chains of digests, small replicas, and all that can be seen of a replica."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.config import Config, GroupConfig, Limits, PoolConfig
from kvtroupe.coordinator.errors import OutOfBlocks
from kvtroupe.coordinator.messages import (
    AdmitReply,
    AdmitRequest,
    Admitted,
    CommitRequest,
    Evidence,
    GroupOutput,
    MatchReply,
    NewSequence,
    PublishReply,
    PublishRequest,
    ToClient,
)
from kvtroupe.coordinator.prefix_index import NOTHING_KNOWN
from kvtroupe.coordinator.replica import Replica
from kvtroupe.coordinator.state import CoordinatorState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kvtroupe.coordinator.claims import Pool
    from kvtroupe.coordinator.messages import Output, SequenceId, SessionsOutput, Slots, ToCoordinator, ToGroup

DIGEST_BYTES = 8
BLOCK_TOKENS = 4


# -- chains ------------------------------------------------------------------------------------------------------------


def chain(words: Iterable[object]) -> bytes:
    """The digests of a chain of blocks; a word stands for the tokens of one, so that "ab" is a prefix of "abc"."""
    digests, last = [], b""
    for word in words:
        last = hashlib.blake2b(last + str(word).encode(), digest_size=DIGEST_BYTES).digest()
        digests.append(last)
    return b"".join(digests)


def split(digests: bytes) -> list[bytes]:
    """Digests one by one."""
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]


def last_digest(words: Iterable[object]) -> bytes:
    """The digest of the last block of a chain."""
    return chain(words)[-DIGEST_BYTES:]


def slots(*numbers: int) -> Slots:
    """Slots, or generations, as an array."""
    return np.array(numbers, np.int64)


def listed(found: Slots) -> list[int]:
    """An array as a list."""
    numbers: list[int] = found.tolist()
    return numbers


def as_digests(digests: bytes) -> NDArray[np.void]:
    """Digests as a ledger takes them."""
    return np.frombuffer(digests, np.dtype((np.void, DIGEST_BYTES)))


# -- replicas ----------------------------------------------------------------------------------------------------------


def make_config(
    *groups: str,
    blocks: int | dict[str, int] = 21,
    reserved_blocks: int = 0,
    digests_per_block: int = 1,
    limits: Limits | None = None,
) -> Config:
    """A small configuration with blocks of four tokens.

    Args:
        groups: `full` or `sliding:WINDOW`, with `@POOL` behind it if there are several pools.
        blocks: of every pool, the null block included.
        reserved_blocks: of every pool.
        digests_per_block: 1, 2 or 4.
        limits: others than the usual ones.
    """
    sizes = blocks if isinstance(blocks, dict) else {"device": blocks}
    made = []
    for number, group in enumerate(groups):
        what, _, pool = group.partition("@")
        kind, _, window = what.partition(":")
        made.append(
            GroupConfig(
                name=f"{kind}{number}",
                kind="sliding" if kind == "sliding" else "full",
                window_tokens=int(window) if window else None,
                pool=pool or next(iter(sizes)),
            )
        )
    return Config(
        namespace="test",
        block_tokens=BLOCK_TOKENS,
        hash_block_tokens=BLOCK_TOKENS // digests_per_block,
        digest_bytes=DIGEST_BYTES,
        groups=tuple(made),
        pools=tuple(
            PoolConfig(name=name, blocks=size, reserved_blocks=reserved_blocks) for name, size in sizes.items()
        ),
        limits=limits or Limits(),
    )


def make_replica(*groups: str, blocks: int | dict[str, int] = 21, reserved_blocks: int = 0) -> Replica:
    """A replica of `make_config`."""
    return Replica(make_config(*groups, blocks=blocks, reserved_blocks=reserved_blocks))


def new(sequence_id: SequenceId, words: str, *, extra_tokens: int = 1, spare_blocks: int = 0) -> NewSequence:
    """A prompt of one whole block for each word and some tokens after them, with all its digests."""
    return NewSequence(sequence_id, len(words) * BLOCK_TOKENS + extra_tokens, chain(words), spare_blocks)


def admit(replica: Replica, sequence: NewSequence) -> Admitted:
    """Admit one sequence that must fit."""
    (result,) = replica.admit([sequence])
    assert isinstance(result, Admitted), result
    return result


def cache(replica: Replica, words: str, *, now_s: float = 0.0) -> None:
    """Let a sequence of exactly these blocks run and end, so that its blocks are published and free."""
    admit(replica, new(f"cache {words}", words, extra_tokens=0))
    replica.commit(f"cache {words}", len(words) * BLOCK_TOKENS, now_s=now_s)
    replica.release(f"cache {words}")


def only_pool(replica: Replica) -> Pool:
    """The pool of a replica that has one."""
    (pool,) = replica.state.pools
    return pool


def free_order(replica: Replica) -> list[int]:
    """Of a replica with one pool."""
    return listed(replica.free_order(only_pool(replica).name))


def tables_of(replica: Replica, sequence_id: SequenceId) -> list[list[int]]:
    """The tables of a running sequence."""
    return [listed(table) for table in replica.tables(sequence_id)]


def tables(result: object) -> list[list[int]]:
    """The tables of a sequence that must have been admitted."""
    assert isinstance(result, Admitted), result
    return [listed(table) for table in result.tables]


# -- the face for hosts ------------------------------------------------------------------------------------------------


class Desk:
    """A coordinator without groups: messages go in, outputs come out, and the test answers for the groups.

    Args:
        config: of the replica.
    """

    def __init__(self, config: Config) -> None:
        self.state = CoordinatorState(config)
        self.now_s = 0.0

    def send(self, message: ToCoordinator) -> list[Output]:
        """Step."""
        return self.state.step(message, self.now_s)

    def ask(self, request_id: int, *sequences: NewSequence) -> list[Output]:
        """Ask for admission."""
        return self.send(AdmitRequest(request_id, sequences))

    def answer(self, round_id: int, *answers: Sequence[Evidence]) -> list[Output]:
        """Answer a round for group 0, 1 ..., each with evidence for every prompt: what came of the last answer."""
        outputs: list[Output] = []
        for group, evidence in enumerate(answers):
            outputs = self.send(MatchReply(round_id, group, tuple(evidence)))
        return outputs

    def free(self) -> list[int]:
        """The free order of the only pool."""
        (pool,) = self.state.pools
        return listed(pool.ledger.free_order.slots())

    def admit_unknown(self, request_id: int, round_id: int, sequence: NewSequence) -> list[int]:
        """Admit one sequence of which no group knows anything: its slots in the first group."""
        self.ask(request_id, sequence)
        (result,) = admitted(self.answer(round_id, *[(NOTHING_KNOWN,)] * len(self.state.rules)))
        return tables(result)[0]

    def publish(self, sequence_id: SequenceId, tokens: int) -> None:
        """Commit, and let every group take all blocks."""
        for output in self.send(CommitRequest(99, sequence_id, tokens)):
            assert isinstance(output, GroupOutput)
            assert isinstance(output.message, PublishRequest)
            self.send(PublishReply(output.message.publish_id, output.group, None))


def make_desk(*groups: str, blocks: int = 21, limits: Limits | None = None) -> Desk:
    """A coordinator of these groups in one pool; of one with full attention if none is named."""
    return Desk(make_config(*(groups or ("full",)), blocks=blocks, limits=limits))


def evidence(found: Slots, generation: int = 1, *, present: int | None = None) -> Evidence:
    """Evidence of blocks in these slots, all of one generation; `present` as bits, all of them by default."""
    bits = (1 << len(found)) - 1 if present is None else present
    return Evidence(bits, found, np.full(len(found), generation, np.int64), len(found))


def messages_to(group: int, outputs: Sequence[SessionsOutput]) -> list[ToGroup]:
    """What a group is sent."""
    return [output.message for output in outputs if isinstance(output, GroupOutput) and output.group == group]


def admitted(outputs: Sequence[SessionsOutput]) -> list[Admitted]:
    """The results of all admissions; none of them may be a refusal."""
    results = [result for output in outputs if isinstance(output, AdmitReply) for result in output.results]
    there = [result for result in results if isinstance(result, Admitted)]
    assert there == results
    return there


def replies(outputs: Sequence[SessionsOutput]) -> list[ToClient]:
    """What clients are sent."""
    return [output for output in outputs if isinstance(output, ToClient)]


# -- what can be seen --------------------------------------------------------------------------------------------------


def snapshot(replica: Replica) -> dict[str, object]:
    """All that can be seen of a replica, in plain values that compare equal when nothing has changed."""
    return {
        "pools": [_snapshot_of_pool(replica, pool) for pool in replica.state.pools],
        "published": {group.name: replica.published(group.name) for group in replica.config.groups},
        "sequences": [_snapshot_of_sequence(replica, sequence_id) for sequence_id in replica.sequences()],
        "pins": {pin_id: [held.tolist() for held in pin.slots] for pin_id, pin in replica.state.records.pins.items()},
        "done step": replica.state.records.returns.done_step(),
        "counters": asdict(replica.counters()),
    }


def without_counters(seen: dict[str, object]) -> dict[str, object]:
    """A snapshot less the counters, which also count what is refused."""
    return {name: value for name, value in seen.items() if name != "counters"}


def _snapshot_of_pool(replica: Replica, pool: Pool) -> dict[str, object]:
    ledger = pool.ledger
    published = ledger.published.nonzero()[0]
    return {
        "free order": replica.free_order(pool.name).tolist(),
        "free": ledger.free,
        "uses": ledger.uses.tolist(),
        "uses by holder": list(ledger.uses_by_holder),
        "generations": ledger.generation.tolist(),
        "last generation": ledger.last_generation,
        "published": published.tolist(),
        "digests": [ledger.digest[slot].tobytes() for slot in published],
        "priorities": ledger.free_order.priority[published].tolist(),
        "expiry": ledger.expires_s[published].tolist(),
        "holders": [(kind, holder_id, held.tolist()) for kind, holder_id, held in replica.holders(pool.name)],
    }


def _snapshot_of_sequence(replica: Replica, sequence_id: SequenceId) -> tuple[object, ...]:
    sequence = replica.sequence(sequence_id)
    return (
        sequence_id,
        sequence.tokens,
        sequence.cached_tokens,
        sequence.committed_tokens,
        sequence.capacity_tokens,
        sequence.digests,
        sequence.digest_count,
        sequence.considered_blocks,
        [table.tolist() for table in replica.tables(sequence_id)],
    )


def numbers(result: object) -> tuple[int, int, int, int]:
    """Needed, free, coming and reserved of a refusal."""
    assert isinstance(result, OutOfBlocks), result
    return result.needed, result.free, result.coming, result.reserved
