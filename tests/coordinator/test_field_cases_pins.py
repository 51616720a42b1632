"""Pins and other holds that were given back twice, or never (A6, A7): holders, not counts.

Faults that users of other KV cache managers have reported, as scenarios here, each with neighbours: the same kind of
fault in another guise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.errors import InvariantError, OutOfBlocks, PinExists, UnknownPin, UnknownSequence
from kvtroupe.coordinator.ledger import Holder
from kvtroupe.coordinator.messages import (
    AdmitRequest,
    CancelRequest,
    ClientReply,
    LookupRequest,
    MoveRequest,
    NewSequence,
    PinReply,
    PinRequest,
    ReleaseEvent,
    TimerEvent,
    UnpinEvent,
)
from tests.coordinator.clients import attached, cluster_of, let_pass
from tests.coordinator.losing import FULL, SLIDING, admission, below, digests, make
from tests.coordinator.pools import cache as publish_and_free
from tests.coordinator.pools import claim, make_ledger
from tests.coordinator.support import admit, cache, chain, free_order, last_digest, make_replica, new, slots, split

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.coordinator.cluster import Cluster

# -- A6: given back twice ----------------------------------------------------------------------------------------------


def test_a_pin_given_back_twice_does_not_take_that_of_another_away() -> None:
    """P and Q pin the same block; the second unpin of P is an error, and the block stays until Q gives it back."""
    replica = make_replica("full", blocks=3)
    cache(replica, "c")
    replica.pin("P", chain("c"))
    replica.pin("Q", chain("c"))

    replica.unpin("P")
    with pytest.raises(UnknownPin):
        replica.unpin("P")
    with pytest.raises(PinExists):
        replica.pin("Q", chain("c"))

    assert isinstance(replica.admit([NewSequence("needs both", 8)])[0], OutOfBlocks)
    assert list(replica.published("full0")) == [last_digest("c")]

    replica.unpin("Q")
    admit(replica, NewSequence("needs both", 8))
    assert replica.published("full0") == {}
    check(replica)


def test_a_sequence_released_twice_does_not_take_a_pin_away() -> None:
    """Neighbour: two kinds of holder. A sequence reads the block that P pins, and is released twice."""
    replica = make_replica("full", blocks=3)
    cache(replica, "c")
    replica.pin("P", chain("c"))
    admit(replica, new("reads", "c"))

    replica.release("reads")
    with pytest.raises(UnknownSequence):
        replica.release("reads")

    assert isinstance(replica.admit([NewSequence("needs both", 8)])[0], OutOfBlocks)
    assert [holder[:2] for holder in replica.holders("device")] == [("pin", "P")]
    check(replica)


def test_a_fence_that_passes_twice_frees_its_slots_once() -> None:
    """Neighbour: step 3 is reported twice, and the block is somebody else's meanwhile."""
    replica = make_replica("full", blocks=3)
    admit(replica, new("a", "p", extra_tokens=0))
    replica.release("a", fence=3)
    replica.steps_done(3)
    admit(replica, NewSequence("needs both", 8))

    replica.steps_done(3)

    assert free_order(replica) == []
    check(replica)


def test_an_unpin_that_a_client_repeats_takes_no_other_pin_of_that_name_away() -> None:
    """Neighbour: its answer was lost. The client has used the name again since, and a pin of another is not its own."""
    cluster = cluster_of(blocks=3)
    cluster.cache("c")
    p, q = attached(cluster, "p", 1), attached(cluster, "q", 2)
    p.ask(PinRequest(0, "P", chain("c")))
    q.ask(PinRequest(0, "Q", chain("c")))
    p.ask(UnpinEvent("P"))
    p.ask(PinRequest(0, "P", chain("c")))

    assert p.send(2, UnpinEvent("P")) == [ClientReply(2, None)]
    assert isinstance(p.result(UnpinEvent("Q")), UnknownPin)

    assert sorted(cluster.replica.state.records.pins) == ["P", "Q"]
    cluster.check()


def test_a_pin_below_the_device_given_back_twice_leaves_that_of_another() -> None:
    """Neighbour: the pinned blocks are on the host only, and the host is filled with others."""
    cluster = make(blocks=(5, 5))
    cluster.cache("ab", "cdef")
    assert below(cluster, 1) == digests("ab")
    for pin_id in "PQ":
        cluster.send(PinRequest(1, pin_id, chain("ab")))
    cluster.send(UnpinEvent("P"))
    with pytest.raises(UnknownPin):
        cluster.send(UnpinEvent("P"))

    cluster.cache("ghij", "klmn")
    assert below(cluster, 1) >= digests("ab")
    cluster.check()

    cluster.send(UnpinEvent("Q"))
    cluster.cache("opqr", "stuv")
    assert digests("ab").isdisjoint(below(cluster, 1))
    cluster.check()


def test_no_count_goes_below_what_its_holder_holds() -> None:
    """Neighbour: whatever comes before, a ledger refuses to give back what this holder does not hold."""
    ledger = make_ledger()
    [slot] = publish_and_free(ledger, "c")
    claim(ledger, slot, holder=Holder.PIN)
    claim(ledger, slot, holder=Holder.SEQUENCE)
    ledger.release(slots(slot), Holder.PIN)

    with pytest.raises(InvariantError, match="PIN gives back 1 uses and holds 0"):
        ledger.release(slots(slot), Holder.PIN)

    assert ledger.uses[slot] == 1


# -- A7: never given back ----------------------------------------------------------------------------------------------


def _on_both_levels() -> Cluster:
    """Four blocks on the device, which has five slots, and the same on the host, which has four."""
    cluster = make(blocks=(6, 5), offload="never")
    cluster.cache("abcd")
    cluster.send(MoveRequest(1, chain("abcd"), 1))
    assert below(cluster, 1) == digests("abcd")
    return cluster


def _on_host_only() -> Cluster:
    """The same four blocks on the host; the device has other content."""
    cluster = _on_both_levels()
    cluster.cache("vwxyz")
    assert digests("abcd").isdisjoint(cluster.replica.published("full"))
    return cluster


def _finish(cluster: Cluster) -> None:
    cluster.run("a", "abcd")
    cluster.send(ReleaseEvent("a"))


def _abort_before_allocation(cluster: Cluster) -> None:
    client = attached(cluster, "p", 1)
    cluster.silent.add(("group", 0, 0))
    client.ask(AdmitRequest(0, (new("a", "abcd"),)))
    client.ask(CancelRequest(1))
    cluster.silent.clear()
    cluster.deliver()


def _refuse(cluster: Cluster) -> None:
    cluster.admit(NewSequence("fills", 4))
    (refused,) = cluster.admit(new("a", "abcd"))
    assert isinstance(refused, OutOfBlocks)
    cluster.send(ReleaseEvent("fills"))


def _look_up(cluster: Cluster) -> None:
    cluster.send(LookupRequest(1, chain("abcd")))


def _move_to_where_it_is(cluster: Cluster) -> None:
    for level in (0, 1):
        cluster.send(MoveRequest(1, chain("abcd"), level))


def _pin_and_cancel(cluster: Cluster) -> None:
    client = attached(cluster, "p", 1)
    assert client.ask(PinRequest(0, "P", chain("abcd"))) == [ClientReply(1, PinReply(1, 16))]
    client.ask(CancelRequest(1))


def _wait_in_vain(cluster: Cluster) -> None:
    client = attached(cluster, "p", 1)
    cluster.admit(NewSequence("fills", 4))
    client.ask(AdmitRequest(0, (new("a", "abcd"),), 5.0))
    let_pass(cluster, 5.0)
    cluster.send(ReleaseEvent("fills"))


def _lose_the_client(cluster: Cluster) -> None:
    client = attached(cluster, "p", 1)
    client.ask(PinRequest(0, "P", chain("abcd")))
    client.lose_connection()
    let_pass(cluster, 30.0)


NO_OPS: list[Callable[[Cluster], None]] = [
    _finish,
    _abort_before_allocation,
    _refuse,
    _look_up,
    _move_to_where_it_is,
    _pin_and_cancel,
    _wait_in_vain,
    _lose_the_client,
]


@pytest.mark.parametrize("no_op", NO_OPS, ids=lambda no_op: no_op.__name__.strip("_"))
def test_what_was_looked_up_and_not_loaded_is_held_by_nobody(no_op: Callable[[Cluster], None]) -> None:
    """The device has the blocks, too, so that nothing is loaded; the host can then be filled with others.

    The first two are those of the report. Neighbours: the other ways not to load anything.
    """
    cluster = _on_both_levels()
    no_op(cluster)
    assert cluster.replica.pool("host").ledger.uses[1:].tolist() == [0, 0, 0, 0]
    cluster.check()

    cluster.cache("vwxy")
    cluster.send(MoveRequest(2, chain("vwxy"), 1))
    assert below(cluster, 1) == digests("vwxy")
    assert quiescent(cluster.replica)


@pytest.mark.parametrize("no_op", [_abort_before_allocation, _refuse, _look_up, _wait_in_vain])
def test_what_would_have_been_loaded_and_was_not_is_held_by_nobody(no_op: Callable[[Cluster], None]) -> None:
    """Neighbour: the blocks are on the host only, so that something was to be loaded. No copy has begun."""
    cluster = _on_host_only()
    promoted = cluster.replica.counters().promoted

    no_op(cluster)

    assert cluster.replica.counters().promoted == promoted
    assert cluster.replica.pool("host").ledger.uses[1:].tolist() == [0, 0, 0, 0]
    assert quiescent(cluster.replica)
    cluster.check()


def test_a_group_that_does_not_answer_leaves_no_hold_on_what_the_others_have() -> None:
    """Neighbour: without its evidence nothing is hit; what the other group named is held by nobody."""
    cluster = make(FULL, SLIDING, blocks=(21, 21))
    cluster.cache("abcd")
    cluster.silent.add(("group", 1, 0))
    assert cluster.send(admission("a")) == []
    cluster.now_s = 1.0
    cluster.send(TimerEvent())
    cluster.send(ReleaseEvent("a"))

    assert quiescent(cluster.replica)
    assert set(split(chain("abcd"))) <= set(cluster.replica.published("full"))
