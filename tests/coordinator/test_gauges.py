"""Gauges: how much there is of everything that has a limit."""

from __future__ import annotations

from kvtroupe.coordinator.gauges import Gauges, PoolGauges
from kvtroupe.coordinator.messages import AdmitRequest, PinRequest, ReleaseEvent, StepsDoneEvent
from tests.coordinator.clients import GROUP, attached, let_pass
from tests.coordinator.losing import HOST, make
from tests.coordinator.support import chain, new


def test_an_empty_replica_has_nothing() -> None:
    """But its slots."""
    cluster = make(blocks=(9, 20))

    nothing = (0, 0, 0, 0)
    pools = (PoolGauges(9, 8, 0, *nothing), PoolGauges(20, 19, 0, *nothing))
    assert cluster.replica.gauges() == Gauges(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, pools)


def test_everything_that_is_held_is_counted() -> None:
    """One sequence runs with 2 blocks, one is fenced with 1, a pin of 2 blocks stands, a request and a pin wait.

    One client is attached with 7 answers of which the first is confirmed, one is away, and one is lost with 3 blocks.
    """
    cluster = make(blocks=(21, 20))
    cluster.cache("ab")
    lost = attached(cluster, "lost", 1)
    lost.admit(new("lost", "xyz", extra_tokens=0))
    lost.lose_connection()
    let_pass(cluster, 30.0)
    attached(cluster, "away", 2).lose_connection()
    client = attached(cluster, "here", 3)
    client.admit(new("runs", "cd", extra_tokens=0))
    client.confirmed = 1
    client.admit(new("fenced", "e", extra_tokens=0))
    client.ask(ReleaseEvent("fenced", 5))
    client.ask(StepsDoneEvent(4))
    client.ask(PinRequest(0, "pin", chain("ab")))
    cluster.silent.add(GROUP)
    client.ask(AdmitRequest(0, (new("waits", "f"),)))
    client.ask(PinRequest(0, "pin too", chain("a")))

    gauges = cluster.replica.gauges()

    assert (gauges.sequences_running, gauges.sequences_failed, gauges.sequences_waiting, gauges.pins) == (1, 0, 1, 2)
    assert (gauges.sessions_attached, gauges.sessions_away, gauges.sessions_quarantined) == (1, 1, 1)
    assert gauges.kept_answers == 6
    assert gauges.pools[0] == PoolGauges(21, 20 - 2 - 1 - 2 - 3, 2, 1, 2, 0, 3)


def test_what_is_on_its_way_is_counted() -> None:
    """Four blocks are evicted and go down, and the host tier is silent."""
    cluster = make(blocks=(5, 20))
    cluster.cache("abcd")
    cluster.silent.add(("tier", HOST, 0))
    cluster.admit(new("a", "wxyz", extra_tokens=0))

    gauges = cluster.replica.gauges()

    assert (gauges.arriving_blocks, gauges.transfers) == (4, 1)
    assert [pool.transfer_uses for pool in gauges.pools] == [0, 4]


def test_counters_tell_of_sessions() -> None:
    """Two begin, one is lost; one request comes three times, and one waits for room."""
    cluster = make(blocks=(5,))
    one, other = attached(cluster, "p", 1), attached(cluster, "q", 2)
    one.admit(new("a", "abc"))
    for _ in range(2):
        one.send(1, AdmitRequest(0, (new("a", "abc"),)))
    one.ask(AdmitRequest(0, (new("b", "ab"),), 10.0))
    other.lose_connection()
    let_pass(cluster, 30.0)

    counters = cluster.replica.counters()

    assert (counters.sessions_begun, counters.sessions_lost, counters.requests_repeated) == (2, 1, 2)
    assert (counters.waited, counters.refused) == (1, 1)
