"""Sequences that end while what they were to read is still being copied (I1).

Faults that users of other KV cache managers have reported, as scenarios here, each with neighbours: the same kind of
fault in another guise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvtroupe.coordinator.check import quiescent
from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.contents import content_of
from kvtroupe.coordinator.errors import UnknownSequence
from kvtroupe.coordinator.identity import PrefixDigests, digest_chain
from kvtroupe.coordinator.messages import (
    Admitted,
    CopyReply,
    CopyRequest,
    EpochAcknowledgedEvent,
    GrowReply,
    GrowRequest,
    MoveRequest,
    NewSequence,
    ProcessGoneEvent,
    RecoverEvent,
    ReleaseEvent,
    TierOutput,
    TimerEvent,
)
from tests.coordinator.clients import attached, free, let_pass
from tests.coordinator.cluster import Cluster
from tests.coordinator.losing import FULL, HOST, below, digests, failed, make
from tests.coordinator.support import chain, listed, new

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE_TIER = ("tier", 0, 0)
HOST_TIERS = [("tier", HOST, 0), ("tier", HOST, 1)]


def _loading(readers: int = 1) -> Cluster:
    """Eight slots, and sequences that wait for the same four blocks from the host, on two ranks that do not answer."""
    cluster = make(blocks=(9, 9), offload="never", ranks=2)
    cluster.cache("abcd")
    cluster.send(MoveRequest(1, chain("abcd"), 1))
    cluster.cache("qrstuvwx")
    assert digests("abcd").isdisjoint(cluster.replica.published("full"))
    cluster.silent.update(HOST_TIERS)
    for number in range(readers):
        (result,) = cluster.admit(new(f"reader {number}", "abcd"))
        assert isinstance(result, Admitted)
        assert (result.cached_tokens, len(result.reads_after)) == (16, 1)
    assert free(cluster) == (8 - 4 - readers if readers else 8)
    return cluster


def _abort(cluster: Cluster) -> None:
    cluster.send(ReleaseEvent("reader 0"))


def _complete(cluster: Cluster, *ranks: int) -> None:
    for rank in ranks:
        cluster.deliver_one(HOST_TIERS[rank])
    cluster.deliver()


def _all_free_once(cluster: Cluster) -> None:
    assert sorted(listed(cluster.replica.free_order("device"))) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert quiescent(cluster.replica)
    cluster.check()
    cluster.silent.clear()
    assert cluster.hit("abcd") == 16


def test_a_load_that_is_aborted_before_it_is_complete_keeps_its_slots_until_it_is() -> None:
    """The scenario (a): the fifth slot is free at once, the four that are written when both ranks have answered."""
    cluster = _loading()

    _abort(cluster)
    assert free(cluster) == 4
    _complete(cluster, 0)
    assert free(cluster) == 4
    _complete(cluster, 1)

    _all_free_once(cluster)


def test_a_load_may_be_aborted_between_the_answers_of_two_ranks() -> None:
    """The scenario (b)."""
    cluster = _loading()

    _complete(cluster, 0)
    _abort(cluster)
    assert free(cluster) == 4
    _complete(cluster, 1)

    _all_free_once(cluster)


def test_a_load_may_be_aborted_after_it_is_complete() -> None:
    """The scenario (c)."""
    cluster = _loading()

    _complete(cluster, 0, 1)
    _abort(cluster)

    _all_free_once(cluster)


@pytest.mark.parametrize("ranks_before", [0, 1, 2])
def test_a_second_abort_is_an_error_and_frees_nothing(ranks_before: int) -> None:
    """The scenario (d)."""
    cluster = _loading()

    _complete(cluster, *range(ranks_before))
    _abort(cluster)
    with pytest.raises(UnknownSequence):
        _abort(cluster)
    _complete(cluster, *range(ranks_before, 2))

    _all_free_once(cluster)


def test_a_completion_that_is_told_twice_frees_nothing_twice() -> None:
    """Neighbour: rank 0 repeats its answer, before and after that of rank 1."""
    cluster = _loading()
    (transfer,) = cluster.replica.state.tiers.traffic.transfers.open_transfers()
    answer = CopyReply(transfer.transfer_id, 0, HOST, 0)
    _abort(cluster)

    _complete(cluster, 0)
    cluster.send(answer)
    assert free(cluster) == 4
    _complete(cluster, 1)
    cluster.send(answer)

    _all_free_once(cluster)


def test_a_load_that_fails_after_it_was_aborted_frees_its_slots() -> None:
    """Neighbour: one rank could not read; the blocks are gone from the host, and nobody is told of a failure."""
    cluster = _loading()
    cluster.tiers[HOST, 1].failing = True
    _abort(cluster)

    before = len(cluster.events)
    _complete(cluster, 0, 1)

    assert failed(cluster.events[before:]) == {}
    assert quiescent(cluster.replica)
    assert below(cluster, 1) == set()
    cluster.check()


def test_an_abort_of_one_reader_leaves_the_load_to_the_other() -> None:
    """Neighbour: two sequences have joined the same copy."""
    cluster = _loading(readers=2)

    _abort(cluster)
    assert free(cluster) == 3
    _complete(cluster, 0, 1)
    assert free(cluster) == 3
    cluster.commit("reader 1", 17)
    cluster.send(ReleaseEvent("reader 1"))

    _all_free_once(cluster)


def test_an_abort_after_the_deadline_finds_nothing_to_abort() -> None:
    """Neighbour: the sequence was undone when its time was up, and the completion comes after all."""
    cluster = _loading()
    cluster.now_s = 60.0
    assert failed(cluster.send(TimerEvent())) == {"reader 0": False}
    with pytest.raises(UnknownSequence):
        _abort(cluster)
    assert free(cluster) == 4

    _complete(cluster, 0, 1)

    _all_free_once(cluster)


def test_a_client_that_is_lost_during_a_load_gives_its_slots_back_in_the_end() -> None:
    """Neighbour: quarantine ends before the copy does, or after it."""
    for dies_first in (True, False):
        cluster = _loading(readers=0)
        client = attached(cluster, "p", 1)
        client.admit(new("reader 0", "abcd"))
        client.lose_connection()
        let_pass(cluster, 30.0)
        steps: list[Callable[[], object]] = [
            lambda cluster=cluster: cluster.send(ProcessGoneEvent("p")),  # type: ignore[misc]
            lambda cluster=cluster: _complete(cluster, 0, 1),  # type: ignore[misc]
        ]
        for step in steps if dies_first else reversed(steps):
            assert free(cluster) < 8
            step()

        _all_free_once(cluster)


def test_a_completion_for_a_coordinator_that_is_gone_frees_nothing_of_the_next() -> None:
    """Neighbour: the transfer of that number belongs to another epoch."""
    cluster = _loading()
    (transfer,) = cluster.replica.state.tiers.traffic.transfers.open_transfers()
    cluster.silent.clear()
    cluster.restart(1)
    cluster.send(RecoverEvent(("p",)))

    cluster.send(CopyReply(transfer.transfer_id, 0, HOST, 0))

    assert free(cluster) == 0
    cluster.send(EpochAcknowledgedEvent("p"))
    assert free(cluster) == 8
    assert quiescent(cluster.replica)
    cluster.check()


def test_a_copy_within_the_device_keeps_its_source_until_it_is_over() -> None:
    """Neighbour: the first tokens of a block are being copied for a sequence that is aborted."""
    config = Config(
        namespace="test", block_tokens=4, groups=(FULL,), pools=(PoolConfig(blocks=4),), partial_reuse="copy"
    )
    cluster = Cluster(config)

    def prompt(sequence_id: str, tokens: list[int]) -> NewSequence:
        digests = PrefixDigests(digest_chain("sha256", 4, "test"))
        digests.append(tokens)
        return NewSequence(sequence_id, len(tokens), digests.digests, content=content_of(digests, 4))

    cluster.admit(prompt("first", [1, 2, 3, 4]))
    cluster.commit("first", 4)
    cluster.send(ReleaseEvent("first"))
    cluster.silent.add(DEVICE_TIER)
    (result,) = cluster.admit(prompt("second", [1, 2, 9]))
    assert isinstance(result, Admitted)
    assert result.cached_tokens == 2

    cluster.send(ReleaseEvent("second"))
    assert free(cluster) == 2  # the source is read; whoever gets the destination awaits the copy
    cluster.deliver_one(DEVICE_TIER)

    assert quiescent(cluster.replica)
    cluster.check()


def test_a_copy_of_a_state_is_awaited_by_whoever_gets_its_slot_next() -> None:
    """Neighbour: a private copy of a hit state; its slot is free before the copy is over, and says so."""
    states = GroupConfig(name="states", kind="recurrent")
    cluster = make(states, blocks=(6,))
    cluster.cache("ab")
    cluster.silent.add(DEVICE_TIER)
    (first,) = cluster.admit(new("first", "ab"))
    assert isinstance(first, Admitted)
    assert first.reads_after == (1,)

    cluster.send(ReleaseEvent("first"))
    (second,) = cluster.admit(NewSequence("second", 20))
    assert isinstance(second, Admitted)
    assert second.writes_after == (1,)

    cluster.send(ReleaseEvent("second"))
    cluster.deliver_one(DEVICE_TIER)
    assert quiescent(cluster.replica)
    cluster.check()


def test_growth_into_a_slot_that_a_copy_still_reads_is_told_to_await_it() -> None:
    """Neighbour: a demotion reads the slot; it is free, and whoever gets it must not write before."""
    cluster = make(blocks=(4, 9))
    cluster.run("grows", "x")
    cluster.cache("ab")
    cluster.silent.add(HOST_TIERS[0])

    (reply,) = [one for one in cluster.send(GrowRequest(77, ("grows",), 2)) if isinstance(one, GrowReply)]

    assert reply.refused == (None,)
    assert reply.writes_after == (1,)
    (copy,) = [one.message for one in cluster.inbox(HOST_TIERS[0]) if isinstance(one, TierOutput)]
    assert isinstance(copy, CopyRequest)
    assert copy.transfer_id == 1
    cluster.deliver_one(HOST_TIERS[0])
    cluster.check()
