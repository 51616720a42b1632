"""The configuration of a replica, with every limit and default.

Sizes and counts carry their unit in the name. Unknown keys and values that cannot work raise `ConfigError`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvtroupe.coordinator.attention import AttentionRule, FullAttention, SlidingWindow
from kvtroupe.coordinator.errors import ConfigError

Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Section(BaseModel):
    """A part of the configuration: immutable, and its errors belong to our tree."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - any keyword is checked by the model
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems = "; ".join(f"{_where(problem['loc'])}{problem['msg']}" for problem in error.errors())
            raise ConfigError(f"{type(self).__name__} cannot work: {problems}") from error


def _where(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) + ": " if location else ""


class GroupConfig(_Section):
    """One window group: the layers that share an attention window.

    Attributes:
        name: unique in the replica.
        kind: `full` or `sliding`.
        window_tokens: tokens that a token attends to, itself included; for `sliding` only.
        pool: name of the pool whose slots hold the blocks of the group.
    """

    name: Name
    kind: Literal["full", "sliding"] = "full"
    window_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    pool: Name = "device"

    @model_validator(mode="after")
    def _window_fits_kind(self) -> Self:
        if (self.kind == "sliding") != (self.window_tokens is not None):
            raise ValueError(
                f"group {self.name!r} is {self.kind!r} with window_tokens {self.window_tokens}: "
                "a sliding group needs a window, a full group has none"
            )
        return self

    def rule(self, block_tokens: int) -> AttentionRule:
        """The attention rule of the group for blocks of `block_tokens`."""
        if self.window_tokens is None:
            return FullAttention(block_tokens)
        return SlidingWindow(self.window_tokens, block_tokens)


class PoolConfig(_Section):
    """Slots of one size.

    Attributes:
        name: unique in the replica.
        blocks: slots of the pool, the null block included.
        reserved_blocks: free slots that new sequences leave alone, for the growth of running ones.
    """

    name: Name = "device"
    blocks: Annotated[int, Field(ge=2, le=2**31)]
    reserved_blocks: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _reserve_leaves_room(self) -> Self:
        if self.reserved_blocks >= self.blocks - 1:
            raise ValueError(
                f"pool {self.name!r} reserves {self.reserved_blocks} of {self.blocks - 1} usable blocks: "
                "no sequence could ever be admitted"
            )
        return self


class Limits(_Section):
    """What a replica holds or queues at most.

    Attributes:
        sequence_tokens_max: tokens of one sequence, spare room included.
        sequences_max: sequences that run or wait.
        pins_max: pins that stand or wait.
        round_blocks_max: blocks, counted in every group, that the requests of one round ask for, before the next
            request waits for the next round; one request may exceed it alone.
        match_deadline_s: seconds a group has for its match answers before a round goes on without them.
    """

    sequence_tokens_max: Annotated[int, Field(ge=1, lt=2**31)] = 2**24
    sequences_max: Annotated[int, Field(ge=1)] = 65_536
    pins_max: Annotated[int, Field(ge=1)] = 65_536
    round_blocks_max: Annotated[int, Field(ge=1)] = 8_192
    match_deadline_s: Annotated[float, Field(gt=0)] = 1.0


class Config(_Section):
    """One replica.

    Attributes:
        namespace: model, revision, dtype and attention geometry: all that makes blocks of equal tokens differ.
        block_tokens: tokens of one block.
        hash_block_tokens: tokens of one digest; divides `block_tokens` (None: the same).
        digest_bytes: width of a digest.
        groups: the window groups, in the order of the tables.
        pools: the pools that they draw from.
        limits: what the replica holds or queues at most.
    """

    namespace: Name
    block_tokens: Annotated[int, Field(ge=1, le=2**20)] = 16
    hash_block_tokens: Annotated[int, Field(ge=1)] | None = None
    digest_bytes: Annotated[int, Field(ge=8, le=64)] = 32
    groups: Annotated[tuple[GroupConfig, ...], Field(min_length=1, max_length=1024, strict=False)]  # or a list
    pools: Annotated[tuple[PoolConfig, ...], Field(min_length=1, max_length=1024, strict=False)]
    limits: Limits = Field(default_factory=Limits)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        _refuse_repeated("group", [group.name for group in self.groups])
        pools = [pool.name for pool in self.pools]
        _refuse_repeated("pool", pools)
        used = {group.pool for group in self.groups}
        for group in self.groups:
            if group.pool not in pools:
                raise ValueError(f"group {group.name!r} draws from pool {group.pool!r}, which is not one of {pools}")
        for pool in pools:
            if pool not in used:
                raise ValueError(f"no group draws from pool {pool!r}; remove it or name it in a group")
        if self.block_tokens % self.tokens_per_digest:
            raise ValueError(
                f"hash_block_tokens {self.hash_block_tokens} does not divide block_tokens {self.block_tokens}"
            )
        return self

    @property
    def tokens_per_digest(self) -> int:
        """Tokens that one digest stands for."""
        return self.hash_block_tokens or self.block_tokens

    @property
    def digests_per_block(self) -> int:
        """Digests that end within one block; the last of them is the block's."""
        return self.block_tokens // self.tokens_per_digest


def _refuse_repeated(what: str, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{what} names must be unique; repeated: {', '.join(repeated)}")
