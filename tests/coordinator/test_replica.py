"""A whole replica through its direct face: sequences live, share, slide and end; what can be inspected says so."""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.config import Limits
from kvtroupe.coordinator.errors import OutOfBlocks, SequenceTooLong
from kvtroupe.coordinator.messages import AdmitRequest, Admitted, GroupOutput, NewSequence
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.support import (
    admit,
    cache,
    chain,
    free_order,
    make_config,
    make_replica,
    new,
    only_pool,
    slots,
    snapshot,
    split,
    tables_of,
    without_counters,
)

# -- a sequence's life -------------------------------------------------------------------------------------------------


def test_what_one_prompt_computed_the_next_one_hits() -> None:
    """Blocks of tokens that are committed, with digests, are found by whoever has the same beginning."""
    replica = make_replica("full")
    first = admit(replica, new("a", "xyz", spare_blocks=1))
    assert (first.cached_tokens, first.capacity_tokens) == (0, 20)
    assert first.tables[0].tolist() == [1, 2, 3, 4, 5]

    assert replica.commit("a", 13).published_blocks == (3,)
    second = admit(replica, new("b", "xyu", extra_tokens=3))

    assert (second.cached_tokens, second.capacity_tokens) == (8, 16)
    assert second.tables[0].tolist() == [1, 2, 6, 7]
    check(replica)


def test_nothing_is_hit_before_it_is_committed() -> None:
    """Slots are held, but what is in them is not complete."""
    replica = make_replica("full")
    admit(replica, new("a", "xyz"))

    assert admit(replica, new("b", "xyz")).cached_tokens == 0
    replica.commit("a", 7)
    assert admit(replica, new("c", "xyz")).cached_tokens == 4


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    """A prompt of whole blocks that is cached to its end hits all but its last block: its logits are needed."""
    replica = make_replica("full")
    cache(replica, "xy")

    assert admit(replica, new("same", "xy", extra_tokens=0)).cached_tokens == 4
    assert admit(replica, new("longer", "xy", extra_tokens=1)).cached_tokens == 8


def test_only_blocks_with_digests_are_shared() -> None:
    """A client that gives two digests of four blocks looks up and publishes two."""
    replica = make_replica("full")

    admit(replica, NewSequence("a", 16, chain("xy")))
    assert replica.commit("a", 16).published_blocks == (2,)
    assert list(replica.published("full0")) == split(chain("xy"))
    cached = admit(replica, NewSequence("b", 16, chain("x"))).cached_tokens

    assert cached == 4


def test_digests_may_follow_with_commits() -> None:
    """Those of generated tokens are known later; each commit goes on where the digests known so far end."""
    replica = make_replica("full")
    admit(replica, NewSequence("a", 5, chain("x"), spare_blocks=2))

    assert replica.commit("a", 5).published_blocks == (1,)
    assert replica.commit("a", 9, split(chain("xy"))[1]).published_blocks == (1,)
    assert replica.commit("a", 14).published_blocks == (0,)
    assert replica.commit("a", 15, split(chain("xyz"))[2]).published_blocks == (1,)

    assert admit(replica, new("b", "xyz")).cached_tokens == 12
    check(replica)


def test_blocks_that_left_a_window_before_their_digests_came_are_not_published() -> None:
    """Their slots are somebody else's by then; the group with full attention still has all of them."""
    replica = make_replica("full", "sliding:4")
    admit(replica, NewSequence("a", 13))
    assert replica.commit("a", 12).published_blocks == (0, 0)
    assert tables_of(replica, "a") == [[1, 2, 3, 4], [0, 0, 7, 8]]

    assert replica.commit("a", 12, chain("xyz")).published_blocks == (3, 1)

    assert list(replica.published("sliding1").values()) == [(7, 1)]
    check(replica)


def test_the_digest_of_a_block_is_that_of_its_last_hash_block() -> None:
    """With four hash blocks to a block, digests may come one at a time, in the middle of a block."""
    replica = Replica(make_config("full", digests_per_block=4))
    digests = split(chain("abcdefgh"))
    admit(replica, NewSequence("a", 9, b"".join(digests[:3]), spare_blocks=1))

    assert replica.commit("a", 3).published_blocks == (0,)
    assert replica.commit("a", 6, digests[3] + digests[4]).published_blocks == (1,)
    assert replica.commit("a", 8, digests[5]).published_blocks == (0,)
    assert replica.commit("a", 8, digests[6] + digests[7]).published_blocks == (1,)

    assert replica.published("full0") == {digests[3]: (1, 1), digests[7]: (2, 1)}
    assert admit(replica, NewSequence("b", 9, chain("abcdefgh"))).cached_tokens == 8
    assert admit(replica, NewSequence("c", 9, chain("abcdefg"))).cached_tokens == 4


def test_a_block_that_is_published_already_stays_private() -> None:
    """The later one of two equal writers keeps its own blocks, which are worth nothing when it ends."""
    replica = make_replica("full", blocks=9)
    admit(replica, new("a", "xyz", extra_tokens=0))
    admit(replica, new("b", "xyu", extra_tokens=0))
    replica.commit("a", 12)

    assert replica.commit("b", 12).published_blocks == (1,)
    assert replica.counters().duplicates == 2
    replica.release("b")

    assert free_order(replica) == [4, 5, 7, 8, 6]
    check(replica)


def test_commits_may_come_in_any_steps() -> None:
    """Also twice the same; a block is offered once."""
    replica = make_replica("full")
    admit(replica, new("a", "xyz"))

    published = [replica.commit("a", tokens).published_blocks for tokens in (0, 3, 4, 4, 11, 13)]

    assert published == [(0,), (0,), (1,), (0,), (1,), (1,)]


# -- extend and grow ---------------------------------------------------------------------------------------------------


def test_tokens_go_into_spare_blocks_before_new_ones_are_taken() -> None:
    """Then a sequence grows by as many blocks as the tokens need."""
    replica = make_replica("full", "full")
    admit(replica, new("a", "x", spare_blocks=1))

    for _ in range(7):
        replica.extend("a")
    assert tables_of(replica, "a") == [[1, 2, 3], [4, 5, 6]]
    assert (replica.sequence("a").tokens, replica.sequence("a").capacity_tokens) == (12, 12)
    replica.extend("a")
    assert tables_of(replica, "a") == [[1, 2, 3, 7], [4, 5, 6, 8]]
    replica.extend("a", 12)

    assert tables_of(replica, "a") == [[1, 2, 3, 7, 9, 10, 11], [4, 5, 6, 8, 12, 13, 14]]
    assert (replica.sequence("a").tokens, replica.sequence("a").capacity_tokens) == (25, 28)
    check(replica)


def test_an_extension_that_does_not_fit_leaves_no_trace() -> None:
    """Not one token is appended."""
    replica = make_replica("full", blocks=7)
    admit(replica, new("a", "xy", extra_tokens=2))
    admit(replica, new("b", "z"))
    before = snapshot(replica)

    with pytest.raises(OutOfBlocks) as refusal:
        replica.extend("a", 7)

    assert (refusal.value.needed, refusal.value.free) == (2, 1)
    assert without_counters(snapshot(replica)) == without_counters(before)
    replica.extend("a", 6)
    assert tables_of(replica, "a") == [[1, 2, 3, 6]]


def test_growth_that_no_pool_can_hold_is_not_told_to_try_again() -> None:
    """Of four usable blocks a sequence holds three: two more can never be had, one more can."""
    replica = make_replica("full", blocks=5)
    admit(replica, new("a", "xy"))
    before = snapshot(replica)

    with pytest.raises(SequenceTooLong, match="would hold 5 slots of pool 'device' at least, which has 4"):
        replica.extend("a", 8)

    assert without_counters(snapshot(replica)) == without_counters(before)
    replica.extend("a", 7)


def test_growth_counts_on_what_will_leave_a_window() -> None:
    """With a window of one block, a sequence of three gives two back when it commits: growth may be asked for again."""
    replica = make_replica("sliding:4", blocks=4)
    admit(replica, new("a", "xy", extra_tokens=4))

    with pytest.raises(OutOfBlocks):
        replica.extend("a")
    replica.commit("a", 12)
    replica.extend("a")

    assert tables_of(replica, "a")[0][:2] == [0, 0]


def test_a_sequence_does_not_grow_beyond_the_limit() -> None:
    """Of 20 tokens a sequence may fill all; the next one is refused, by extension or growth, and others still grow."""
    replica = Replica(make_config("full", limits=Limits(sequence_tokens_max=20)))
    admit(replica, new("a", "xyz"))
    admit(replica, new("b", "x", extra_tokens=0))
    replica.extend("a", 7)
    before = snapshot(replica)

    with pytest.raises(SequenceTooLong, match="'a' would get room for 24 tokens; sequence_tokens_max is 20"):
        replica.extend("a")
    assert without_counters(snapshot(replica)) == without_counters(before)
    reply = replica.grow(["a", "b"], 4)

    assert isinstance(reply.refused[0], SequenceTooLong)
    assert reply.refused[1] is None
    assert len(tables_of(replica, "b")[0]) == 5


# -- what can never fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "blocks", "reserved_blocks"), [(("full",), 9, 0), (("full",), 11, 2), (("full", "sliding:8"), 17, 0)]
)
def test_the_longest_sequence_fills_the_pool(groups: tuple[str, ...], blocks: int, reserved_blocks: int) -> None:
    """Eight blocks fit into an empty pool; nine never do, and that is said at once."""
    replica = make_replica(*groups, blocks=blocks, reserved_blocks=reserved_blocks)

    (too_long,) = replica.admit([NewSequence("b", 33)])
    assert isinstance(too_long, SequenceTooLong)
    (too_long,) = replica.admit([NewSequence("c", 29, spare_blocks=1)])
    assert isinstance(too_long, SequenceTooLong)

    assert len(admit(replica, NewSequence("a", 32)).tables[0]) == 8


def test_blocks_that_a_window_can_leave_behind_need_no_slot() -> None:
    """A prompt longer than the pool may be admitted if a hit covers its beginning; else it is short of blocks."""
    replica = make_replica("sliding:5", blocks=6)

    (never,) = replica.admit([NewSequence("a", 32)])
    (now,) = replica.admit([NewSequence("b", 32, chain("abcdefgh"))])

    assert isinstance(never, SequenceTooLong)
    assert isinstance(now, OutOfBlocks)
    assert (now.needed, now.free) == (8, 5)


@pytest.mark.parametrize(("tokens", "spare_blocks"), [(2**70, 0), (1, 2**70), (2**24 + 1, 0), (1, 2**22)])
def test_absurd_lengths_are_refused_by_the_limit(tokens: int, spare_blocks: int) -> None:
    """Before anything is allocated for them; nothing changes but the counter."""
    replica = make_replica("full")
    before = snapshot(replica)

    (result,) = replica.admit([NewSequence("a", tokens, spare_blocks=spare_blocks)])

    assert isinstance(result, SequenceTooLong)
    assert "sequence_tokens_max is 16777216" in str(result)
    assert without_counters(snapshot(replica)) == without_counters(before)
    assert (replica.counters().refused, replica.counters().rounds) == (1, 0)


# -- inspection --------------------------------------------------------------------------------------------------------


def test_counters_say_what_has_happened() -> None:
    """Each of them, after a story in which all kinds of things happen; what is returned is a copy."""
    replica = make_replica("full", blocks=8)
    cache(replica, "xyz")
    replica.admit([new("a", "xyz"), new("b", "xyzuvw"), new("c", "q", extra_tokens=0)])
    replica.grow(["a", "c"])
    replica.grow(["c"], 5)
    replica.release("a")

    seen = replica.counters()
    assert (seen.rounds, seen.admitted, seen.refused, seen.deferred) == (4, 3, 1, 0)
    assert (seen.prompt_tokens, seen.hit_tokens) == (12 + 13 + 4, 12)
    assert (seen.grown, seen.growth_refused) == (2, 1)
    assert (seen.published, seen.duplicates, seen.evictions) == (3, 0, 0)
    assert (seen.stale_places, seen.late_answers, seen.released) == (0, 0, 2)
    seen.rounds = 99
    assert replica.counters().rounds == 4


def test_what_is_inspected_can_be_changed_without_harm() -> None:
    """Tables are read-only; lists and dicts are copies."""
    replica = make_replica("full", "sliding:8")
    result = admit(replica, new("a", "xyz"))
    replica.commit("a", 12)
    before = snapshot(replica)

    for table in (*result.tables, *replica.tables("a")):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 7
    replica.free_order("device")[:] = 0
    replica.published("full0").clear()
    replica.sequences().clear()
    replica.holders("device").clear()

    assert snapshot(replica) == before


def test_sequences_are_listed_in_order_of_admission() -> None:
    """Those that run."""
    replica = make_replica("full")
    for sequence_id in ("c", "a", "b"):
        admit(replica, new(sequence_id, "x"))
    replica.release("a")

    assert replica.sequences() == ["c", "b"]


def test_published_blocks_are_listed_with_their_places() -> None:
    """By group: digest, slot, and the generation of the take."""
    replica = make_replica("full", "sliding:8")
    cache(replica, "xy")
    admit(replica, new("a", "xz"))
    replica.commit("a", 8)

    x, y, z = *split(chain("xy")), split(chain("xz"))[1]
    assert replica.published("full0") == {x: (1, 1), y: (2, 1), z: (5, 2)}
    assert replica.published("sliding1") == {x: (3, 1), y: (4, 1), z: (7, 2)}


def test_a_table_given_out_does_not_change() -> None:
    """The client's copy is from the moment of the answer."""
    replica = make_replica("sliding:4")
    result = admit(replica, new("a", "xy"))

    replica.extend("a", 8)
    replica.commit("a", 9)

    assert result.tables[0].tolist() == [1, 2, 3]
    assert tables_of(replica, "a") == [[0, 2, 3, 4, 5]]


def test_both_faces_are_the_same_replica() -> None:
    """What a host steps by hand is there for the direct calls, too."""
    replica = make_replica("full")

    (asked,) = replica.step(AdmitRequest(500, (new("a", "x"),)), 0.0)
    assert isinstance(asked, GroupOutput)
    answer = replica.groups[0].handle(asked.message)
    assert answer is not None
    replica.step(answer, 0.0)

    assert replica.sequences() == ["a"]
    assert isinstance(replica.admit([new("b", "x")])[0], Admitted)
    assert only_pool(replica).ledger.uses[slots(1, 2, 3, 4)].tolist() == [1, 1, 1, 1]
