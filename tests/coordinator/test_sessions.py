"""Sessions: numbered requests and kept answers, and coming back."""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.check import quiescent
from kvtroupe.coordinator.config import Limits
from kvtroupe.coordinator.errors import (
    FenceError,
    Overloaded,
    RequestError,
    SessionExists,
    UnknownPin,
    UnknownSequence,
    UnknownSession,
)
from kvtroupe.coordinator.messages import (
    AdmitReply,
    AdmitRequest,
    AttachRequest,
    CancelRequest,
    ClientOutput,
    ClientReply,
    ClientRequest,
    CommitReply,
    CommitRequest,
    DetachRequest,
    EstimateRequest,
    GrowRequest,
    HeldSequence,
    PinReply,
    PinRequest,
    ReleaseEvent,
    StepsDoneEvent,
    TierLostEvent,
    TimerEvent,
    UnpinEvent,
)
from tests.coordinator.clients import GROUP, Client, attached, cluster_of, free, let_pass
from tests.coordinator.losing import HOST, make
from tests.coordinator.support import chain, new

# -- numbered requests and kept answers --------------------------------------------------------------------------------


def test_a_request_that_is_repeated_is_answered_as_before_and_done_once() -> None:
    """The answer was lost on its way: the client sends the request again under its number."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    request = AdmitRequest(0, (new("a", "ab"),))

    first = client.ask(request)
    again = client.send(1, request)

    assert again == first
    assert cluster.replica.sequences() == ["a"]
    assert free(cluster) == 8 - 3


def test_a_repeated_release_does_not_release_another_sequence_of_that_name() -> None:
    """The release is repeated after the name was used again."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "ab"))
    client.ask(ReleaseEvent("a"))
    client.admit(new("a", "cd"))

    assert client.send(2, ReleaseEvent("a")) == [ClientReply(2, None)]
    assert cluster.replica.sequences() == ["a"]


def test_an_error_is_an_answer_and_is_kept_too() -> None:
    """What was wrong with request 1 stays wrong when it is repeated, though it would be right by now."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)

    (refused,) = client.ask(ReleaseEvent("a"))
    client.admit(new("a", "ab"))
    again = client.send(1, ReleaseEvent("a"))

    assert isinstance(refused, ClientReply)
    assert isinstance(refused.result, UnknownSequence)
    assert again == [refused]
    assert cluster.replica.sequences() == ["a"]


def test_a_request_that_waits_for_its_answer_is_not_begun_again() -> None:
    """It is repeated while the group has not answered: there is one answer, to one request."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    cluster.silent.add(GROUP)
    request = AdmitRequest(0, (new("a", "ab"),))

    assert client.ask(request) == []
    assert client.send(1, request) == []

    cluster.silent.clear()
    before = len(cluster.events)
    cluster.deliver()
    (output,) = cluster.events[before:]
    assert isinstance(output, ClientOutput)
    assert isinstance(output.message, ClientReply)
    assert (output.message.number, isinstance(output.message.result, AdmitReply)) == (1, True)
    assert free(cluster) == 8 - 3


def test_answers_that_are_confirmed_are_kept_no_longer() -> None:
    """Whoever repeats such a request gets no answer, as it has one; and it is not done again."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "ab"))
    client.confirmed = 1
    client.ask(ReleaseEvent("a"))

    assert client.send(1, AdmitRequest(0, (new("a", "ab"),))) == []
    assert cluster.replica.sequences() == []


def test_a_gap_in_the_numbers_is_refused_and_changes_nothing() -> None:
    """Number 3 after number 1: the client has to send 2 first."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "ab"))

    with pytest.raises(RequestError, match="request 3 of session 1 follows number 1"):
        client.send(3, ReleaseEvent("a"))

    assert cluster.replica.sequences() == ["a"]
    assert client.send(2, ReleaseEvent("a")) == [ClientReply(2, None)]


@pytest.mark.parametrize("number", [0, -1, True, 1.0, None, "1"])
def test_a_number_that_is_none_is_refused(number: object) -> None:
    """Numbers are whole and begin with 1."""
    client = attached(cluster_of(), "p", 1)

    with pytest.raises(RequestError, match="of session 1 follows number 0"):
        client.send(number, StepsDoneEvent(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("confirmed", [2, -1, True, None])
def test_what_was_not_answered_cannot_be_confirmed(confirmed: object) -> None:
    """One request was answered."""
    client = attached(cluster_of(), "p", 1)
    client.admit(new("a", "ab"))
    client.confirmed = confirmed  # type: ignore[assignment]

    with pytest.raises(RequestError, match="its last request was number 1"):
        client.ask(ReleaseEvent("a"))


def test_an_answer_that_was_not_given_yet_cannot_be_confirmed() -> None:
    """The group has not answered."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    cluster.silent.add(GROUP)
    client.ask(AdmitRequest(0, (new("a", "ab"),)))
    client.confirmed = 1

    with pytest.raises(RequestError, match="confirms the answer to request 1, which has none"):
        client.ask(StepsDoneEvent(1))


def test_a_client_that_confirms_nothing_is_held_up_and_may_go_on_later() -> None:
    """Two answers are kept at most; the number that was refused is still to be used."""
    cluster = cluster_of(limits=Limits(kept_answers_max=2))
    client = attached(cluster, "p", 1)
    client.ask(StepsDoneEvent(1))
    client.ask(StepsDoneEvent(2))

    with pytest.raises(Overloaded, match="kept_answers_max"):
        client.send(3, StepsDoneEvent(3))

    client.confirmed = 1
    assert client.send(3, StepsDoneEvent(3)) == [ClientReply(3, None)]


def test_replies_carry_the_number_of_the_client() -> None:
    """Two clients count alike; each gets its own answers."""
    cluster = cluster_of()
    one, other = attached(cluster, "p", 1), attached(cluster, "q", 2)
    one.admit(new("a", "ab"))
    other.admit(new("b", "cd"))

    first, second = one.result(CommitRequest(0, "a", 8)), other.result(CommitRequest(0, "b", 4))

    assert first == CommitReply(2, (2,))
    assert second == CommitReply(2, (1,))


def test_what_is_no_request_of_a_client_is_refused_as_an_answer() -> None:
    """A client must not speak for the timer."""
    client = attached(cluster_of(), "p", 1)

    refused = client.result(TimerEvent())  # type: ignore[arg-type]

    assert isinstance(refused, RequestError)
    assert "no request of a client" in str(refused)


# -- whose is it -------------------------------------------------------------------------------------------------------


def test_a_client_reaches_only_what_is_its_own() -> None:
    """Sequences and pins of another session are as good as not there."""
    cluster = cluster_of(blocks=21)
    owner, other = attached(cluster, "p", 1), attached(cluster, "q", 2)
    owner.admit(new("a", "ab"))
    owner.ask(PinRequest(0, "pin", chain("ab")))

    for message, error in (
        (CommitRequest(0, "a", 4), UnknownSequence),
        (GrowRequest(0, ("a",), 1), UnknownSequence),
        (EstimateRequest(0, ("a",), (), (8,)), UnknownSequence),
        (ReleaseEvent("a"), UnknownSequence),
        (UnpinEvent("pin"), UnknownPin),
    ):
        assert isinstance(other.result(message), error), message
    assert owner.result(UnpinEvent("pin")) is None
    assert owner.result(ReleaseEvent("a")) is None


def test_every_engine_has_steps_of_its_own() -> None:
    """Step 9 of one engine says nothing about step 5 of the other; and each goes forward by itself."""
    cluster = cluster_of()
    one, other = attached(cluster, "p", 1), attached(cluster, "q", 2)
    one.admit(new("a", "ab"))
    one.ask(ReleaseEvent("a", fence=5))

    other.ask(StepsDoneEvent(9))
    assert free(cluster) == 5
    one.ask(StepsDoneEvent(4))
    assert free(cluster) == 5
    one.ask(StepsDoneEvent(5))
    assert free(cluster) == 8
    assert isinstance(other.result(StepsDoneEvent(8)), FenceError)


# -- attaching ---------------------------------------------------------------------------------------------------------


def test_a_session_is_attached_again_with_all_that_its_client_lists() -> None:
    """The connection is lost and another one is there within the grace period."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "ab"))
    client.lose_connection()
    let_pass(cluster, 29.0)

    reply, answers = client.attach(2, ("a",))

    assert (reply.session, reply.last_number) == (1, 1)
    assert reply.sequences == (HeldSequence("a", None, ()),)
    assert [one.number for one in answers] == [1]  # it was not confirmed
    let_pass(cluster, 100.0)
    assert client.result(CommitRequest(0, "a", 8)) == CommitReply(2, (2,))


def test_what_a_client_does_not_list_is_released_when_it_comes_back() -> None:
    """It has given up "a" and a pin while it was away, and knows of "b" only."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "ab"), new("b", "cd"))
    client.ask(PinRequest(0, "pin", chain("ab")))
    client.confirmed = 2
    client.lose_connection()

    reply, _ = client.attach(2, ("b",))

    assert [one.sequence_id for one in reply.sequences] == ["b"]
    assert reply.pin_ids == ()
    assert cluster.replica.sequences() == ["b"]
    assert free(cluster) == 8 - 3
    cluster.check()


def test_what_a_client_cannot_know_of_yet_is_not_released() -> None:
    """The answers to an admission and a pin were lost with the connection: they are delivered after it is back."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    cluster.silent.add(GROUP)
    client.ask(AdmitRequest(0, (new("a", "ab"),)))
    client.ask(PinRequest(0, "pin", chain("ab")))
    client.lose_connection()
    cluster.silent.clear()
    cluster.deliver()

    reply, answers = client.attach(2)

    assert [one.sequence_id for one in reply.sequences] == ["a"]
    assert reply.pin_ids == ("pin",)
    assert [type(one.result) for one in answers] == [AdmitReply, PinReply]


def test_an_answer_that_comes_while_the_client_is_away_waits_for_it() -> None:
    """And one that comes after it is back goes over the new connection."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    cluster.silent.add(GROUP)
    client.ask(AdmitRequest(0, (new("a", "ab"),)))
    client.lose_connection()
    client.attach(7)
    cluster.silent.clear()
    cluster.deliver()

    output = cluster.events[-1]
    assert isinstance(output, ClientOutput)
    assert output.connection == 7


def test_a_client_may_come_back_before_its_loss_was_noticed() -> None:
    """What comes over the old connection afterwards is refused; its loss means nothing any more."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "ab"))
    client.attach(2, ("a",))

    with pytest.raises(UnknownSession, match="over connection 1"):
        cluster.send(ClientRequest(1, 2, 0, ReleaseEvent("a")))
    Client(cluster, "p", 1).lose_connection()
    let_pass(cluster, 100.0)

    assert client.result(ReleaseEvent("a")) is None


def test_only_its_own_process_attaches_a_session_again() -> None:
    """The token alone is not enough, nor is a made-up token."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.lose_connection()

    with pytest.raises(UnknownSession, match="no session of process 'q' has this token"):
        cluster.send(AttachRequest(2, "q", bytes(16), client.token))
    with pytest.raises(UnknownSession):
        cluster.send(AttachRequest(2, "p", bytes(16), b"made up"))


def test_a_session_of_an_earlier_coordinator_is_unknown() -> None:
    """The client has to stop using its slots, say so, and begin anew."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    cluster.restart(1)

    with pytest.raises(UnknownSession, match="earlier coordinator"):
        client.attach(2)


def test_a_connection_has_one_session() -> None:
    """A second session over it is refused."""
    cluster = cluster_of()
    attached(cluster, "p", 1)

    with pytest.raises(SessionExists, match="connection 1"):
        cluster.send(AttachRequest(1, "p", b"x" * 16))


@pytest.mark.parametrize("token", [b"", b"short", bytes(17), "x" * 16, None])
def test_a_token_has_128_bits(token: object) -> None:
    """Whatever else the host draws is refused."""
    with pytest.raises(RequestError, match="16 random bytes"):
        cluster_of().send(AttachRequest(1, "p", token))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "malformed",
    [
        AttachRequest(1, None, bytes(16)),  # type: ignore[arg-type]
        AttachRequest(1, "p", bytes(16), token=[1]),  # type: ignore[arg-type]
        AttachRequest(1, "p", bytes(16), sequence_ids=None),  # type: ignore[arg-type]
        AttachRequest(1, "p", bytes(16), pin_ids=7),  # type: ignore[arg-type]
    ],
)
def test_a_malformed_attachment_is_refused(malformed: AttachRequest) -> None:
    """And there is no session after it."""
    cluster = cluster_of()

    with pytest.raises(RequestError):
        cluster.send(malformed)
    assert cluster.replica.sessions.attached() == 0


@pytest.mark.parametrize("number", [None, "1", [1], 1.0])
def test_what_is_no_number_cannot_be_cancelled(number: object) -> None:
    """The answer says so."""
    client = attached(cluster_of(), "p", 1)

    refused = client.result(CancelRequest(number))  # type: ignore[arg-type]

    assert isinstance(refused, RequestError)
    assert "requests are numbered" in str(refused)


def test_a_token_is_used_once() -> None:
    """Two sessions of one token could not be told apart."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)

    with pytest.raises(RequestError, match="never used before"):
        cluster.send(AttachRequest(2, "q", client.token))


def test_there_are_so_many_sessions_and_no_more() -> None:
    """One whose connection is lost counts, as does one in quarantine; one that was ended does not."""
    cluster = cluster_of(limits=Limits(sessions_max=2))
    one, other = attached(cluster, "p", 1), attached(cluster, "q", 2)
    one.admit(new("a", "ab"))
    one.lose_connection()
    with pytest.raises(Overloaded, match="sessions_max"):
        attached(cluster, "r", 3)
    let_pass(cluster, 30.0)
    with pytest.raises(Overloaded, match="sessions_max"):
        attached(cluster, "r", 3)

    other.ask(DetachRequest())

    attached(cluster, "r", 3)


def test_who_comes_back_is_told_what_has_failed_meanwhile() -> None:
    """The device was lost: "a" was being computed and has to be released, naming the fence."""
    cluster = cluster_of()
    client = attached(cluster, "p", 1)
    client.admit(new("a", "ab"))
    client.lose_connection()
    cluster.send(TierLostEvent(0, 0))

    reply, _ = client.attach(2, ("a",))

    (held,) = reply.sequences
    assert held.sequence_id == "a"
    assert "pool 'device' is lost" in str(held.error)
    assert client.result(ReleaseEvent("a")) is None
    assert quiescent(cluster.replica)


def test_who_comes_back_is_told_what_is_still_to_be_awaited() -> None:
    """Blocks of "a" are on their way up from the host pool: the client was told so, or may not have been."""
    cluster = make(blocks=(5, 20))
    cluster.cache("ab", "cdef")
    client = attached(cluster, "p", 1)
    cluster.silent |= {("tier", HOST, 0), ("tier", 0, 0)}
    (result,) = client.admit(new("a", "ab"))
    client.lose_connection()

    reply, _ = client.attach(2, ("a",))

    assert result.reads_after
    assert reply.sequences == (HeldSequence("a", None, tuple(sorted({*result.reads_after, *result.writes_after}))),)
