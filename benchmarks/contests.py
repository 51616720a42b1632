"""What is measured of a replica's operations, and how its turns and those of its slow model follow one another.

- A figure is the median of single calls. The model has its turns between those of the replica, so that a machine that
  is slow for a while is slow for both.
- The cyclic garbage collector rests while calls are timed.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from statistics import median
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.workload import (
    ADMITTED_SEQUENCES,
    BLOCK_TOKENS,
    NAMESPACE,
    Shape,
    Times,
    Workload,
    fast_workload,
    model_workload,
    timed_ns,
)
from kvtroupe.coordinator.identity import PrefixDigests, Sha256Chain
from kvtroupe.coordinator.tokens import token_array

OF_MODEL = "_model"
VOCABULARY_TOKENS = 128_000
MODEL_EVERY = 20  # the model has one turn in so many: it is slow, and needs no fine figure
MODEL_TURNS_MIN = 5  # unless the replica has fewer
MODEL_POOL_SHARE = 8  # by so much its pool is smaller, which does it no harm
MIXED_REPEATS_MAX = 20  # each needs as many prompts of one block as a prompt has blocks
MIXED_POOL_SHARE = 4
ROUND_REPEATS_MAX = 50  # each admits many prompts

Turn: TypeAlias = Callable[[], Times]


class Operation(StrEnum):
    """What is measured, in the order of the table."""

    LIST_TO_ARRAY = "list_to_array"
    HASH = "hash"
    LOOKUP = "lookup"
    HIT = "hit"
    MISS_FREE = "miss_free"
    MISS_EVICT = "miss_evict"
    MISS_EVICT_MIXED = "miss_evict_mixed"
    ADMIT_64 = "admit_64"
    COMMIT = "commit"
    EXTEND = "extend"
    GROW_64 = "grow_64"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured, and how.

    Attributes:
        repeats: calls of the replica that are timed; of the model, fewer.
        pool_blocks: slots of the replica's pool, about.
        scattered: the slots of a prompt lie anywhere in the pool.
        seed: of tokens, digests and places.
        only: operations that are wanted.
    """

    repeats: int
    pool_blocks: int
    scattered: bool
    seed: int
    only: frozenset[Operation]


@dataclass(frozen=True, slots=True)
class Contest:
    """Turns of the replica, with some of the model between them.

    Attributes:
        ours: one turn of the replica.
        model: one turn of the model, if there is one.
        repeats: turns of the replica that count.
    """

    ours: Turn
    model: Turn | None
    repeats: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """A median, as it stands in the JSON list."""

    operation: str
    groups: int
    tokens: int
    us: float


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(shape: Shape, options: Options) -> list[Measurement]:
    """Medians of the operations that are wanted, for prompts of one shape."""
    medians_us: dict[str, float] = {}
    for contest in _contests(shape, options):
        medians_us |= _compete(contest)
    wanted = [str(operation) for operation in Operation if operation in options.only]
    names = [name for operation in wanted for name in (operation, operation + OF_MODEL) if name in medians_us]
    return [Measurement(name, shape.groups, shape.tokens, round(medians_us[name], 3)) for name in names]


def _compete(contest: Contest) -> dict[str, float]:
    """Median microseconds of each operation."""
    times: dict[str, list[int]] = {}
    model_every = _model_every(contest.repeats)
    contest.ours()  # the first call of all finds nothing warm
    gc.collect()
    gc.disable()
    try:
        for turn in range(contest.repeats):
            for operation, took_ns in contest.ours().items():
                times.setdefault(operation, []).append(took_ns)
            if contest.model and turn % model_every == 0:
                for operation, took_ns in contest.model().items():
                    times.setdefault(operation + OF_MODEL, []).append(took_ns)
    finally:
        gc.enable()
    return {operation: median(took_ns) / 1000 for operation, took_ns in times.items()}


def _model_every(repeats: int) -> int:
    return max(1, min(MODEL_EVERY, repeats // MODEL_TURNS_MIN))


def _model_turns(repeats: int) -> int:
    return -(-repeats // _model_every(repeats))


def _contests(shape: Shape, options: Options) -> Iterator[Contest]:
    """What is wanted. Pools are made when the first contest on them comes up."""
    if options.only & {Operation.LIST_TO_ARRAY, Operation.HASH}:
        yield from _token_contests(shape.tokens, options)
    if Operation.MISS_EVICT_MIXED in options.only:
        yield _mixed_contest(shape, options)
    if options.only - {Operation.LIST_TO_ARRAY, Operation.HASH, Operation.MISS_EVICT_MIXED}:
        yield from _pool_contests(shape, options)


# -- tokens and digests ------------------------------------------------------------------------------------------------


def _token_contests(tokens: int, options: Options) -> Iterator[Contest]:
    random = np.random.default_rng(options.seed)
    chain = Sha256Chain(NAMESPACE, BLOCK_TOKENS)

    def fresh() -> NDArray[np.int32]:
        return random.integers(VOCABULARY_TOKENS, size=tokens, dtype=np.int32)

    def list_to_array() -> Times:
        return {Operation.LIST_TO_ARRAY: timed_ns(token_array, fresh().tolist())}

    def hash_array() -> Times:
        return {Operation.HASH: timed_ns(lambda ids: PrefixDigests(chain).append(ids), fresh())}

    def hash_list() -> Times:
        return {Operation.HASH: timed_ns(digests_by_definition, fresh().tolist())}

    ids = fresh()
    assert PrefixDigests(chain).append(ids) == digests_by_definition(ids.tolist()), "both hash the same"
    yield Contest(list_to_array, None, options.repeats)
    yield Contest(hash_array, hash_list, options.repeats)


def digests_by_definition(tokens: list[int]) -> bytes:
    """Digests of the `sha256` chain without extras, block by block, as it is defined."""
    digest = sha256(NAMESPACE.encode()).digest()
    digests = []
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = tokens[start : start + BLOCK_TOKENS]
        digest = sha256(digest + struct.pack(f"<I{BLOCK_TOKENS}iH", BLOCK_TOKENS, *block, 0)).digest()
        digests.append(digest)
    return b"".join(digests)


# -- pools -------------------------------------------------------------------------------------------------------------


def _workloads(
    shape: Shape, options: Options, pool_blocks: int, least_prompts: tuple[int, int]
) -> tuple[Workload, Workload]:
    """Those of the replica and of the model.

    Args:
        shape: of the prompts.
        options: how it is measured.
        pool_blocks: slots of the replica's pool, about.
        least_prompts: that the pools of both hold in any case.
    """
    ours = fast_workload(shape, max(pool_blocks // shape.slots, least_prompts[0]), options.seed)
    model_blocks = pool_blocks // MODEL_POOL_SHARE
    model = model_workload(shape, max(model_blocks // shape.slots, least_prompts[1]), options.seed)
    if options.scattered:
        ours.scatter()
        model.scatter()
    return ours, model


def _mixed_contest(shape: Shape, options: Options) -> Contest:
    repeats = min(options.repeats, MIXED_REPEATS_MAX)
    least_prompts = (1 + repeats, _model_turns(repeats))
    ours, model = _workloads(shape, options, options.pool_blocks // MIXED_POOL_SHARE, least_prompts)
    for workload in (ours, model):
        workload.fill_with_single_blocks()
    return Contest(ours.evict_single_blocks, model.evict_single_blocks, repeats)


def _pool_contests(shape: Shape, options: Options) -> Iterator[Contest]:
    """Each begins from the state in which the one before it left the pools."""
    repeats = options.repeats
    least_prompts = shape.prompts_for_growth(1 + repeats)
    if Operation.ADMIT_64 in options.only:
        least_prompts = max(least_prompts, ADMITTED_SEQUENCES)
    least_of_model = shape.prompts_for_growth(_model_turns(repeats))
    ours, model = _workloads(shape, options, options.pool_blocks, (least_prompts, least_of_model))
    for workload in (ours, model):
        workload.fill()
    yield from _contests_in_full_pools(ours, model, options)
    for workload in (ours, model):
        workload.make_room()
    yield from _contests_with_room(ours, model, options)


def _contests_in_full_pools(ours: Workload, model: Workload, options: Options) -> Iterator[Contest]:
    if options.only & {Operation.MISS_EVICT, Operation.COMMIT, Operation.RELEASE}:
        yield Contest(ours.turn_over, model.turn_over, options.repeats)
    if Operation.ADMIT_64 in options.only:
        yield Contest(ours.admit_many, None, min(options.repeats, ROUND_REPEATS_MAX))
    if Operation.LOOKUP in options.only:
        yield Contest(ours.look_up, None, options.repeats)


def _contests_with_room(ours: Workload, model: Workload, options: Options) -> Iterator[Contest]:
    if Operation.HIT in options.only:
        yield Contest(ours.hit, model.hit, options.repeats)
    if Operation.MISS_FREE in options.only:
        yield Contest(ours.miss_free, model.miss_free, options.repeats)
    if Operation.EXTEND in options.only:
        yield Contest(ours.extend, model.extend, options.repeats)
    if Operation.GROW_64 in options.only:
        for workload in (ours, model):
            workload.start_growing()
        yield Contest(ours.grow, model.grow, options.repeats)
