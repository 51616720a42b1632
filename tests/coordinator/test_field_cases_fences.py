"""Slots that are given back while a step of the engine that is under way may still write them (B2).

Faults that users of other KV cache managers have reported, as scenarios here, each with neighbours: the same kind of
fault in another guise.
"""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.errors import OutOfBlocks
from kvtroupe.coordinator.messages import (
    Admitted,
    CopyRequest,
    MoveReply,
    MoveRequest,
    NewSequence,
    ProcessGoneEvent,
    ReleaseEvent,
    StepsDoneEvent,
    TierLostEvent,
    TierOutput,
)
from tests.coordinator.clients import attached, cluster_of, free, let_pass, quarantined
from tests.coordinator.cluster import Cluster
from tests.coordinator.losing import HOST, failed, make
from tests.coordinator.support import admit, chain, free_order, make_replica, new

DEVICE_TIER = ("tier", 0, 0)
HOST_TIERS = [("tier", HOST, 0), ("tier", HOST, 1)]


@pytest.mark.parametrize("committed_tokens", [0, 7, 12])
def test_a_block_that_a_dispatched_step_may_write_is_not_handed_out(committed_tokens: int) -> None:
    """A sequence ends with the output of step 7 while step 8 is under way, whether it finished or was aborted."""
    replica = make_replica("full", blocks=4)
    admit(replica, new("ends", "pqr", extra_tokens=0))
    replica.commit("ends", committed_tokens)
    replica.release("ends", fence=8)

    replica.steps_done(7)
    (refusal,) = replica.admit([NewSequence("next", 4)])
    assert isinstance(refusal, OutOfBlocks)
    assert (refusal.needed, refusal.free, refusal.coming) == (1, 0, 3)

    replica.steps_done(8)
    results = replica.admit([NewSequence(f"next {number}", 4) for number in range(4)])
    tables = [result.tables[0].tolist() for result in results if isinstance(result, Admitted)]
    assert sorted(tables) == [[1], [2], [3]]
    check(replica)


def _moved(cluster: Cluster, words: str) -> tuple[int, int]:
    """Bring a prefix up to the device: copies that have begun, blocks for which there was no room."""
    (reply,) = [one for one in cluster.send(MoveRequest(77, chain(words), 0)) if isinstance(one, MoveReply)]
    return reply.begun_blocks, reply.missing_blocks


@pytest.mark.parametrize("committed_tokens", [0, 3, 4], ids=["aborted", "preempted", "finished"])
def test_a_block_is_loaded_into_only_when_the_step_that_writes_it_is_done(committed_tokens: int) -> None:
    """The scenario: of three slots two are used, and the third, of R, may still be written by step 8."""
    cluster = make(blocks=(4, 9), offload="never")
    for words in ("a", "b"):
        cluster.cache(words)
        cluster.send(MoveRequest(1, chain(words), 1))
    cluster.run("other", "uv")
    (runs,) = cluster.admit(new("R", "r", extra_tokens=0))
    assert isinstance(runs, Admitted)
    cluster.commit("R", committed_tokens)
    cluster.send(ReleaseEvent("R", fence=8))

    cluster.send(StepsDoneEvent(7))
    assert _moved(cluster, "a") == (0, 1)
    cluster.silent.add(HOST_TIERS[0])
    cluster.send(StepsDoneEvent(8))
    assert _moved(cluster, "a") == (1, 0)
    assert _moved(cluster, "b") == (0, 1)

    (copy,) = [one.message for one in cluster.inbox(HOST_TIERS[0]) if isinstance(one, TierOutput)]
    assert isinstance(copy, CopyRequest)
    assert copy.copies.destinations.tolist() == runs.tables[0].tolist()
    cluster.check()


def test_a_block_that_leaves_a_window_waits_for_its_fence_too() -> None:
    """Neighbour: the sequence runs on; also when it has ended since, with a fence of its own."""
    replica = make_replica("sliding:4", blocks=4)
    admit(replica, new("a", "pqr", extra_tokens=0))
    replica.commit("a", 12, fence=5)
    replica.release("a", fence=6)
    assert free_order(replica) == []

    replica.steps_done(5)
    assert free_order(replica) == [2, 1]

    replica.steps_done(6)
    assert free_order(replica) == [2, 1, 3]


def test_growth_does_not_get_what_a_step_may_still_write() -> None:
    """Neighbour: a running sequence asks for its next block, which comes before anything new."""
    replica = make_replica("full", blocks=3)
    admit(replica, new("ends", "p", extra_tokens=0))
    admit(replica, new("grows", "q", extra_tokens=0))
    replica.release("ends", fence=8)

    assert isinstance(replica.grow(["grows"]).refused[0], OutOfBlocks)
    replica.steps_done(8)
    assert replica.grow(["grows"]).refused == (None,)
    assert replica.tables("grows")[0].tolist() == [2, 1]


def test_a_step_of_another_engine_passes_no_fence() -> None:
    """Neighbour: two engines count their steps apart; that of the other one is far ahead."""
    cluster = cluster_of(blocks=2)
    one, other = attached(cluster, "p", 1), attached(cluster, "q", 2)
    one.admit(NewSequence("a", 4))
    one.ask(ReleaseEvent("a", fence=8))

    other.ask(StepsDoneEvent(1000))
    assert free(cluster) == 0

    one.ask(StepsDoneEvent(8))
    assert free(cluster) == 1


def test_a_reader_of_a_published_block_keeps_it_when_the_fence_passes() -> None:
    """Neighbour: the block is hit while it waits for its fence, and is not free when that has passed."""
    replica = make_replica("full", blocks=4)
    admit(replica, new("ends", "pq", extra_tokens=0))
    replica.commit("ends", 8)
    replica.release("ends", fence=8)
    assert admit(replica, new("reads", "p")).tables[0].tolist() == [1, 3]

    replica.steps_done(8)

    assert free_order(replica) == [2]
    check(replica)


def test_a_sequence_that_has_failed_keeps_its_slots_until_its_fence() -> None:
    """Neighbour: the memory of the device was lost and is back; steps of the old engine may still be under way."""
    cluster = make(blocks=(4, 9))
    cluster.run("a", "pqr")
    assert failed(cluster.send(TierLostEvent(0, 0))) == {"a": True}
    cluster.tier_ready(0, 0)
    assert free(cluster) == 0

    cluster.send(ReleaseEvent("a", fence=8))
    assert free(cluster) == 0
    cluster.send(StepsDoneEvent(8))
    assert free(cluster) == 3
    cluster.check()


def test_the_slots_of_a_lost_client_are_not_loaded_into() -> None:
    """Neighbour: nobody reports its steps any more. Its slots stay away from copies until its process is dead."""
    cluster = make(blocks=(4, 9), offload="never")
    cluster.cache("a")
    cluster.send(MoveRequest(1, chain("a"), 1))
    client = attached(cluster, "p", 1)
    client.admit(NewSequence("R", 12))
    client.ask(ReleaseEvent("R", fence=8))
    client.lose_connection()
    let_pass(cluster, 30.0)

    cluster.send(StepsDoneEvent(8))
    assert (_moved(cluster, "a"), quarantined(cluster)) == ((0, 1), 3)
    cluster.send(ProcessGoneEvent("p"))
    assert (_moved(cluster, "a"), quarantined(cluster)) == ((1, 0), 0)
    cluster.check()
