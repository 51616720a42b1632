"""The slow model of a replica, against examples worked out by hand: blocks of four tokens, slots in order 1, 2, 3..."""

from __future__ import annotations

import random
from collections import Counter
from typing import Literal

import pytest

from kvtroupe.coordinator import errors
from kvtroupe.coordinator.config import GroupConfig, Limits
from kvtroupe.coordinator.errors import OutOfBlocks, SequenceTooLong
from kvtroupe.coordinator.messages import NewSequence
from kvtroupe.coordinator.reference import ReferenceReplica
from kvtroupe.coordinator.reference_groups import ReferenceGroup
from kvtroupe.coordinator.reference_parts import ReferenceSequence
from kvtroupe.coordinator.retention import Retention
from tests.coordinator.support import chain, last_digest, make_config, new, split


def model(*groups: str, blocks: int = 21, reserved_blocks: int = 0, limits: Limits | None = None) -> ReferenceReplica:
    """A model with one pool."""
    return ReferenceReplica(make_config(*groups, blocks=blocks, reserved_blocks=reserved_blocks, limits=limits))


def admit(replica: ReferenceReplica, sequence: NewSequence) -> ReferenceSequence:
    """Admit one sequence that must fit."""
    (result,) = replica.admit([sequence])
    assert isinstance(result, ReferenceSequence)
    return result


def cache(replica: ReferenceReplica, words: str, retention: Retention = Retention()) -> None:  # noqa: B008 - frozen
    """Let a sequence of these blocks run and end."""
    admit(replica, NewSequence(f"cache {words}", 4 * len(words), chain(words), retention=retention))
    replica.commit(f"cache {words}", 4 * len(words))
    replica.release(f"cache {words}")


def free(replica: ReferenceReplica) -> list[int]:
    """The free order of the only pool."""
    return replica.pools[0].free_order()


# -- the free order ----------------------------------------------------------------------------------------------------


def test_private_blocks_go_to_the_front_and_published_ones_to_the_back_when_the_last_user_is_gone() -> None:
    """Of `a` [1, 2, 3, 5] and `b` [1, 2, 4] with 1 to 3 published: 5 and then 4 to the front; 3, then 2 and 1, back."""
    replica = model("full", blocks=12)
    admit(replica, new("a", "pqr", extra_tokens=0))
    replica.commit("a", 12)
    admit(replica, new("b", "pqs", extra_tokens=0))
    replica.extend("a")

    assert replica.running["a"].tables == [[1, 2, 3, 5]]
    assert replica.running["b"].tables == [[1, 2, 4]]

    replica.release("a")
    replica.release("b")

    assert free(replica) == [4, 5, 6, 7, 8, 9, 10, 11, 3, 2, 1]


def test_the_last_block_of_a_sequence_is_taken_before_the_others() -> None:
    """18 tokens fill four blocks and begin a fifth, which nobody can reuse."""
    replica = model("full", blocks=10)
    admit(replica, new("a", "pqrs", extra_tokens=2))
    replica.commit("a", 18)
    replica.release("a")

    assert free(replica) == [5, 6, 7, 8, 9, 4, 3, 2, 1]


def test_groups_are_given_back_side_by_side() -> None:
    """No group loses its last blocks long before another: block 3 of both, then block 2 of both."""
    replica = model("full", "full", blocks=10)
    cache(replica, "pqr")

    assert free(replica) == [7, 8, 9, 3, 6, 2, 5, 1, 4]


def test_hits_leave_the_free_order_and_come_back_at_its_end() -> None:
    """What was used last is taken last."""
    replica = model("full", blocks=6)
    cache(replica, "pq")
    cache(replica, "xy")
    assert free(replica) == [5, 2, 1, 4, 3]

    hit = admit(replica, new("a", "p", extra_tokens=1))

    assert (hit.cached_tokens, hit.tables) == (4, [[1, 5]])
    assert free(replica) == [2, 4, 3]

    replica.release("a")

    assert free(replica) == [5, 2, 4, 3, 1]


def test_lower_priorities_are_taken_first_and_expired_ones_join_the_end_of_the_default() -> None:
    """Of those that expire at once, the one with the earlier time goes first, whatever its priority was."""
    replica = model("full", blocks=6)
    cache(replica, "p", Retention(80, 5.0))
    cache(replica, "q", Retention(10, 4.0))
    cache(replica, "r")
    assert free(replica) == [4, 5, 2, 3, 1]

    replica.tick(3.9)
    assert free(replica) == [4, 5, 2, 3, 1]

    replica.tick(5.0)
    assert free(replica) == [4, 5, 3, 2, 1]


def test_taking_a_published_block_removes_it_from_its_index_only() -> None:
    """The block of the other group, and the blocks before it, can still be found."""
    replica = model("full", "sliding:8", blocks=5)
    cache(replica, "pq")
    assert free(replica) == [2, 4, 1, 3]

    admit(replica, NewSequence("b", 1))

    assert replica.running["b"].tables == [[2], [4]]
    assert replica.published(0) == {last_digest("p"): (1, 1)}
    assert replica.published(1) == {last_digest("p"): (3, 1)}
    assert replica.pools[0].generation == [0, 1, 2, 1, 2]
    assert replica.counters.evictions == 2


# -- windows -----------------------------------------------------------------------------------------------------------


def test_blocks_leave_a_window_newest_first() -> None:
    """A window of 8 tokens after 20 reads from token 13 on, which is in block 3; after 28, from block 5 on."""
    replica = model("sliding:8", blocks=12)
    admit(replica, new("a", "pqrst", extra_tokens=0))
    replica.commit("a", 20)
    replica.extend("a", 8)

    assert replica.running["a"].tables == [[0, 0, 0, 4, 5, 6, 7]]
    assert free(replica)[-3:] == [3, 2, 1]

    replica.commit("a", 28, chain("pqrstuv")[5 * 8 :])
    replica.extend("a", 12)

    assert replica.running["a"].tables == [[0, 0, 0, 0, 0, 6, 7, 8, 9, 10]]
    assert free(replica)[-5:] == [3, 2, 1, 5, 4]


def test_a_sliding_hit_reads_only_the_end_of_the_chain() -> None:
    """A window of 8 tokens needs the two blocks before the first token that is computed."""
    replica = model("sliding:8", blocks=41)
    cache(replica, "abcdefghij")

    assert admit(replica, new("same", "abcdefghij", extra_tokens=0)).tables == [[0, 0, 0, 0, 0, 0, 0, 8, 9, 11]]
    assert admit(replica, new("first 26", "abcdef", extra_tokens=2)).tables == [[0, 0, 0, 0, 5, 6, 12]]


def test_a_hit_is_as_long_as_all_groups_can_serve() -> None:
    """The full group holds slots 1 to 10, the sliding one 11 to 20; 30 equal tokens are seven blocks."""
    replica = model("full", "sliding:8", blocks=41)
    cache(replica, "abcdefghij")

    hit = admit(replica, new("b", "abcdefg", extra_tokens=2))

    assert hit.cached_tokens == 28
    assert hit.tables == [[1, 2, 3, 4, 5, 6, 7, 21], [0, 0, 0, 0, 0, 16, 17, 22]]


@pytest.mark.parametrize(
    ("window_tokens", "published", "lengths"),
    [
        (None, "abc", {0, 1, 2, 3}),
        (None, "abcef", {0, 1, 2, 3}),
        (None, "bcdef", {0}),
        (8, "cdf", {0, 4}),  # two blocks are needed
        (8, "adef", {0, 1, 5, 6}),  # a stretch that begins at block 0 may be shorter
        (5, "bef", {0, 2, 5, 6}),  # one block
        (6, "bef", {0, 6}),  # a token more: two blocks
        (1, "", {0, 1, 2, 3, 4, 5, 6}),  # nothing at all
    ],
)
def test_the_lengths_that_a_group_can_serve(window_tokens: int | None, published: str, lengths: set[int]) -> None:
    """Of a chain of six blocks with holes."""
    kind: Literal["full", "sliding"] = "sliding" if window_tokens else "full"
    group = ReferenceGroup(0, 0, kind, GroupConfig(name="it", kind=kind, window_tokens=window_tokens), 4)
    group.slot_of = {last_digest("abcdef"[: "abcdef".index(word) + 1]): 1 for word in published}

    assert group.lengths(split(chain("abcdef"))) == lengths


# -- rounds ------------------------------------------------------------------------------------------------------------


def test_equal_prompts_that_run_at_once_share_nothing_and_the_first_commit_is_found() -> None:
    """`b` keeps its own blocks, which stay private; a third hits those of `a`."""
    replica = model("full", blocks=12)
    replica.admit([new("a", "pq"), new("b", "pq")])
    assert replica.commit("a", 9) == [2]
    assert replica.commit("b", 9) == [0]

    assert admit(replica, new("c", "pq")).tables == [[1, 2, 7]]
    assert replica.counters.duplicates == 2


def test_a_refusal_says_what_was_needed_and_leaves_no_trace() -> None:
    """`c` hits two free blocks and needs three more; of five free ones, one is reserved, and two are still to come."""
    replica = model("full", blocks=10, reserved_blocks=1)
    cache(replica, "pq")
    admit(replica, NewSequence("a", 8))
    admit(replica, NewSequence("b", 8))
    replica.release("a", fence=1)
    before = free(replica)
    assert before == [7, 8, 9, 2, 1]

    (refusal,) = replica.admit([new("c", "pqrs")])

    assert isinstance(refusal, OutOfBlocks)
    assert refusal.args == ("device", 5, 5, 2, 1)
    assert free(replica) == before
    assert replica.pools[0].next_generation == 4


def test_claims_of_later_requests_are_undone_last_first() -> None:
    """`a` needs six of eight free blocks; `b` hits one of them, `c` two: without `c` both others fit."""
    replica = model("full", blocks=9)
    cache(replica, "p")
    cache(replica, "xy")
    assert free(replica) == [4, 5, 6, 7, 8, 1, 3, 2]

    a, b, c = replica.admit([NewSequence("a", 24), new("b", "p"), new("c", "xy")])

    assert isinstance(a, ReferenceSequence)
    assert isinstance(b, ReferenceSequence)
    assert isinstance(c, OutOfBlocks)
    assert a.tables == [[4, 5, 6, 7, 8, 3]]  # slot 1 is claimed
    assert b.tables == [[1, 2]]
    assert replica.counters.deferred == 1


def test_a_round_takes_no_more_than_its_limit_but_always_one() -> None:
    """Two requests of three blocks each fit into a round of seven; the third waits for the next one."""
    replica = model("full", blocks=30, limits=Limits(round_blocks_max=7))
    replica.admit([NewSequence(name, 12) for name in "abc"])
    assert replica.counters.rounds == 2
    assert [replica.pools[0].generation[slot] for slot in (1, 4, 7)] == [1, 1, 2]

    admit(replica, NewSequence("d", 40))
    assert replica.counters.rounds == 3


def test_growth_may_use_what_is_reserved() -> None:
    """New sequences leave a block alone; a running one gets it; then there is none."""
    replica = model("full", blocks=5, reserved_blocks=1)
    admit(replica, NewSequence("a", 8))
    admit(replica, NewSequence("c", 4))
    assert isinstance(replica.admit([NewSequence("b", 1)])[0], OutOfBlocks)

    assert replica.grow(["a"]) == [None]
    (refusal,) = replica.grow(["a"])
    assert isinstance(refusal, OutOfBlocks)
    assert refusal.args == ("device", 1, 0, 0, 0)


def test_what_can_never_fit_is_told_apart_from_what_does_not_fit_now() -> None:
    """Of four usable blocks, five are too many for a full group; a sliding one may find most of them behind it."""
    assert isinstance(model("full", blocks=5).admit([new("a", "pqrst", extra_tokens=0)])[0], SequenceTooLong)
    assert isinstance(model("sliding:8", blocks=5).admit([new("a", "pqrst", extra_tokens=0)])[0], OutOfBlocks)


# -- fences and pins ---------------------------------------------------------------------------------------------------


def test_fenced_slots_are_free_when_their_step_is_done() -> None:
    """By step, then by order of return; a fence that has passed already does not wait."""
    replica = model("full", blocks=5)
    for name in "abcd":
        admit(replica, NewSequence(name, 4))
    replica.release("a", fence=2)
    replica.release("b", fence=1)
    replica.release("c", fence=1)
    assert free(replica) == []

    replica.steps_done(2)
    assert free(replica) == [1, 3, 2]

    replica.release("d", fence=2)
    assert free(replica) == [4, 1, 3, 2]
    with pytest.raises(errors.FenceError):
        replica.steps_done(1)


def test_a_pin_keeps_a_prefix() -> None:
    """Also its last block, which a prompt would have to compute again; and only until it is given back."""
    replica = model("full", blocks=5)
    cache(replica, "pq")

    assert replica.pin("x", chain("pqr")) == 8
    assert free(replica) == [3, 4]

    replica.unpin("x")
    assert free(replica) == [3, 4, 2, 1]


# -- all of it ---------------------------------------------------------------------------------------------------------


def assert_sound(replica: ReferenceReplica) -> None:
    """Every slot is free once, or used as often as there are holders; the indexes name exactly what is published."""
    for number, pool in enumerate(replica.pools):
        held = Counter(slot for _, _, places in replica.holders() for its, slot in places if its == number)
        assert +pool.uses == held
        assert sorted(pool.free_order() + list(held)) == list(range(1, len(pool.generation)))
        named = {slot for group in replica.groups if group.pool == number for slot in group.slot_of.values()}
        assert named == set(pool.published)


@pytest.mark.parametrize("seed", range(3))
def test_the_model_stays_sound_and_ends_with_everything_free(seed: int) -> None:
    """Under 300 random steps."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    replica = model("full", "sliding:9", "sliding:1", blocks=31)
    for step in range(300):
        names = list(replica.running)
        what = chance.random()
        if what < 0.4 or not names:
            words = "".join(chance.choices("ab", k=chance.randint(1, 5)))
            replica.admit([new(step, words, extra_tokens=chance.randint(0, 3), spare_blocks=chance.randint(0, 1))])
        elif what < 0.6:
            one = replica.running[chance.choice(names)]
            replica.commit(one.sequence_id, chance.randint(one.committed_tokens, one.capacity_tokens), fence=step)
        elif what < 0.7:
            replica.grow(chance.sample(names, k=1))
        else:
            replica.release(chance.choice(names), chance.choice([None, step]))
        if chance.random() < 0.2:
            replica.steps_done(step)
        assert_sound(replica)
    for name in list(replica.running):
        replica.release(name)
    replica.steps_done(300)

    assert sorted(free(replica)) == list(range(1, 31))
