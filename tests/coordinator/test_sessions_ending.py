"""Sessions: what is cancelled, what is ended, and what becomes of it when its client is lost."""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.check import quiescent
from kvtroupe.coordinator.config import Limits
from kvtroupe.coordinator.errors import (
    CommitError,
    RequestError,
    SequenceCancelled,
    SessionLost,
    UnknownSession,
)
from kvtroupe.coordinator.messages import (
    AdmitReply,
    AdmitRequest,
    AttachRequest,
    CancelRequest,
    ClientOutput,
    ClientReply,
    CommitRequest,
    DetachRequest,
    LossAcknowledgedEvent,
    PinReply,
    PinRequest,
    ProcessGoneEvent,
    ReleaseEvent,
    StepsDoneEvent,
    TimerEvent,
)
from tests.coordinator.clients import GROUP, Client, attached, cluster_of, free, let_pass, quarantined
from tests.coordinator.losing import HOST, make
from tests.coordinator.support import chain, new

# -- cancelling --------------------------------------------------------------------------------------------------------


def test_cancelling_between_answer_and_await_leaves_nothing() -> None:
    """The client never used what it was given: it is free, unpublished and at once."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "ab"))

    assert client.result(CancelRequest(1)) is None

    assert cluster.replica.sequences() == []
    assert quiescent(cluster.replica)
    assert cluster.hit("ab") == 0
    assert cluster.replica.counters().cancelled == 1


def test_cancelling_before_the_answer_admits_nothing_and_evicts_nothing() -> None:
    """The group has not answered: when it has, the cancelled one gets no slots, and the other of its message none."""
    cluster = cluster_of(blocks=4)
    cluster.cache("xyz")
    client, other = attached(cluster, "p", 1), attached(cluster, "q", 2)
    cluster.silent.add(GROUP)
    client.ask(AdmitRequest(0, (new("a", "a"),)))
    other.ask(AdmitRequest(0, (new("b", "x"),)))

    assert client.ask(CancelRequest(1)) == [ClientReply(2, None)]
    before = len(cluster.events)
    cluster.silent.clear()
    cluster.deliver()

    results = {
        one.connection: one.message.result.results[0]
        for one in cluster.events[before:]
        if isinstance(one, ClientOutput)
        and isinstance(one.message, ClientReply)
        and isinstance(one.message.result, AdmitReply)
    }
    assert isinstance(results[1], SequenceCancelled)
    assert cluster.replica.sequences() == ["b"]
    counters = cluster.replica.counters()
    assert (counters.evictions, counters.cancelled, counters.refused) == (1, 1, 0)  # evicted for "b"


def test_a_cancelled_request_that_waits_for_the_next_round_is_answered() -> None:
    """It arrived while a round was under way."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    cluster.silent.add(GROUP)
    client.ask(AdmitRequest(0, (new("a", "ab"),)))
    client.ask(AdmitRequest(0, (new("b", "ab"),)))
    client.ask(CancelRequest(2))
    cluster.silent.clear()
    cluster.deliver()

    assert cluster.replica.sequences() == ["a"]
    answer = cluster.events[-1]
    assert isinstance(answer, ClientOutput)
    assert isinstance(answer.message, ClientReply)
    assert isinstance(answer.message.result, AdmitReply)
    assert isinstance(answer.message.result.results[0], SequenceCancelled)


def test_cancelling_reaches_only_what_the_request_made() -> None:
    """Request 1 was refused; the name was used again, by request 2, which nobody has cancelled."""
    cluster = cluster_of(blocks=4)
    client = attached(cluster, "p", 1)
    client.admit(new("big", "ab"))
    client.ask(AdmitRequest(0, (new("a", "cd"),)))
    client.ask(ReleaseEvent("big"))
    client.admit(new("a", "cd"))

    client.ask(CancelRequest(2))

    assert cluster.replica.sequences() == ["a"]


def test_cancelling_what_is_confirmed_or_makes_nothing_changes_nothing() -> None:
    """The client knows what it has: it releases that. A commit cannot be taken back, nor a number that never was."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "ab"))
    client.confirmed = 1
    client.ask(CommitRequest(0, "a", 4))

    for number in (1, 2, 77):
        assert client.result(CancelRequest(number)) is None

    assert cluster.replica.sequences() == ["a"]


def test_cancelling_twice_is_as_good_as_once() -> None:
    """Also with another name in between."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "ab"))
    client.ask(CancelRequest(1))
    client.admit(new("a", "ab"))
    client.ask(CancelRequest(1))

    assert cluster.replica.sequences() == ["a"]


def test_a_pin_is_cancelled_before_and_after_it_stands() -> None:
    """Before: it never stands, and says how much it would have kept."""
    cluster = cluster_of()
    cluster.cache("ab")
    client = attached(cluster, "p", 1)
    assert client.result(PinRequest(0, "one", chain("ab"))) == PinReply(1, 8)
    cluster.silent.add(GROUP)
    client.ask(PinRequest(0, "two", chain("ab")))

    client.ask(CancelRequest(1))
    client.ask(CancelRequest(2))
    cluster.silent.clear()
    cluster.deliver()

    assert quiescent(cluster.replica)
    cluster.check()


def test_what_is_cancelled_while_its_blocks_are_brought_up_is_free_when_they_are_there() -> None:
    """A copy may still write into its slots: nobody else gets them before it is done, and then they are free."""
    cluster = make(blocks=(5, 20))
    cluster.cache("ab", "cdef")
    client = attached(cluster, "p", 1)
    cluster.silent |= {("tier", HOST, 0), ("tier", 0, 0)}
    client.admit(new("a", "ab"))

    client.ask(CancelRequest(1))
    assert free(cluster) == 2  # of 4: two are written by the copies
    cluster.silent.clear()
    cluster.deliver()

    assert quiescent(cluster.replica)
    cluster.check()
    assert cluster.hit("ab") == 8


# -- ending and being lost ---------------------------------------------------------------------------------------------


def test_a_session_that_is_detached_holds_nothing_any_more() -> None:
    """Nothing of its engine touches any slot: sequences, pins, and what waited for a fence are free."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "a"), new("b", "b"))
    client.ask(ReleaseEvent("a", fence=3))
    client.ask(PinRequest(0, "pin", chain("a")))

    assert client.result(DetachRequest()) is None

    assert quiescent(cluster.replica)
    with pytest.raises(UnknownSession):
        client.ask(StepsDoneEvent(1))


def test_the_slots_of_a_lost_session_are_in_quarantine_until_its_process_is_dead() -> None:
    """After 30 s nobody waits for it any more; its engine may still write."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "ab"))
    client.ask(CommitRequest(0, "a", 8))
    client.admit(new("b", "c"))
    client.ask(ReleaseEvent("b", fence=3))
    client.lose_connection()
    let_pass(cluster, 29.9)
    assert (free(cluster), quarantined(cluster)) == (3, 0)

    let_pass(cluster, 0.1)

    assert cluster.replica.sequences() == []
    assert (free(cluster), quarantined(cluster)) == (3, 5)
    assert cluster.hit("ab") == 8  # what was committed can be hit
    with pytest.raises(SessionLost, match=r"away for more than 30\.0 s"):
        client.attach(2, ("a",))

    cluster.send(ProcessGoneEvent("p"))

    cluster.check()
    assert quiescent(cluster.replica)
    with pytest.raises(UnknownSession):
        client.attach(2, ("a",))


def test_a_process_that_lives_says_that_it_uses_nothing_any_more() -> None:
    """It was away for too long and comes back: it stops its engine, and says so. It says so twice."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "ab"))
    client.lose_connection()
    let_pass(cluster, 30.0)
    again = attached(cluster, "p 2", 2)
    (result,) = again.admit(new("b", "xyzw"))
    lost_slots = {1, 2, 3}
    assert lost_slots.isdisjoint(result.tables[0].tolist())

    cluster.send(LossAcknowledgedEvent("q", client.token))  # of another process: it means nothing
    assert quarantined(cluster) == 3
    for _ in range(2):
        cluster.send(LossAcknowledgedEvent("p", client.token))
        cluster.check()

        assert (free(cluster), quarantined(cluster)) == (3, 0)


def test_a_session_that_never_asked_for_anything_leaves_nothing_behind() -> None:
    """The answer to its attachment was lost, and its client has begun another one, any number of times."""
    cluster = cluster_of(limits=Limits(sessions_max=2))
    for number in range(1, 6):
        attached(cluster, f"p {number}", number).lose_connection()
        let_pass(cluster, 30.0)

    assert cluster.replica.sessions.quarantined() == []
    assert cluster.replica.gauges().sessions_away == 0
    assert cluster.replica.counters().sessions_lost == 5


def test_what_a_lost_session_was_publishing_goes_into_quarantine_when_the_group_has_answered() -> None:
    """The slots are in use for the publication first, and by the engine that may still write after that."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "ab"))
    cluster.silent.add(GROUP)
    client.ask(CommitRequest(0, "a", 8))
    client.lose_connection()
    let_pass(cluster, 30.0)
    assert (free(cluster), quarantined(cluster)) == (5, 0)

    cluster.silent.clear()
    cluster.deliver()

    assert (free(cluster), quarantined(cluster)) == (5, 3)
    cluster.send(ProcessGoneEvent("p"))
    assert quiescent(cluster.replica)


def test_what_a_lost_session_was_publishing_is_free_when_its_process_died_before_the_answer() -> None:
    """Then nothing but the answer is waited for."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "ab"))
    cluster.silent.add(GROUP)
    client.ask(CommitRequest(0, "a", 8))
    client.ask(ReleaseEvent("a", fence=9))
    cluster.send(ProcessGoneEvent("p"))
    assert free(cluster) == 5

    cluster.silent.clear()
    cluster.deliver()

    assert quiescent(cluster.replica)
    assert cluster.hit("ab") == 8


def test_the_death_of_a_process_ends_all_its_sessions_at_once() -> None:
    """Nobody waits for a grace period, and the sessions of others go on."""
    cluster = cluster_of(blocks=21)
    first = attached(cluster, "p", 1)
    second = Client(cluster, "p", 2)
    cluster.send(AttachRequest(2, "p", b"another token 16"))
    other = attached(cluster, "q", 3)
    first.admit(new("a", "a"))
    second.ask(AdmitRequest(0, (new("b", "b"),)))
    other.admit(new("c", "c"))

    cluster.send(ProcessGoneEvent("p"))

    assert cluster.replica.sequences() == ["c"]
    assert free(cluster) == 18
    for gone in (first, second):
        with pytest.raises(UnknownSession):
            gone.ask(StepsDoneEvent(1))


def test_requests_of_a_lost_session_that_wait_are_granted_nothing() -> None:
    """The group is silent all the while; the round goes on when it answers."""
    cluster = cluster_of(limits=Limits(match_deadline_s=1000.0))
    client = attached(cluster, "p", 1)
    cluster.silent.add(GROUP)
    client.ask(AdmitRequest(0, (new("a", "ab"),)))
    client.ask(PinRequest(0, "pin", chain("ab")))
    client.lose_connection()
    cluster.now_s += 30.0
    cluster.send(TimerEvent())

    cluster.silent.clear()
    cluster.deliver()

    assert cluster.replica.sequences() == []
    assert quiescent(cluster.replica)


def test_the_direct_face_keeps_away_from_sessions() -> None:
    """What their requests wait for could be answered in the middle of one of its calls."""
    cluster = cluster_of()
    attached(cluster, "p", 1)

    with pytest.raises(RequestError, match="without sessions"):
        cluster.replica.admit([new("a", "ab")])


def test_a_commit_that_is_refused_is_an_answer_like_any_other() -> None:
    """Backwards: the state refuses it, and the session goes on."""
    client = attached(cluster_of(), "p", 1)
    client.admit(new("a", "ab"))
    client.ask(CommitRequest(0, "a", 8))

    assert isinstance(client.result(CommitRequest(0, "a", 4)), CommitError)
    assert client.result(ReleaseEvent("a")) is None
