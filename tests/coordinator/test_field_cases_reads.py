"""Blocks below the device that cannot be read, or not to an end (L1).

Faults that users of other KV cache managers have reported, as scenarios here, each with neighbours: the same kind of
fault in another guise.

What a tier finds wrong with the bytes of a block (a file that is missing, empty or cut short, a flipped bit, the bytes
of another block under this name) comes with the disk tier. To the coordinator it is one thing: a copy that failed.
These tests are about what follows from that.
"""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.check import quiescent
from kvtroupe.coordinator.config import GroupConfig
from kvtroupe.coordinator.errors import CommitError, TransferFailed
from kvtroupe.coordinator.messages import (
    Admitted,
    CopyReply,
    MoveRequest,
    ReleaseEvent,
    Removed,
    SequenceFailedEvent,
    TimerEvent,
    TransfersDoneEvent,
)
from tests.coordinator.clients import free
from tests.coordinator.cluster import Cluster
from tests.coordinator.losing import DISK, HOST, SLIDING, below, digests, failed, make
from tests.coordinator.support import chain, new, split
from tests.coordinator.telling import facts, part

HOST_TIER = ("tier", HOST, 0)


def _on_host(*groups: GroupConfig, blocks: int = 13, ranks: int = 1) -> Cluster:
    """Four blocks on the host; the device has other content, which it may drop."""
    cluster = make(*groups, blocks=(blocks, 13), offload="never", ranks=ranks)
    cluster.cache("abcd")
    cluster.send(MoveRequest(1, chain("abcd"), 1))
    for number in range(-(-(blocks - 1) // 3)):
        cluster.cache(f"{number}yz")
    assert below(cluster, 1) == digests("abcd")
    assert digests("abcd").isdisjoint(cluster.replica.published("full"))
    return cluster


def _spoil(cluster: Cluster, block: int, pool: int = HOST, rank: int = 0) -> None:
    """The bytes of a block of the chain are not what they should be."""
    cluster.tiers[pool, rank].unreadable.add(split(chain("abcd"))[block])


# -- a block cannot be read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(4))
def test_a_block_that_cannot_be_read_costs_what_follows_it(block: int) -> None:
    """The scenario (a) to (d) and (f): the sequence fails, comes again, and gets the good prefix before the block."""
    cluster = _on_host()
    _spoil(cluster, block)
    known = len(facts(cluster))
    before = len(cluster.events)

    (result,) = cluster.admit(new("a", "abcd"))

    assert isinstance(result, Admitted)
    (event,) = [one for one in cluster.events[before:] if isinstance(one, SequenceFailedEvent)]
    assert isinstance(event.error, TransferFailed)
    assert (event.sequence_id, event.must_be_released) == ("a", False)
    assert (event.error.pool, event.error.blocks) == ("host", 1)
    lost = [one for one in facts(cluster)[known:] if isinstance(one, Removed) and one.medium == "host"]
    assert lost == [Removed(0, "host", part("abcd", block, block + 1))]
    assert len(cluster.tiers[HOST, 0].rows) == 3
    assert quiescent(cluster.replica)
    cluster.check()

    (again,) = cluster.admit(new("a", "abcd"))
    assert isinstance(again, Admitted)
    assert again.cached_tokens == 4 * block
    cluster.commit("a", 17)
    cluster.send(ReleaseEvent("a"))
    assert cluster.hit("abcd") == 16
    cluster.check()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_block_that_one_rank_cannot_read_is_read_by_none(rank: int) -> None:
    """Neighbour: the other rank has all of its bytes. The block is gone on both."""
    cluster = _on_host(ranks=2)
    _spoil(cluster, 2, rank=rank)

    before = len(cluster.events)
    cluster.admit(new("a", "abcd"))

    assert failed(cluster.events[before:]) == {"a": False}
    assert [len(cluster.tiers[HOST, one].rows) for one in (0, 1)] == [3, 3]
    assert cluster.hit("abcd") == 8
    cluster.check()


def test_two_blocks_that_cannot_be_read_are_found_at_once() -> None:
    """Neighbour: one failure tells of both, and the sequence comes again once, not twice."""
    cluster = _on_host()
    _spoil(cluster, 1)
    _spoil(cluster, 3)

    before = len(cluster.events)
    cluster.admit(new("a", "abcd"))

    (event,) = [one for one in cluster.events[before:] if isinstance(one, SequenceFailedEvent)]
    assert isinstance(event.error, TransferFailed)
    assert event.error.blocks == 2
    assert below(cluster, 1) == {split(chain("abcd"))[0], split(chain("abcd"))[2]}
    assert cluster.hit("abcd") == 4
    cluster.check()


def test_everybody_who_reads_the_block_fails_and_nobody_else() -> None:
    """Neighbour: three sequences have joined one copy; one of them hits only what is before the block."""
    cluster = _on_host()
    _spoil(cluster, 3)
    cluster.silent.add(HOST_TIER)
    for name, words in (("one", "abcd"), ("two", "abcd"), ("short", "abc")):
        cluster.admit(new(name, words))

    before = len(cluster.events)
    cluster.silent.clear()
    cluster.deliver()

    assert failed(cluster.events[before:]) == {"one": False, "two": False}
    assert [one for one in cluster.events[before:] if isinstance(one, TransfersDoneEvent)]
    cluster.commit("short", 13)
    cluster.send(ReleaseEvent("short"))
    assert quiescent(cluster.replica)
    cluster.check()


def test_a_block_that_its_group_does_not_read_is_not_missed() -> None:
    """Neighbour: a window that sees two blocks back only. The first block of the chain need not be read."""
    cluster = make(SLIDING, blocks=(13, 25))
    cluster.cache("abcd", "0yz", "1yz", "2yz", "3yz")
    assert below(cluster, 1) >= digests("abcd")
    _spoil(cluster, 0)

    before = len(cluster.events)
    (result,) = cluster.admit(new("a", "abcd"))

    assert isinstance(result, Admitted)
    assert (result.cached_tokens, bool(result.reads_after)) == (16, True)
    assert failed(cluster.events[before:]) == {}
    cluster.commit("a", 17)
    cluster.check()


def test_a_block_that_the_disk_cannot_read_is_gone_from_there_and_lands_nowhere() -> None:
    """Neighbour: it comes through the host, whose own copy succeeds and has copied nothing of use."""
    cluster = make(blocks=(13, 7, 13), offload="never")
    cluster.cache("abcd")
    for level in (1, 2):
        cluster.send(MoveRequest(level, chain("abcd"), level))
    for number in range(4):
        cluster.cache(f"{number}yz")
        cluster.send(MoveRequest(3, chain(f"{number}yz"), 1))
    assert digests("abcd").isdisjoint(below(cluster, 1) | set(cluster.replica.published("full")))
    _spoil(cluster, 2, pool=DISK)

    before = len(cluster.events)
    cluster.admit(new("a", "abcd"))

    assert failed(cluster.events[before:]) == {"a": False}
    torn = split(chain("abcd"))[2]
    assert torn not in below(cluster, 2) | below(cluster, 1) | set(cluster.replica.published("full"))
    assert cluster.hit("abcd") == 8
    assert quiescent(cluster.replica)
    cluster.check()


def test_what_was_to_be_computed_from_a_block_that_cannot_be_read_is_not_published() -> None:
    """Neighbour: the client commits before it has heard; and after it, when there is no such sequence any more."""
    cluster = _on_host()
    _spoil(cluster, 0)
    cluster.silent.add(HOST_TIER)
    cluster.admit(new("a", "abcd"))

    with pytest.raises(CommitError, match="still bring what it reads"):
        cluster.commit("a", 17)
    cluster.silent.clear()
    cluster.deliver()

    assert "a" not in cluster.replica.sequences()
    assert cluster.hit("abcd") == 0
    cluster.check()


def test_a_move_whose_block_cannot_be_read_fails_nobody() -> None:
    """Neighbour: nobody waits for it. The block is gone from the host, and was never on the device."""
    cluster = _on_host()
    _spoil(cluster, 1)

    before = len(cluster.events)
    cluster.send(MoveRequest(9, chain("abcd"), 0))

    assert failed(cluster.events[before:]) == {}
    assert cluster.hit("abcd") == 4
    assert quiescent(cluster.replica)
    cluster.check()


# -- a read does not return --------------------------------------------------------------------------------------------


def test_a_read_that_never_returns_ends_for_its_reader_with_a_deadline() -> None:
    """The scenario (e): 60 s, told by the timer; the sequence comes again, and is computed without that tier."""
    cluster = _on_host()
    cluster.silent.add(HOST_TIER)
    cluster.admit(new("a", "abcd"))
    cluster.now_s = 59.9
    assert cluster.send(TimerEvent()) == []

    cluster.now_s = 60.0
    assert failed(cluster.send(TimerEvent())) == {"a": False}
    (again,) = cluster.admit(new("a", "abcd"))

    assert isinstance(again, Admitted)
    assert (again.cached_tokens, again.reads_after) == (0, ())
    assert free(cluster) == 12 - 5 - 4  # four slots may still be written by the copy
    cluster.commit("a", 17)
    cluster.send(ReleaseEvent("a"))
    cluster.check()


def test_a_read_that_returns_late_gives_its_slots_back_and_lands_nothing() -> None:
    """Neighbour: it was slow. The tier is used again from then on."""
    cluster = _on_host()
    cluster.silent.add(HOST_TIER)
    cluster.admit(new("a", "abcd"))
    cluster.now_s = 60.0
    cluster.send(TimerEvent())
    assert free(cluster) == 12 - 4

    cluster.silent.clear()
    cluster.deliver()

    assert quiescent(cluster.replica)
    assert digests("abcd").isdisjoint(cluster.replica.published("full"))
    assert cluster.hit("abcd") == 16
    cluster.check()


def test_the_slots_of_a_read_that_never_returns_are_free_when_its_tier_is_dead() -> None:
    """Neighbour: its supervisor has killed it. A late answer of it means nothing to the next one."""
    cluster = _on_host()
    cluster.silent.add(HOST_TIER)
    cluster.admit(new("a", "abcd"))
    (transfer,) = cluster.replica.state.tiers.traffic.transfers.open_transfers()
    cluster.now_s = 60.0
    cluster.send(TimerEvent())

    cluster.lose_tier(HOST, 0, keeps_rows=False)
    cluster.silent.clear()
    cluster.tier_ready(HOST, 0)
    cluster.send(CopyReply(transfer.transfer_id, 0, HOST, 0))

    assert quiescent(cluster.replica)
    assert below(cluster, 1) == set()
    assert cluster.hit("abcd") == 0
    cluster.check()


def test_a_rank_that_never_returns_holds_up_what_the_other_has_read() -> None:
    """Neighbour: rank 0 has answered; the reader of both fails, and no rank lands anything."""
    cluster = _on_host(ranks=2)
    cluster.silent.add(("tier", HOST, 1))
    cluster.admit(new("a", "abcd"))
    cluster.now_s = 60.0

    assert failed(cluster.send(TimerEvent())) == {"a": False}
    assert cluster.hit("abcd") == 0
    cluster.silent.clear()
    cluster.deliver()
    assert cluster.hit("abcd") == 16
    cluster.check()


def test_a_write_that_never_returns_ends_for_whoever_waits_to_write_its_source() -> None:
    """Neighbour: a demotion reads the slots that a sequence was given; it comes again, and gets others."""
    cluster = make(blocks=(9, 9))
    cluster.cache("abcd")
    cluster.run("other", "wxyz")
    cluster.silent.add(HOST_TIER)
    (result,) = cluster.admit(new("a", "ef", extra_tokens=0))
    assert isinstance(result, Admitted)
    assert result.writes_after
    cluster.now_s = 60.0

    assert failed(cluster.send(TimerEvent())) == {"a": True}
    cluster.send(ReleaseEvent("a"))
    (again,) = cluster.admit(new("a", "ef", extra_tokens=0))

    assert isinstance(again, Admitted)
    assert set(again.tables[0].tolist()).isdisjoint(result.tables[0].tolist())
    assert again.writes_after == ()
    cluster.commit("a", 8)
    cluster.silent.clear()
    cluster.deliver()
    for name in ("a", "other"):
        cluster.send(ReleaseEvent(name))
    assert quiescent(cluster.replica)
    cluster.check()


def test_a_disk_that_never_returns_does_not_stop_the_host() -> None:
    """Neighbour: what is on the host is still brought up; what is on the disk only is computed."""
    cluster = make(blocks=(13, 7, 13), offload="never")
    for words in ("abcd", "efg"):
        cluster.cache(words)
        for level in (1, 2):
            cluster.send(MoveRequest(level, chain(words), level))
    for number in range(4):
        cluster.cache(f"{number}yz")
    assert below(cluster, 1) >= digests("efg")
    assert split(chain("abcd"))[3] not in below(cluster, 1)
    cluster.silent.add(("tier", DISK, 0))
    cluster.admit(new("a", "abcd"))
    cluster.now_s = 60.0
    assert failed(cluster.send(TimerEvent())) == {"a": False}

    assert cluster.hit("ef") == 8  # the third made room for what comes from the disk
    assert cluster.hit("abcd") < 16
    cluster.check()


def test_a_copy_within_the_device_that_never_returns_is_not_tried_again() -> None:
    """Neighbour: a private copy of a state. The sequence comes again, and computes what it would have hit."""
    cluster = make(GroupConfig(name="states", kind="recurrent"), blocks=(9,))
    cluster.cache("ab")
    cluster.silent.add(("tier", 0, 0))
    (result,) = cluster.admit(new("a", "ab"))
    assert isinstance(result, Admitted)
    assert (result.cached_tokens, result.reads_after) == (4, (1,))
    cluster.now_s = 60.0
    assert failed(cluster.send(TimerEvent())) == {"a": False}

    (again,) = cluster.admit(new("a", "ab"))

    assert isinstance(again, Admitted)
    assert (again.cached_tokens, again.reads_after) == (0, ())
    cluster.check()
