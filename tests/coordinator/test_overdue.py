"""Copies whose deadline has passed: nobody waits for them any more, and nobody is given what they still touch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.check import quiescent
from kvtroupe.coordinator.errors import OutOfBlocks, TransferFailed
from kvtroupe.coordinator.ledger import Holder
from kvtroupe.coordinator.messages import Admitted, ReleaseEvent, SequenceFailedEvent, TimerEvent
from tests.coordinator.losing import HOST, make
from tests.coordinator.support import new

if TYPE_CHECKING:
    from tests.coordinator.cluster import Cluster

HOST_ACTOR = ("tier", HOST, 0)


def let_pass(cluster: Cluster, seconds: float) -> list[SequenceFailedEvent]:
    """Time passes, and the timer says so: who fails."""
    cluster.now_s += seconds
    return [one for one in cluster.send(TimerEvent()) if isinstance(one, SequenceFailedEvent)]


def free(cluster: Cluster) -> int:
    """Free slots of the device."""
    return cluster.replica.pool("device").ledger.free


def test_who_writes_where_an_overdue_copy_reads_fails_and_is_not_given_the_same_again() -> None:
    """The whole device is evicted, and the host tier is silent: after 60 s its slots are nobody's until it answers."""
    cluster = make(blocks=(5, 20))
    cluster.cache("abcd")
    cluster.silent.add(HOST_ACTOR)
    (result,) = cluster.admit(new("a", "wxyz", extra_tokens=0))
    assert isinstance(result, Admitted)
    assert len(result.writes_after) == 1

    assert let_pass(cluster, 59.9) == []
    (failed,) = let_pass(cluster, 0.1)

    assert failed.sequence_id == "a"
    assert isinstance(failed.error, TransferFailed)
    cluster.send(ReleaseEvent("a"))
    assert free(cluster) == 0
    (refused,) = cluster.admit(new("b", "w", extra_tokens=0))
    assert isinstance(refused, OutOfBlocks)
    cluster.check()
    cluster.silent.clear()
    cluster.deliver()
    assert quiescent(cluster.replica)
    assert cluster.hit("abc") == 12
    cluster.check()


def test_slots_that_are_free_when_a_copy_is_overdue_are_taken_out_of_the_free_order() -> None:
    """Nobody waits for the copy at that time; one who is admitted later would, and for how long nobody knows."""
    cluster = make(blocks=(5, 20))
    cluster.cache("abcd")
    cluster.silent.add(HOST_ACTOR)
    cluster.admit(new("a", "wxyz", extra_tokens=0))
    cluster.send(ReleaseEvent("a"))
    assert free(cluster) == 4

    assert let_pass(cluster, 60.0) == []

    assert free(cluster) == 0
    assert cluster.replica.pool("device").ledger.uses_by_holder[Holder.TRANSFER] == 4
    cluster.check()
    cluster.silent.clear()
    cluster.deliver()
    assert quiescent(cluster.replica)
    cluster.check()


def test_what_an_overdue_copy_reads_can_be_hit() -> None:
    """It is copied down as it is published, and stays where it is: only nobody may write there."""
    cluster = make(blocks=(6, 20), offload="on_commit")
    cluster.silent.add(HOST_ACTOR)
    cluster.cache("abcd")

    assert let_pass(cluster, 60.0) == []

    assert free(cluster) == 1
    (result,) = cluster.admit(new("a", "abcd"))
    assert isinstance(result, Admitted)
    assert (result.cached_tokens, result.reads_after) == (16, ())
    cluster.send(ReleaseEvent("a"))
    cluster.check()
    cluster.silent.clear()
    cluster.deliver()
    assert quiescent(cluster.replica)
