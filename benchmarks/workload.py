"""Pools in steady state, and one turn of every operation on them, timed and checked.

A workload drives a replica or the slow model of one; it cannot tell which. Rules:

- A pool holds a whole number of prompts of one length, so that it can be full of them with no slot left over. Prompts
  enter and leave it in order, the least recently used first.
- A turn prepares a fresh request, times the call alone, checks by the replica's own counters that it did what its name
  says, and leaves the pool as it found it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Protocol, TypeAlias

import numpy as np

from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.counters import Counters
from kvtroupe.coordinator.messages import NewSequence, SequenceId
from kvtroupe.coordinator.reference import ReferenceReplica
from kvtroupe.coordinator.replica import Replica

NAMESPACE = "kvtroupe benchmarks"
BLOCK_TOKENS = 16
WINDOW_TOKENS = 1024
DIGEST_BYTES = 32
GROWING_SEQUENCES = 64
ADMITTED_SEQUENCES = 64
EXTENDED_BLOCKS = 6
SCATTERING_SEQUENCES = 256

Times: TypeAlias = dict[str, int]  # operation -> nanoseconds


class HasCachedTokens(Protocol):
    """What is checked of a running sequence."""

    cached_tokens: int


class AnyReplica(Protocol):
    """The direct face that a replica and its slow model share."""

    def admit(self, sequences: Sequence[NewSequence], /) -> Sequence[object]:
        """See `Replica.admit`."""

    def grow(self, sequence_ids: Sequence[SequenceId], /) -> object:
        """See `Replica.grow`."""

    def extend(self, sequence_id: SequenceId, /) -> None:
        """See `Replica.extend`."""

    def commit(self, sequence_id: SequenceId, tokens: int, /) -> object:
        """See `Replica.commit`."""

    def release(self, sequence_id: SequenceId, /) -> None:
        """See `Replica.release`."""

    def sequence(self, sequence_id: SequenceId, /) -> HasCachedTokens:
        """See `Replica.sequence`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the prompts of a workload look like.

    Attributes:
        groups: window groups, all in one pool: one with full attention, the others with a sliding window.
        tokens: of a prompt, a whole number of blocks.
    """

    groups: int
    tokens: int

    @property
    def blocks(self) -> int:
        """Blocks of a prompt in one group."""
        return self.tokens // BLOCK_TOKENS

    @property
    def slots(self) -> int:
        """Slots that a prompt takes."""
        return self.groups * self.blocks

    def prompts_for_growth(self, turns: int) -> int:
        """Prompts that a pool must hold: one that all share, one whose room is occupied, those that growth evicts."""
        grown_slots = GROWING_SEQUENCES * self.groups * (1 + turns)
        return 2 - (-grown_slots // self.slots)

    def config(self, prompts: int) -> Config:
        """A replica whose pool holds so many prompts, and the null block."""
        sliding = [
            GroupConfig(name=f"sliding {number}", kind="sliding", window_tokens=WINDOW_TOKENS)
            for number in range(1, self.groups)
        ]
        return Config(
            namespace=NAMESPACE,
            block_tokens=BLOCK_TOKENS,
            digest_bytes=DIGEST_BYTES,
            groups=(GroupConfig(name="full"), *sliding),
            pools=(PoolConfig(blocks=prompts * self.slots + 1),),
        )


class Workload:
    """A replica, and the prompts in its pool.

    Args:
        replica: new, of the configuration that the shape gives for so many prompts.
        counters: what the replica has counted so far.
        shape: of the prompts.
        prompts: that the pool holds.
        seed: of all digests.
    """

    def __init__(
        self, replica: AnyReplica, counters: Callable[[], Counters], shape: Shape, prompts: int, seed: int
    ) -> None:
        self.replica = replica
        self.shape = shape
        self._counters = counters
        self._prompts = prompts
        self._random = np.random.default_rng(seed)
        self._last_id = 0
        self._cached: deque[bytes] = deque()  # digests of the prompts in the pool, the next to be evicted first
        self._single_blocks = 0  # slots of prompts of one block that nothing has evicted yet
        self._growing: list[SequenceId] = []

    # -- states --------------------------------------------------------------------------------------------------------

    def scatter(self) -> None:
        """Shuffle the free slots of a new pool, as long, mixed traffic does; else those of a prompt are neighbours.

        Sequences that grow side by side, one block at a time, get slots far apart, and are released in random order.
        """
        pool_blocks = self._prompts * self.shape.blocks
        growing = [self._next_id() for _ in range(min(SCATTERING_SEQUENCES, pool_blocks))]
        for sequence_id in growing:
            self.replica.admit([NewSequence(sequence_id, 1)])
        for _ in range(pool_blocks // len(growing) - 1):
            self.replica.grow(growing)
        for position in self._random.permutation(len(growing)).tolist():
            self.replica.release(growing[position])

    def fill(self) -> None:
        """Fill a new pool: every slot is free and holds a published block."""
        for _ in range(self._prompts):
            digests = self._fresh_digests(self.shape.blocks)
            self._publish(self._new(digests))
            self._cached.append(digests)
        self._check_all_published()

    def fill_with_single_blocks(self) -> None:
        """Fill a new pool in the same way, with prompts of one block."""
        for _ in range(self._prompts * self.shape.blocks):
            self._publish(NewSequence(self._next_id(), BLOCK_TOKENS, self._fresh_digests(1)))
        self._check_all_published()
        self._single_blocks = self._prompts * self.shape.slots

    def make_room(self) -> None:
        """Evict the oldest prompt and leave its slots free with nothing in them."""
        with self._evicting(self.shape.slots):
            room = self._admit(self._new())
        self.replica.release(room)
        self._cached.popleft()

    def start_growing(self) -> None:
        """Occupy the room that was made, and start sequences that share the newest prompt."""
        self._admit(self._new())
        for _ in range(GROWING_SEQUENCES):
            self._growing.append(self._admit(self._new(self._cached[-1]), cached_blocks=self.shape.blocks - 1))

    # -- turns ---------------------------------------------------------------------------------------------------------

    def turn_over(self) -> Times:
        """A prompt evicts the oldest one, is published and ends."""
        digests = self._fresh_digests(self.shape.blocks)
        new = self._new(digests)
        with self._evicting(self.shape.slots):
            admitted_ns = timed_ns(self.replica.admit, [new])
        self._check_cached(new.sequence_id, 0)
        with self._publishing(self.shape.slots):
            committed_ns = timed_ns(self.replica.commit, new.sequence_id, new.tokens)
        released_ns = timed_ns(self.replica.release, new.sequence_id)
        self._check_all_published()
        self._cached.popleft()
        self._cached.append(digests)
        return {"miss_evict": admitted_ns, "commit": committed_ns, "release": released_ns}

    def evict_single_blocks(self) -> Times:
        """A prompt evicts as many prompts of one block as it has blocks."""
        self._single_blocks -= self.shape.slots
        assert self._single_blocks >= 0, "the prompts of one block are used up"
        new = self._new(self._fresh_digests(self.shape.blocks))
        with self._evicting(self.shape.slots):
            admitted_ns = timed_ns(self.replica.admit, [new])
        self._check_cached(new.sequence_id, 0)
        self.replica.commit(new.sequence_id, new.tokens)
        self.replica.release(new.sequence_id)
        self._check_all_published()
        return {"miss_evict_mixed": admitted_ns}

    def admit_many(self) -> Times:
        """Many prompts in one call, each of which evicts one of the oldest: the time for each of them."""
        digests = [self._fresh_digests(self.shape.blocks) for _ in range(ADMITTED_SEQUENCES)]
        new = [self._new(one) for one in digests]
        with self._evicting(ADMITTED_SEQUENCES * self.shape.slots):
            admitted_ns = timed_ns(self.replica.admit, new)
        for one in new:
            self._check_cached(one.sequence_id, 0)
            self.replica.commit(one.sequence_id, one.tokens)
            self.replica.release(one.sequence_id)
            self._cached.popleft()
        self._cached.extend(digests)
        self._check_all_published()
        return {"admit_64": round(admitted_ns / ADMITTED_SEQUENCES)}

    def look_up(self) -> Times:
        """What a prompt would hit: all of it, and nobody uses it. The model has no such call."""
        assert isinstance(self.replica, Replica), "not the model"
        digests = self._cached[self._next_id() % len(self._cached)]  # looking one up does not change their order
        start_ns = perf_counter_ns()
        found = self.replica.lookup(digests)
        looked_up_ns = perf_counter_ns() - start_ns
        assert found.hit_tokens == self.shape.tokens, f"{found.hit_tokens} of {self.shape.tokens} tokens are found"
        assert not any(found.used_blocks), "nobody uses the prompt"
        return {"lookup": looked_up_ns}

    def hit(self) -> Times:
        """A prompt hits all but its last block, which is computed; that one finds room."""
        new = self._new(self._cached[0])
        with self._evicting(0):
            admitted_ns = timed_ns(self.replica.admit, [new])
        self._check_cached(new.sequence_id, self.shape.blocks - 1)
        self.replica.release(new.sequence_id)
        self._cached.rotate(-1)
        return {"hit": admitted_ns}

    def miss_free(self) -> Times:
        """A prompt that nothing is known of finds room."""
        new = self._new(self._fresh_digests(self.shape.blocks))
        with self._evicting(0):
            admitted_ns = timed_ns(self.replica.admit, [new])
        self._check_cached(new.sequence_id, 0)
        self.replica.release(new.sequence_id)
        return {"miss_free": admitted_ns}

    def extend(self) -> Times:
        """A running sequence gets one token after the other into its spare blocks: the mean of these calls."""
        new = self._new(self._cached[0], spare_blocks=EXTENDED_BLOCKS)
        running = self._admit(new, cached_blocks=self.shape.blocks - 1)
        extend = self.replica.extend
        grown = self._counters().grown
        start_ns = perf_counter_ns()
        for _ in range(EXTENDED_BLOCKS * BLOCK_TOKENS):
            extend(running)
        extended_ns = perf_counter_ns() - start_ns
        assert self._counters().grown == grown, "the spare blocks have room for all tokens"
        self.replica.release(running)
        return {"extend": round(extended_ns / (EXTENDED_BLOCKS * BLOCK_TOKENS))}

    def grow(self) -> Times:
        """Many sequences get one block more, each of which evicts one, in a single call: the time for each of them."""
        grown = self._counters().grown
        with self._evicting(GROWING_SEQUENCES * self.shape.groups):
            grown_ns = timed_ns(self.replica.grow, self._growing)
        assert self._counters().grown == grown + GROWING_SEQUENCES, "all of them grow"
        return {"grow_64": round(grown_ns / GROWING_SEQUENCES)}

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _fresh_digests(self, blocks: int) -> bytes:
        return self._random.bytes(blocks * DIGEST_BYTES)

    def _new(self, digests: bytes = b"", spare_blocks: int = 0) -> NewSequence:
        return NewSequence(self._next_id(), self.shape.tokens, digests, spare_blocks)

    def _admit(self, new: NewSequence, cached_blocks: int = 0) -> SequenceId:
        self.replica.admit([new])
        self._check_cached(new.sequence_id, cached_blocks)
        return new.sequence_id

    def _publish(self, new: NewSequence) -> None:
        with self._publishing(self.shape.groups * new.tokens // BLOCK_TOKENS):
            self.replica.commit(self._admit(new), new.tokens)
        self.replica.release(new.sequence_id)

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check_cached(self, sequence_id: SequenceId, blocks: int) -> None:
        cached_tokens = self.replica.sequence(sequence_id).cached_tokens  # raises if it was refused
        assert cached_tokens == blocks * BLOCK_TOKENS, f"hit {cached_tokens} tokens instead of {blocks} blocks"

    def _check_all_published(self) -> None:
        counters = self._counters()
        published = counters.published - counters.evictions
        assert published == self._prompts * self.shape.slots, f"{published} slots hold published blocks, not all"

    @contextmanager
    def _evicting(self, blocks: int) -> Iterator[None]:
        before = self._counters().evictions
        yield
        evicted = self._counters().evictions - before
        assert evicted == blocks, f"{evicted} blocks were evicted instead of {blocks}"

    @contextmanager
    def _publishing(self, blocks: int) -> Iterator[None]:
        before = self._counters().published
        yield
        published = self._counters().published - before
        assert published == blocks, f"{published} blocks were published instead of {blocks}"


def fast_workload(shape: Shape, prompts: int, seed: int) -> Workload:
    """A workload of the replica that users run, with nothing in its pool."""
    replica = Replica(shape.config(prompts))
    return Workload(replica, replica.counters, shape, prompts, seed)


def model_workload(shape: Shape, prompts: int, seed: int) -> Workload:
    """A workload of the slow model, with nothing in its pool."""
    model = ReferenceReplica(shape.config(prompts))
    return Workload(model, lambda: model.counters, shape, prompts, seed)


def timed_ns(call: Callable[..., object], *arguments: object) -> int:
    """How long a call takes."""
    start_ns = perf_counter_ns()
    call(*arguments)
    return perf_counter_ns() - start_ns
