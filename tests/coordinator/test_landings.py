"""Landings beside other copies, resets and losses: only what was meant to land does, and only where it still counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.check import quiescent
from kvtroupe.coordinator.config import GroupConfig
from kvtroupe.coordinator.messages import (
    AdmitReply,
    Admitted,
    MoveRequest,
    ReleaseEvent,
    ResetRequest,
    TimerEvent,
)
from tests.coordinator.losing import FULL, HOST, admission, make
from tests.coordinator.support import chain, last_digest, new

if TYPE_CHECKING:
    from tests.coordinator.cluster import Cluster

DEVICE_ACTOR = ("tier", 0, 0)
HOST_ACTOR = ("tier", HOST, 0)
GROUP = ("group", 0, 0)
RECURRENT = GroupConfig(name="recurrent", kind="recurrent", snapshot_tokens=4)


def lift_into_a_slot_that_is_still_written(delay_s: float) -> tuple[Cluster, int]:
    """A slot that a copy within the device still writes, and that blocks of "ab" are to be brought up into after it.

    The copy was of a state, for a sequence that has ended before it was there. Its destination was free again, and is
    one of those of the next sequence, which waits for it.

    Returns:
        the cluster, whose tier actors are silent, and the slot.
    """
    cluster = make(FULL, RECURRENT, blocks=(11, 40))
    cluster.cache("ab", "cd", "ef", "gh")
    cluster.silent.add(DEVICE_ACTOR)
    (reader,) = cluster.admit(new("reader", "gh"))
    assert isinstance(reader, Admitted)
    cluster.send(ReleaseEvent("reader"))
    cluster.silent.add(HOST_ACTOR)
    cluster.now_s += delay_s
    (lifter,) = cluster.admit(new("lifter", "ab"))
    assert isinstance(lifter, Admitted)
    assert lifter.cached_tokens == 8
    slot = int(reader.states[1][0])
    assert slot == lifter.tables[1][1]
    return cluster, slot


def test_the_end_of_another_copy_into_the_same_slot_brings_nothing() -> None:
    """The state of "gh" is in the slot now, and must not be published as that of "ab"."""
    cluster, slot = lift_into_a_slot_that_is_still_written(0.0)

    cluster.deliver_one(DEVICE_ACTOR)
    cluster.deliver()

    assert last_digest("ab") not in cluster.replica.published("recurrent")
    cluster.silent.clear()
    cluster.deliver()
    assert cluster.replica.published("recurrent")[last_digest("ab")][0] == slot
    cluster.check()


def test_what_arrives_later_in_a_slot_of_an_overdue_copy_lands() -> None:
    """The first copy is overdue after 60 s, and who waits for it fails; the other one goes on, and lands."""
    cluster, slot = lift_into_a_slot_that_is_still_written(30.0)
    cluster.now_s = 60.0
    cluster.send(TimerEvent())
    assert cluster.replica.sequences() == []

    cluster.silent.clear()
    cluster.deliver()

    assert cluster.replica.published("recurrent")[last_digest("ab")][0] == slot
    cluster.check()
    assert quiescent(cluster.replica)


def test_what_a_group_has_let_land_before_a_reset_is_not_hit_after_it() -> None:
    """Its answers were on their way when all was thrown away: a place that it names is one that has changed hands."""
    cluster = make(blocks=(9, 20), offload="on_commit")
    cluster.cache("ab", "cdefghij")
    cluster.silent.add(GROUP)
    cluster.send(MoveRequest(50, chain("ab"), 0))
    cluster.deliver_one(GROUP)  # what would be hit
    cluster.deliver()
    assert [type(one.message).__name__ for one in cluster.inbox(GROUP)] == ["BindEvent", "LandRequest"]
    cluster.send(admission("late"))
    cluster.send(ResetRequest(51))

    cluster.silent.clear()
    cluster.deliver()

    (reply,) = [one for one in cluster.events if isinstance(one, AdmitReply) and one.request_id == 77]
    (result,) = reply.results
    assert isinstance(result, Admitted)
    assert result.cached_tokens == 0
    cluster.check()
