"""Sequences that wait for copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kvtroupe.coordinator.waits import Awaited, Waits

if TYPE_CHECKING:
    from kvtroupe.coordinator.sequences import Sequence


class Named:
    """A sequence of which only the id and the session are asked."""

    def __init__(self, sequence_id: str) -> None:
        self.sequence_id = sequence_id
        self.session = 5


def named(sequence_id: str) -> Sequence:
    """See `Named`."""
    return cast("Sequence", Named(sequence_id))


def test_slots_wait_from_the_first_read_that_is_missing_to_the_last() -> None:
    """Three slots, for two transfers; one more transfer is only awaited before writing."""
    waits = Waits(1)
    one = named("a")
    waits.begin(one, Awaited((1, 2), (3,)), [3])

    counts = [waits.slots_waiting(0)]
    for transfer_id in (1, 2, 3):
        assert waits.done(transfer_id) == [5]
        counts.append(waits.slots_waiting(0))

    assert counts == [3, 3, 0, 0]
    assert not waits.done(3)


def test_a_transfer_that_is_awaited_twice_ends_once() -> None:
    """At admission, and again as the sequence grows into slots that the same transfer reads."""
    waits = Waits(1)
    one = named("a")
    waits.begin(one, Awaited((), (7,)), [3])
    waits.begin(one, Awaited((), (7,)), [4])

    assert len(waits.waiting_for(7)) == 1
    assert waits.done(7)
    assert waits.waiting_for(7) == []


def test_a_sequence_that_has_ended_waits_for_nothing() -> None:
    """Its slots do not count any more; another one of its name does not wait for what it waited for."""
    waits = Waits(1)
    waits.begin(named("a"), Awaited((1,), ()), [3])
    waits.ended("a")
    waits.begin(named("a"), Awaited((2,), ()), [5])

    assert waits.slots_waiting(0) == 5
    assert not waits.done(1)
    assert waits.done(2)
