"""Copies to the tier below that find no place there, or fail (B9).

Faults that users of other KV cache managers have reported, as scenarios here, each with neighbours: the same kind of
fault in another guise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvtroupe.coordinator.config import Limits
from kvtroupe.coordinator.messages import (
    LookupReply,
    LookupRequest,
    MoveReply,
    MoveRequest,
    NewSequence,
    PinRequest,
    ReleaseEvent,
    Removed,
    ResetRequest,
    Stored,
    TimerEvent,
)
from tests.coordinator.cluster import Cluster
from tests.coordinator.losing import DISK, HOST, below, digests, make
from tests.coordinator.support import chain, last_digest
from tests.coordinator.telling import facts, part

if TYPE_CHECKING:
    from collections.abc import Callable

HOST_TIER = ("tier", HOST, 0)


def _evict(cluster: Cluster, blocks: int) -> None:
    """A sequence of so many blocks takes the slots of cached ones, and ends."""
    cluster.admit(NewSequence("evicts", 4 * blocks))
    cluster.send(ReleaseEvent("evicts"))


def _hit(cluster: Cluster, words: str) -> int:
    """Tokens that a lookup finds."""
    (reply,) = [one for one in cluster.send(LookupRequest(1, chain(words))) if isinstance(one, LookupReply)]
    return reply.hit_tokens


# -- no place below ----------------------------------------------------------------------------------------------------


def test_what_finds_no_place_below_is_dropped_and_said_to_be_gone() -> None:
    """The scenario: two slots on the device, and the only one of the host is pinned."""
    cluster = make(blocks=(3, 2))
    cluster.cache("h")
    _evict(cluster, 2)
    cluster.send(PinRequest(1, "pin", chain("h")))
    assert below(cluster, 1) == digests("h")
    cluster.cache("ab")
    known = len(facts(cluster))

    _evict(cluster, 1)

    assert facts(cluster)[known:] == [Removed(0, "device", part("ab", 1))]
    assert below(cluster, 1) == digests("h")
    assert cluster.replica.counters().demotions_given_up == 1
    assert _hit(cluster, "ab") == 4
    cluster.check()


def _all_under_way() -> Cluster:
    cluster = make(blocks=(3, 2))
    cluster.silent.add(HOST_TIER)
    cluster.cache("h")
    cluster.send(MoveRequest(1, chain("h"), 1))
    return cluster


def _too_many_under_way() -> Cluster:
    cluster = Cluster(make(blocks=(3, 9)).config.changed(limits=Limits(arriving_blocks_max=1)))
    cluster.silent.add(HOST_TIER)
    cluster.cache("h")
    cluster.send(MoveRequest(1, chain("h"), 1))
    return cluster


def _failed_before() -> Cluster:
    cluster = make(blocks=(3, 9))
    cluster.tiers[HOST, 0].failing = True
    cluster.cache("h")
    cluster.send(MoveRequest(1, chain("h"), 1))
    cluster.tiers[HOST, 0].failing = False
    return cluster


def _lost() -> Cluster:
    cluster = make(blocks=(3, 9))
    cluster.lose_tier(HOST, 0, keeps_rows=False)
    return cluster


def _silent_beyond_the_deadline() -> Cluster:
    cluster = make(blocks=(4, 9))  # one more slot: what the copy reads stays in use
    cluster.silent.add(HOST_TIER)
    cluster.cache("h")
    cluster.send(MoveRequest(1, chain("h"), 1))
    cluster.now_s = 60.0
    cluster.send(TimerEvent())
    return cluster


@pytest.mark.parametrize(
    "troubled",
    [_all_under_way, _too_many_under_way, _failed_before, _lost, _silent_beyond_the_deadline],
    ids=lambda troubled: troubled.__name__.strip("_"),
)
def test_what_may_not_be_copied_now_is_dropped_and_said_to_be_gone(troubled: Callable[[], Cluster]) -> None:
    """Neighbours: other reasons why nothing can go down. Nobody waits for the tier, and it is not said to have it."""
    cluster = troubled()
    _evict(cluster, 2)
    cluster.cache("ab")
    known = len(facts(cluster))

    _evict(cluster, 2)

    assert facts(cluster)[known:] == [Removed(0, "device", part("ab", 1) + part("ab", 0, 1))]
    assert _hit(cluster, "ab") == 0
    cluster.check()


# -- the copy fails ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing_rank", [0, 1])
def test_what_could_not_be_written_below_is_never_said_to_be_there(failing_rank: int) -> None:
    """Neighbour: a slot was obtained, and the write fails, on one of two ranks. No rank keeps what it has written."""
    cluster = make(blocks=(3, 9), ranks=2)
    cluster.cache("ab")
    cluster.tiers[HOST, failing_rank].failing = True

    _evict(cluster, 2)

    assert not [one for one in facts(cluster) if isinstance(one, Stored) and one.medium == "host"]
    assert below(cluster, 1) == set()
    assert _hit(cluster, "ab") == 0
    assert [cluster.tiers[HOST, rank].rows for rank in (0, 1)] == [{}, {}]
    assert cluster.replica.counters().copies_failed == 2
    cluster.check()


def test_a_tier_that_has_failed_is_tried_again_after_a_while() -> None:
    """Neighbour: it is left alone for 5 s, during which content is dropped, and then kept there again."""
    cluster = make(blocks=(3, 9))
    cluster.cache("ab")
    cluster.tiers[HOST, 0].failing = True
    _evict(cluster, 2)
    cluster.tiers[HOST, 0].failing = False

    for now_s, kept in ((4.9, set()), (5.0, digests("cd"))):
        cluster.now_s = now_s
        cluster.cache("cd")
        _evict(cluster, 2)
        assert below(cluster, 1) == kept
    cluster.check()


def test_what_could_not_be_copied_as_it_was_published_stays_on_the_device() -> None:
    """Neighbour: a copy at commit. Its failure costs the copy; nothing is linked to a place that holds nothing."""
    cluster = make(blocks=(3, 9), offload="on_commit")
    cluster.tiers[HOST, 0].failing = True
    cluster.cache("ab")
    assert below(cluster, 1) == set()
    assert _hit(cluster, "ab") == 8
    cluster.tiers[HOST, 0].failing = False

    _evict(cluster, 2)

    assert _hit(cluster, "ab") == 0
    assert below(cluster, 1) == set()
    cluster.check()


def test_what_the_host_could_not_write_to_the_disk_stays_on_the_host() -> None:
    """Neighbour: a tier further down, by a move. The host has its block still; the disk is not said to."""
    cluster = make(blocks=(6, 6, 6), offload="never")
    cluster.cache("ab")
    cluster.send(MoveRequest(1, chain("ab"), 1))
    cluster.tiers[DISK, 0].failing = True

    cluster.send(MoveRequest(2, chain("ab"), 2))

    assert (below(cluster, 1), below(cluster, 2)) == (digests("ab"), set())
    (reply,) = cluster.send(MoveRequest(3, chain("ab"), 2))
    assert isinstance(reply, MoveReply)
    assert (reply.begun_blocks, reply.missing_blocks) == (0, 2)
    cluster.check()


# -- the copy is overtaken ---------------------------------------------------------------------------------------------


def test_what_is_on_its_way_down_is_no_hit_before_it_is_there() -> None:
    """Neighbour: the copy is neither done nor failed. Its block has left the device and has not landed."""
    cluster = make(blocks=(3, 9))
    cluster.cache("ab")
    cluster.silent.add(HOST_TIER)
    _evict(cluster, 2)

    assert _hit(cluster, "ab") == 0
    cluster.silent.clear()
    cluster.deliver()

    assert below(cluster, 1) == digests("ab")
    assert _hit(cluster, "a") == 4
    cluster.check()


def test_what_was_reset_on_its_way_down_does_not_land() -> None:
    """Neighbour: the copy succeeds, and its content does not count any more."""
    cluster = make(blocks=(3, 9))
    cluster.cache("ab")
    cluster.silent.add(HOST_TIER)
    _evict(cluster, 2)
    cluster.send(ResetRequest(1))

    cluster.silent.clear()
    cluster.deliver()

    assert below(cluster, 1) == set()
    assert cluster.mirror.places(0, last_digest("ab")) == {}
    cluster.check()


def test_what_was_on_its_way_down_when_its_group_was_lost_does_not_land() -> None:
    """Neighbour: no index expects it. Its slot is free again, and the tier does not keep it."""
    cluster = make(blocks=(3, 9))
    cluster.cache("ab")
    cluster.silent.add(HOST_TIER)
    _evict(cluster, 2)
    cluster.lose_group(0)
    cluster.group_ready(0)

    cluster.silent.clear()
    cluster.deliver()

    assert below(cluster, 1) == set()
    assert cluster.tiers[HOST, 0].rows == {}
    assert cluster.replica.pool("host").ledger.free == 8
    cluster.check()
