"""Requests that are sent again, to this coordinator or to the next one (N3).

Faults that users of other KV cache managers have reported, as scenarios here, each with neighbours: the same kind of
fault in another guise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvtroupe.coordinator.errors import UnknownSession
from kvtroupe.coordinator.messages import (
    AdmitReply,
    AdmitRequest,
    CommitRequest,
    CopyReply,
    EpochAcknowledgedEvent,
    GroupOutput,
    GrowRequest,
    LossAcknowledgedEvent,
    MatchReply,
    PinRequest,
    ProcessGoneEvent,
    PublishReply,
    RecoverEvent,
    ReleaseEvent,
    StepsDoneEvent,
    UnpinEvent,
)
from tests.coordinator.clients import attached, cluster_of, free
from tests.coordinator.losing import HOST

if TYPE_CHECKING:
    from tests.coordinator.cluster import Cluster

from kvtroupe.coordinator.check import quiescent
from kvtroupe.coordinator.errors import OutOfBlocks, SequenceExists, UnknownPin, UnknownSequence
from kvtroupe.coordinator.messages import NewSequence
from tests.coordinator.losing import make
from tests.coordinator.support import (
    admit,
    chain,
    make_replica,
    new,
    snapshot,
)


def test_a_repeated_admission_changes_nothing() -> None:
    """The client lost the answer and asks again: the sequence and all others keep their blocks."""
    replica = make_replica("full")
    admit(replica, new("a", "pq"))
    admit(replica, new("other", "xy"))
    before = snapshot(replica)

    for repeated in ([new("a", "pq")], [new("new", "z"), new("a", "pq")], [new("new", "z"), new("new", "z")]):
        with pytest.raises(SequenceExists):
            replica.admit(repeated)

    assert snapshot(replica) == before


def test_the_id_of_an_ended_sequence_names_nobody_until_it_is_admitted_again() -> None:
    """What is asked of it is refused, and the sequence that took its blocks keeps them."""
    replica = make_replica("full", blocks=4)
    admit(replica, new("a", "pq", extra_tokens=0))
    replica.release("a")
    admit(replica, new("b", "xyz", extra_tokens=0))
    before = snapshot(replica)

    for late in (
        lambda: replica.release("a"),
        lambda: replica.commit("a", 4),
        lambda: replica.extend("a"),
        lambda: replica.grow(["a"]),
        lambda: replica.tables("a"),
    ):
        with pytest.raises(UnknownSequence):
            late()

    assert snapshot(replica) == before
    replica.release("b")
    assert admit(replica, new("a", "pq")).cached_tokens == 0


def _restarted_between(cluster: Cluster) -> None:
    """The coordinator dies with what it was about to say; the next one knows nothing yet."""
    cluster.restart(1)
    cluster.send(RecoverEvent(("p", "q")))
    for process_id in "pq":
        cluster.send(EpochAcknowledgedEvent(process_id))


def test_a_retry_after_a_restart_is_done_once_and_old_ids_name_nothing() -> None:
    """The scenario: three blocks for R, no reply, a restart; the retry is R's, and what is from before is refused."""
    cluster = cluster_of(blocks=9)
    client, other = attached(cluster, "p", 1), attached(cluster, "q", 2)
    request = AdmitRequest(0, (new("R", "ab"),))
    client.ask(request)  # the answer is lost with the coordinator
    old_token = client.token
    _restarted_between(cluster)

    with pytest.raises(UnknownSession, match="one of an earlier coordinator"):
        client.attach(3, ("R",))
    client.token, client.number = b"", 0
    reply, _ = client.attach(3)
    assert (reply.epoch, reply.sequences) == (1, ())
    other.token, other.number = b"", 0
    other.attach(4)
    other.admit(new("other", "xy"))
    held = cluster.replica.tables("other")[0].tolist()

    first = client.send(1, request)
    assert client.send(1, request) == first
    assert cluster.replica.sequences() == ["other", "R"]
    assert free(cluster) == 8 - 3 - 3
    cluster.send(LossAcknowledgedEvent("p", old_token))
    assert cluster.replica.tables("other")[0].tolist() == held
    assert set(held).isdisjoint(cluster.replica.tables("R")[0].tolist())
    cluster.check()


def test_ids_from_before_a_restart_are_refused() -> None:
    """The scenario goes on: sequences and pins of the old epoch, asked about over a new session."""
    cluster = cluster_of(blocks=9)
    client = attached(cluster, "p", 1)
    client.admit(new("R", "ab"))
    client.ask(PinRequest(0, "pin", chain("ab")))
    _restarted_between(cluster)
    client.token, client.number = b"", 0
    client.attach(2)

    for late in (ReleaseEvent("R"), CommitRequest(0, "R", 4), GrowRequest(0, ("R",), 1)):
        assert isinstance(client.result(late), UnknownSequence)
    assert isinstance(client.result(UnpinEvent("pin")), UnknownPin)
    assert quiescent(cluster.replica)


def test_an_old_id_that_another_client_uses_now_is_still_refused() -> None:
    """Neighbour: after the restart the other client was first to call a sequence R, and a pin `pin`."""
    cluster = cluster_of(blocks=9)
    client = attached(cluster, "p", 1)
    client.admit(new("R", "ab"))
    client.ask(PinRequest(0, "pin", chain("ab")))
    _restarted_between(cluster)
    client.token, client.number = b"", 0
    client.attach(2)
    other = attached(cluster, "q", 3)
    other.admit(new("R", "xy"))
    other.ask(PinRequest(0, "pin", chain("xy")))

    for late in (ReleaseEvent("R"), CommitRequest(0, "R", 8), GrowRequest(0, ("R",), 1)):
        assert isinstance(client.result(late), UnknownSequence)
    assert isinstance(client.result(UnpinEvent("pin")), UnknownPin)

    assert cluster.replica.sequence("R").committed_tokens == 0
    assert len(cluster.replica.tables("R")[0]) == 3
    assert list(cluster.replica.state.records.pins) == ["pin"]
    cluster.check()


def test_workers_drop_what_is_of_the_old_epoch() -> None:
    """The scenario goes on: the group is empty, and what the old coordinator still sends to it is refused."""
    cluster = cluster_of(blocks=9)
    cluster.cache("ab")
    late = cluster.replica.step(AdmitRequest(9, (new("late", "ab"),)), 0.0)
    _restarted_between(cluster)

    group = cluster.replica.groups[0]
    assert list(group.index.entries()) == []
    for output in late:
        assert isinstance(output, GroupOutput)
        assert group.handle(output.message, output.number, output.epoch) is None
    cluster.check()


def test_answers_to_the_old_coordinator_settle_nothing_of_the_new_one() -> None:
    """Neighbour: rounds, publications and transfers count from one again, so that old answers bear their numbers."""
    cluster = make(blocks=(5, 9))
    _restarted_between(cluster)
    cluster.silent.add(("tier", HOST, 0))
    cluster.cache("wxyz")
    cluster.cache("v")  # evicts a block, whose copy is transfer 1
    cluster.admit(new("runs", "u", extra_tokens=0))
    cluster.silent.add(("group", 0, 0))
    cluster.commit("runs", 4)  # publication 3
    cluster.send(AdmitRequest(1, (new("a", "a"),)))  # round 4
    state = cluster.replica.state

    assert cluster.send(MatchReply(4, 0, (), epoch=0)) == []
    assert cluster.send(PublishReply(3, 0, None, epoch=0)) == []
    assert cluster.send(CopyReply(1, 0, HOST, 0)) == []
    assert (cluster.replica.sequences(), state.current_round is not None) == (["runs"], True)
    assert [one.publish_id for one in state.publications.unanswered()] == [3]
    assert state.tiers.traffic.transfers.open_transfers()[0].transfer_id == 1

    cluster.silent.clear()
    cluster.deliver()
    assert cluster.replica.sequences() == ["runs", "a"]
    cluster.check()


def test_steps_of_an_engine_from_before_a_restart_pass_no_fence_of_the_new_session() -> None:
    """Neighbour: the engine counts on from step 100; a fence at 101 waits for 101 in the new session."""
    cluster = cluster_of(blocks=3)
    client = attached(cluster, "p", 1)
    client.ask(StepsDoneEvent(100))
    _restarted_between(cluster)
    client.token, client.number = b"", 0
    client.attach(2)
    client.admit(NewSequence("a", 8))
    client.ask(ReleaseEvent("a", fence=101))

    client.ask(StepsDoneEvent(100))
    assert free(cluster) == 0
    client.ask(StepsDoneEvent(101))
    assert free(cluster) == 2


def test_no_slot_is_handed_out_after_a_restart_before_every_process_has_let_go() -> None:
    """Neighbour: the retry comes at once. The other process has not heard of the restart, and may still write."""
    cluster = cluster_of(blocks=9)
    attached(cluster, "q", 1).admit(new("runs on", "abc"))
    cluster.restart(1)
    cluster.send(RecoverEvent(("p", "q")))
    client = attached(cluster, "p", 2)
    cluster.send(LossAcknowledgedEvent("p"))

    refused = client.result(AdmitRequest(0, (new("R", "ab"),)))
    assert isinstance(refused, AdmitReply)
    assert isinstance(refused.results[0], OutOfBlocks)

    cluster.send(ProcessGoneEvent("q"))
    client.admit(new("R", "ab"))
    cluster.check()


def test_a_retry_over_another_connection_is_done_once_without_any_restart() -> None:
    """Neighbour: only the connection died, before the reply. The answer is given again; growth is not done twice."""
    cluster = cluster_of(blocks=9)
    client = attached(cluster, "p", 1)
    client.admit(new("R", "ab"))
    grown = client.ask(GrowRequest(0, ("R",), 2))
    client.lose_connection()

    _, answers = client.attach(2, ("R",))

    assert [one.number for one in answers] == [1, 2]
    again = client.send(2, GrowRequest(0, ("R",), 2))
    assert repr(again) == repr(grown)
    assert len(cluster.replica.tables("R")[0]) == 5
    cluster.check()


def test_an_event_stream_tells_of_the_new_epoch() -> None:
    """Neighbour: a reader that knows the old coordinator's blocks drops all of them, with the first thing it hears."""
    cluster = make(blocks=(9,))
    cluster.cache("ab")
    cluster.check()
    assert cluster.mirror.prefix_blocks(0, chain("ab")) == 2

    _restarted_between(cluster)
    cluster.check()

    assert cluster.mirror.prefix_blocks(0, chain("ab")) == 0
    assert cluster.mirror.position is not None
    assert cluster.mirror.position[0] == 1
