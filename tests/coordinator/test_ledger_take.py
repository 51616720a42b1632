"""Looking at what would be taken, taking only what may be dropped, and forgetting whole groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.ledger import Holder, Ledger
from tests.coordinator.pools import cache, claim, everything, free, make_ledger
from tests.coordinator.support import as_digests, chain, listed, slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtroupe.coordinator.messages import Slots

SEQUENCE, TRANSFER, QUARANTINE = Holder.SEQUENCE, Holder.TRANSFER, Holder.QUARANTINE


class Keeper:
    """Says which slots are worth keeping, and notes what it was asked."""

    def __init__(self, *kept: int) -> None:
        self.kept = kept
        self.asked: list[list[int]] = []

    def __call__(self, asked: Slots) -> NDArray[np.bool_]:
        """Answer."""
        self.asked.append(listed(asked))
        return np.isin(asked, self.kept)


def stocked_ledger() -> Ledger:
    """In order of being taken: 6, 7, 8 hold nothing, 3, 4 have priority 10, 1, 2, 5 the default."""
    ledger = make_ledger(9)
    cache(ledger, "ab")
    cache(ledger, "xy", priority=10)
    cache(ledger, "q")
    assert free(ledger) == [6, 7, 8, 3, 4, 1, 2, 5]
    return ledger


# -- peek --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3, 4, 6, 8])
def test_peeking_names_what_a_take_would_get(count: int) -> None:
    """From the front stack and the back queues, and nothing changes."""
    ledger = stocked_ledger()
    before = everything(ledger)

    peeked = ledger.peek(count)

    assert listed(peeked) == [6, 7, 8, 3, 4, 1, 2, 5][:count]
    assert everything(ledger) == before
    assert listed(ledger.take(count, SEQUENCE)[0]) == listed(peeked)


def test_peeking_further_than_there_is_names_all_that_is_free() -> None:
    """Slots in use are passed over."""
    ledger = stocked_ledger()
    claim(ledger, 3, 1)

    assert listed(ledger.peek(100)) == [6, 7, 8, 4, 2, 5]


def test_a_claim_can_be_undone_after_peeking_past_its_slots() -> None:
    """A take would drop the places that they left."""
    ledger = stocked_ledger()
    before = everything(ledger)
    claim(ledger, 3, 1, 5)

    assert listed(ledger.peek(5)) == [6, 7, 8, 4, 2]
    ledger.undo_claim(slots(3, 1, 5), SEQUENCE)

    assert everything(ledger) == before


# -- take what may be dropped ------------------------------------------------------------------------------------------


def test_a_take_of_droppable_slots_ends_before_the_first_one_worth_keeping() -> None:
    """Droppable ones behind it stay: the order of the pool is not changed for them."""
    ledger = stocked_ledger()
    keeper = Keeper(1, 5)

    taken, evicted = ledger.take_droppable(8, TRANSFER, keeper)

    assert listed(taken) == [6, 7, 8, 3, 4]
    assert {group: lost.tolist() for group, lost in evicted.items()} == {0: [3, 4]}
    assert free(ledger) == [1, 2, 5]
    assert ledger.uses_by_holder[TRANSFER] == 5
    assert keeper.asked == [[3, 4, 1, 2, 5]]


def test_only_as_many_are_judged_as_are_wanted() -> None:
    """The keeper is asked once, about the published ones among them."""
    ledger = stocked_ledger()
    keeper = Keeper(2)

    taken, _ = ledger.take_droppable(5, SEQUENCE, keeper)

    assert listed(taken) == [6, 7, 8, 3, 4]
    assert keeper.asked == [[3, 4]]


def test_nobody_is_asked_about_slots_that_hold_nothing() -> None:
    """They are always droppable."""
    ledger = stocked_ledger()
    keeper = Keeper(6, 7, 8)

    taken, evicted = ledger.take_droppable(3, SEQUENCE, keeper)

    assert (listed(taken), evicted, keeper.asked) == ([6, 7, 8], {}, [])


def test_everything_droppable_may_be_taken_when_more_is_wanted() -> None:
    """At most what is free."""
    ledger = stocked_ledger()

    taken, _ = ledger.take_droppable(100, SEQUENCE, Keeper())

    assert listed(taken) == [6, 7, 8, 3, 4, 1, 2, 5]
    assert ledger.free == 0


def test_nothing_is_taken_when_the_first_is_worth_keeping() -> None:
    """Its content stays published."""
    ledger = stocked_ledger()
    ledger.take(3, SEQUENCE)

    taken, evicted = ledger.take_droppable(3, SEQUENCE, Keeper(3))

    assert (listed(taken), evicted) == ([], {})
    assert free(ledger) == [3, 4, 1, 2, 5]
    assert ledger.published[3] == 1


def test_a_keeper_that_answers_for_other_slots_is_a_bug_and_changes_nothing() -> None:
    """It has to answer for each that it was asked about."""
    ledger = stocked_ledger()
    before = everything(ledger)

    with pytest.raises(InvariantError, match="which of 2 slots to keep, 1 answers"):
        ledger.take_droppable(5, SEQUENCE, lambda asked: np.zeros(len(asked) - 1, np.bool_))

    assert everything(ledger) == before


# -- forget ------------------------------------------------------------------------------------------------------------


def shared_ledger() -> Ledger:
    """Groups 0 and 2 have published two slots each: 1, 2 and 3, 4. 1 and 3 are in use, 5 and 6 are free."""
    ledger = make_ledger(7)
    ledger.take(4, SEQUENCE)
    ledger.publish(slots(1, 2), as_digests(chain("ab")), 90)
    ledger.publish(slots(3, 4), as_digests(chain("ab")), 90, 50.0, 2)
    ledger.release(slots(2, 4), SEQUENCE)
    assert free(ledger) == [5, 6, 2, 4]
    return ledger


def test_a_group_that_is_forgotten_has_nothing_published_any_more() -> None:
    """Its free slots go first, those in use stay in use; other groups are not touched."""
    ledger = shared_ledger()

    assert listed(ledger.forget_group(2)) == [3, 4]

    assert free(ledger) == [4, 5, 6, 2]
    assert ledger.published.tolist() == [0, 1, 1, 0, 0, 0, 0]
    assert ledger.uses[1:5].tolist() == [1, 0, 1, 0]
    ledger.release(slots(3), SEQUENCE)
    assert free(ledger) == [3, 4, 5, 6, 2]


def test_what_was_noted_of_a_forgotten_group_cannot_be_claimed() -> None:
    """Its slots have a new generation, and no time that was set for them counts any more."""
    ledger = shared_ledger()
    noted = ledger.generation.take(slots(4))

    ledger.forget_group(2)

    assert ledger.claim(slots(4), noted, SEQUENCE) == 0
    ledger.expire(50.0)
    assert free(ledger) == [4, 5, 6, 2]


def test_everything_can_be_forgotten() -> None:
    """Whichever group has published it."""
    ledger = shared_ledger()

    assert listed(ledger.forget_all()) == [1, 2, 3, 4]

    assert free(ledger) == [4, 2, 5, 6]
    assert not ledger.published.any()
    assert ledger.take(4, SEQUENCE)[1] == {}


def test_forgetting_nothing_is_allowed() -> None:
    """A group may have published nothing."""
    ledger = shared_ledger()

    assert listed(ledger.forget_group(1)) == []
    assert free(ledger) == [5, 6, 2, 4]
    assert listed(make_ledger().forget_all()) == []


# -- holders -----------------------------------------------------------------------------------------------------------


def test_copies_and_lost_clients_hold_slots_as_others_do() -> None:
    """What a copy holds beside a sequence is free when both have let go; what a client loses is handed over."""
    ledger = make_ledger(5)
    cache(ledger, "ab")

    claim(ledger, 1, 2)
    claim(ledger, 2, holder=TRANSFER)
    ledger.hand_over(2, SEQUENCE, QUARANTINE)
    with pytest.raises(InvariantError, match="TRANSFER gives back 2 uses and holds 1"):
        ledger.release(slots(1, 2), TRANSFER)
    ledger.release(slots(1, 2), QUARANTINE)
    assert free(ledger) == [3, 4, 1]
    ledger.release(slots(2), TRANSFER)

    assert free(ledger) == [3, 4, 1, 2]
    assert set(ledger.uses_by_holder) == {0}
