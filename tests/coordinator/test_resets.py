"""Resets: nothing of what was published before is hit, whatever is on its way."""

from __future__ import annotations

from kvtroupe.coordinator.check import quiescent
from kvtroupe.coordinator.messages import (
    AdmitReply,
    AdmitRequest,
    Admitted,
    CommitReply,
    CommitRequest,
    GroupOutput,
    MatchReply,
    PublishReply,
    RecoverEvent,
    ReleaseEvent,
    ResetReply,
    ResetRequest,
)
from tests.coordinator.cluster import Cluster
from tests.coordinator.losing import DISK, FULL, HOST, SLIDING, below, make
from tests.coordinator.support import new


def reset(cluster: Cluster) -> list[int]:
    """Reset: the content epochs of the replies that have come."""
    return [one.content_epoch for one in cluster.send(ResetRequest(5)) if isinstance(one, ResetReply)]


def test_after_a_reset_nothing_is_hit_on_any_level() -> None:
    """Device and host are emptied; what is published later can be hit."""
    cluster = make(FULL, SLIDING, blocks=(17, 17))
    cluster.cache("abcd", "efgh", "ijkl")
    assert below(cluster, 1)

    assert reset(cluster) == [1]

    cluster.check()
    assert cluster.hit("abcd") == cluster.hit("ijkl") == 0
    assert below(cluster, 1) == set()
    assert quiescent(cluster.replica)
    cluster.cache("abcd")
    assert cluster.hit("abcd") == 16


def test_a_sequence_that_runs_across_a_reset_publishes_nothing() -> None:
    """It goes on, and its commits are answered; a sequence admitted later publishes the same blocks."""
    cluster = make()
    cluster.run("a", "ab")
    (result,) = cluster.admit(new("b", "abcd", extra_tokens=0))
    assert isinstance(result, Admitted)
    assert result.cached_tokens == 8

    reset(cluster)
    cluster.commit("b", 16)

    assert cluster.replica.published("full") == {}
    assert cluster.events[-1] == CommitReply(4, (0,))
    cluster.send(ReleaseEvent("a"))
    cluster.send(ReleaseEvent("b"))
    assert quiescent(cluster.replica)
    cluster.cache("ab")
    assert cluster.hit("ab") == 8


def test_a_publication_that_is_under_way_is_void() -> None:
    """Its commit is answered at once; the group enters the blocks and then forgets them."""
    cluster = make()
    (result,) = cluster.admit(new("a", "ab", extra_tokens=0))
    assert isinstance(result, Admitted)
    cluster.silent.add(("group", 0, 0))
    cluster.commit("a", 8)

    outputs = cluster.send(ResetRequest(5))
    assert [one for one in outputs if isinstance(one, CommitReply)] == [CommitReply(2, (0,))]
    cluster.silent.clear()
    cluster.deliver()

    assert cluster.replica.published("full") == {}
    cluster.check()


def test_what_a_group_has_answered_before_a_reset_does_not_count_after_it() -> None:
    """Its blocks are offered and entered, a round asks for them, and only then comes the reset: no hit."""
    cluster = make()
    (result,) = cluster.admit(new("a", "ab", extra_tokens=0))
    assert isinstance(result, Admitted)
    group = cluster.replica.groups[0]
    sent = [
        *cluster.replica.step(CommitRequest(70, "a", 8), 0.0),
        *cluster.replica.step(AdmitRequest(71, (new("b", "ab"),)), 0.0),
    ]
    publish, match = [group.handle(one.message, one.number) for one in sent if isinstance(one, GroupOutput)]
    cluster.send(ResetRequest(5))
    assert isinstance(publish, PublishReply)
    assert isinstance(match, MatchReply)
    assert match.evidence[0].present == 0b11

    cluster.send(publish)
    (reply,) = [one for one in cluster.send(match) if isinstance(one, AdmitReply)]

    assert [one.cached_tokens for one in reply.results if isinstance(one, Admitted)] == [0]
    cluster.check()


def test_copies_that_are_under_way_do_not_land() -> None:
    """The tier does them under the old content epoch, and keeps no row of it."""
    cluster = make(blocks=(9, 9))
    cluster.silent.add(("tier", HOST, 0))
    cluster.cache("abcd", "efgh", "ijkl")
    assert cluster.waiting(("tier", HOST, 0))

    assert reset(cluster) == []
    cluster.silent.clear()
    cluster.deliver()

    assert [one.content_epoch for one in cluster.events if isinstance(one, ResetReply)] == [1]
    assert below(cluster, 1) == set()
    assert cluster.tiers[HOST, 0].rows == {}
    cluster.check()
    assert quiescent(cluster.replica)


def test_a_reset_returns_when_every_rank_of_every_tier_has_made_it_durable() -> None:
    """One of four is silent."""
    cluster = make(blocks=(9, 9, 9), ranks=2)
    cluster.silent.add(("tier", DISK, 1))

    assert reset(cluster) == []

    cluster.silent.clear()
    cluster.deliver()
    assert [one.content_epoch for one in cluster.events if isinstance(one, ResetReply)] == [1]


def test_a_tier_that_was_away_is_emptied_before_the_reset_returns() -> None:
    """It has kept its rows, of content epoch 0, and makes 1 durable as it is asked for them."""
    cluster = make(blocks=(9, 20))
    cluster.cache("abcd", "efgh", "ijkl")
    cluster.silent.add(("tier", HOST, 0))
    assert reset(cluster) == []
    cluster.lose_tier(HOST, 0, keeps_rows=True)
    cluster.silent.clear()
    assert cluster.tiers[HOST, 0].rows

    outputs = cluster.tier_ready(HOST, 0)

    assert [one.content_epoch for one in outputs if isinstance(one, ResetReply)] == [1]
    assert below(cluster, 1) == set()
    assert cluster.hit("abcd") == 0
    cluster.check()


def test_a_new_coordinator_learns_of_a_reset_that_only_one_tier_has_heard_of() -> None:
    """The disk has made epoch 1 durable when the coordinator dies; what the host has of epoch 0 is void."""
    cluster = make(blocks=(9, 20, 20))
    cluster.cache("abcd", "efgh", "ijkl")
    cluster.silent.add(("tier", HOST, 0))
    assert reset(cluster) == []
    cluster.restart(1)
    cluster.silent.clear()
    assert cluster.tiers[HOST, 0].rows
    assert cluster.tiers[DISK, 0].content_epoch == 1

    cluster.send(RecoverEvent(()))

    assert cluster.replica.state.resets.content_epoch == 1
    assert cluster.hit("abcd") == 0
    assert cluster.tiers[HOST, 0].content_epoch == 1
    assert cluster.tiers[HOST, 0].rows == {}
    cluster.cache("abcd", "efgh", "ijkl")
    assert cluster.hit("abcd") == 16
    cluster.check()
