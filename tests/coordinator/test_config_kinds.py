"""Kinds of group and sizes of blocks: which go together, which unit they give, and which rules."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvtroupe.coordinator.attention import (
    ChunkedAttention,
    CrossAttention,
    FixedBlocks,
    FullAttention,
    RecurrentState,
    SlidingWindow,
)
from kvtroupe.coordinator.config import Config, GroupConfig, Limits, PoolConfig
from kvtroupe.coordinator.errors import ConfigError

FULL = GroupConfig(name="full")
SLIDING = GroupConfig(name="sliding", kind="sliding", window_tokens=40)
CHUNKED = GroupConfig(name="chunked", kind="chunked", chunk_tokens=100)
RECURRENT = GroupConfig(name="recurrent", kind="recurrent")
CROSS = GroupConfig(name="cross", kind="cross")
FIXED = GroupConfig(name="fixed", kind="fixed", blocks=3)


def full_of(block_tokens: int) -> GroupConfig:
    """A full group with blocks of its own size, and named by it."""
    return GroupConfig(name=f"full {block_tokens}", block_tokens=block_tokens)


def config(*groups: GroupConfig, **changed: Any) -> Config:  # noqa: ANN401 - bad values are of any type
    """A replica of these groups with 100 blocks of 16 tokens in one pool, but for what is changed."""
    values: dict[str, Any] = {"namespace": "model", "groups": groups, "pools": (PoolConfig(blocks=100),)}
    return Config(**(values | changed))


def refusal(*groups: GroupConfig, **changed: Any) -> str:  # noqa: ANN401 - as above
    """Why such a replica cannot work."""
    with pytest.raises(ConfigError, match=r"\AConfig cannot work: ") as caught:
        config(*groups, **changed)
    return str(caught.value)


# -- one group ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "needed"), [("sliding", "window_tokens"), ("chunked", "chunk_tokens"), ("fixed", "blocks")]
)
def test_a_kind_without_its_size_is_refused(kind: str, needed: str) -> None:
    """A window, a chunk and a number of blocks have no default that fits any model."""
    message = f"group 'a' is '{kind}' without {needed}: this kind needs {needed}"

    with pytest.raises(ConfigError, match=re.escape(message)):
        GroupConfig(name="a", kind=kind)  # type: ignore[arg-type]  # one of the literals


SIZES_OF_KIND = {
    "full": {"block_tokens"},
    "sliding": {"window_tokens", "block_tokens"},
    "chunked": {"chunk_tokens", "block_tokens"},
    "recurrent": {"snapshot_tokens"},
    "cross": {"block_tokens"},
    "fixed": {"blocks"},
}
NEEDED = {"sliding": "window_tokens", "chunked": "chunk_tokens", "fixed": "blocks"}
ALL_SIZES = sorted(set().union(*SIZES_OF_KIND.values()))


@pytest.mark.parametrize("field", ALL_SIZES)
@pytest.mark.parametrize("kind", SIZES_OF_KIND)
def test_a_kind_has_its_own_sizes_and_no_others(kind: str, field: str) -> None:
    """A size that a kind does not know would be silently without effect, so it is refused, with those who have it."""
    values: dict[str, Any] = {"name": "a", "kind": kind, field: 32}
    if kind in NEEDED:
        values.setdefault(NEEDED[kind], 32)

    if field in SIZES_OF_KIND[kind]:
        assert getattr(GroupConfig(**values), field) == 32
        return
    those = " or ".join(other for other, sizes in SIZES_OF_KIND.items() if field in sizes)
    message = f"group 'a' is '{kind}' with {field} 32: only groups of kind {those} have {field}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        GroupConfig(**values)


@pytest.mark.parametrize(
    ("field", "kind", "largest"),
    [
        ("window_tokens", "sliding", 2**31 - 1),
        ("chunk_tokens", "chunked", 2**31 - 1),
        ("snapshot_tokens", "recurrent", 2**31 - 1),
        ("blocks", "fixed", 2**20),
        ("block_tokens", "full", 2**20),
    ],
)
def test_sizes_of_a_group_have_bounds(field: str, kind: str, largest: int) -> None:
    """From 1 up to what the arrays can count; whole numbers only."""
    for good in (1, largest):
        assert getattr(GroupConfig(name="a", kind=kind, **{field: good}), field) == good  # type: ignore[arg-type]
    for bad, words in ((0, "greater than or equal to 1"), (largest + 1, "less than"), (8.0, "integer"), (True, "int")):
        with pytest.raises(ConfigError, match=f"{field}: .*{words}"):
            GroupConfig(name="a", kind=kind, **{field: bad})  # type: ignore[arg-type]  # bad on purpose


def test_an_unknown_kind_is_refused() -> None:
    """The message lists those that there are."""
    with pytest.raises(ConfigError, match=r"kind: .*'full', 'sliding', 'chunked', 'recurrent', 'cross' or 'fixed'"):
        GroupConfig(name="a", kind="mamba")  # type: ignore[arg-type]  # bad on purpose


# -- the unit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "unit_tokens"),
    [
        ((FULL,), 16),
        ((FULL, SLIDING, CHUNKED), 16),
        ((full_of(32),), 32),
        ((full_of(32), full_of(48)), 96),
        ((FULL, full_of(48), full_of(32)), 96),
        ((full_of(64), SLIDING), 64),
        # A recurrent group has the unit as its block, and `block_tokens` where nothing else says what the unit is.
        ((RECURRENT,), 16),
        ((RECURRENT, full_of(32)), 32),
        ((RECURRENT, full_of(32), full_of(48)), 96),
        # Cross and fixed groups have no say in how long hits are.
        ((FULL, GroupConfig(name="cross", kind="cross", block_tokens=48)), 16),
        ((full_of(32), CROSS, FIXED), 32),
        ((RECURRENT, CROSS, FIXED), 16),
    ],
)
def test_the_unit_is_the_least_common_multiple_of_block_sizes(
    groups: tuple[GroupConfig, ...], unit_tokens: int
) -> None:
    """Of those groups that take part in hits, in any order."""
    assert config(*groups).unit_tokens == unit_tokens
    assert config(*reversed(groups)).unit_tokens == unit_tokens


def test_every_group_has_its_rule_with_its_block_size() -> None:
    """Its own if it has one, else that of the replica; a recurrent group has the unit."""
    groups = (
        full_of(32),
        SLIDING,
        GroupConfig(name="chunks", kind="chunked", chunk_tokens=100, block_tokens=48),
        GroupConfig(name="states", kind="recurrent", snapshot_tokens=192),
        GroupConfig(name="encoder", kind="cross", block_tokens=80),
        FIXED,
    )
    made = config(*groups)
    rules = made.rules()

    assert [made.group_block_tokens(number) for number in range(6)] == [32, 16, 48, 96, 80, 16]
    assert [rule.block_tokens for rule in rules] == [32, 16, 48, 96, 80, 16]
    full, sliding, chunked, recurrent, cross, fixed = rules
    assert type(full) is FullAttention
    assert isinstance(sliding, SlidingWindow)
    assert sliding.window_tokens == 40
    assert isinstance(chunked, ChunkedAttention)
    assert chunked.chunk_tokens == 100
    assert isinstance(recurrent, RecurrentState)
    assert recurrent.snapshot_tokens == 192
    assert type(cross) is CrossAttention
    assert isinstance(fixed, FixedBlocks)
    assert fixed.blocks == 3
    assert [rule.participates for rule in rules] == [True, True, True, True, False, False]


def test_a_recurrent_group_without_snapshots_keeps_only_the_last_state() -> None:
    """Nothing but the state before the end of a prompt is wanted: of 4 blocks of 16 in 70 tokens, the fourth."""
    [rule] = config(RECURRENT).rules()
    wanted = rule.wanted(0, 5, 70)

    assert wanted is not None
    assert wanted.tolist() == [False, False, False, True, False]


# -- sizes that do not go together -------------------------------------------------------------------------------------


def test_hash_blocks_divide_the_blocks_of_the_replica() -> None:
    """A digest ends at every block boundary only then."""
    assert "hash_block_tokens 3 does not divide block_tokens 16: set it to a divisor of every block size" in refusal(
        FULL, hash_block_tokens=3
    )


@pytest.mark.parametrize("kind", ["full", "cross"])
def test_hash_blocks_divide_the_blocks_of_every_group(kind: str) -> None:
    """By default they are as large as the blocks of the replica, of which 24 tokens are one and a half."""
    group = GroupConfig(name="odd", kind=kind, block_tokens=24)  # type: ignore[arg-type]  # one of the literals

    assert (
        "group 'odd' has blocks of 24 tokens, which are not whole hash blocks of 16: "
        "set hash_block_tokens to a divisor of every block size"
    ) in refusal(FULL, group)
    assert config(FULL, group, hash_block_tokens=8).tokens_per_digest == 8


@pytest.mark.parametrize("groups", [(CROSS,), (FIXED,), (CROSS, FIXED)])
def test_some_group_has_to_grow_with_the_sequence(groups: tuple[GroupConfig, ...]) -> None:
    """Cross and fixed groups alone say nothing about the tokens of a sequence."""
    assert "all groups are cross or fixed: at least one has to be full, sliding, chunked or recurrent" in refusal(
        *groups
    )


@pytest.mark.parametrize("kind", ["full", "sliding", "chunked", "recurrent"])
def test_one_group_of_any_kind_that_grows_is_enough(kind: str) -> None:
    """Beside a cross and a fixed group."""
    grows = {"full": FULL, "sliding": SLIDING, "chunked": CHUNKED, "recurrent": RECURRENT}[kind]

    assert config(CROSS, FIXED, grows).unit_tokens == 16


def test_a_unit_that_is_too_large_is_refused() -> None:
    """1023 * 1025 = 2**20 - 1 is the largest odd unit that works; 1025 * 1027 tokens are more than 2**20."""
    small = {"block_tokens": 1, "hash_block_tokens": 1}

    assert config(full_of(1023), full_of(1025), **small).unit_tokens == 2**20 - 1
    assert config(full_of(2**20), full_of(2**10), **small).unit_tokens == 2**20
    message = refusal(full_of(1027), full_of(1025), **small)
    assert "[1025, 1027] tokens, but their least common multiple is above 1048576" in message
    assert "choose block sizes that divide each other" in message


def test_snapshots_are_multiples_of_the_unit() -> None:
    """The unit of blocks of 32 and 48 is 96 tokens: a state at 64 could not be hit."""
    sizes = (full_of(32), full_of(48))
    states = [
        GroupConfig(name="states", kind="recurrent", snapshot_tokens=snapshot_tokens) for snapshot_tokens in (64, 192)
    ]

    assert (
        "group 'states' has snapshot_tokens 64, which is no multiple of the unit of 96 tokens; "
        "choose one, or leave it out"
    ) in refusal(*sizes, states[0])
    assert config(*sizes, states[1]).unit_tokens == 96


def test_cross_groups_have_blocks_of_one_size() -> None:
    """They share one digest for each block of the encoder input."""
    one, other = (GroupConfig(name=f"c{size}", kind="cross", block_tokens=size) for size in (32, 64))
    same = GroupConfig(name="same", kind="cross", block_tokens=32)

    assert "cross groups have blocks of [32, 64] tokens, but share one digest a block: use one size" in refusal(
        FULL, other, one
    )
    assert "cross groups have blocks of [16, 32] tokens" in refusal(FULL, CROSS, one)
    assert config(FULL, one, same).unit_tokens == 16


@pytest.mark.parametrize(
    ("groups", "longest_tokens", "works"),
    [
        ((FULL,), 16, True),
        ((FULL,), 15, False),
        ((full_of(32), full_of(48)), 96, True),
        ((full_of(32), full_of(48)), 95, False),
        ((RECURRENT,), 15, False),
    ],
)
def test_the_longest_sequence_holds_a_unit(
    groups: tuple[GroupConfig, ...], longest_tokens: int, *, works: bool
) -> None:
    """Room for a sequence is taken in whole units, even for its first token."""
    limits = Limits(sequence_tokens_max=longest_tokens)

    if works:
        assert config(*groups, limits=limits).limits == limits
        return
    message = refusal(*groups, limits=limits)
    assert f"sequence_tokens_max is {longest_tokens}, less than the unit of {longest_tokens + 1} tokens" in message
    assert "no sequence could ever be admitted; raise it, or choose smaller block sizes" in message


# -- what every sequence takes -----------------------------------------------------------------------------------------


def test_fixed_blocks_fit_into_their_pool() -> None:
    """A pool of 6 blocks has 5 without the null block; 2 of them reserved leave 3 to a new sequence."""
    three, two = FIXED, GroupConfig(name="two", kind="fixed", blocks=2)
    pool = PoolConfig(name="own", blocks=6, reserved_blocks=2)
    own = [group.model_copy(update={"pool": "own"}) for group in (three, two)]
    pools = (PoolConfig(blocks=100), pool)

    assert config(FULL, own[0], pools=pools).pools == pools
    assert (
        "the fixed and recurrent groups of pool 'own' take 5 blocks for any sequence, of 3 that new "
        "sequences can have: no sequence could ever be admitted"
    ) in refusal(FULL, *own, pools=pools)


def test_a_recurrent_group_takes_a_block_for_the_state_of_a_sequence() -> None:
    """Three states of three groups do not fit into two blocks, but into three."""
    groups = [GroupConfig(name=name, kind="recurrent") for name in "abc"]

    assert "of pool 'device' take 3 blocks for any sequence, of 2 that new sequences can have" in refusal(
        *groups, pools=(PoolConfig(blocks=3),)
    )
    assert config(*groups, pools=(PoolConfig(blocks=4),)).unit_tokens == 16


def test_a_cross_group_need_not_take_any_block() -> None:
    """A sequence without encoder input has none, so that three fixed blocks may fill the pool of both."""
    own = [group.model_copy(update={"pool": "own"}) for group in (CROSS, FIXED)]
    pools = (PoolConfig(blocks=100), PoolConfig(name="own", blocks=4))

    assert config(FULL, *own, pools=pools).pools == pools


def test_only_the_blocks_of_their_own_pool_count() -> None:
    """Fixed blocks of different pools are not added up."""
    groups = [GroupConfig(name=name, kind="fixed", blocks=3, pool=name) for name in "ab"]
    pools = [PoolConfig(blocks=100), *[PoolConfig(name=name, blocks=4) for name in "ab"]]

    assert len(config(FULL, *groups, pools=pools).pools) == 3


# -- hits within a block -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "groups",
    [(FULL,), (FULL, SLIDING, CHUNKED), (full_of(32), GroupConfig(name="cross", kind="cross", block_tokens=64), FIXED)],
)
def test_partial_reuse_works_with_blocks_of_one_size(groups: tuple[GroupConfig, ...]) -> None:
    """Cross and fixed groups take no part in hits, whatever their blocks are."""
    assert config(*groups, partial_reuse="copy").partial_reuse == "copy"
    assert config(*groups).partial_reuse == "off"


def test_partial_reuse_does_not_cut_states() -> None:
    """A state is that after all tokens of its block, and none in between."""
    message = refusal(FULL, RECURRENT, partial_reuse="copy")

    assert "partial_reuse is 'copy' and group 'recurrent' recurrent: a state cannot be cut within a block" in message
    assert "turn partial_reuse off" in message
    assert config(FULL, RECURRENT, partial_reuse="off").unit_tokens == 16


def test_partial_reuse_needs_blocks_of_one_size() -> None:
    """A hit that ends within a block of one group would end at a boundary of another."""
    message = refusal(FULL, full_of(32), partial_reuse="copy")

    assert (
        "partial_reuse is 'copy', with blocks of [16, 32] tokens: it needs blocks of one size; turn it off" in message
    )


def test_an_unknown_way_of_partial_reuse_is_refused() -> None:
    """The message lists those that there are."""
    assert "partial_reuse: Input should be 'off' or 'copy'" in refusal(FULL, partial_reuse="share")
