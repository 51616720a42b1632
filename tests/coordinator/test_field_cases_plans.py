"""Requests that fit when they were planned, and do not when their turn comes (H7).

Faults that users of other KV cache managers have reported, as scenarios here, each with neighbours: the same kind of
fault in another guise.
"""

from __future__ import annotations

from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.errors import OutOfBlocks
from kvtroupe.coordinator.messages import (
    AdmitReply,
    AdmitRequest,
    Admitted,
    Estimate,
    EstimateReply,
    EstimateRequest,
    GrowReply,
    GrowRequest,
    MoveRequest,
    NewSequence,
    ReleaseEvent,
)
from tests.coordinator.clients import GROUP, attached, cluster_of, free, let_pass
from tests.coordinator.losing import HOST, make
from tests.coordinator.support import (
    admit,
    admitted,
    cache,
    chain,
    evidence,
    free_order,
    make_desk,
    make_replica,
    new,
    slots,
    snapshot,
    without_counters,
)


def test_a_request_whose_hit_is_taken_by_an_earlier_one_is_refused_unharmed() -> None:
    """Planned apart, both would fit; `a` takes a block that `b` would have hit, so `b` has to come again."""
    replica = make_replica("full", blocks=7)
    cache(replica, "pq")
    a, b = replica.admit([NewSequence("a", 20), new("b", "pq")])

    assert isinstance(a, Admitted)
    assert isinstance(b, OutOfBlocks)
    assert a.tables[0].tolist() == [3, 4, 5, 6, 2]
    assert free_order(replica) == [1]
    assert replica.sequences() == ["a"]

    replica.release("a")
    assert admit(replica, new("b", "pq")).cached_tokens == 4
    check(replica)


def test_a_request_that_no_longer_fits_after_an_earlier_one_is_refused_without_trace() -> None:
    """The other way round: `b` keeps its hits, and nothing is left of `a`."""
    replica, alone = make_replica("full", blocks=7), make_replica("full", blocks=7)
    for one in (replica, alone):
        cache(one, "pq")
    b, a = replica.admit([new("b", "pq"), NewSequence("a", 20)])
    alone.admit([new("b", "pq")])

    assert isinstance(b, Admitted)
    assert b.cached_tokens == 8
    assert isinstance(a, OutOfBlocks)
    assert without_counters(snapshot(replica)) == without_counters(snapshot(alone))


def test_requests_that_step_aside_for_an_earlier_one_keep_their_order() -> None:
    """`a` needs six of eight blocks, so the hit of `b` may not stay; `c`, behind it, waits and is judged after it."""
    replica = make_replica("full", blocks=9)
    cache(replica, "pqr")
    a, b, c = replica.admit([NewSequence("a", 24), new("b", "pqr"), NewSequence("c", 4)])

    assert isinstance(a, Admitted)
    assert a.tables[0].tolist() == [4, 5, 6, 7, 8, 3]
    assert isinstance(b, OutOfBlocks)
    assert (b.needed, b.free) == (4, 2)
    assert isinstance(c, Admitted)
    assert c.tables[0].tolist() == [2]
    assert replica.counters().deferred == 2


def test_requests_that_were_estimated_apart_are_judged_together() -> None:
    """The scenario: apart, both fit; in one question or in one admission, in that order, only the first does."""
    replica = make_replica("full", blocks=7)
    cache(replica, "pq")
    a, b = NewSequence("a", 20), new("b", "pq")
    apart = [replica.what_if([one])[0] for one in (a, b)]
    together = replica.what_if([a, b])

    results = replica.admit([a, b])

    assert [one.fits_now for one in apart if isinstance(one, Estimate)] == [True, True]
    assert [one.fits_now for one in together if isinstance(one, Estimate)] == [True, False]
    assert [isinstance(one, Admitted) for one in results] == [True, False]
    replica.release("a")
    assert sorted(free_order(replica)) == [1, 2, 3, 4, 5, 6]


def test_what_no_longer_fits_is_handed_on_to_no_later_stage() -> None:
    """Neighbour: the hit is on the host. Of the refused request no copy is asked for, and its group hears nothing."""
    cluster = make(blocks=(7, 9), offload="never")
    cluster.cache("pq")
    cluster.send(MoveRequest(1, chain("pq"), 1))
    cluster.cache("uvwxyz")
    cluster.silent.add(("tier", HOST, 0))
    promoted = cluster.replica.counters().promoted

    a, b = cluster.admit(NewSequence("a", 20), new("b", "pq"))

    assert isinstance(a, Admitted)
    assert isinstance(b, OutOfBlocks)
    assert (b.needed, b.free) == (3, 1)
    assert cluster.waiting(("tier", HOST, 0)) == 0
    assert cluster.replica.counters().promoted == promoted
    assert cluster.replica.pool("host").ledger.uses[1:].sum() == 0
    assert cluster.replica.sequences() == ["a"]
    cluster.check()


def test_what_waits_for_room_goes_back_to_its_place_in_the_queue() -> None:
    """Neighbour: instead of a refusal. It holds nothing meanwhile, and comes before a later one when there is room."""
    cluster = cluster_of(blocks=7)
    cluster.cache("pq")
    client = attached(cluster, "p", 1)
    cluster.silent.add(GROUP)
    client.ask(AdmitRequest(0, (NewSequence("a", 20),)))
    client.ask(AdmitRequest(0, (new("b", "pq"),), 10.0))
    client.ask(AdmitRequest(0, (new("c", "xyz"),), 10.0))
    cluster.silent.clear()
    cluster.deliver()
    assert cluster.replica.sequences() == ["a"]
    assert free(cluster) == 1

    client.ask(ReleaseEvent("a"))

    assert cluster.replica.sequences() == ["b"]
    assert free(cluster) == 3
    let_pass(cluster, 10.0)
    assert cluster.replica.sequences() == ["b"]


def test_what_growth_has_taken_since_the_estimate_is_not_given_twice() -> None:
    """Neighbour: a running sequence grows between the question and the admission, while the group is being asked."""
    cluster = cluster_of(blocks=7)
    cluster.cache("pq")
    cluster.run("grows", "z")
    (estimate,) = cluster.send(EstimateRequest(1, (), (new("b", "pq", spare_blocks=2),), (0,)))
    assert isinstance(estimate, EstimateReply)
    assert isinstance(estimate.estimates[0], Estimate)
    assert estimate.estimates[0].fits_now
    cluster.silent.add(GROUP)
    cluster.send(AdmitRequest(2, (new("b", "pq", spare_blocks=2),)))
    cluster.send(GrowRequest(3, ("grows",), 2))
    before = len(cluster.events)
    cluster.silent.clear()
    cluster.deliver()

    grown, reply = cluster.events[before:]
    assert isinstance(grown, GrowReply)
    assert isinstance(reply, AdmitReply)
    assert grown.refused == (None,)
    (refused,) = reply.results
    assert isinstance(refused, OutOfBlocks)
    assert (refused.needed, refused.free) == (5, 3)
    assert len(cluster.replica.tables("grows")[0]) == 3
    cluster.check()


def test_what_was_evicted_since_the_group_has_answered_is_not_hit() -> None:
    """Neighbour: the answer of the group is older than the loss of its block. The generation says so."""
    desk = make_desk(blocks=7)
    held = desk.admit_unknown(1, 1, new("first", "pq", extra_tokens=0))
    desk.publish("first", 8)
    old = evidence(slots(*held), desk.state.pools[0].ledger.generation[held[0]])
    desk.send(ReleaseEvent("first"))
    desk.admit_unknown(2, 2, NewSequence("evicts", 24))
    desk.send(ReleaseEvent("evicts"))

    desk.ask(3, new("b", "pq"))
    (result,) = admitted(desk.answer(3, [old]))

    assert result.cached_tokens == 0
    assert desk.state.counters.stale_places == 1


def test_a_round_that_is_too_large_goes_on_in_the_next_one() -> None:
    """Neighbour: many at once, each of which would fit alone. Each gets its blocks or says why not; none is lost."""
    replica = make_replica("full", blocks=12)
    cache(replica, "pqr")
    sequences = [new(f"hits {number}", "pqr") for number in range(3)] + [NewSequence(f"new {n}", 8) for n in range(6)]

    results = replica.admit(sequences)

    there = [one for one in results if isinstance(one, Admitted)]
    assert [one.sequence_id for one in there] == ["hits 0", "hits 1", "hits 2", "new 0", "new 1"]
    assert all(isinstance(one, OutOfBlocks) for one in results[5:])
    assert replica.sequences() == [one.sequence_id for one in there]
    check(replica)
