"""The configuration of a replica, with every limit and default.

Sizes and counts carry their unit in the name. Unknown keys and values that cannot work raise `ConfigError`.
"""

from __future__ import annotations

from functools import cached_property
from math import lcm
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvtroupe.coordinator.attention import (
    AttentionRule,
    ChunkedAttention,
    CrossAttention,
    FixedBlocks,
    FullAttention,
    RecurrentState,
    SlidingWindow,
)
from kvtroupe.coordinator.config_checks import (
    AS_MANY_AS_FIT,
    BLOCKWISE_KINDS,
    block_sizes,
    check_block_sizes,
    check_partial_reuse,
    check_pools_of_groups,
    check_room_for_one_unit,
)
from kvtroupe.coordinator.config_stacks import check_stacks, stacks_of
from kvtroupe.coordinator.errors import ConfigError, InvariantError
from kvtroupe.coordinator.retention import HIGHEST_PRIORITY, LOWEST_PRIORITY

Name = Annotated[str, Field(min_length=1, max_length=200)]
BlockTokens = Annotated[int, Field(ge=1, le=2**20)]


class _Section(BaseModel):
    """A part of the configuration: immutable, and its errors belong to our tree."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - any keyword is checked by the model
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems = "; ".join(f"{_where(problem['loc'])}{problem['msg']}" for problem in error.errors())
            raise ConfigError(f"{type(self).__name__} cannot work: {problems}") from error

    def changed(self, **values: Any) -> Self:  # noqa: ANN401 - as above
        """The same with some values changed, checked like any other."""
        return type(self)(**({name: getattr(self, name) for name in type(self).model_fields} | values))


def _where(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) + ": " if location else ""


class GroupConfig(_Section):
    """One window group: the layers that share an attention kind.

    Attributes:
        name: unique in the replica.
        kind: `full`: attends to all tokens; `sliding`: to the last ones; `chunked`: to those of the same chunk;
            `recurrent`: a state at a block boundary; `cross`: encoder KV; `fixed`: a number of blocks a sequence that
            are never published.
        window_tokens: tokens that a token attends to, itself included; for `sliding` only.
        chunk_tokens: tokens of one chunk; for `chunked` only.
        snapshot_tokens: states are kept at its multiples, besides the last one of each prompt; for `recurrent` only,
            a multiple of the unit.
        blocks: blocks of one sequence, for each of its beams; for `fixed` only.
        block_tokens: tokens of one block of this group (None: those of the replica); not for `recurrent` and `fixed`.
        pool: name of the device pool whose slots hold the blocks of the group.
    """

    name: Name
    kind: Literal["full", "sliding", "chunked", "recurrent", "cross", "fixed"] = "full"
    window_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    chunk_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    snapshot_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    blocks: Annotated[int, Field(ge=1, le=2**20)] | None = None
    block_tokens: BlockTokens | None = None
    pool: Name = "device"

    @model_validator(mode="after")
    def _fields_fit_kind(self) -> Self:
        for field, kinds in _KINDS_WITH.items():
            value = getattr(self, field)
            if value is not None and self.kind not in kinds:
                raise ValueError(
                    f"group {self.name!r} is {self.kind!r} with {field} {value}: "
                    f"only groups of kind {' or '.join(kinds)} have {field}"
                )
            if value is None and self.kind in kinds and field in _NEEDED:
                raise ValueError(f"group {self.name!r} is {self.kind!r} without {field}: this kind needs {field}")
        return self

    def rule(self, block_tokens: int) -> AttentionRule:
        """The attention rule of the group for blocks of `block_tokens`."""
        if self.window_tokens is not None:
            return SlidingWindow(self.window_tokens, block_tokens)
        if self.chunk_tokens is not None:
            return ChunkedAttention(self.chunk_tokens, block_tokens)
        if self.blocks is not None:
            return FixedBlocks(self.blocks, block_tokens)
        if self.kind == "recurrent":
            return RecurrentState(block_tokens, self.snapshot_tokens)
        return CrossAttention(block_tokens) if self.kind == "cross" else FullAttention(block_tokens)


_KINDS_WITH = {
    "window_tokens": ("sliding",),
    "chunk_tokens": ("chunked",),
    "snapshot_tokens": ("recurrent",),
    "blocks": ("fixed",),
    "block_tokens": ("full", "sliding", "chunked", "cross"),
}
_NEEDED = ("window_tokens", "chunk_tokens", "blocks")  # by the kinds that may have them


class PoolConfig(_Section):
    """Slots of one size in one tier.

    Attributes:
        name: unique in the replica.
        tier: where its bytes are: `device`, `host` or `disk`.
        blocks: slots of the pool, the null block included; `AS_MANY_AS_FIT` only until `plan_pools` has sized it.
        reserved_blocks: free slots that new sequences leave alone, for the growth of running ones; device only.
        below: name of the pool of a slower tier that content of this pool is demoted to (None: it is dropped).
        offload: when content of this pool is copied to the pool below: as its slot is needed (`on_evict`), as it is
            published (`on_commit`), or never.
        offload_min_priority: content of a lower priority is dropped, not demoted.
        low_water_blocks: slots kept ready whose content may simply be dropped, by demoting ahead; only host pools that
            offload `on_evict` (0: a sixteenth of the pool).
        copies_max_blocks: blocks in flight between this pool and the one below at most.
        waiting_share: share of the pool that requests which wait for bytes may hold; device only.
    """

    name: Name = "device"
    tier: Literal["device", "host", "disk"] = "device"
    blocks: Annotated[int, Field(ge=2, le=AS_MANY_AS_FIT)]
    reserved_blocks: Annotated[int, Field(ge=0)] = 0
    below: Name | None = None
    offload: Literal["on_evict", "on_commit", "never"] = "on_evict"
    offload_min_priority: Annotated[int, Field(ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)] = LOWEST_PRIORITY
    low_water_blocks: Annotated[int, Field(ge=0)] = 0
    copies_max_blocks: Annotated[int, Field(ge=1, le=2**31)] = 4096
    waiting_share: Annotated[float, Field(gt=0, le=1)] = 0.5

    @model_validator(mode="after")
    def _fields_fit_place(self) -> Self:
        if self.tier != "device":
            self._refuse_set(("reserved_blocks", "waiting_share"), "only device pools have it")
        if self.tier != "host":
            self._refuse_set(("low_water_blocks",), "only host pools have it")
        if self.below is None:
            self._refuse_set(
                ("offload", "offload_min_priority", "low_water_blocks", "copies_max_blocks"),
                "there is no pool below it",
            )
        if self.offload != "on_evict":
            self._refuse_set(("low_water_blocks",), f"with offload {self.offload!r} nothing is demoted ahead")
        return self

    @model_validator(mode="after")
    def _leaves_room(self) -> Self:
        if self.reserved_blocks >= self.blocks - 1:
            raise ValueError(
                f"pool {self.name!r} reserves {self.reserved_blocks} of {self.blocks - 1} usable blocks: "
                "no sequence could ever be admitted; lower reserved_blocks"
            )
        if self.low_water_blocks >= self.blocks - 1:
            raise ValueError(
                f"pool {self.name!r} keeps {self.low_water_blocks} of {self.blocks - 1} usable blocks ready to be "
                "dropped: hardly anything would stay in it; lower low_water_blocks"
            )
        return self

    def _refuse_set(self, fields: tuple[str, ...], reason: str) -> None:
        for field in fields:
            value = getattr(self, field)
            if value != type(self).model_fields[field].default:
                raise ValueError(f"{self.tier} pool {self.name!r} has {field} {value!r}, but {reason}; leave it out")


class Limits(_Section):
    """What a replica holds or queues at most.

    Attributes:
        sequence_tokens_max: tokens of one sequence, spare room included.
        sequences_max: sequences that run or wait.
        pins_max: pins that stand or wait.
        round_blocks_max: blocks, counted in every group, that the requests of one round ask for, before the next
            request waits for the next round; one request may exceed it alone.
        match_deadline_s: seconds a group has for its match answers before a round goes on without them.
        sessions_max: sessions that are attached, or may be attached again.
        kept_answers_max: answers of one session that are kept because its client has not confirmed them.
        grace_s: seconds that the sequences of a lost session wait for its client to come back.
        waiting_deadline_s: seconds that a request waits for room before it is refused.
        transfer_deadline_s: seconds that a transfer has before it fails for those who wait for it.
        tier_retry_s: seconds that a pool below the device is left alone after a copy into it has failed.
        arriving_blocks_max: blocks on their way to another level at one time.
        beams_max: beams of one sequence.
        event_blocks_kept_max: blocks that the block events which are kept for readers name at most; a reader that has
            missed more takes a snapshot.
    """

    sequence_tokens_max: Annotated[int, Field(ge=1, lt=2**31)] = 2**24
    sequences_max: Annotated[int, Field(ge=1)] = 65_536
    pins_max: Annotated[int, Field(ge=1)] = 65_536
    round_blocks_max: Annotated[int, Field(ge=1)] = 8_192
    match_deadline_s: Annotated[float, Field(gt=0)] = 1.0
    sessions_max: Annotated[int, Field(ge=1)] = 4_096
    kept_answers_max: Annotated[int, Field(ge=1)] = 256
    grace_s: Annotated[float, Field(gt=0)] = 30.0
    waiting_deadline_s: Annotated[float, Field(gt=0)] = 30.0
    transfer_deadline_s: Annotated[float, Field(gt=0)] = 60.0
    tier_retry_s: Annotated[float, Field(ge=0)] = 5.0
    arriving_blocks_max: Annotated[int, Field(ge=1)] = 65_536
    beams_max: Annotated[int, Field(ge=1)] = 64
    event_blocks_kept_max: Annotated[int, Field(ge=1)] = 262_144


class Config(_Section):
    """One replica.

    Attributes:
        namespace: model, revision, dtype and attention geometry: all that makes blocks of equal tokens differ.
        block_tokens: tokens of one block, for groups that have no block size of their own.
        hash_block_tokens: tokens of one digest; divides every block size (None: `block_tokens`).
        digest_bytes: width of a digest.
        groups: the window groups, in the order of the tables; at least one that is neither `cross` nor `fixed`.
        pools: the pools that they draw from, and those below them.
        ranks: workers that each hold a shard of every block.
        partial_reuse: `copy`: a hit may end within a block, whose first tokens are copied; only where all groups that
            take part in hits are full, sliding or chunked, with blocks of one size. Clients send the tokens along.
        events: whether what is published, and what is so no more, is kept as block events for readers.
        limits: what the replica holds or queues at most.
    """

    namespace: Name
    block_tokens: BlockTokens = 16
    hash_block_tokens: Annotated[int, Field(ge=1)] | None = None
    digest_bytes: Annotated[int, Field(ge=8, le=64)] = 32
    groups: Annotated[tuple[GroupConfig, ...], Field(min_length=1, max_length=1024, strict=False)]  # or a list
    pools: Annotated[tuple[PoolConfig, ...], Field(min_length=1, max_length=1024, strict=False)]
    ranks: Annotated[int, Field(ge=1, le=2**16)] = 1
    partial_reuse: Literal["off", "copy"] = "off"
    events: bool = False
    limits: Limits = Field(default_factory=Limits)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        _refuse_repeated("group", [group.name for group in self.groups])
        _refuse_repeated("pool", [pool.name for pool in self.pools])
        check_pools_of_groups(self)
        check_stacks(self.pools)
        check_block_sizes(self)
        check_room_for_one_unit(self)
        check_partial_reuse(self)
        return self

    @property
    def tokens_per_digest(self) -> int:
        """Tokens that one digest stands for."""
        return self.hash_block_tokens or self.block_tokens

    @property
    def digests_per_block(self) -> int:
        """Digests that end within one block of `block_tokens`; the last of them is the block's."""
        return self.block_tokens // self.tokens_per_digest

    @cached_property
    def unit_tokens(self) -> int:
        """Hits, capacities and growth are multiples of it: the least common multiple of the block sizes.

        Only groups that take part in hits count. Recurrent ones have the unit as their block; where there are no
        others, it is `block_tokens`.
        """
        sizes = block_sizes(self, BLOCKWISE_KINDS)
        return lcm(*sizes) if sizes else self.block_tokens

    def group_block_tokens(self, number: int) -> int:
        """Tokens of one block of group `number`."""
        group = self.groups[number]
        if group.kind == "recurrent":
            return self.unit_tokens
        return group.block_tokens or self.block_tokens

    def rules(self) -> list[AttentionRule]:
        """The attention rules of the groups, in their order."""
        return [group.rule(self.group_block_tokens(number)) for number, group in enumerate(self.groups)]

    def stack_of(self, pool_number: int) -> tuple[int, ...]:
        """The numbers of the pools of the stack that a pool is part of, from the device down."""
        for stack in stacks_of(self.pools):
            if pool_number in stack:
                return stack
        raise InvariantError(f"there is no pool {pool_number}: pools are numbered 0 to {len(self.pools) - 1}")


def _refuse_repeated(what: str, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{what} names must be unique; repeated: {', '.join(repeated)}")
