"""Configurations: what the defaults are, and that each one that cannot work says why."""

from __future__ import annotations

from typing import Any

import pytest

from kvtroupe.coordinator.attention import FullAttention, SlidingWindow
from kvtroupe.coordinator.config import Config, GroupConfig, Limits, PoolConfig
from kvtroupe.coordinator.errors import ConfigError, RequestError


def config(**changed: Any) -> Config:  # noqa: ANN401 - bad values are of any type
    """A configuration that works, but for what is changed."""
    values: dict[str, Any] = {
        "namespace": "model",
        "groups": (GroupConfig(name="full"),),
        "pools": (PoolConfig(blocks=10),),
    }
    return Config(**(values | changed))


def test_defaults() -> None:
    """What a configuration says nothing about has the documented values."""
    made = config()

    assert (made.block_tokens, made.hash_block_tokens, made.digest_bytes) == (16, None, 32)
    assert (made.tokens_per_digest, made.digests_per_block) == (16, 1)
    assert made.groups == (GroupConfig(name="full", kind="full", window_tokens=None, pool="device"),)
    assert made.pools == (PoolConfig(name="device", blocks=10, reserved_blocks=0),)
    assert made.limits == Limits(
        sequence_tokens_max=2**24,
        sequences_max=65_536,
        pins_max=65_536,
        round_blocks_max=8_192,
        match_deadline_s=1.0,
        sessions_max=4_096,
        kept_answers_max=256,
        grace_s=30.0,
        waiting_deadline_s=30.0,
        transfer_deadline_s=60.0,
        tier_retry_s=5.0,
        arriving_blocks_max=65_536,
        beams_max=64,
    )
    assert (made.ranks, made.partial_reuse) == (1, "off")


def test_hash_blocks_divide_blocks() -> None:
    """With hash blocks of 4 tokens a block of 16 has four digests."""
    made = config(block_tokens=16, hash_block_tokens=4)

    assert (made.tokens_per_digest, made.digests_per_block) == (4, 4)


def test_groups_have_the_rule_of_their_kind() -> None:
    """A full group never leaves a block behind, a sliding one what is older than its window."""
    full = GroupConfig(name="a").rule(16)
    sliding = GroupConfig(name="b", kind="sliding", window_tokens=33).rule(16)

    assert isinstance(full, FullAttention)
    assert isinstance(sliding, SlidingWindow)
    assert (sliding.window_tokens, sliding.block_tokens) == (33, 16)
    assert sliding.first_block(160) == 8  # the next token sees positions 128 to 160


BAD_GROUPS: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name: .*at least 1 character"),
    ({"name": "x" * 201}, "name: .*at most 200 characters"),
    ({"name": 7}, "name: .*string"),
    ({}, "name: Field required"),
    ({"name": "a", "pool": ""}, "pool: .*at least 1 character"),
    ({"name": "a", "kind": "chunked"}, "'a' is 'chunked' without chunk_tokens: this kind needs chunk_tokens"),
    ({"name": "a", "kind": "sliding"}, "'a' is 'sliding' without window_tokens: this kind needs window_tokens"),
    ({"name": "a", "window_tokens": 8}, "'a' is 'full' with window_tokens 8: only groups of kind sliding have"),
    ({"name": "a", "kind": "sliding", "window_tokens": 0}, "window_tokens: .*greater than or equal to 1"),
    ({"name": "a", "kind": "sliding", "window_tokens": -5}, "window_tokens: .*greater than or equal to 1"),
    ({"name": "a", "kind": "sliding", "window_tokens": 2**31}, "window_tokens: .*less than"),
    ({"name": "a", "kind": "sliding", "window_tokens": 8.0}, "window_tokens: .*integer"),
    ({"name": "a", "windows": 8}, "windows: Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("values", "message"), BAD_GROUPS)
def test_a_group_that_cannot_work_says_why(values: dict[str, Any], message: str) -> None:
    """Every bad value has its own message, which names the field."""
    with pytest.raises(ConfigError, match=f"GroupConfig cannot work: .*{message}"):
        GroupConfig(**values)


BAD_POOLS: list[tuple[dict[str, Any], str]] = [
    ({}, "blocks: Field required"),
    ({"blocks": 1}, "blocks: .*greater than or equal to 2"),
    ({"blocks": 0}, "blocks: .*greater than or equal to 2"),
    ({"blocks": -3}, "blocks: .*greater than or equal to 2"),
    ({"blocks": 2**31 + 1}, "blocks: .*less than or equal to"),
    ({"blocks": "10"}, "blocks: .*integer"),
    ({"blocks": True}, "blocks: .*integer"),
    ({"blocks": 10, "name": ""}, "name: .*at least 1 character"),
    ({"blocks": 10, "reserved_blocks": -1}, "reserved_blocks: .*greater than or equal to 0"),
    (
        {"blocks": 10, "reserved_blocks": 9},
        "'device' reserves 9 of 9 usable blocks: no sequence could ever be admitted; lower reserved_blocks",
    ),
    ({"blocks": 10, "reserved_blocks": 10}, "'device' reserves 10 of 9 usable blocks"),
    ({"blocks": 10, "size_bytes": 4}, "size_bytes: Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("values", "message"), BAD_POOLS)
def test_a_pool_that_cannot_work_says_why(values: dict[str, Any], message: str) -> None:
    """Every bad value has its own message, which names the field."""
    with pytest.raises(ConfigError, match=f"PoolConfig cannot work: .*{message}"):
        PoolConfig(**values)


BAD_LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"sequence_tokens_max": 0}, "sequence_tokens_max: .*greater than or equal to 1"),
    ({"sequence_tokens_max": 2**31}, "sequence_tokens_max: .*less than"),
    ({"sequences_max": 0}, "sequences_max: .*greater than or equal to 1"),
    ({"pins_max": 0}, "pins_max: .*greater than or equal to 1"),
    ({"round_blocks_max": 0}, "round_blocks_max: .*greater than or equal to 1"),
    ({"match_deadline_s": 0.0}, "match_deadline_s: .*greater than 0"),
    ({"match_deadline_s": -1.0}, "match_deadline_s: .*greater than 0"),
    ({"match_deadline_s": float("nan")}, "match_deadline_s: .*greater than 0"),
    ({"sessions_max": 0}, "sessions_max: .*greater than or equal to 1"),
    ({"kept_answers_max": 0}, "kept_answers_max: .*greater than or equal to 1"),
    ({"arriving_blocks_max": 0}, "arriving_blocks_max: .*greater than or equal to 1"),
    ({"beams_max": 0}, "beams_max: .*greater than or equal to 1"),
    ({"grace_s": 0.0}, "grace_s: .*greater than 0"),
    ({"grace_s": float("nan")}, "grace_s: .*greater than 0"),
    ({"waiting_deadline_s": 0.0}, "waiting_deadline_s: .*greater than 0"),
    ({"waiting_deadline_s": float("nan")}, "waiting_deadline_s: .*greater than 0"),
    ({"transfer_deadline_s": 0.0}, "transfer_deadline_s: .*greater than 0"),
    ({"transfer_deadline_s": float("nan")}, "transfer_deadline_s: .*greater than 0"),
    ({"tier_retry_s": -1.0}, "tier_retry_s: .*greater than or equal to 0"),
    ({"tokens_max": 5}, "tokens_max: Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("values", "message"), BAD_LIMITS)
def test_limits_that_cannot_work_say_why(values: dict[str, Any], message: str) -> None:
    """Every bad value has its own message, which names the field."""
    with pytest.raises(ConfigError, match=f"Limits cannot work: .*{message}"):
        Limits(**values)


TWO_POOLS = (PoolConfig(name="a", blocks=10), PoolConfig(name="b", blocks=10))
BAD_REPLICAS: list[tuple[dict[str, Any], str]] = [
    ({"namespace": ""}, "namespace: .*at least 1 character"),
    ({"namespace": None}, "namespace: .*string"),
    ({"block_tokens": 0}, "block_tokens: .*greater than or equal to 1"),
    ({"block_tokens": -16}, "block_tokens: .*greater than or equal to 1"),
    ({"block_tokens": 2**20 + 1}, "block_tokens: .*less than or equal to"),
    ({"block_tokens": 16.0}, "block_tokens: .*integer"),
    ({"hash_block_tokens": 0}, "hash_block_tokens: .*greater than or equal to 1"),
    ({"hash_block_tokens": 3}, "hash_block_tokens 3 does not divide block_tokens 16"),
    ({"hash_block_tokens": 32}, "hash_block_tokens 32 does not divide block_tokens 16"),
    ({"digest_bytes": 7}, "digest_bytes: .*greater than or equal to 8"),
    ({"digest_bytes": 65}, "digest_bytes: .*less than or equal to 64"),
    ({"groups": ()}, "groups: .*at least 1 item"),
    ({"ranks": 0}, "ranks: .*greater than or equal to 1"),
    ({"ranks": 2**16 + 1}, "ranks: .*less than or equal to"),
    ({"groups": tuple(GroupConfig(name=str(n)) for n in range(1025))}, "groups: .*at most 1024 items"),
    ({"groups": (GroupConfig(name="a"), GroupConfig(name="b"), GroupConfig(name="a"))}, "group names .*repeated: a$"),
    (
        {"groups": (GroupConfig(name="a", pool="host"),)},
        r"'a' draws from pool 'host', .*not one of \['device'\]: add it",
    ),
    ({"pools": ()}, "pools: .*at least 1 item"),
    ({"pools": [PoolConfig(name=str(n), blocks=9) for n in range(1025)]}, "pools: .*at most 1024 items"),
    ({"pools": (PoolConfig(blocks=10), PoolConfig(blocks=20))}, "pool names must be unique; repeated: device"),
    ({"pools": TWO_POOLS, "groups": (GroupConfig(name="x", pool="a"),)}, "no group draws from pool 'b'; remove it"),
    ({"limits": 5}, "limits: "),
    ({"block_size": 16}, "block_size: Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("changed", "message"), BAD_REPLICAS)
def test_a_replica_that_cannot_work_says_why(changed: dict[str, Any], message: str) -> None:
    """Every bad value, and every mismatch between the parts, has its own message."""
    with pytest.raises(ConfigError, match=f"Config cannot work: .*{message}"):
        config(**changed)


def test_sections_may_be_given_as_dictionaries() -> None:
    """They are checked just the same."""
    values = {"namespace": "model", "groups": [{"name": "full"}], "pools": [{"blocks": 10}], "limits": {"pins_max": 3}}

    assert Config.model_validate(values) == config(limits=Limits(pins_max=3))
    with pytest.raises(ConfigError, match=r"Limits cannot work: pins_max: .*greater than or equal to 1"):
        Config.model_validate(values | {"limits": {"pins_max": 0}})


def test_a_bad_configuration_is_the_callers_error() -> None:
    """Whoever catches errors of requests catches these too."""
    with pytest.raises(RequestError):
        config(block_tokens=0)


def test_every_problem_is_named_at_once() -> None:
    """Two bad fields are two parts of one message."""
    with pytest.raises(ConfigError, match=r"block_tokens: .*; digest_bytes: "):
        config(block_tokens=0, digest_bytes=1)


@pytest.mark.parametrize(
    ("section", "field"),
    [
        (config(), "block_tokens"),
        (GroupConfig(name="a"), "window_tokens"),
        (PoolConfig(blocks=10), "blocks"),
        (Limits(), "sequences_max"),
    ],
)
def test_a_configuration_never_changes(section: object, field: str) -> None:
    """What was checked once stays as it was."""
    before = getattr(section, field)

    with pytest.raises(ValueError, match="frozen"):
        setattr(section, field, 5)

    assert getattr(section, field) == before


@pytest.mark.parametrize(
    "changed",
    [
        {"block_tokens": 1},
        {"block_tokens": 2**20},
        {"digest_bytes": 8},
        {"digest_bytes": 64},
        {"hash_block_tokens": 1},
        {"hash_block_tokens": 16},
        {"pools": (PoolConfig(blocks=2),)},
        {"pools": (PoolConfig(blocks=10, reserved_blocks=8),)},
        {"groups": (GroupConfig(name="a", kind="sliding", window_tokens=1),)},
        {"groups": (GroupConfig(name="a", kind="sliding", window_tokens=2**31 - 1),)},
        {"groups": (GroupConfig(name="x", pool="b"), GroupConfig(name="y", pool="a")), "pools": TWO_POOLS},
    ],
)
def test_values_at_the_edge_work(changed: dict[str, Any]) -> None:
    """The smallest and largest values that are allowed are kept as given."""
    made = config(**changed)

    assert {name: getattr(made, name) for name in changed} == changed
