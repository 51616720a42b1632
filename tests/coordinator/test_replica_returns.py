"""What sequences and pins give back, in which order, and how long it stays as cache."""

from __future__ import annotations

from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.messages import NewSequence
from kvtroupe.coordinator.replica import Replica
from kvtroupe.coordinator.retention import Retention
from tests.coordinator.support import (
    admit,
    cache,
    chain,
    free_order,
    make_replica,
    new,
    only_pool,
    split,
    tables_of,
)

# -- what is given back ------------------------------------------------------------------------------------------------


def test_two_sequences_that_share_a_prefix_end_one_after_the_other() -> None:
    """Private blocks go to the front, newest first; shared ones to the back when the last user has ended."""
    replica = make_replica("full", blocks=12)
    admit(replica, new("a", "xyz", extra_tokens=0))
    replica.commit("a", 12)
    admit(replica, new("b", "xyw", extra_tokens=0))
    replica.extend("a")
    assert (tables_of(replica, "a"), tables_of(replica, "b")) == ([[1, 2, 3, 5]], [[1, 2, 4]])

    replica.release("a")
    replica.release("b")

    assert free_order(replica) == [4, 5, 6, 7, 8, 9, 10, 11, 3, 2, 1]
    assert quiescent(replica)


def test_a_prefix_is_lost_from_its_end() -> None:
    """The last block is given back first and so taken first; the unfinished one before all."""
    replica = make_replica("full", blocks=10)
    admit(replica, new("a", "wxyz", extra_tokens=2))
    replica.commit("a", 18)

    replica.release("a")

    assert free_order(replica) == [5, 6, 7, 8, 9, 4, 3, 2, 1]


def test_groups_are_given_back_side_by_side() -> None:
    """Block by block, so that no group loses its end long before another; nulls are skipped."""
    replica = make_replica("full", "sliding:5", blocks=9)
    admit(replica, new("a", "xyz"))
    replica.commit("a", 13)
    assert tables_of(replica, "a") == [[1, 2, 3, 4], [0, 0, 7, 8]]
    assert free_order(replica) == [6, 5]

    replica.release("a")

    assert free_order(replica) == [8, 4, 6, 5, 3, 7, 2, 1]


def test_a_window_gives_blocks_back_with_every_commit() -> None:
    """Window of 8, blocks of 4: after 20 tokens three blocks have left it, after 28 two more, newest first."""
    replica = make_replica("sliding:8", blocks=12)
    admit(replica, new("a", "uvwxy", extra_tokens=0))
    replica.commit("a", 20)
    replica.extend("a", 8)
    assert tables_of(replica, "a") == [[0, 0, 0, 4, 5, 6, 7]]
    assert free_order(replica) == [8, 9, 10, 11, 3, 2, 1]

    replica.commit("a", 28)
    replica.extend("a", 12)

    assert tables_of(replica, "a") == [[0, 0, 0, 0, 0, 6, 7, 8, 9, 10]]
    assert free_order(replica) == [11, 3, 2, 1, 5, 4]
    check(replica)


def test_a_window_that_slid_still_serves_every_prefix_that_is_cached() -> None:
    """A sliding hit reads only the end of the prefix, and leaves the rest null."""
    replica = make_replica("sliding:8", blocks=21)
    admit(replica, new("a", "abcdefghij", extra_tokens=0))
    replica.commit("a", 40)

    whole = admit(replica, new("b", "abcdefghij", extra_tokens=0))
    part = admit(replica, new("c", "abcdef", extra_tokens=2))

    assert (whole.cached_tokens, whole.tables[0].tolist()) == (36, [0, 0, 0, 0, 0, 0, 0, 8, 9, 11])
    assert (part.cached_tokens, part.tables[0].tolist()) == (24, [0, 0, 0, 0, 5, 6, 12])


def test_slots_behind_a_fence_are_free_when_its_step_is_done() -> None:
    """Of a release and of blocks that slid out of a window."""
    replica = make_replica("sliding:4", blocks=10)
    admit(replica, new("a", "xyz"))
    replica.commit("a", 12, fence=7)
    replica.release("a", fence=8)
    assert free_order(replica) == [5, 6, 7, 8, 9]
    assert [(kind, one, held.tolist()) for kind, one, held in replica.holders("device")] == [
        ("fence", "a", [2, 1]),
        ("fence", "a", [4, 3]),
    ]

    replica.steps_done(6)
    assert free_order(replica) == [5, 6, 7, 8, 9]
    replica.steps_done(7)
    assert free_order(replica) == [5, 6, 7, 8, 9, 2, 1]
    replica.steps_done(8)

    assert free_order(replica) == [4, 5, 6, 7, 8, 9, 2, 1, 3]
    assert quiescent(replica)


def test_an_id_can_be_used_again_when_its_sequence_has_ended() -> None:
    """Even while slots of the first one wait behind a fence."""
    replica = make_replica("full")
    admit(replica, new("a", "x"))
    replica.release("a", fence=3)

    assert admit(replica, new("a", "x")).tables[0].tolist() == [3, 4]
    replica.steps_done(3)

    assert tables_of(replica, "a") == [[3, 4]]
    check(replica)


# -- retention and pins ------------------------------------------------------------------------------------------------


def keep(replica: Replica, words: str, retention: Retention, now_s: float = 0.0) -> None:
    """Cache a chain with a retention."""
    admit(replica, NewSequence(words, 4 * len(words), chain(words), 0, retention))
    replica.commit(words, 4 * len(words), now_s=now_s)
    replica.release(words)


def test_lower_priorities_are_evicted_first() -> None:
    """Whenever they were freed."""
    replica = make_replica("full", blocks=7)
    for words, priority in [("a", 80), ("b", 10), ("c", 35), ("d", 10), ("e", 0), ("f", 100)]:
        keep(replica, words, Retention(priority))

    assert free_order(replica) == [5, 2, 4, 3, 1, 6]


def test_a_priority_ends_its_duration_after_publication() -> None:
    """Counted from the commit that published the block; a tick lets time pass."""
    replica = make_replica("full", blocks=4)
    keep(replica, "a", Retention(80, 10.0), now_s=5.0)
    keep(replica, "b", Retention(35))
    keep(replica, "c", Retention(0, 20.0), now_s=5.0)

    priority = only_pool(replica).ledger.free_order.priority
    replica.tick(14.9)
    assert (free_order(replica), priority[1:].tolist()) == ([3, 2, 1], [80, 35, 0])
    replica.tick(15.0)
    assert (free_order(replica), priority[1:].tolist()) == ([3, 2, 1], [35, 35, 0])
    replica.tick(25.0)

    assert free_order(replica) == [2, 1, 3]
    check(replica)


def test_pinned_blocks_are_not_evicted() -> None:
    """Until the pin is given back; then they are the most recently used ones."""
    replica = make_replica("full", blocks=6)
    cache(replica, "xyz")
    cache(replica, "uv")

    assert replica.pin("p", chain("xyq")) == 8
    assert free_order(replica) == [3, 5, 4]
    admit(replica, new("a", "kl", extra_tokens=1))
    assert list(replica.published("full0")) == split(chain("xy"))
    replica.release("a")
    replica.unpin("p")

    assert free_order(replica) == [3, 5, 4, 2, 1]
    assert quiescent(replica)


def test_a_pin_of_what_nobody_has_holds_nothing() -> None:
    """It stands all the same, and its id is taken."""
    replica = make_replica("full", "sliding:8")

    assert replica.pin("p", chain("x")) == 0
    replica.unpin("p")

    assert quiescent(replica)
