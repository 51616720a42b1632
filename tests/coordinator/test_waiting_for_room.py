"""Requests that wait for room: at their place, holding nothing, until there is some or their time is up."""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.check import quiescent
from kvtroupe.coordinator.config import Limits
from kvtroupe.coordinator.errors import OutOfBlocks, RequestError, SequenceCancelled, SequenceExists, SequenceTooLong
from kvtroupe.coordinator.messages import (
    AdmitReply,
    AdmitRequest,
    Admitted,
    CancelEvent,
    GrowReply,
    GrowRequest,
    LookupRequest,
    ReleaseEvent,
    StepsDoneEvent,
    TimerEvent,
)
from tests.coordinator.cluster import Cluster
from tests.coordinator.support import chain, make_config, new


class Queue:
    """A cluster whose one pool has `free` slots, in blocks of four tokens, and what its requests were answered."""

    def __init__(self, free: int, limits: Limits | None = None) -> None:
        self.cluster = Cluster(make_config("full", blocks=free + 1, limits=limits))
        self.results: dict[object, object] = {}

    def send(self, message: object) -> None:
        """Step, and note what became of sequences."""
        for output in self.cluster.send(message):  # type: ignore[arg-type]
            if isinstance(output, AdmitReply):
                for one in output.results:
                    name = one.sequence_id if isinstance(one, Admitted | SequenceCancelled) else output.request_id
                    self.results[name] = one
        self.cluster.check()

    def ask(self, request_id: int, sequence_id: str, words: str, wait_s: float = 10.0) -> None:
        """Ask for a sequence of as many blocks as there are words."""
        self.send(AdmitRequest(request_id, (new(sequence_id, words, extra_tokens=0),), wait_s))

    def release(self, sequence_id: str, fence: int | None = None) -> None:
        """A sequence ends."""
        self.send(ReleaseEvent(sequence_id, fence))

    def tick(self, seconds: float) -> None:
        """Time passes."""
        self.cluster.now_s += seconds
        self.send(TimerEvent())

    def running(self) -> list[object]:
        """Sequences that run."""
        return list(self.cluster.replica.sequences())


def test_a_request_is_granted_when_a_sequence_ends() -> None:
    """Three of four blocks are in use: one that needs two waits, and holds nothing meanwhile."""
    queue = Queue(4)
    queue.ask(1, "a", "xyz")

    queue.ask(2, "b", "vw")
    assert queue.running() == ["a"]
    assert queue.cluster.replica.pool("device").ledger.free == 1
    queue.release("a")

    assert queue.running() == ["b"]


def test_it_is_granted_when_room_comes_in_the_step_that_settles_a_round_of_others() -> None:
    """With its group, what keeps the slots of "a" in use is lost, and so is what a lookup waits for."""
    queue = Queue(4)
    queue.ask(1, "a", "xyz")
    queue.ask(2, "b", "vw")
    queue.cluster.silent.add(("group", 0, 0))
    queue.cluster.commit("a", 12)
    queue.release("a")
    queue.send(LookupRequest(3, chain("xyz")))
    assert queue.cluster.replica.pool("device").ledger.free == 1

    queue.cluster.lose_group(0)

    assert queue.running() == ["b"]


def test_it_is_granted_only_when_the_fence_has_passed() -> None:
    """The slots are given back, and not free before step 7 is done."""
    queue = Queue(4)
    queue.ask(1, "a", "xyz")
    queue.ask(2, "b", "vw")

    queue.release("a", fence=7)
    assert queue.running() == []
    queue.send(StepsDoneEvent(7))

    assert queue.running() == ["b"]


def test_a_request_whose_time_is_up_is_refused_with_what_is_free_then() -> None:
    """At 10 s, and not before."""
    queue = Queue(4)
    queue.ask(1, "a", "xyz")
    queue.ask(2, "b", "vw")

    queue.tick(9.9)
    assert 2 not in queue.results
    queue.tick(0.1)

    refused = queue.results[2]
    assert isinstance(refused, OutOfBlocks)
    assert (refused.needed, refused.free) == (2, 1)
    queue.release("a")
    assert queue.running() == []


def test_those_who_wait_are_served_in_order_of_arrival() -> None:
    """A small one that came later does not overtake the big one, though it would fit."""
    queue = Queue(4)
    queue.ask(1, "a", "xy")
    queue.ask(2, "b", "z")
    queue.ask(3, "big", "vwst")
    queue.ask(4, "small", "q")
    assert queue.running() == ["a", "b"]

    queue.release("b")
    assert queue.running() == ["a"]
    queue.release("a")
    assert queue.running() == ["big"]
    queue.release("big")

    assert queue.running() == ["small"]


def test_who_does_not_wait_is_judged_at_once() -> None:
    """It takes what is free, and does not queue up behind those who can wait."""
    queue = Queue(4)
    queue.ask(1, "a", "xyz")
    queue.ask(2, "big", "vw")

    queue.ask(3, "now", "q", wait_s=0.0)

    assert queue.running() == ["a", "now"]


def test_one_that_is_refused_again_keeps_its_place() -> None:
    """One slot becomes free: not enough for the first; both wait on, in their order, when the others are free too."""
    queue = Queue(4)
    queue.ask(1, "a", "x")
    queue.ask(2, "b", "yzw")
    queue.ask(3, "c", "stu")
    queue.ask(4, "d", "qrp")

    queue.release("a")
    assert queue.running() == ["b"]
    queue.release("b")

    assert queue.running() == ["c"]
    queue.release("c")
    assert queue.running() == ["d"]


def test_several_are_granted_at_once_if_there_is_room_for_them() -> None:
    """Four blocks become free for two that need two each."""
    queue = Queue(4)
    queue.ask(1, "a", "xyzw")
    queue.ask(2, "b", "st")
    queue.ask(3, "c", "uv")

    queue.release("a")

    assert queue.running() == ["b", "c"]


def test_sequences_do_not_wait_together() -> None:
    """The first one would hold its blocks, and nobody would compute it, until there is room for the last one."""
    queue = Queue(4)

    with pytest.raises(RequestError, match="ask for each in a request of its own"):
        queue.send(AdmitRequest(2, (new("b", "z"), new("c", "v")), 10.0))

    assert queue.running() == []


def test_what_can_never_fit_does_not_wait() -> None:
    """Five blocks of four."""
    queue = Queue(4)

    queue.ask(1, "a", "xyzvw")

    assert isinstance(queue.results[1], SequenceTooLong)


def test_a_sequence_that_waits_has_its_name() -> None:
    """Nobody else is admitted under it."""
    queue = Queue(4)
    queue.ask(1, "a", "xyz")
    queue.ask(2, "b", "vw")

    with pytest.raises(SequenceExists):
        queue.ask(3, "b", "q")


def test_a_request_that_waits_can_be_cancelled() -> None:
    """It is answered at once, and those behind it are not held up by it."""
    queue = Queue(4)
    queue.ask(1, "a", "xyz")
    queue.ask(2, "b", "vw")
    queue.ask(3, "c", "st")

    queue.send(CancelEvent(0, 2))
    assert isinstance(queue.results["b"], SequenceCancelled)
    queue.release("a")

    assert queue.running() == ["c"]


def test_growth_comes_before_those_who_wait() -> None:
    """One slot becomes free: the running sequence takes it for its next tokens; the waiting one needs two."""
    queue = Queue(4)
    queue.ask(1, "a", "x")
    queue.ask(2, "b", "yzw")
    queue.ask(3, "c", "st")
    queue.release("a")

    (grown,) = [one for one in queue.cluster.send(GrowRequest(4, ("b",), 1)) if isinstance(one, GrowReply)]

    assert grown.refused == (None,)
    queue.release("b")
    assert queue.running() == ["c"]
    queue.release("c")
    assert quiescent(queue.cluster.replica)


@pytest.mark.parametrize("wait_s", [-1.0, 30.1, float("nan"), float("inf"), None, "1", True])
def test_a_time_that_is_none_or_too_long_is_refused(wait_s: object) -> None:
    """The limit is 30 s."""
    queue = Queue(4)

    with pytest.raises(RequestError, match="waiting_deadline_s"):
        queue.ask(1, "a", "x", wait_s=wait_s)  # type: ignore[arg-type]
    assert queue.running() == []


def test_a_request_waits_while_its_group_is_asked_anew() -> None:
    """It tries again in a round of its own, which waits for the group as every round does."""
    queue = Queue(4)
    queue.ask(1, "a", "xyz")
    queue.ask(2, "b", "vw")
    queue.cluster.silent.add(("group", 0, 0))
    queue.release("a")
    assert queue.running() == []

    queue.cluster.silent.clear()
    queue.cluster.deliver()

    assert queue.running() == ["b"]
