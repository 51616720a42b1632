"""Stacks of pools: which pools may lie below which, and what their options are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.config_stacks import check_stacks, stacks_of
from kvtroupe.coordinator.errors import ConfigError, InvariantError


def pool(name: str, below: str | None = None, **options: Any) -> PoolConfig:  # noqa: ANN401 - bad values are of any type
    """A pool of 10 blocks; the first letter of its name is that of its tier: g(pu), h(ost) or d(isk)."""
    tier: Any = {"g": "device", "h": "host", "d": "disk"}[name[0]]
    return PoolConfig(**({"name": name, "tier": tier, "blocks": 10, "below": below} | options))


def config(*pools: PoolConfig) -> Config:
    """A replica with a full group in every device pool."""
    groups = tuple(GroupConfig(name=f"of {each.name}", pool=each.name) for each in pools if each.tier == "device")
    return Config(namespace="model", groups=groups, pools=pools)


GOOD: list[tuple[list[PoolConfig], list[tuple[int, ...]]]] = [
    ([pool("g")], [(0,)]),
    ([pool("g1"), pool("g2")], [(0,), (1,)]),
    ([pool("g", "h"), pool("h")], [(0, 1)]),
    ([pool("g", "d"), pool("d")], [(0, 1)]),
    ([pool("g", "h"), pool("h", "d"), pool("d")], [(0, 1, 2)]),
    ([pool("d"), pool("h", "d"), pool("g", "h")], [(2, 1, 0)]),
    (
        [pool("d2"), pool("g1", "h"), pool("g2", "d2"), pool("d1"), pool("h", "d1"), pool("g3")],
        [(1, 4, 3), (2, 0), (5,)],
    ),
]


@pytest.mark.parametrize(("pools", "stacks"), GOOD)
def test_pools_form_stacks(pools: list[PoolConfig], stacks: list[tuple[int, ...]]) -> None:
    """From the device down, whatever the order of the pools; each pool is in the stack that `stack_of` gives for it."""
    made = config(*pools)

    assert stacks_of(made.pools) == stacks
    assert [made.stack_of(number) for number in range(len(pools))] == [
        next(stack for stack in stacks if number in stack) for number in range(len(pools))
    ]
    assert sorted(number for stack in stacks for number in stack) == list(range(len(pools)))


@pytest.mark.parametrize("number", [2, -1])
def test_a_number_of_no_pool_has_no_stack(number: int) -> None:
    """Whoever asks for it has a bug."""
    with pytest.raises(InvariantError, match=f"there is no pool {number}: pools are numbered 0 to 1"):
        config(pool("g", "h"), pool("h")).stack_of(number)


BAD: list[tuple[list[PoolConfig], str]] = [
    ([pool("g", "h")], "pool 'g' has 'h' below it, which is not one of ['g']; add it"),
    ([pool("g", "h"), pool("h", "d")], "pool 'h' has 'd' below it, which is not one of ['g', 'h']; add it"),
    (
        [pool("g1", "h"), pool("g2", "h"), pool("h")],
        "pools 'g1' and 'g2' both have 'h' below them: give each a pool of its own",
    ),
    (
        [pool("g1", "h"), pool("g2", "d"), pool("h", "d"), pool("d")],
        "pools 'g2' and 'h' both have 'd' below them: give each a pool of its own",
    ),
    ([pool("g"), pool("h")], "host pool 'h' is below no pool; remove it or name it as below of a faster one"),
    ([pool("g"), pool("d")], "disk pool 'd' is below no pool; remove it or name it as below of a faster one"),
    ([pool("g"), pool("h", "d"), pool("d")], "host pool 'h' is below no pool"),
    ([pool("g", "g")], "device pool 'g' has device pool 'g' below it: a pool below another has a slower tier"),
    ([pool("g1", "g2"), pool("g2")], "device pool 'g1' has device pool 'g2' below it"),
    ([pool("g", "h1"), pool("h1", "h2"), pool("h2")], "host pool 'h1' has host pool 'h2' below it"),
    ([pool("g", "h"), pool("h", "h")], "host pool 'h' has host pool 'h' below it"),
    ([pool("g", "h"), pool("h", "g")], "host pool 'h' has device pool 'g' below it"),
    ([pool("g", "d"), pool("d", "h"), pool("h")], "disk pool 'd' has host pool 'h' below it"),
    ([pool("g", "d"), pool("d", "g")], "; from the fastest down: device, host, disk"),
]


@pytest.mark.parametrize(("pools", "message"), BAD)
def test_pools_that_form_no_stacks_are_refused(pools: list[PoolConfig], message: str) -> None:
    """Every step down leads to a slower tier, and to a pool that nobody else has below."""
    with pytest.raises(ConfigError, match=f"Config cannot work: .*{re.escape(message)}"):
        config(*pools)
    with pytest.raises(ValueError, match=re.escape(message)):
        check_stacks(pools)


# -- groups and pools --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("below", "tier"), [("h", "host"), ("d", "disk")])
def test_groups_draw_from_device_pools(below: str, tier: str) -> None:
    """Tables name slots of the device; what lies below is reached through it."""
    groups = (GroupConfig(name="on device", pool="g"), GroupConfig(name="elsewhere", pool=below))

    with pytest.raises(ConfigError) as caught:
        Config(namespace="model", groups=groups, pools=(pool("g", below), pool(below)))

    assert f"group 'elsewhere' draws from {tier} pool '{below}': name a device pool, and that one below it" in str(
        caught.value
    )


def test_a_device_pool_above_others_needs_a_group_too() -> None:
    """Nothing could ever get into it or into those below."""
    groups = (GroupConfig(name="a", pool="g1"),)

    with pytest.raises(ConfigError, match="no group draws from pool 'g2'; remove it or name it in a group"):
        Config(namespace="model", groups=groups, pools=(pool("g1"), pool("g2", "h"), pool("h")))


# -- options of one pool -----------------------------------------------------------------------------------------------


def test_options_of_a_pool_have_defaults() -> None:
    """Content goes down as its slot is needed, whatever its priority."""
    made = pool("h", "d")

    assert (made.offload, made.offload_min_priority, made.low_water_blocks) == ("on_evict", 0, 0)
    assert (made.copies_max_blocks, made.reserved_blocks, made.waiting_share) == (4096, 0, 0.5)


@pytest.mark.parametrize(
    ("name", "below", "options"),
    [
        ("g", "h", {"offload": "never", "offload_min_priority": 100, "copies_max_blocks": 1}),
        ("g", "h", {"offload": "on_commit", "reserved_blocks": 8, "waiting_share": 1.0}),
        ("g", None, {"reserved_blocks": 8, "waiting_share": 0.01}),
        ("h", "d", {"low_water_blocks": 8, "copies_max_blocks": 2**31}),
        ("h", "d", {"offload": "on_commit", "offload_min_priority": 35}),
        ("h", None, {"blocks": 2}),
        ("d", None, {"blocks": 2**31}),
    ],
)
def test_options_that_have_an_effect_are_kept(name: str, below: str | None, options: dict[str, Any]) -> None:
    """The smallest and largest values are as good as any."""
    made = pool(name, below, **options)

    assert {option: getattr(made, option) for option in options} == options


def test_a_value_that_is_the_default_may_be_written_out() -> None:
    """It changes nothing, also where another value would be refused."""
    written = pool("d", offload="on_evict", low_water_blocks=0, reserved_blocks=0, waiting_share=0.5)

    assert written == pool("d")


USELESS: list[tuple[str, str | None, str, Any, str]] = [
    ("g", None, "offload", "on_commit", "device pool 'g' has offload 'on_commit', but there is no pool below it"),
    ("h", None, "offload", "never", "host pool 'h' has offload 'never', but there is no pool below it"),
    ("g", None, "offload_min_priority", 1, "has offload_min_priority 1, but there is no pool below it"),
    ("d", None, "copies_max_blocks", 7, "disk pool 'd' has copies_max_blocks 7, but there is no pool below it"),
    ("h", None, "low_water_blocks", 1, "host pool 'h' has low_water_blocks 1, but there is no pool below it"),
    ("g", "h", "low_water_blocks", 1, "device pool 'g' has low_water_blocks 1, but only host pools have it"),
    ("g", None, "low_water_blocks", 1, "device pool 'g' has low_water_blocks 1, but only host pools have it"),
    ("d", None, "low_water_blocks", 1, "disk pool 'd' has low_water_blocks 1, but only host pools have it"),
    ("h", "d", "reserved_blocks", 1, "host pool 'h' has reserved_blocks 1, but only device pools have it"),
    ("d", None, "waiting_share", 0.25, "disk pool 'd' has waiting_share 0.25, but only device pools have it"),
]


@pytest.mark.parametrize(("name", "below", "option", "value", "message"), USELESS)
def test_an_option_without_effect_is_refused(
    name: str, below: str | None, option: str, value: object, message: str
) -> None:
    """Whoever sets it expects something of it."""
    with pytest.raises(ConfigError, match=f"PoolConfig cannot work: .*{re.escape(message)}; leave it out"):
        pool(name, below, **{option: value})


@pytest.mark.parametrize("offload", ["on_commit", "never"])
def test_low_water_is_kept_only_by_demoting_as_slots_are_needed(offload: str) -> None:
    """What goes down as it is published, or not at all, is not demoted ahead of need."""
    message = (
        f"host pool 'h' has low_water_blocks 2, but with offload '{offload}' nothing is demoted ahead; leave it out"
    )

    with pytest.raises(ConfigError, match=re.escape(message)):
        pool("h", "d", offload=offload, low_water_blocks=2)


def test_low_water_leaves_something_in_the_pool() -> None:
    """Of 10 blocks one is the null block: with 9 ready to be dropped nothing would stay."""
    with pytest.raises(ConfigError) as caught:
        pool("h", "d", low_water_blocks=9)

    assert "pool 'h' keeps 9 of 9 usable blocks ready to be dropped" in str(caught.value)
    assert "lower low_water_blocks" in str(caught.value)


BAD_VALUES: list[tuple[str, Any, str]] = [
    ("tier", "gpu", "tier: Input should be 'device', 'host' or 'disk'"),
    ("below", "", "below: .*at least 1 character"),
    ("offload", "always", "offload: Input should be 'on_evict', 'on_commit' or 'never'"),
    ("offload_min_priority", -1, "offload_min_priority: .*greater than or equal to 0"),
    ("offload_min_priority", 101, "offload_min_priority: .*less than or equal to 100"),
    ("low_water_blocks", -1, "low_water_blocks: .*greater than or equal to 0"),
    ("copies_max_blocks", 0, "copies_max_blocks: .*greater than or equal to 1"),
    ("copies_max_blocks", 2**31 + 1, "copies_max_blocks: .*less than or equal to"),
    ("waiting_share", 0.0, "waiting_share: .*greater than 0"),
    ("waiting_share", 1.5, "waiting_share: .*less than or equal to 1"),
    ("waiting_share", float("nan"), "waiting_share: .*less than or equal to 1"),
    ("waiting_share", True, "waiting_share: .*number"),
]


@pytest.mark.parametrize(("option", "value", "message"), BAD_VALUES)
def test_an_option_out_of_bounds_is_refused(option: str, value: object, message: str) -> None:
    """The message names the option and the bound."""
    options: dict[str, Any] = {"below": "d", option: value}

    with pytest.raises(ConfigError, match=f"PoolConfig cannot work: .*{message}"):
        pool("h", **options)
