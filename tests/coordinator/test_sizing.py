"""Pools sized from what ranks report, and how many sequences fit into them."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from kvtroupe.coordinator.bands import Shape
from kvtroupe.coordinator.block_bytes import GroupBytes, KVLayers
from kvtroupe.coordinator.config import Config, GroupConfig, Limits, PoolConfig
from kvtroupe.coordinator.config_checks import AS_MANY_AS_FIT
from kvtroupe.coordinator.errors import ConfigError, RequestError
from kvtroupe.coordinator.messages import Admitted, NewSequence, Pace
from kvtroupe.coordinator.rank_reports import RankReport
from kvtroupe.coordinator.replica import Replica
from kvtroupe.coordinator.sizing import concurrency, largest_batch, plan_pools
from tests.coordinator.test_estimates_model import random_config

if TYPE_CHECKING:
    from tests.conftest import Search

FULL = GroupConfig(name="full")
SLIDING = GroupConfig(name="sliding", kind="sliding", window_tokens=9, pool="windows")
OPEN = PoolConfig(blocks=AS_MANY_AS_FIT)
OPEN_WINDOWS = PoolConfig(name="windows", blocks=AS_MANY_AS_FIT)


def config(*groups: GroupConfig, pools: tuple[PoolConfig, ...] = (OPEN,), **changed: Any) -> Config:  # noqa: ANN401
    """A replica with blocks of four tokens, but for what is changed."""
    values: dict[str, Any] = {"namespace": "test", "block_tokens": 4, "groups": groups or (FULL,), "pools": pools}
    return Config(**(values | changed))


def raw(*block_bytes: int) -> tuple[GroupBytes, ...]:
    """Groups whose blocks have so many bytes."""
    return tuple([GroupBytes(raw_bytes=one) for one in block_bytes])


def report(of: Config, *block_bytes: int, rank: int = 0, **tier_bytes: int) -> RankReport:
    """Of a rank whose groups have blocks of so many bytes."""
    return RankReport(rank, of.groups, of.block_tokens, raw(*block_bytes), tier_bytes)


def sizes(planned: Config) -> list[int]:
    """Blocks of every pool."""
    return [pool.blocks for pool in planned.pools]


# -- bytes of a block --------------------------------------------------------------------------------------------------


def test_a_block_has_the_keys_and_values_of_all_its_layers() -> None:
    """Two layers of 8 heads of 128 two-byte elements: 8192 bytes a token; 64 MiB hold 256 blocks of 32 tokens."""
    layers = KVLayers(layers=2, kv_heads=8, head_dim=128)

    assert layers.bytes_of(1) == 8192
    assert 64 * 2**20 // GroupBytes((layers,)).of_block(32) == 256


def test_keys_only_small_elements_scales_and_states_count_as_they_are() -> None:
    """A latent entry of 576 one-byte elements in 3 layers; 4-bit elements with a byte of scale for each 16 of them."""
    latent = KVLayers(layers=3, kv_heads=1, head_dim=576, dtype_bits=8, planes=1)
    quantised = KVLayers(layers=2, kv_heads=4, head_dim=64, dtype_bits=4, more_token_bytes=2 * 4 * 64 // 16)

    assert latent.bytes_of(64) == 3 * 576 * 64
    assert quantised.bytes_of(10) == 2 * 2 * 4 * 64 * 10 // 2 + 2 * 32 * 10
    assert GroupBytes((latent, quantised)).of_block(2) == latent.bytes_of(2) + quantised.bytes_of(2)
    assert GroupBytes(raw_bytes=1000).of_block(4) == GroupBytes(raw_bytes=1000).of_block(400) == 1000


def test_bytes_that_make_no_sense_are_refused() -> None:
    """Each with its name; three elements of four bits are a byte and a half."""
    wrong: list[dict[str, Any]] = [{"layers": 0}, {"kv_heads": 1.5}, {"planes": 3}, {"more_token_bytes": -1}]
    for bad in wrong:
        with pytest.raises(ConfigError, match=f"KV layers with .*{next(iter(bad))}|KV layers with 3 planes"):
            KVLayers(**({"layers": 1, "kv_heads": 1, "head_dim": 3} | bad))
    with pytest.raises(ConfigError, match="raw_bytes -1"):
        GroupBytes(raw_bytes=-1)
    with pytest.raises(ConfigError, match="12 bits, which are no whole bytes"):
        KVLayers(1, 1, 3, dtype_bits=4, planes=1).bytes_of(1)


# -- dividing ----------------------------------------------------------------------------------------------------------


def test_one_pool_gets_all_of_its_tier_the_null_block_included() -> None:
    """1000 bytes hold 10 blocks of 100, 999 only 9; of a fraction of 0.29 it is 2, and of 5000 bytes 14."""
    assert sizes(plan_pools(config(), [report(config(), 100, device=1000)])) == [10]
    assert sizes(plan_pools(config(), [report(config(), 100, device=999)])) == [9]
    assert sizes(plan_pools(config(), [report(config(), 100, device=1000)], fractions={"device": 0.29})) == [2]
    assert sizes(plan_pools(config(), [report(config(), 100, device=5000)], fractions={"device": 0.29})) == [14]


def test_a_share_is_what_it_says_in_decimals() -> None:
    """0.29 of 100 blocks are 29, although the nearest binary number is a little less."""
    both = config(FULL, SLIDING, pools=(OPEN, OPEN_WINDOWS))

    planned = plan_pools(both, [report(both, 10, 10, device=1000)], shares={"device": 0.29, "windows": 0.5})

    assert sizes(planned) == [29, 50]  # a fifth is left to others


def test_without_shares_all_pools_hold_the_same_tokens() -> None:
    """Blocks of 30 and 10 bytes: 1000 bytes are 25 of both. Of 1035 bytes 35 are left: for one more of each kind.

    With blocks of 8 tokens in the second pool a unit has two blocks of the first and one of the second.
    """
    both = config(FULL, SLIDING, pools=(OPEN, OPEN_WINDOWS))
    large = config(FULL, SLIDING.model_copy(update={"block_tokens": 8}), pools=(OPEN, OPEN_WINDOWS))

    assert sizes(plan_pools(both, [report(both, 30, 10, device=1000)])) == [25, 25]
    assert sizes(plan_pools(both, [report(both, 30, 10, device=1035)])) == [26, 25]
    assert sizes(plan_pools(both, [report(both, 30, 10, device=1039)])) == [26, 25]
    assert sizes(plan_pools(large, [report(large, 20, 10, device=1000)])) == [40, 20]


def test_groups_of_one_pool_have_slots_of_the_largest() -> None:
    """Blocks of 30 and 10 bytes in one pool of 1000: a unit of two slots has 60, and one more slot fits."""
    both = config(FULL, SLIDING.model_copy(update={"pool": "device"}))

    assert sizes(plan_pools(both, [report(both, 30, 10, device=1000)])) == [33]


def test_pools_with_a_number_of_blocks_keep_it_and_the_others_have_the_rest() -> None:
    """Ten states of 50 bytes first; the rest of 1000 bytes is 50 blocks of 10. The host is sized for itself."""
    state = GroupConfig(name="state", kind="recurrent", pool="states")
    pools = (
        PoolConfig(blocks=AS_MANY_AS_FIT, below="host"),
        PoolConfig(name="states", blocks=10),
        PoolConfig(name="host", tier="host", blocks=AS_MANY_AS_FIT),
    )
    hybrid = config(FULL, state, pools=pools)

    planned = plan_pools(hybrid, [report(hybrid, 10, 50, device=1000, host=333)])

    assert sizes(planned) == [50, 10, 33]
    assert planned.pools[0].below == "host"
    with pytest.raises(ConfigError, match=r"\['states'\] have blocks of 500 bytes on rank 0, which has 499 for tier"):
        plan_pools(hybrid, [report(hybrid, 10, 50, device=499, host=333)])


def test_every_pool_has_what_the_rank_with_the_least_can_hold() -> None:
    """The second rank holds more layers, the third has less memory; one without layers of a group sets it no limit."""
    three = config(ranks=3)
    both = config(FULL, SLIDING, pools=(OPEN, OPEN_WINDOWS), ranks=2)

    reports = [report(three, size, rank=rank, device=there) for rank, size, there in [(0, 10, 1000), (1, 20, 1000)]]
    assert sizes(plan_pools(three, [*reports, report(three, 10, rank=2, device=600)])) == [50]
    assert sizes(plan_pools(three, [*reports, report(three, 10, rank=2, device=400)])) == [40]
    parallel = [report(both, 10, 0, rank=0, device=1000), report(both, 0, 20, rank=1, device=1000)]
    assert sizes(plan_pools(both, parallel)) == [100, 50]


# -- what is refused ---------------------------------------------------------------------------------------------------


def refusal(of: Config, reports: list[RankReport], **more: dict[str, float]) -> str:
    """Why these pools cannot be sized."""
    with pytest.raises(ConfigError) as caught:
        plan_pools(of, reports, **more)
    return str(caught.value)


def test_ranks_that_differ_are_named_with_the_difference() -> None:
    """In a window, in the size of blocks, in the groups themselves."""
    both = config(FULL, SLIDING.model_copy(update={"pool": "device"}), ranks=4)
    reports = [report(both, 10, 10, rank=rank, device=1000) for rank in range(4)]
    other_window = both.groups[1].model_copy(update={"window_tokens": 8})
    reports[1] = replace(reports[1], groups=(both.groups[0], other_window))
    reports[2] = replace(reports[2], block_tokens=8)
    reports[3] = replace(reports[3], groups=both.groups[:1])

    message = refusal(both, reports)

    assert "rank 1 has group 'sliding' with window_tokens 8 instead of 9" in message
    assert "rank 2 has block_tokens 8 instead of 4" in message
    assert "rank 3 has the groups ['full'] instead of ['full', 'sliding']" in message
    assert "rank 0" not in message


def test_reports_that_are_missing_or_incomplete_are_refused() -> None:
    """Ranks, groups and tiers."""
    two = config(ranks=2)
    first, second = (report(two, 10, rank=rank, device=1000) for rank in range(2))

    assert "ranks [0] have reported; each rank from 0 to 1 reports once" in refusal(two, [first])
    assert "ranks [0, 0] have reported" in refusal(two, [first, first])
    assert "rank 1 reports the bytes of 2 groups instead of 1" in refusal(
        two, [first, replace(second, group_bytes=raw(1, 2))]
    )
    assert "rank 1 reports None bytes for tier 'device' of pool 'device'" in refusal(
        two, [first, replace(second, tier_bytes={"host": 1})]
    )
    assert "no bytes on any rank" in refusal(config(), [report(config(), 0, device=1000)])


def test_shares_and_fractions_that_make_no_sense_are_refused() -> None:
    """Named, each with what to do."""
    both = config(FULL, SLIDING, pools=(OPEN, OPEN_WINDOWS))
    reports = [report(both, 10, 10, device=1000)]

    assert "pools ['windows'] of tier 'device' have no share" in refusal(both, reports, shares={"device": 0.5})
    assert "add up to 1.25" in refusal(both, reports, shares={"device": 0.5, "windows": 0.75})
    assert "share of pool 'device' is 0" in refusal(both, reports, shares={"device": 0, "windows": 0.5})
    assert "a share is given for pool 'other'" in refusal(both, reports, shares={"other": 0.5})
    assert "fraction of tier 'device' is 1.5" in refusal(both, reports, fractions={"device": 1.5})
    assert "a fraction is given for tier 'disk'" in refusal(both, reports, fractions={"disk": 0.5})


@pytest.mark.parametrize(
    ("shares", "fractions", "enough"),
    [
        (None, None, 3 * (10 + 20)),  # a null block, a block reserved and a block for the window; two for the other
        (None, {"device": 0.9}, 100),
        ({"device": 0.5, "windows": 0.5}, None, 2 * 3 * 20),
        ({"device": 0.125, "windows": 0.5}, None, 8 * 2 * 10),
    ],
)
def test_too_little_is_refused_with_what_is_enough(
    shares: dict[str, float] | None, fractions: dict[str, float] | None, enough: int
) -> None:
    """A byte less on one of two ranks is too little; with that many both pools can be used."""
    windows = PoolConfig(name="windows", blocks=AS_MANY_AS_FIT, reserved_blocks=1)
    both = config(FULL, SLIDING, pools=(OPEN, windows), ranks=2)
    plenty, little = (report(both, 10, 20, rank=rank, device=there) for rank, there in enumerate([9999, enough]))

    planned = plan_pools(both, [plenty, little], shares, fractions)
    with pytest.raises(ConfigError, match=f"rank 1 reports {enough - 1} bytes and needs {enough}$"):
        plan_pools(both, [plenty, replace(little, tier_bytes={"device": enough - 1})], shares, fractions)

    assert isinstance(Replica(planned).admit([NewSequence("a", 4)])[0], Admitted)


def test_a_configuration_that_is_not_sized_makes_no_replica() -> None:
    """Its arrays would have two thousand million entries."""
    for use in (Replica, lambda of: largest_batch(of, Shape(1))):
        with pytest.raises(ConfigError, match=re.escape("pools ['device'] have AS_MANY_AS_FIT blocks")):
            use(config())


def test_a_plan_never_takes_more_than_there_is_and_leaves_no_room_for_a_block(search: Search) -> None:
    """Random groups, pools, ranks and bytes; with shares, no room in the share of a pool on the rank with the least."""

    def run(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - chooses test cases
        drawn = random_config(chance, (AS_MANY_AS_FIT, AS_MANY_AS_FIT), tiers=chance.random() < 0.3)
        of = drawn.changed(ranks=chance.randint(1, 3))
        reports = []
        for rank in range(of.ranks):
            block_bytes = [chance.randint(1, 50) for _ in of.groups]
            reports.append(
                report(
                    of,
                    *block_bytes,
                    rank=rank,
                    device=chance.randint(20_000, 30_000),
                    host=chance.randint(20_000, 30_000),
                )
            )
        names = [pool.name for pool in of.pools]
        shares = {name: chance.choice([0.1, 0.29, 0.5]) for name in names} if chance.random() < 0.5 else None

        planned = plan_pools(of, reports, shares)

        slot_bytes = {
            name: [
                max(
                    one.group_bytes[number].raw_bytes
                    for number, group in enumerate(of.groups)
                    if group.pool == name.removeprefix("host ")
                )
                for one in reports
            ]
            for name in names
        }
        for pool in planned.pools:
            more_fits = []
            for one in reports:
                its_tier = [other for other in planned.pools if other.tier == pool.tier]
                taken = sum(other.blocks * slot_bytes[other.name][one.rank] for other in its_tier)
                there = one.tier_bytes[pool.tier]
                size = slot_bytes[pool.name][one.rank]
                if shares is None:
                    assert taken <= there
                    more_fits.append(taken + size <= there)
                else:
                    of_share = there * Fraction(str(shares[pool.name]))
                    assert pool.blocks * size <= of_share
                    more_fits.append((pool.blocks + 1) * size <= of_share)
            assert not all(more_fits)

    search.each(run)


# -- how many fit ------------------------------------------------------------------------------------------------------


def sized(*groups: GroupConfig, blocks: int, reserved_blocks: int = 0, **limits: int) -> Config:
    """Groups that share a pool of so many usable blocks."""
    pool = PoolConfig(blocks=blocks + 1, reserved_blocks=reserved_blocks)
    return config(*groups, pools=(pool,), limits=Limits(**limits))


def test_as_many_run_as_the_pool_holds_of_their_most() -> None:
    """Sequences of 40 tokens have ten blocks: 2 in 29, and 2.9 of them. Two beams share a prompt of two blocks."""
    full = sized(FULL, blocks=29)

    assert (largest_batch(full, Shape(40)), concurrency(full, Shape(40))) == (2, 2.9)
    assert (largest_batch(full, Shape(8), 32), concurrency(full, Shape(8), 32)) == (2, 2.9)
    assert concurrency(full, Shape(8, beams=2), 32) == 29 / 18
    assert largest_batch(sized(FULL, blocks=29, sequences_max=1), Shape(4)) == 1


def test_a_window_makes_room_for_more() -> None:
    """A window of 9 holds three blocks of any length; of a prompt all of it at once. Drafts may need one more."""
    window = sized(SLIDING.model_copy(update={"pool": "device"}), blocks=30)

    assert largest_batch(window, Shape(4), 400) == 10
    assert largest_batch(window, Shape(40), 400) == 3
    assert largest_batch(window, Shape(4), 400, Pace(lag_tokens=4)) == 7


def test_the_pool_with_the_fewest_decides() -> None:
    """Ten blocks of 40 tokens in a pool of 40, three in one of 6."""
    pools = (PoolConfig(blocks=41), PoolConfig(name="windows", blocks=7))

    assert largest_batch(config(FULL, SLIDING, pools=pools), Shape(4), 36) == 2
    assert concurrency(config(FULL, SLIDING, pools=pools), Shape(4), 36) == 2.0


def test_the_last_one_leaves_alone_what_is_reserved() -> None:
    """Ten slots, 4 of them reserved: two of 2 blocks that grow to 4 fit, a third of 2 only without the reserve."""
    assert largest_batch(sized(FULL, blocks=10, reserved_blocks=4), Shape(8), 8) == 2
    assert largest_batch(sized(FULL, blocks=12, reserved_blocks=4), Shape(8), 8) == 2
    assert largest_batch(sized(FULL, blocks=12, reserved_blocks=2), Shape(8), 8) == 3
    assert largest_batch(sized(FULL, blocks=10, reserved_blocks=9), Shape(8), 8) == 0


def test_no_sequence_that_is_too_long_fits() -> None:
    """Of 20 tokens at most: five blocks, and not six."""
    short = sized(FULL, blocks=50, sequence_tokens_max=20)

    assert (largest_batch(short, Shape(16), 4), concurrency(short, Shape(16), 4)) == (10, 10.0)
    assert (largest_batch(short, Shape(16), 5), concurrency(short, Shape(16), 5)) == (0, 0.0)


def test_sequences_that_make_no_sense_are_refused() -> None:
    """Without tokens, without beams, with fewer new tokens than none."""
    for shape, new_tokens, name in [
        (Shape(0), 0, "prompt_tokens 0"),
        (Shape(1, beams=0), 0, "beams 0"),
        (Shape(1, encoder_tokens=-1), 0, "encoder_tokens -1"),
        (Shape(1), -1, "new_tokens -1"),
    ]:
        with pytest.raises(RequestError, match=f"sequences with {name}"):
            largest_batch(sized(FULL, blocks=9), shape, new_tokens)


def test_a_largest_batch_runs_to_its_end_and_is_nowhere_refused(search: Search) -> None:
    """Random groups: all are admitted together and run side by side, a token each in turn."""

    def run(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - chooses test cases
        of = random_config(chance, (20, 90))
        encoder_tokens = 4 * chance.randint(0, 2) if any(group.kind == "cross" for group in of.groups) else 0
        shape, new_tokens = (
            Shape(chance.randint(1, 20), encoder_tokens, chance.choice([1, 1, 2])),
            chance.randint(0, 30),
        )
        count = largest_batch(of, shape, new_tokens)
        replica = Replica(of)
        new = [
            NewSequence(number, shape.prompt_tokens, beams=shape.beams, encoder_tokens=encoder_tokens)
            for number in range(count)
        ]

        results = replica.admit(new)
        assert all(isinstance(result, Admitted) for result in results)
        for tokens in range(shape.prompt_tokens, shape.prompt_tokens + new_tokens + 1):
            for number in range(count):
                if tokens > shape.prompt_tokens:
                    replica.extend(number)
                replica.commit(number, tokens)

    search.each(run)
