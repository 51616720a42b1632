"""Readers of block events: those that follow, those that come late, and those that ask wrongly."""

from __future__ import annotations

import random

import pytest

from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.config import Limits
from kvtroupe.coordinator.errors import InvariantError, RequestError
from kvtroupe.coordinator.event_mirror import Mirror
from kvtroupe.coordinator.events import EventLog
from kvtroupe.coordinator.messages import (
    AdmitRequest,
    Cleared,
    Events,
    EventsReply,
    EventsRequest,
    MoveRequest,
    NewSequence,
    ResetRequest,
    Snapshot,
    Stored,
)
from tests.coordinator.losing import FULL, SLIDING, make
from tests.coordinator.support import DIGEST_BYTES, admit, cache, chain, last_digest, make_replica, new
from tests.coordinator.telling import facts, make_one_pool, part

# -- readers -----------------------------------------------------------------------------------------------------------


def test_a_reader_gets_what_it_has_missed() -> None:
    """Once everything is known, nothing follows."""
    replica = make_one_pool(9)
    cache(replica, "ab")
    cache(replica, "cd")

    assert replica.events_since((0, 2)) == Events(0, 2, (Stored(0, "device", b"", chain("cd")),))
    assert replica.events_since((0, 3)) == Events(0, 3, ())


@pytest.mark.parametrize("position", [None, (0, 4), (1, 2)])
def test_a_reader_that_knows_nothing_of_this_coordinator_gets_a_snapshot(position: tuple[int, int] | None) -> None:
    """It is new, or has read facts that are yet to come, or those of another epoch."""
    replica = make_one_pool(9)
    cache(replica, "ab")
    cache(replica, "abxy")

    assert replica.events_since(position) == Snapshot(0, 3, (Stored(0, "device", b"", chain("abxy")),))


def test_a_snapshot_has_a_fact_for_each_branch() -> None:
    """Of the two chains that follow b, one goes on with a and b; the other names b as its parent."""
    replica = make_one_pool(21)
    for words in ("abcd", "abxy", "q"):
        cache(replica, words)

    snapshot = replica.events_since(None)

    assert isinstance(snapshot, Snapshot)
    branches = ("abcd", "abxy") if Stored(0, "device", b"", chain("abcd")) in snapshot.stored else ("abxy", "abcd")
    assert set(snapshot.stored) == {
        Stored(0, "device", b"", chain(branches[0])),
        Stored(0, "device", last_digest("ab"), part(branches[1], 2)),
        Stored(0, "device", b"", chain("q")),
    }
    assert len(snapshot.stored) == 3


def test_a_snapshot_names_a_parent_that_is_gone() -> None:
    """Blocks a to c have left the window and were given back, c first; b and c, which d follows, were evicted."""
    cluster = make(SLIDING, blocks=(6,))
    cluster.admit(new("a", "abcde", extra_tokens=0))
    cluster.commit("a", 8)
    cluster.commit("a", 20)
    cluster.admit(NewSequence("evicts", 8))

    snapshot = cluster.replica.events_since(None)

    assert isinstance(snapshot, Snapshot)
    assert snapshot.stored == (
        Stored(0, "device", b"", chain("a")),
        Stored(0, "device", last_digest("abc"), part("abcde", 3)),
    )


def test_a_reader_that_has_missed_too_much_gets_a_snapshot() -> None:
    """Facts of five blocks are kept: those of the last three and two. What came before them is forgotten."""
    replica = make_one_pool(21, limits=Limits(event_blocks_kept_max=5))
    for words in ("ab", "cde", "fg"):
        cache(replica, words)

    assert replica.events_since((0, 2)) == Events(
        0, 2, (Stored(0, "device", b"", chain("cde")), Stored(0, "device", b"", chain("fg")))
    )
    assert isinstance(replica.events_since((0, 1)), Snapshot)


def test_a_fact_larger_than_the_log_is_not_kept() -> None:
    """Who knows all before it takes a snapshot; who knows it needs nothing."""
    log = EventLog(7, 3)
    log.add(Cleared())
    log.add(Stored(0, "device", b"", chain("abcd")), 4)
    log.add(Cleared())

    assert log.since(1) is None
    assert log.since(2) == Events(7, 2, (Cleared(),))
    assert log.since(3) == Events(7, 3, ())
    assert log.since(4) is None


def test_hosts_ask_by_message() -> None:
    """The reply carries what the direct call gives."""
    replica = make_one_pool(9)
    cache(replica, "ab")

    assert replica.step(EventsRequest(5, (0, 1)), 0.0) == [
        EventsReply(5, Events(0, 1, (Stored(0, "device", b"", chain("ab")),)))
    ]
    assert replica.step(EventsRequest(6), 0.0) == [
        EventsReply(6, Snapshot(0, 2, (Stored(0, "device", b"", chain("ab")),)))
    ]


def test_events_can_be_read_while_a_round_runs() -> None:
    """Nothing in flight is part of them."""
    cluster = make()
    cluster.run("a", "ab")
    cluster.silent.add(("group", 0, 0))
    cluster.send(AdmitRequest(70, (new("b", "ab"),)))
    assert cluster.replica.state.current_round is not None

    assert facts(cluster) == [Stored(0, "device", b"", chain("ab"))]


def test_events_that_are_switched_off_are_refused() -> None:
    """By default nothing is kept."""
    replica = make_replica("full")

    with pytest.raises(RequestError, match="events=True"):
        replica.events_since()
    with pytest.raises(RequestError, match="events=True"):
        replica.step(EventsRequest(1), 0.0)


@pytest.mark.parametrize("position", [(0,), (0, -1), (-1, 0), (0, 1.0), (True, 0), "01", 5])
def test_a_malformed_position_is_refused(position: tuple[int, int]) -> None:
    """It is a pair of whole numbers from 0 on."""
    with pytest.raises(RequestError, match="the epoch and the number"):
        make_one_pool(9).events_since(position)


@pytest.mark.parametrize("untold", ["stored", "removed"])
def test_the_checker_notices_what_is_not_told(untold: str) -> None:
    """A ledger that keeps a publication, or an eviction, to itself; a mirror made later knows better."""
    replica = make_one_pool(5)
    cache(replica, "ab")
    mirror = Mirror(DIGEST_BYTES)
    check(replica, mirror)

    replica.pool("device").ledger.events = None
    if untold == "stored":
        cache(replica, "cd")
    else:
        admit(replica, NewSequence("evicts", 16))

    with pytest.raises(InvariantError, match="a mirror of the events differs from what is published"):
        check(replica, mirror)
    check(replica)


# -- anything at all ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_that_reads_now_and_then_knows_what_the_indexes_know(seed: int) -> None:
    """Whatever is cached, moved, reset and evicted meanwhile, and whether it needs snapshots for it or not."""
    chance = random.Random(seed)  # noqa: S311 - chooses test cases
    cluster = make(FULL, SLIDING, blocks=(21, 9, 13))
    reader = Mirror(DIGEST_BYTES)
    for _ in range(60):
        words = "".join(chance.choice("ab") for _ in range(chance.randint(1, 7)))
        what = chance.random()
        if what < 0.8:
            cluster.cache(words)
        elif what < 0.97:
            cluster.send(MoveRequest(1, chain(words), chance.randrange(3)))
        else:
            cluster.send(ResetRequest(2))
        if chance.random() < 0.3:
            reader.fold(cluster.replica.events_since(reader.position))
            in_indexes = {
                (group.number, medium, digest): 1
                for group in cluster.replica.groups
                for level, medium in enumerate(["device", "host", "disk"])
                for digest, _, _ in (group.index.entries_below(level) if level else group.index.entries())
            }
            assert reader.counts() == in_indexes
        check(cluster.replica, cluster.mirror)
