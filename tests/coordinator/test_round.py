"""Rounds of several requests: everything is claimed first, then judged in order, then taken at once."""

from __future__ import annotations

from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.errors import OutOfBlocks
from kvtroupe.coordinator.messages import (
    AdmitReply,
    BindEvent,
    CommitRequest,
    MatchRequest,
    PinReply,
    PinRequest,
    PublishReply,
    ReleaseEvent,
)
from kvtroupe.coordinator.prefix_index import NOTHING_KNOWN
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.support import (
    Desk,
    admit,
    cache,
    chain,
    evidence,
    free_order,
    make_config,
    make_replica,
    messages_to,
    new,
    numbers,
    only_pool,
    replies,
    slots,
    snapshot,
    tables,
    without_counters,
)

# -- the order of slots ------------------------------------------------------------------------------------------------


def test_slots_are_handed_out_request_by_request_and_group_by_group() -> None:
    """In one take: all new blocks of a request in its first group, then those in its second, then the next request."""
    replica = make_replica("full", "full")

    a, b = replica.admit([new("a", "x"), new("b", "yz", spare_blocks=1)])

    assert tables(a) == [[1, 2], [3, 4]]
    assert tables(b) == [[5, 6, 7, 8], [9, 10, 11, 12]]
    assert only_pool(replica).ledger.generation[1:14].tolist() == [1] * 12 + [0]


def test_each_pool_has_its_own_order() -> None:
    """Groups of different pools take side by side, in as many takes as there are pools."""
    replica = make_replica("full@a", "full@b", "full@a", blocks={"a": 21, "b": 11})

    a, b = replica.admit([new("a", "x"), new("b", "y")])

    assert tables(a) == [[1, 2], [1, 2], [3, 4]]
    assert tables(b) == [[5, 6], [3, 4], [7, 8]]


def test_a_hit_is_shared_and_only_the_rest_is_taken() -> None:
    """Two requests of one round read the same blocks; each has its own from there on."""
    replica = make_replica("full")
    cache(replica, "xyz")

    a, b = replica.admit([new("a", "xyzu"), new("b", "xyv")])

    assert tables(a) == [[1, 2, 3, 4, 5]]
    assert tables(b) == [[1, 2, 6, 7]]
    assert only_pool(replica).ledger.uses[:8].tolist() == [1, 2, 2, 1, 1, 1, 1, 1]
    check(replica)


def test_requests_of_one_round_do_not_see_what_the_others_will_write() -> None:
    """Equal prompts are computed side by side when nothing was published before."""
    replica = make_replica("full")

    a, b = replica.admit([new("a", "xy"), new("b", "xy")])

    assert (tables(a), tables(b)) == ([[1, 2, 3]], [[4, 5, 6]])


# -- claims first ------------------------------------------------------------------------------------------------------


def test_what_a_later_request_hits_is_not_evicted_by_an_earlier_one() -> None:
    """The last cached blocks are claimed before the first request takes anything."""
    replica = make_replica("full", blocks=11)
    cache(replica, "xyz")
    cache(replica, "uv")  # free now: 6 to 10, then z y x, then v u

    a, b = replica.admit([new("a", "abcdef", extra_tokens=0), new("b", "xyz")])

    assert tables(a) == [[6, 7, 8, 9, 10, 5]]  # v, although z, y and x were free for longer
    assert tables(b) == [[1, 2, 3, 4]]  # u
    assert replica.counters().evictions == 2
    check(replica)


def test_what_a_request_hits_in_one_group_is_not_evicted_for_another_group() -> None:
    """Claims of all groups come before the first slot of any."""
    replica = make_replica("full", "full", blocks=9)
    cache(replica, "xyz")  # groups use 1 2 3 and 4 5 6

    result = admit(replica, new("a", "xyz"))

    assert tables(result) == [[1, 2, 3, 7], [4, 5, 6, 8]]
    assert result.cached_tokens == 12


def test_each_group_hears_of_the_blocks_that_it_has_lost() -> None:
    """Of a pool that three groups share, and of none that still stands."""
    replica = make_replica("full", "full", "full", blocks=10)
    cache(replica, "xyz")  # 1 2 3, 4 5 6, 7 8 9

    result = admit(replica, new("a", "u", extra_tokens=0, spare_blocks=1))

    assert tables(result) == [[3, 6], [9, 2], [5, 8]]
    assert [list(replica.published(f"full{group}")) for group in range(3)] == [[chain("x")]] * 3
    assert replica.counters().evictions == 6
    check(replica)


def test_groups_of_different_pools_lose_blocks_in_the_same_round() -> None:
    """Each hears of its own, whatever number it has."""
    replica = make_replica("full@a", "full@b", blocks={"a": 5, "b": 4})
    cache(replica, "xyz")

    result = admit(replica, new("a", "u"))

    assert tables(result) == [[4, 3], [3, 2]]
    assert [len(replica.published(group)) for group in ("full0", "full1")] == [2, 1]
    check(replica)


def test_hits_that_leave_the_free_order_count_as_needed() -> None:
    """A prompt that is cached whole still needs its cached blocks: nine of nine free ones, and one more."""
    replica = make_replica("full", blocks=11)
    cache(replica, "abcdefghi")
    admit(replica, new("running", "x", extra_tokens=0))

    (refused,) = replica.admit([new("a", "abcdefghi")])
    assert numbers(refused) == (10, 9, 0, 0)
    (result,) = replica.admit([new("a", "abcdefghi", extra_tokens=0)])

    assert tables(result) == [[1, 2, 3, 4, 5, 6, 7, 8, 9]]


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_refusal_says_what_was_needed_and_what_there_was() -> None:
    """Needed: new blocks and hits that are free; free: before the request's own claim; coming: behind a fence."""
    replica = make_replica("full", "full", blocks=31, reserved_blocks=2)
    cache(replica, "xyz")  # six slots
    admit(replica, new("fenced", "ab"))  # six
    replica.release("fenced", fence=3)
    admit(replica, new("running", "abc", spare_blocks=2))  # twelve
    assert len(free_order(replica)) == 12

    (result,) = replica.admit([new("a", "xyzuv", spare_blocks=1)])

    # 7 blocks less 3 of the hit, twice, and the six slots of the hit, which are free.
    assert numbers(result) == (14, 12, 6, 2)
    assert "device" in str(result)


def test_hits_that_somebody_else_uses_are_not_needed() -> None:
    """Only what leaves the free order counts."""
    replica = make_replica("full", blocks=9)
    cache(replica, "xyz")
    admit(replica, new("reader", "xy", extra_tokens=1))  # claims x and y, takes one: four are free, one of them z

    (result,) = replica.admit([new("a", "xyz", spare_blocks=4)])

    assert numbers(result) == (6, 5, 0, 0)


def test_a_refusal_counts_what_earlier_requests_of_the_round_will_take() -> None:
    """The second request finds three blocks less, and the third fits into what is left."""
    replica = make_replica("full", blocks=6)

    a, b, c = replica.admit([new("a", "xy"), new("b", "uv"), new("c", "w")])

    assert tables(a) == [[1, 2, 3]]
    assert numbers(b) == (3, 2, 0, 0)
    assert tables(c) == [[4, 5]]
    assert replica.counters().rounds == 1


def test_a_refusal_names_the_pool_that_is_short() -> None:
    """Of two pools, the second."""
    replica = make_replica("full@a", "full@b", blocks={"a": 21, "b": 5})
    admit(replica, new("old", "x"))

    (result,) = replica.admit([new("young", "yz")])

    assert isinstance(result, OutOfBlocks)
    assert (result.pool, *numbers(result)) == ("b", 3, 2, 0, 0)


def test_of_several_pools_that_are_short_the_first_is_named() -> None:
    """In the order of the configuration."""
    replica = make_replica("full@b", "full@a", blocks={"a": 6, "b": 5})
    admit(replica, new("old", "x"))

    (result,) = replica.admit([new("young", "abc")])

    assert isinstance(result, OutOfBlocks)
    assert (result.pool, *numbers(result)) == ("a", 4, 3, 0, 0)


def test_a_refusal_leaves_no_trace() -> None:
    """Free order, generations, uses, indexes, sequences: all as before, but for the counters."""
    replica = make_replica("full", "sliding:5", blocks=21, reserved_blocks=1)
    cache(replica, "xyz")
    cache(replica, "uvw")
    admit(replica, new("running", "xy"))
    before = snapshot(replica)

    (result,) = replica.admit([new("a", "xyz", spare_blocks=6)])

    assert numbers(result) == (16, 15, 0, 1)
    assert without_counters(snapshot(replica)) == without_counters(before)
    assert replica.counters().refused == 1
    check(replica)


def test_two_refusals_in_a_round_leave_no_trace() -> None:
    """Claims of both are undone, whichever blocks they share."""
    replica = make_replica("full", blocks=11)
    cache(replica, "uvwxyz")
    admit(replica, new("running", "ab"))
    before = snapshot(replica)

    results = replica.admit([new("a", "uvwx", spare_blocks=5), new("b", "uvwxyz", spare_blocks=3)])

    assert [type(result) for result in results] == [OutOfBlocks, OutOfBlocks]
    assert without_counters(snapshot(replica)) == without_counters(before)


# -- nobody is refused because of a later request ----------------------------------------------------------------------


def crowded_replica() -> Replica:
    """Ten usable blocks, all free, six of them with the chains xyz and uvw, the first one freed earlier."""
    replica = make_replica("full", blocks=11)
    cache(replica, "xyz")
    cache(replica, "uvw")
    assert free_order(replica) == [7, 8, 9, 10, 3, 2, 1, 6, 5, 4]
    return replica


def test_claims_of_later_requests_give_way_last_first() -> None:
    """The first request fits once the last claim is undone; the claim in between stands."""
    replica = crowded_replica()

    first, second, third = replica.admit([new("a", "abcdef"), new("b", "xyz", extra_tokens=0), new("c", "uvw")])

    # Claimed by b: x and y; by c: u, v and w. Five blocks are left for a, which needs seven.
    assert tables(first) == [[7, 8, 9, 10, 3, 6, 5]]
    # One block is left: b takes it in the same round, as its claim stood.
    assert tables(second) == [[1, 2, 4]]
    # c comes to the next round, when nothing is free and its chain is gone.
    assert numbers(third) == (4, 0, 0, 0)
    assert replica.counters().deferred == 1
    assert replica.counters().rounds == 4  # the first two for the chains that are cached
    check(replica)


def test_a_request_that_left_its_round_is_looked_up_again_in_the_next() -> None:
    """It hits what the first one has left of its chain."""
    replica = crowded_replica()

    first, second = replica.admit([new("a", "abcde", extra_tokens=0), new("b", "uvw", extra_tokens=0)])
    assert tables(first) == [[7, 8, 9, 10, 3]]
    assert tables(second) == [[4, 5, 2]]
    assert replica.counters().deferred == 0
    for sequence_id in ("a", "b"):
        replica.release(sequence_id)
    assert free_order(replica)[:6] == [2, 7, 8, 9, 10, 3]  # and then x, w, v, u
    first, second = replica.admit([new("c", "abcdefgh", extra_tokens=0), new("d", "uvw")])

    assert tables(first) == [[2, 7, 8, 9, 10, 3, 1, 6]]
    assert numbers(second) == (4, 2, 0, 0)  # u and v are still there
    assert replica.counters().deferred == 1


def test_several_later_requests_keep_their_order_in_the_next_round() -> None:
    """Those whose claims were undone come before all that wait, first come first served."""
    desk = Desk(make_config("full", blocks=8))
    desk.ask(1, new("writer", "xyz", extra_tokens=0))
    desk.answer(1, [NOTHING_KNOWN])
    for output in desk.send(CommitRequest(2, "writer", 12)):
        assert not isinstance(output, AdmitReply)
    desk.send(PublishReply(1, 0, None))
    desk.send(ReleaseEvent("writer"))  # seven are free, three of them x, y, z
    desk.ask(3, new("a", "abcde"), new("b", "xy"), new("c", "xyz"))
    desk.ask(4, new("d", "q"))

    outputs = desk.answer(2, [NOTHING_KNOWN, evidence(slots(1, 2)), evidence(slots(1, 2, 3))])

    assert replies(outputs) == []  # a is admitted, but its message is not complete
    (bind, ask) = messages_to(0, outputs)
    assert isinstance(bind, BindEvent)
    assert bind.evicted.tolist() == [3, 2]
    assert isinstance(ask, MatchRequest)
    assert [prompt.digests for prompt in ask.prompts] == [chain("xy"), chain("xyz"), chain("q")]
    assert desk.state.counters.deferred == 2


def test_a_request_that_does_not_fit_anyway_does_not_push_out_later_ones() -> None:
    """It is refused by numbers without their claims, and they keep their hits and their round."""
    replica = crowded_replica()
    admit(replica, new("running", "ab"))
    before = free_order(replica)

    first, second, third = replica.admit([new("a", "abcdefgh", extra_tokens=0), new("b", "xyz"), new("c", "uv")])

    assert len(before) == 7
    assert numbers(first) == (8, 7, 0, 0)
    assert tables(second) == [[1, 2, 3, 10]]
    assert tables(third) == [[4, 5, 6]]
    assert (replica.counters().deferred, replica.counters().refused) == (0, 1)
    assert replica.counters().evictions == 1
    check(replica)


def test_a_pin_behind_a_large_request_gives_way_too() -> None:
    """It stands in the next round, for what is left."""
    desk = Desk(make_config("full", blocks=4))
    desk.ask(1, new("writer", "xyz", extra_tokens=0))
    desk.answer(1, [NOTHING_KNOWN])
    desk.send(CommitRequest(2, "writer", 12))
    desk.send(PublishReply(1, 0, None))
    desk.send(ReleaseEvent("writer"))
    desk.ask(3, new("first", "q", extra_tokens=0))
    desk.ask(4, new("large", "r"))
    desk.send(PinRequest(5, "p", chain("xyz")))
    outputs = desk.answer(2, [NOTHING_KNOWN])  # evicts z

    assert len(replies(outputs)) == 1
    outputs = desk.answer(3, [NOTHING_KNOWN, evidence(slots(1, 2))])
    assert len(replies(outputs)) == 1  # large has both blocks; the pin is asked for again
    assert desk.free() == []

    assert desk.answer(4, [NOTHING_KNOWN]) == [PinReply(5, 0)]


# -- what is reserved --------------------------------------------------------------------------------------------------


def test_new_sequences_leave_reserved_blocks_alone() -> None:
    """Of ten usable blocks three are reserved: seven can be had, not eight."""
    replica = make_replica("full", blocks=11, reserved_blocks=3)
    admit(replica, new("a", "x", extra_tokens=0))

    (refused,) = replica.admit([new("b", "abcdefg", extra_tokens=0)])
    assert numbers(refused) == (7, 9, 0, 3)
    (result,) = replica.admit([new("b", "abcdef", extra_tokens=0)])

    assert tables(result) == [[2, 3, 4, 5, 6, 7]]


def test_running_sequences_may_grow_into_reserved_blocks() -> None:
    """That is what they are reserved for; when these are gone, too, growth is refused."""
    replica = make_replica("full", blocks=11, reserved_blocks=3)
    admit(replica, new("a", "abcde", extra_tokens=0))
    admit(replica, new("b", "fg", extra_tokens=0))

    reply = replica.grow(["a"], 3)
    assert reply.refused == (None,)
    (refusal,) = replica.grow(["a"], 1).refused

    assert numbers(refusal) == (1, 0, 0, 0)
