"""Replay of a trace against one replica, one request after the other, with proof that every reused block is right.

Each request is admitted; the blocks that its hit reads are compared with what their digests say; its new blocks are
written; the prompt is committed, the answer decoded, the sequence released. Rules:

- Which blocks a hit reads is worked out here, from the attention rules. It is not read off the tables, which are part
  of what is on trial: where a table has the null block in place of a block that is read, the comparison fails.
- Blocks that stay private (the last, incomplete one of a prompt, and those of the answer) are cleared. So a slot that
  was given away while it was still published shows at the next hit.
- A request that the replica refuses is counted, and the replay goes on. One wrong byte ends it.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.actors.trace import TraceRequest
from kvtroupe.coordinator.config import Config
from kvtroupe.coordinator.errors import CorruptBlock, KVTroupeError, OutOfBlocks, SequenceTooLong
from kvtroupe.coordinator.identity import DigestChain, PrefixDigests
from kvtroupe.coordinator.messages import AdmitResult, Admitted, NewSequence
from kvtroupe.coordinator.replica import Replica
from kvtroupe.kernels.memory_pool import MemoryPool

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Tokens that an answer grows by at a time: few calls, and yet about as many blocks as an engine would ask for.
DECODE_TOKENS = 512


@dataclass(frozen=True, slots=True)
class HashedRequest:
    """A request and the digests of the complete blocks of its prompt, one after the other."""

    request: TraceRequest
    digests: bytes


def hash_prompts(requests: Iterable[TraceRequest], chain: DigestChain) -> Iterator[HashedRequest]:
    """Requests with their digests, which several replays of equal block size and namespace can share."""
    for request in requests:
        yield HashedRequest(request, PrefixDigests(chain).append(request.prompt()))


@dataclass(slots=True)
class Tally:
    """What a replay has counted so far.

    Attributes:
        requests: requests replayed, those refused included.
        prompt_tokens: tokens of their prompts.
        hit_tokens: tokens found in the cache at admission.
        blocks_verified: blocks compared, each in each group.
        blocks_wrong: those of them with a wrong byte.
        refused: requests that were not admitted, or that could not grow to the end of their answers.
        first_refusal: what was said about the first of them; None: there is none.
        admit_ns: duration of each admission.
    """

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    blocks_verified: int = 0
    blocks_wrong: int = 0
    refused: int = 0
    first_refusal: str | None = None
    admit_ns: array[int] = field(default_factory=lambda: array("q"))


class Replay:
    """A replica, the bytes of its pool, and the requests it has seen.

    Args:
        config: of the replica; all of its groups draw from one pool.
        pool: bytes of that pool, one slot for each of its blocks.

    Attributes:
        replica: where the requests are admitted.
        tally: what was counted so far.
    """

    def __init__(self, config: Config, pool: MemoryPool) -> None:
        self.replica = Replica(config)
        self.tally = Tally()
        self._config = config
        self._pool = pool
        self._rules = [group.rule(config.block_tokens) for group in config.groups]

    def run(self, hashed: HashedRequest) -> None:
        """Replay one request to its end.

        Raises:
            CorruptBlock: a block that its hit reads has wrong bytes.
        """
        request = hashed.request
        self.tally.requests += 1
        self.tally.prompt_tokens += request.input_tokens
        result = self._admit(hashed)
        if not isinstance(result, Admitted):
            self._refuse(request, result)
            return
        self.tally.hit_tokens += result.cached_tokens
        digests = np.frombuffer(hashed.digests, np.uint8).reshape(-1, self._config.digest_bytes)
        self._verify(request, result, digests)
        self._write(result, digests)
        self.replica.commit(request.number, request.input_tokens)
        self._decode(request)
        self._clear_private(request, len(digests))
        self.replica.release(request.number)

    def _admit(self, hashed: HashedRequest) -> AdmitResult:
        sequence = NewSequence(hashed.request.number, hashed.request.input_tokens, hashed.digests)
        start_ns = time.perf_counter_ns()
        (result,) = self.replica.admit([sequence])
        self.tally.admit_ns.append(time.perf_counter_ns() - start_ns)
        return result

    def _refuse(self, request: TraceRequest, reason: KVTroupeError) -> None:
        self.tally.refused += 1
        if self.tally.first_refusal is None:
            self.tally.first_refusal = f"request {request.number}: {reason}"

    def _verify(self, request: TraceRequest, admitted: Admitted, digests: NDArray[np.uint8]) -> None:
        hit_blocks = admitted.cached_tokens // self._config.block_tokens
        complaint = None
        for group, (rule, table) in enumerate(zip(self._rules, admitted.tables, strict=True)):
            read = slice(rule.first_block(admitted.cached_tokens), hit_blocks)
            wrong = self._pool.wrong(table[read], digests[read], group) + read.start
            self.tally.blocks_verified += read.stop - read.start
            self.tally.blocks_wrong += len(wrong)
            if len(wrong) and complaint is None:
                complaint = (
                    f"request {request.number}, group {self._config.groups[group].name!r}, block {wrong[0]}, "
                    f"slot {table[wrong[0]]}: the bytes are not those of the block's digest"
                )
        if complaint is not None:
            raise CorruptBlock(complaint)

    def _write(self, admitted: Admitted, digests: NDArray[np.uint8]) -> None:
        new = slice(admitted.cached_tokens // self._config.block_tokens, len(digests))
        for group, table in enumerate(admitted.tables):
            self._pool.write(table[new], digests[new], group)

    def _decode(self, request: TraceRequest) -> None:
        try:
            for done in range(0, request.output_tokens, DECODE_TOKENS):
                self.replica.extend(request.number, min(DECODE_TOKENS, request.output_tokens - done))
        except (OutOfBlocks, SequenceTooLong) as reason:
            self._refuse(request, reason)

    def _clear_private(self, request: TraceRequest, first_block: int) -> None:
        for table in self.replica.tables(request.number):
            self._pool.clear(table[first_block:])
