"""What a retention with ranges does to the blocks of a sequence, from admission to eviction."""

from __future__ import annotations

from kvtroupe.coordinator.messages import NewSequence
from kvtroupe.coordinator.retention import Retention, RetentionRange
from tests.coordinator.support import admit, chain, free_order, make_replica, split, tables_of


def test_blocks_are_taken_in_the_order_of_the_retention_of_their_ranges() -> None:
    """Block 0 begins in the first range, block 1 in none, block 2 after the prompt of 8 tokens."""
    replica = make_replica("full", blocks=6)
    ranges = (RetentionRange(0, 3, 80),)
    admit(replica, NewSequence("a", 8, chain("pq"), 1, Retention(50, ranges=ranges, decode_priority=20)))
    replica.commit("a", 12, chain("pqr")[len(chain("pq")) :])
    ((first, second, third),) = tables_of(replica, "a")
    replica.release("a")
    assert free_order(replica)[-3:] == [third, second, first]


def test_a_range_falls_back_when_its_duration_is_over() -> None:
    """Both blocks are committed at 10 s. Block 1 is worth 90 for 5 s, then 35, as block 0 from the start."""
    replica = make_replica("full", blocks=6)
    retention = Retention(ranges=(RetentionRange(4, None, 90, 5.0),))
    admit(replica, NewSequence("a", 8, chain("pq"), 0, retention))
    replica.commit("a", 8, now_s=10.0)
    ((first, second),) = tables_of(replica, "a")
    replica.release("a")
    assert free_order(replica)[-2:] == [first, second]
    replica.tick(14.9)
    assert free_order(replica)[-2:] == [first, second]
    replica.tick(15.0)
    # Falling back is a use: block 1 joins the queue of priority 35 behind block 0, which was released last.
    assert free_order(replica)[-2:] == [first, second]
    admit(replica, NewSequence("b", 4 * 4))  # takes three plain slots and block 0
    assert list(replica.published("full0")) == [split(chain("pq"))[1]]


def test_blocks_that_a_group_did_not_take_leave_the_others_their_own_retention() -> None:
    """Block 0 is published already, so "b" publishes block 1 only: with the priority of block 1, not of block 0."""
    replica = make_replica("full", blocks=8)
    admit(replica, NewSequence("b", 8, chain("pq"), 0, Retention(ranges=(RetentionRange(0, 4, 90),), priority=10)))
    admit(replica, NewSequence("a", 4, chain("p")))
    replica.commit("a", 4)
    replica.commit("b", 8)
    ((a_first,),) = tables_of(replica, "a")
    ((_, b_second),) = tables_of(replica, "b")
    replica.release("a")
    replica.release("b")
    ledger = replica.state.pools[0].ledger
    assert ledger.priority_of(ledger.free_order.slots()[-2:]).tolist() == [10, 35]
    assert free_order(replica)[-2:] == [b_second, a_first]
