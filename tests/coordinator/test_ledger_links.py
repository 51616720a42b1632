"""Links from published slots to slots of the pool below that hold the same content."""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.ledger import Holder, Ledger
from tests.coordinator.pools import cache, claim, everything, make_ledger
from tests.coordinator.support import as_digests, chain, slots

SEQUENCE = Holder.SEQUENCE


def below(ledger: Ledger, *asked: int) -> list[tuple[int, int]]:
    """Slot and generation below of each of some slots."""
    below_slots, below_generations = ledger.below_of(slots(*asked))
    return list(zip(below_slots.tolist(), below_generations.tolist(), strict=True))


def linked_ledger() -> Ledger:
    """Slots 1 to 4 hold published blocks; 1, 2 and 4 are also below."""
    ledger = make_ledger(7)
    cache(ledger, "abcd")
    ledger.link_below(slots(4, 1, 2), slots(70, 60, 50), slots(7, 6, 5))
    return ledger


def test_nothing_is_linked_at_first() -> None:
    """Neither what is published nor what is not."""
    ledger = make_ledger(4)
    cache(ledger, "a")

    assert below(ledger, 1, 3, 0) == [(0, 0)] * 3
    assert below(ledger) == []


def test_a_link_names_slot_and_generation_below() -> None:
    """0 and 0 where there is none."""
    ledger = linked_ledger()

    assert below(ledger, 1, 2, 3, 4, 5, 0) == [(60, 6), (50, 5), (0, 0), (70, 7), (0, 0), (0, 0)]


def test_a_link_changes_nothing_else() -> None:
    """Free slots stay where they are."""
    ledger = make_ledger(7)
    cache(ledger, "abcd")
    before = everything(ledger)

    ledger.link_below(slots(1, 2), slots(60, 50), slots(6, 5))

    assert everything(ledger) == before


def test_a_link_ends_when_its_slot_is_taken() -> None:
    """Also when the same content is published there again; those of other slots stay."""
    ledger = linked_ledger()

    taken, _ = ledger.take(3, SEQUENCE)
    assert taken.tolist() == [5, 6, 1]
    assert below(ledger, 1, 2, 4) == [(0, 0), (50, 5), (70, 7)]
    ledger.publish(slots(1), as_digests(chain("a")))

    assert below(ledger, 1, 2, 4) == [(0, 0), (50, 5), (70, 7)]


def test_a_link_ends_when_its_slot_is_unpublished() -> None:
    """Whether the slot is free or in use."""
    ledger = linked_ledger()
    claim(ledger, 2)

    ledger.unpublish(slots(1, 2))
    assert below(ledger, 1, 2, 4) == [(0, 0), (0, 0), (70, 7)]
    ledger.publish(slots(2), as_digests(chain("b")))

    assert below(ledger, 2) == [(0, 0)]


def test_a_link_outlasts_claims_and_releases() -> None:
    """The content is the same whoever uses it."""
    ledger = linked_ledger()

    claim(ledger, 1)
    assert below(ledger, 1) == [(60, 6)]
    ledger.release(slots(1), SEQUENCE)

    assert below(ledger, 1) == [(60, 6)]


def test_a_later_link_replaces_an_earlier_one() -> None:
    """The content may have been copied again after the slot below was taken."""
    ledger = linked_ledger()

    ledger.link_below(slots(2, 3), slots(51, 52), slots(9, 9))

    assert below(ledger, 1, 2, 3) == [(60, 6), (51, 9), (52, 9)]


def test_a_slot_that_holds_nothing_cannot_be_linked() -> None:
    """Nothing is linked then; not even memory is used."""
    ledger = make_ledger(5)
    cache(ledger, "ab")

    with pytest.raises(InvariantError, match=r"nothing is published in slots to be linked: \[3, 0\]"):
        ledger.link_below(slots(1, 3, 0), slots(7, 8, 9), slots(1, 1, 1))

    assert below(ledger, 1, 3, 0) == [(0, 0)] * 3
