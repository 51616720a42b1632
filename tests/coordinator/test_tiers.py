"""Pools below the device: what goes down, what comes up, and what clients have to await."""

from __future__ import annotations

import random

import pytest

from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.messages import (
    AdmitRequest,
    Admitted,
    LookupRequest,
    MoveRequest,
    ReleaseEvent,
)
from kvtroupe.coordinator.replica import Replica
from kvtroupe.coordinator.retention import Retention
from tests.coordinator.cluster import Cluster
from tests.coordinator.support import DIGEST_BYTES, admit, cache, chain, new

FULL = GroupConfig(name="full")
SLIDING = GroupConfig(name="sliding", kind="sliding", window_tokens=9)
RECURRENT = GroupConfig(name="recurrent", kind="recurrent", snapshot_tokens=8)


def make_tiers(*groups: GroupConfig, blocks: tuple[int, ...], **device: object) -> Replica:
    """A replica with blocks of four tokens over a device pool, a host pool and perhaps a disk pool."""
    names = ["device", "host", "disk"][: len(blocks)]
    pools = []
    for number, (name, size) in enumerate(zip(names, blocks, strict=True)):
        below = names[number + 1] if number + 1 < len(names) else None
        more = device if name == "device" else {"offload": device.get("offload", "on_evict")} if below else {}
        pools.append(PoolConfig.model_validate({"name": name, "tier": name, "blocks": size, "below": below, **more}))
    return Replica(
        Config(
            namespace="test", block_tokens=4, digest_bytes=DIGEST_BYTES, groups=groups or (FULL,), pools=tuple(pools)
        )
    )


def below(replica: Replica, level: int) -> set[bytes]:
    """Digests that the first group has on a level below the device."""
    return {digest for digest, _, _ in replica.groups[0].index.entries_below(level)}


def digests(words: str) -> set[bytes]:
    """Of all blocks of a chain."""
    return {chain(words)[at : at + DIGEST_BYTES] for at in range(0, len(chain(words)), DIGEST_BYTES)}


# -- what goes down ----------------------------------------------------------------------------------------------------


def test_evicted_blocks_go_to_the_pool_below() -> None:
    """Eight slots hold two chains of four; a third needs the four of the first."""
    replica = make_tiers(blocks=(9, 9))
    for words in ("abcd", "efgh", "ijkl"):
        cache(replica, words)

    assert below(replica, 1) == digests("abcd")
    assert set(replica.published("full")) == digests("efgh") | digests("ijkl")
    assert replica.counters().demoted == replica.counters().landed == 4
    check(replica)


def test_where_there_is_not_room_for_all_the_beginning_of_a_chain_is_kept() -> None:
    """A host of two: of a, b, c and d the last two could not be hit without the first."""
    replica = make_tiers(blocks=(9, 3))
    for words in ("abcd", "efgh", "ijkl"):
        cache(replica, words)

    assert below(replica, 1) == digests("ab")
    assert replica.counters().demotions_given_up == 2


def test_content_of_low_priority_is_dropped() -> None:
    """The first chain has priority 10, and 20 are needed."""
    replica = make_tiers(blocks=(9, 9), offload_min_priority=20)
    sequence = new("low", "abcd", extra_tokens=0)
    admit(replica, type(sequence)("low", 16, chain("abcd"), 0, Retention(10)))
    replica.commit("low", 16)
    replica.release("low")
    cache(replica, "efgh")
    cache(replica, "ijkl")

    assert below(replica, 1) == set()


def test_on_commit_copies_are_made_at_once_and_not_again() -> None:
    """Eviction then has nothing left to copy."""
    replica = make_tiers(blocks=(9, 20), offload="on_commit")
    cache(replica, "abcd")
    assert below(replica, 1) == digests("abcd")

    cache(replica, "efgh")
    cache(replica, "ijkl")

    assert replica.counters().demoted == 12
    assert replica.counters().evictions == 4


def test_never_means_that_evicted_blocks_are_gone() -> None:
    """The pool below is filled by explicit moves only."""
    replica = make_tiers(blocks=(9, 9), offload="never")
    for words in ("abcd", "efgh", "ijkl"):
        cache(replica, words)

    assert below(replica, 1) == set()


def test_the_host_keeps_ahead_of_what_it_will_drop() -> None:
    """A host of six under a device of eight: what it would drop next has been copied to the disk before."""
    replica = make_tiers(blocks=(9, 7, 40))
    for words in ("abcd", "efgh", "ijkl", "mnop", "qrst"):
        cache(replica, words)

    assert below(replica, 2)
    check(replica)


# -- what comes up -----------------------------------------------------------------------------------------------------


def test_a_hit_below_the_device_is_brought_up_and_awaited() -> None:
    """All four blocks come from the host; the slots that they took were demoted from, which is to be awaited, too."""
    replica = make_tiers(blocks=(13, 14))
    for words in ("abcd", "efgh", "ijkl", "mnop"):
        cache(replica, words)
    assert digests("abcd") <= below(replica, 1)

    admitted = admit(replica, new("reader", "abcd"))

    assert admitted.cached_tokens == 16
    assert admitted.reads_after
    assert not admitted.encoder_cached
    assert replica.counters().promoted == 4
    assert digests("abcd") <= set(replica.published("full")) & below(replica, 1)
    check(replica)


def test_what_was_brought_up_is_not_copied_down_again() -> None:
    """It is below still: its slot on the device can simply be taken."""
    replica = make_tiers(blocks=(9, 30))
    for words in ("abcd", "efgh", "ijkl"):
        cache(replica, words)
    admit(replica, new("reader", "abcd", extra_tokens=1))
    replica.release("reader")
    before = replica.counters()

    cache(replica, "mnop")
    cache(replica, "qrst")

    assert digests("abcd").isdisjoint(set(replica.published("full")))
    assert digests("abcd") <= below(replica, 1)
    after = replica.counters()
    assert after.demoted - before.demoted == after.evictions - before.evictions - 4


def test_a_hit_on_disk_comes_through_the_host() -> None:
    """It is on three levels then."""
    replica = make_tiers(blocks=(6, 5, 30), offload="never")
    cache(replica, "abcd")
    for level in (1, 2):
        replica.move(chain("abcd"), level)
    for words in ("efgh", "ijkl"):  # the host, too, is filled with others
        cache(replica, words)
        replica.move(chain(words), 1)
    assert digests("abcd").isdisjoint(set(replica.published("full")) | below(replica, 1))
    assert digests("abcd") <= below(replica, 2)

    admitted = admit(replica, new("reader", "abcd"))

    assert admitted.cached_tokens == 16
    assert replica.counters().promoted == 8
    assert digests("abcd") <= set(replica.published("full")) & below(replica, 1) & below(replica, 2)
    check(replica)


def test_a_pin_keeps_blocks_below_the_device_where_they_are() -> None:
    """Nothing is copied for it, and nothing it holds is dropped."""
    replica = make_tiers(blocks=(9, 9))
    for words in ("abcd", "efgh", "ijkl"):
        cache(replica, words)

    assert replica.pin("p", chain("abcd")) == 16

    assert replica.counters().promoted == 0
    for words in ("mnop", "qrst", "uvwx", "yzab"):
        cache(replica, words)
    assert digests("abcd") <= below(replica, 1)
    check(replica)
    replica.unpin("p")
    assert quiescent(replica)


# -- lookups and moves -------------------------------------------------------------------------------------------------


def test_a_lookup_says_what_is_where_and_claims_nothing() -> None:
    """Three of four blocks below; nothing of the device, whose chain begins with the first of them."""
    replica = make_tiers(blocks=(9, 9))
    for words in ("abcd", "efgh", "ijkl"):
        cache(replica, words)
    before = [replica.free_order(pool.name).tolist() for pool in replica.config.pools]

    reply = replica.lookup(chain("abcx"), 17)

    assert (reply.hit_tokens, reply.device_tokens, reply.junction_tokens) == (12, 0, 0)
    assert reply.group_tokens == (12,)
    assert (reply.blocks, reply.used_blocks) == ((0, 3), (0, 0))
    assert (reply.new_blocks, reply.free_slots) == ((2, 0), (5, 0))  # three brought up; the last block and token 17
    assert [replica.free_order(pool.name).tolist() for pool in replica.config.pools] == before


def test_a_lookup_of_a_prompt_leaves_its_last_token_to_be_computed() -> None:
    """All four blocks are there; of 16 tokens only the first three blocks can be hit."""
    replica = make_tiers(blocks=(9, 9))
    cache(replica, "abcd")

    whole, prompt = (replica.lookup(chain("abcd"), tokens) for tokens in (None, 16))

    assert (whole.hit_tokens, prompt.hit_tokens) == (16, 12)


def test_blocks_can_be_offloaded_and_brought_back() -> None:
    """A copy below is made although nothing is evicted; later the device gets it back into free slots."""
    replica = make_tiers(blocks=(9, 9), offload="never")
    cache(replica, "abcd")

    down = replica.move(chain("abcd"), 1)
    assert (down.hit_tokens, down.begun_blocks, down.missing_blocks) == (16, 4, 0)
    assert below(replica, 1) == digests("abcd")
    cache(replica, "efgh")
    cache(replica, "ijkl")
    assert digests("abcd").isdisjoint(replica.published("full"))
    up = replica.move(chain("abcd"), 0)

    assert (up.hit_tokens, up.begun_blocks, up.missing_blocks) == (16, 4, 0)
    assert digests("abcd") <= set(replica.published("full"))
    check(replica)
    assert quiescent(replica)


# -- several at once ---------------------------------------------------------------------------------------------------


def test_what_a_hit_evicts_does_not_use_up_the_copies_that_the_hit_needs() -> None:
    """Two copies at a time: both bring blocks up, and of the two that are evicted for them none is copied down."""
    replica = make_tiers(blocks=(7, 20), copies_max_blocks=2)
    for words in ("ab", "cd", "ef", "gh"):
        cache(replica, words)
    assert digests("ab") <= below(replica, 1)
    before = replica.counters()

    admitted = admit(replica, new("reader", "ab"))

    after = replica.counters()
    assert admitted.cached_tokens == 8
    assert (after.promoted - before.promoted, after.demoted - before.demoted) == (2, 0)
    check(replica)


def test_a_block_that_is_brought_up_twice_in_one_round_is_given_back_twice() -> None:
    """A move and an admission want the same blocks, and are asked in one round."""
    cluster = Cluster(make_tiers(blocks=(17, 20)).config)
    cluster.cache("abcd", "efgh", "ijkl", "mnop", "qrst")
    cluster.silent.add(("group", 0, 0))
    cluster.send(LookupRequest(1, chain("x")))
    cluster.send(MoveRequest(2, chain("abcd"), 0))
    cluster.send(AdmitRequest(3, (new("reader", "abcd"),)))

    cluster.silent.clear()
    cluster.deliver()

    assert cluster.replica.counters().promoted == 8
    cluster.check()
    cluster.send(ReleaseEvent("reader"))
    cluster.check()
    assert quiescent(cluster.replica)


def test_a_copy_into_a_slot_that_was_given_back_does_not_stand_for_the_next_one() -> None:
    """A state is copied into the slot of a sequence that ends at once; the slot is then to get a block of the host.

    The second copy waits for the first. When the first is over, nothing has landed yet.
    """
    config = make_tiers(FULL, RECURRENT, blocks=(9, 9)).config
    cluster = Cluster(config)
    cluster.cache("ab", "cdef")  # the second one needs room: blocks of the first go down
    promoted_before = cluster.replica.counters().promoted
    cluster.silent = {("tier", 0, 0), ("tier", 1, 0)}
    (result,) = cluster.admit(new("a", "cdef"))
    assert isinstance(result, Admitted)
    assert result.cached_tokens == 16
    cluster.send(ReleaseEvent("a"))
    cluster.send(MoveRequest(7, chain("ab"), 0))
    assert cluster.replica.counters().promoted > promoted_before
    landed_before = cluster.replica.counters().landed

    cluster.silent = {("tier", 1, 0)}
    cluster.deliver()

    assert cluster.replica.counters().landed == landed_before
    cluster.check()
    cluster.silent = set()
    cluster.deliver()
    assert cluster.replica.counters().landed > landed_before
    assert cluster.hit("ab") == 8
    cluster.check()


def test_what_fails_to_be_read_before_the_group_has_heard_of_it_does_not_land() -> None:
    """Blocks of the disk have come to the host and are on their way into the index; then nobody can read them there."""
    cluster = Cluster(make_tiers(blocks=(6, 5, 30), offload="never").config)
    cluster.cache("abcd")
    for level in (1, 2):
        cluster.send(MoveRequest(level, chain("abcd"), level))
    for words in ("efgh", "ijkl"):
        cluster.cache(words)
        cluster.send(MoveRequest(3, chain(words), 1))
    assert digests("abcd").isdisjoint(set(cluster.replica.published("full")) | below(cluster.replica, 1))
    cluster.silent = {("tier", 2, 0)}
    (result,) = cluster.admit(new("a", "abcd"))
    assert isinstance(result, Admitted)
    assert result.cached_tokens == 16
    cluster.tiers[1, 0].failing = True

    cluster.silent = {("group", 0, 0)}
    cluster.deliver()
    cluster.silent = set()
    cluster.deliver()

    cluster.check()
    assert digests("abcd").isdisjoint(below(cluster.replica, 1))
    assert digests("abcd") <= below(cluster.replica, 2)
    assert quiescent(cluster.replica)


# -- anything at all ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("groups", [(FULL,), (FULL, SLIDING), (FULL, RECURRENT)])
def test_whatever_happens_every_invariant_holds(groups: tuple[GroupConfig, ...], seed: int) -> None:
    """Random prompts over few words, small pools, two or three tiers, every offload policy."""
    chance = random.Random(seed)  # noqa: S311 - chooses test cases
    blocks = [chance.randint(12, 30), chance.randint(4, 20), *([30] if seed % 2 else [])]
    replica = make_tiers(*groups, blocks=tuple(blocks), offload=chance.choice(["on_evict", "on_commit", "never"]))
    running: dict[int, str] = {}

    for step in range(100):
        what = chance.random()
        if what < 0.5:
            words = "".join(chance.choice("ab") for _ in range(chance.randint(1, 5)))
            if isinstance(replica.admit([new(step, words)], now_s=step)[0], Admitted):
                running[step] = words
        elif what < 0.6:
            replica.move(chain(chance.choice(["ab", "ba", "aab"])), chance.randint(0, len(blocks) - 1))
        elif running and what < 0.8:
            one = chance.choice(list(running))
            replica.commit(one, 4 * len(running[one]), now_s=step)
        elif running:
            one = chance.choice(list(running))
            replica.release(one)
            del running[one]
        check(replica)

    for one in running:
        replica.release(one)
    check(replica)
    assert quiescent(replica)
