"""Slots on their way back: fences, and publications not answered yet."""

from __future__ import annotations

import itertools

import pytest

from kvtroupe.coordinator.bands import Shape
from kvtroupe.coordinator.errors import FenceError
from kvtroupe.coordinator.ledger import Holder, Ledger
from kvtroupe.coordinator.messages import LOCAL_SESSION
from kvtroupe.coordinator.retention import DEFAULT_RETENTION
from kvtroupe.coordinator.returns import Return, Returns
from kvtroupe.coordinator.sequences import Sequence
from kvtroupe.coordinator.tables import BlockTable
from tests.coordinator.support import DIGEST_BYTES, as_digests, chain, listed, slots

# -- returns -----------------------------------------------------------------------------------------------------------


class Engine:
    """A pool, all of whose slots one sequence holds, and what it gives back."""

    def __init__(self) -> None:
        self.ledger = Ledger(11, DIGEST_BYTES)
        taken, _ = self.ledger.take(10, Holder.SEQUENCE)
        self.returns = Returns([self.ledger])
        self.sequence = Sequence(
            sequence_id="s",
            shape=Shape(40),
            tokens=40,
            cached_tokens=0,
            committed_tokens=0,
            capacity_tokens=40,
            digests=[b""],
            digest_count=0,
            considered_blocks=[0],
            tables=(BlockTable([slots()], 0, taken.reshape(1, -1)),),
            retention=DEFAULT_RETENTION,
        )

    def give_back(self, *numbers: int, fence: int | None) -> None:
        """Give slots back."""
        self.returns.give_back(self.sequence, Return("s", fence, (slots(*numbers),)))

    def free(self) -> list[int]:
        """The free order."""
        return listed(self.ledger.free_order.slots())

    def held(self) -> tuple[int, int]:
        """How many slots the sequence uses, and how many wait."""
        return self.ledger.uses_by_holder[Holder.SEQUENCE], self.ledger.uses_by_holder[Holder.FENCE]


def test_without_a_fence_slots_are_free_at_once() -> None:
    """Nothing of the engine touches them any more."""
    engine = Engine()

    engine.give_back(3, 2, fence=None)

    assert engine.free() == [2, 3]
    assert engine.held() == (8, 0)
    assert engine.returns.fenced() == []


def test_slots_wait_for_the_step_of_their_fence() -> None:
    """They are free when that step, or a later one, is done; not before."""
    engine = Engine()

    engine.give_back(3, 2, fence=5)
    assert (engine.free(), engine.held()) == ([], (8, 2))
    engine.returns.steps_done(LOCAL_SESSION, 4)
    assert (engine.free(), engine.held()) == ([], (8, 2))
    assert [(one.sequence_id, one.fence, one.slots[0].tolist()) for one in engine.returns.fenced()] == [
        ("s", 5, [3, 2])
    ]
    engine.returns.steps_done(LOCAL_SESSION, 5)

    assert (engine.free(), engine.held()) == ([2, 3], (8, 0))
    assert engine.returns.fenced() == []


def test_a_fence_that_has_passed_is_none() -> None:
    """Steps up to the one reported are done, the first step is 0."""
    engine = Engine()

    engine.give_back(1, fence=0)
    assert engine.free() == []
    engine.returns.steps_done(LOCAL_SESSION, 3)
    engine.give_back(2, fence=3)
    engine.give_back(3, fence=2)
    engine.give_back(4, fence=4)

    assert engine.free() == [3, 2, 1]
    assert engine.held() == (6, 1)


def test_returns_freed_by_one_step_are_freed_by_fence_and_then_by_arrival() -> None:
    """As if every step had been reported, whatever the order in which they were given back."""
    for order in itertools.permutations([(1, 7), (2, 5), (3, 7), (4, 6)]):
        engine = Engine()
        engine.ledger.publish(slots(1, 2, 3, 4), as_digests(chain("abcd")))
        for slot, fence in order:
            engine.give_back(slot, fence=fence)

        engine.returns.steps_done(LOCAL_SESSION, 9)

        assert engine.free() == [slot for slot, _ in sorted(order, key=lambda one: one[1])]


def test_steps_do_not_go_backwards() -> None:
    """The report is refused and nothing is freed; the same step may be reported again."""
    engine = Engine()
    engine.returns.steps_done(LOCAL_SESSION, 7)
    engine.give_back(1, fence=9)

    with pytest.raises(FenceError, match="step 6 was reported done after step 7"):
        engine.returns.steps_done(LOCAL_SESSION, 6)
    assert engine.returns.done_step() == 7
    engine.returns.steps_done(LOCAL_SESSION, 7)
    assert engine.held() == (9, 1)
    engine.returns.steps_done(LOCAL_SESSION, 9)

    assert engine.free() == [1]


def test_nothing_is_freed_while_a_publication_is_unanswered() -> None:
    """A group may be about to name the slots; they are free when all have answered."""
    engine = Engine()
    engine.sequence.publishing = 2
    engine.give_back(3, 2, fence=None)
    engine.give_back(1, fence=None)
    assert (engine.free(), engine.held()) == ([], (7, 3))

    engine.ledger.publish(slots(2), as_digests(chain("a")))
    engine.sequence.publishing = 0
    engine.returns.published(engine.sequence)

    assert (engine.free(), engine.held()) == ([1, 3, 2], (7, 0))
    assert engine.sequence.returned == []


def test_slots_may_wait_for_a_publication_and_then_for_a_fence() -> None:
    """Both must be over, whichever ends first."""
    early, late = Engine(), Engine()
    for engine in (early, late):
        engine.sequence.publishing = 1
        engine.give_back(3, fence=5)

    early.returns.steps_done(LOCAL_SESSION, 5)
    assert early.free() == []
    early.returns.published(early.sequence)
    late.returns.published(late.sequence)
    assert late.free() == []
    late.returns.steps_done(LOCAL_SESSION, 5)

    assert early.free() == late.free() == [3]
    assert early.held() == late.held() == (9, 0)
