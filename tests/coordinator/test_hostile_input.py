"""Input that no honest client or group sends: it is refused with an error of ours, and changes nothing."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.errors import DigestError, InvariantError, RequestError, SequenceTooLong, UnknownSequence
from kvtroupe.coordinator.messages import (
    AdmitRequest,
    CommitReply,
    CommitRequest,
    GroupOutput,
    MatchReply,
    MatchRequest,
    NewSequence,
    PublishReply,
    ReleaseEvent,
)
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.support import chain, make_config, new, snapshot

ANYTHING: list[Any] = [None, 0, 1.5, "a", b"a", [], object(), float("nan")]


def commit_under_way() -> tuple[Replica, list[PublishReply]]:
    """A replica of two groups that waits for both of their answers to a commit, and those answers."""
    replica = Replica(make_config("full", "full"))
    replica.admit([new("a", "xy")])
    outputs = replica.step(CommitRequest(9, "a", 8), 0.0)
    offers = [output for output in outputs if isinstance(output, GroupOutput)]
    return replica, [cast("PublishReply", replica.groups[offer.group].handle(offer.message)) for offer in offers]


@pytest.mark.parametrize("now_s", [None, "1", b"", float("nan"), float("inf"), 10**400, [], True])
def test_what_is_no_time_is_refused(now_s: Any) -> None:  # noqa: ANN401 - anything
    """One deadline or expiry that cannot be compared would put all others out of order."""
    replica = Replica(make_config("full"))
    replica.admit([new("a", "xy")])
    before = snapshot(replica)

    for call in (
        lambda: replica.admit([new("b", "xy")], now_s),
        lambda: replica.commit("a", 8, now_s=now_s),
        lambda: replica.tick(now_s),
        lambda: replica.release("a", now_s=now_s),
    ):
        with pytest.raises(RequestError, match="is no time"):
            call()

    assert snapshot(replica) == before


@pytest.mark.parametrize("one", ANYTHING)
def test_what_is_no_sequence_is_not_admitted(one: Any) -> None:  # noqa: ANN401 - anything
    """Not even the good ones that come with it are."""
    replica = Replica(make_config("full"))
    before = snapshot(replica)

    with pytest.raises(RequestError, match="is no NewSequence"):
        replica.admit([new("a", "x"), one])

    assert snapshot(replica) == before


@pytest.mark.parametrize("message", ANYTHING)
def test_what_is_no_message_is_refused(message: Any) -> None:  # noqa: ANN401 - anything
    """A coordinator says so and goes on."""
    with pytest.raises(RequestError, match="is no message to a coordinator"):
        Replica(make_config("full")).step(message, 0.0)


def test_an_id_that_cannot_be_hashed_names_nothing() -> None:
    """Lists and the like are refused like any other id that is not in use."""
    replica = Replica(make_config("full"))
    bad = cast("str", ["a"])

    for call in (
        lambda: replica.extend(bad),
        lambda: replica.release(bad),
        lambda: replica.commit(bad, 1),
        lambda: replica.grow([bad]),
    ):
        with pytest.raises((UnknownSequence, RequestError)):
            call()
    with pytest.raises(RequestError, match="cannot name a pin"):
        replica.unpin(bad)
    with pytest.raises(RequestError, match="cannot name a sequence"):
        replica.admit([NewSequence(bad, 1)])


def test_digests_that_are_no_bytes_are_refused() -> None:
    """An array of them would be looked at element by element."""
    replica = Replica(make_config("full"))
    replica.admit([new("a", "xy")])
    before = snapshot(replica)

    with pytest.raises(RequestError, match="ndarray where bytes belongs"):
        replica.commit("a", 8, cast("bytes", np.zeros(8, np.uint8)))
    with pytest.raises(DigestError):
        replica.commit("a", 8, b"123")

    assert snapshot(replica) == before


@pytest.mark.parametrize("blocks", [2**40, 2**63, 10**30])
def test_growth_beyond_all_bounds_is_refused(blocks: int) -> None:
    """However large the number is, and whoever grows or is admitted in the same round gets what it wants."""
    replica = Replica(make_config("full"))
    replica.admit([new("a", "xy")])

    assert isinstance(replica.grow(["a"], blocks).refused[0], SequenceTooLong)
    with pytest.raises(SequenceTooLong):
        replica.extend("a", blocks)

    check(replica)
    replica.release("a")
    assert quiescent(replica)


def test_the_direct_face_keeps_out_of_a_round_of_the_host() -> None:
    """What it asked for would wait for answers that it cannot bring; nothing is queued behind its back."""
    replica = Replica(make_config("full"))
    replica.admit([new("a", "x")])
    outputs = replica.step(AdmitRequest(50, (NewSequence("host", 9, chain("xy")),)), 0.0)
    before = snapshot(replica)

    for call in (
        lambda: replica.admit([new("b", "x")]),
        lambda: replica.extend("a", 9),
        lambda: replica.pin("p", b"8bytes.."),
    ):
        with pytest.raises(RequestError, match="between rounds"):
            call()

    assert snapshot(replica) == before
    request = cast("GroupOutput", outputs[0]).message
    replica.step(cast("MatchReply", replica.groups[0].handle(request)), 0.0)
    replica.admit([new("b", "x")])
    assert replica.sequences() == ["a", "host", "b"]


def test_an_answer_to_a_publication_counts_once() -> None:
    """Said twice, it does not stand for the answer of another group, whose slots stay held."""
    replica, (first, second) = commit_under_way()
    replica.step(ReleaseEvent("a"), 0.0)

    assert replica.step(first, 0.0) == []
    assert replica.step(first, 0.0) == []
    assert not quiescent(replica)
    assert [type(output) for output in replica.step(second, 0.0)] == [CommitReply]
    assert replica.step(second, 0.0) == []

    check(replica)
    assert quiescent(replica)
    assert replica.counters().late_answers == 2


def test_an_answer_to_a_publication_that_never_was_is_dropped() -> None:
    """Nobody waits for it."""
    replica = Replica(make_config("full"))

    assert replica.step(PublishReply(77, 0, None), 0.0) == []
    assert replica.counters().late_answers == 1


def test_an_answer_about_another_number_of_blocks_is_a_bug() -> None:
    """It must not be applied to some of them."""
    replica, _ = commit_under_way()
    before = snapshot(replica)

    with pytest.raises(InvariantError, match="answers for 3 of 2 blocks"):
        replica.step(PublishReply(1, 0, np.ones(3, np.bool_)), 0.0)

    assert snapshot(replica) == before


@pytest.mark.parametrize(("group", "prompts"), [(2, 1), (-1, 1), (0, 0), (0, 2)])
def test_evidence_of_no_group_or_for_other_prompts_is_a_bug(group: int, prompts: int) -> None:
    """It must not be taken for that of a group that was asked."""
    replica = Replica(make_config("full", "full"))
    outputs = replica.step(AdmitRequest(1, (NewSequence("a", 9, chain("xy")),)), 0.0)
    request = cast("GroupOutput", outputs[0]).message
    assert isinstance(request, MatchRequest)
    evidence = cast("MatchReply", replica.groups[0].handle(request)).evidence

    with pytest.raises(InvariantError, match="answers a round of 1 requests and 2 groups"):
        replica.step(MatchReply(request.round_id, group, evidence * prompts), 0.0)
