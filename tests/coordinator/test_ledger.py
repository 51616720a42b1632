"""The ledger of a pool: claims, takes, returns, publications."""

from __future__ import annotations

import numpy as np
import pytest

from kvtroupe.coordinator.errors import InvariantError
from kvtroupe.coordinator.ledger import Holder
from tests.coordinator.pools import cache, claim, everything, free, make_ledger
from tests.coordinator.support import as_digests, chain, last_digest, slots

SEQUENCE, FENCE, PIN = Holder.SEQUENCE, Holder.FENCE, Holder.PIN


# -- take --------------------------------------------------------------------------------------------------------------


def test_a_new_pool_is_free_but_for_the_null_block() -> None:
    """Of eleven slots ten can be handed out."""
    ledger = make_ledger(11)

    assert free(ledger) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert ledger.uses.tolist() == [1] + [0] * 10


def test_the_null_block_is_never_handed_out() -> None:
    """Neither when everything is taken, nor after everything has come back."""
    ledger = make_ledger(5)
    for _ in range(3):
        taken, _ = ledger.take(4, SEQUENCE)
        assert sorted(taken.tolist()) == [1, 2, 3, 4]
        ledger.release(taken, SEQUENCE)

    assert ledger.uses[0] == 1
    assert ledger.generation[0] == 0


def test_every_take_has_its_own_generation() -> None:
    """All slots of one take share it, and it grows by one with the next."""
    ledger = make_ledger()

    first, _ = ledger.take(3, SEQUENCE)
    second, _ = ledger.take(2, SEQUENCE)
    ledger.release(first, SEQUENCE)
    third, _ = ledger.take(1, SEQUENCE)

    assert ledger.generation[second].tolist() == [2, 2]
    assert third.tolist() == [3]
    assert ledger.generation[:6].tolist() == [0, 1, 1, 3, 2, 2]


def test_taking_a_cached_slot_ends_its_publication() -> None:
    """The take names what it evicted; plain free slots go first."""
    ledger = make_ledger(6)
    assert cache(ledger, "ab") == [1, 2]

    taken, evicted = ledger.take(4, SEQUENCE)

    assert taken.tolist() == [3, 4, 5, 1]
    assert {group: lost.tolist() for group, lost in evicted.items()} == {0: [1]}
    assert ledger.published.nonzero()[0].tolist() == [2]
    assert free(ledger) == [2]


def test_what_is_evicted_is_sorted_by_the_groups_that_published_it() -> None:
    """Each group is told of its own losses, in the order in which they were taken."""
    ledger = make_ledger(6)
    ledger.take(5, SEQUENCE)
    digests = np.zeros(2, ledger.digest.dtype)
    ledger.publish(slots(1, 2), digests, group=3)
    ledger.publish(slots(3, 4), digests, group=1)
    ledger.release(slots(4, 2, 3, 1, 5), SEQUENCE)

    _, evicted = ledger.take(4, SEQUENCE)

    assert {group: lost.tolist() for group, lost in evicted.items()} == {3: [2], 1: [4, 3]}
    assert free(ledger) == [1]


def test_taking_more_than_is_free_is_a_bug_and_changes_nothing() -> None:
    """Whoever takes has to count first."""
    ledger = make_ledger(5)
    cache(ledger, "ab")
    ledger.take(1, PIN)
    before = everything(ledger)

    with pytest.raises(InvariantError, match="4 slots to be taken, 3 free"):
        ledger.take(4, SEQUENCE)

    assert everything(ledger) == before


def test_a_taken_slot_has_one_use_of_its_taker() -> None:
    """Uses are counted for each kind of holder."""
    ledger = make_ledger()

    taken, _ = ledger.take(3, PIN)

    assert ledger.uses[taken].tolist() == [1, 1, 1]
    assert [ledger.uses_by_holder[holder] for holder in (SEQUENCE, FENCE, PIN)] == [0, 0, 3]


# -- claim -------------------------------------------------------------------------------------------------------------


def test_a_claim_stops_at_the_first_slot_that_has_changed_hands() -> None:
    """It says how many slots, from the first on, it got; those after the stale one are not touched."""
    ledger = make_ledger(6)
    cache(ledger, "abcd")
    noted = ledger.generation.take(slots(1, 2, 3, 4))
    noted[2] -= 1
    before = everything(ledger)

    assert ledger.claim(slots(1, 2, 3, 4), noted, SEQUENCE) == 2
    assert free(ledger) == [5, 3, 4]
    assert ledger.uses_by_holder[SEQUENCE] == 2

    ledger.undo_claim(slots(1, 2), SEQUENCE)
    assert everything(ledger) == before


def test_a_claim_whose_first_slot_is_stale_changes_nothing() -> None:
    """None of its slots is claimed."""
    ledger = make_ledger(6)
    cache(ledger, "ab")
    before = everything(ledger)

    assert ledger.claim(slots(1, 2), slots(0, 1), SEQUENCE) == 0
    assert everything(ledger) == before


def test_a_slot_taken_since_it_was_noted_cannot_be_claimed() -> None:
    """Also when the same content has been published in it again."""
    ledger = make_ledger(3)
    (slot,) = cache(ledger, "a")
    noted = ledger.generation.take(slots(slot))
    taken, _ = ledger.take(2, SEQUENCE)
    ledger.publish(slots(slot), as_digests(chain("a")))
    ledger.release(taken, SEQUENCE)

    assert ledger.claim(slots(slot), noted, SEQUENCE) == 0
    assert claim(ledger, slot) == 1


def test_claims_add_up() -> None:
    """A slot that two hold is free when both have given it back."""
    ledger = make_ledger(4)
    (slot,) = cache(ledger, "a")

    claim(ledger, slot)
    claim(ledger, slot, holder=PIN)
    assert free(ledger) == [2, 3]
    ledger.release(slots(slot), SEQUENCE)
    assert free(ledger) == [2, 3]
    ledger.release(slots(slot), PIN)

    assert free(ledger) == [2, 3, 1]


def test_undoing_a_claim_restores_the_place_of_every_slot() -> None:
    """Of slots of several priorities, and of one that somebody else uses, too."""
    ledger = make_ledger(12)
    low, middle, high = (cache(ledger, words, priority=level) for words, level in [("abc", 5), ("d", 35), ("efg", 90)])
    claim(ledger, middle[0], holder=PIN)
    before = everything(ledger)

    claim(ledger, low[1], high[2], middle[0])
    assert free(ledger) == [8, 9, 10, 11, low[0], low[2], high[0], high[1]]
    ledger.undo_claim(slots(low[1], high[2], middle[0]), SEQUENCE)

    assert everything(ledger) == before


def test_claiming_nothing_is_allowed() -> None:
    """A sliding window of one token reads no block at all."""
    ledger = make_ledger()

    assert claim(ledger) == 0
    ledger.undo_claim(slots(), SEQUENCE)
    assert set(ledger.uses_by_holder) == {0}


# -- release -----------------------------------------------------------------------------------------------------------


def test_unpublished_slots_are_taken_again_at_once_and_published_ones_last() -> None:
    """Of the slots of one release the last unpublished one goes first; the published ones keep their order."""
    ledger = make_ledger(9)
    taken, _ = ledger.take(6, SEQUENCE)
    ledger.publish(slots(1, 2, 3), as_digests(chain("abc")))

    ledger.release(taken[::-1], SEQUENCE)

    assert free(ledger) == [4, 5, 6, 7, 8, 3, 2, 1]


def test_a_holder_gives_back_only_what_it_holds() -> None:
    """A pin cannot give back the slots of a sequence; nothing is given back."""
    ledger = make_ledger()
    taken, _ = ledger.take(3, SEQUENCE)
    ledger.take(1, PIN)
    before = everything(ledger)

    with pytest.raises(InvariantError, match="PIN gives back 3 uses and holds 1"):
        ledger.release(taken, PIN)
    with pytest.raises(InvariantError, match="PIN gives back 3 uses and holds 1"):
        ledger.undo_claim(taken, PIN)
    with pytest.raises(InvariantError, match="PIN gives back 3 uses and holds 1"):
        ledger.hand_over(3, PIN, FENCE)

    assert everything(ledger) == before


def test_uses_are_never_clamped() -> None:
    """Giving back a free slot is a bug even when its kind of holder holds others."""
    ledger = make_ledger()
    ledger.take(3, SEQUENCE)
    ledger.release(slots(2), SEQUENCE)
    before = everything(ledger)

    with pytest.raises(InvariantError, match=r"SEQUENCE gives back slots that nobody uses: \[2\]"):
        ledger.release(slots(1, 2), SEQUENCE)

    assert everything(ledger) == before


def test_handing_over_keeps_slots_in_use() -> None:
    """What waits for a fence is no longer the sequence's, and not free either."""
    ledger = make_ledger()
    taken, _ = ledger.take(2, SEQUENCE)

    ledger.hand_over(2, SEQUENCE, FENCE)
    assert ledger.free == 8
    with pytest.raises(InvariantError, match="SEQUENCE gives back 2 uses and holds 0"):
        ledger.release(taken, SEQUENCE)
    ledger.release(taken, FENCE)

    assert ledger.free == 10
    assert set(ledger.uses_by_holder) == {0}


# -- publish and unpublish ---------------------------------------------------------------------------------------------


def test_a_published_slot_carries_its_digest_and_priority() -> None:
    """In use or free."""
    ledger = make_ledger()

    published = cache(ledger, "ab", priority=70)

    assert ledger.published.nonzero()[0].tolist() == published
    assert ledger.digest[published[1]].tobytes() == last_digest("ab")
    assert ledger.free_order.priority[published].tolist() == [70, 70]


def test_a_free_slot_whose_group_has_lost_it_moves_to_the_front() -> None:
    """It is in the free order once, and nothing is evicted when it is taken."""
    ledger = make_ledger(6)
    cache(ledger, "abc", priority=50)

    ledger.unpublish(slots(2))

    assert free(ledger) == [2, 4, 5, 1, 3]
    taken, evicted = ledger.take(3, SEQUENCE)
    assert (taken.tolist(), evicted) == ([2, 4, 5], {})


def test_a_claimed_slot_whose_group_has_lost_it_is_free_once_when_it_comes_back() -> None:
    """Its entry from before the claim must not count again: the slot would be handed out to two."""
    ledger = make_ledger(5)
    cache(ledger, "abc")
    claim(ledger, 2)

    ledger.unpublish(slots(2))
    assert free(ledger) == [4, 1, 3]
    ledger.release(slots(2), SEQUENCE)

    assert free(ledger) == [2, 4, 1, 3]
    taken, _ = ledger.take(4, SEQUENCE)
    assert taken.tolist() == [2, 4, 1, 3]


def test_what_was_noted_of_an_unpublished_slot_cannot_be_claimed() -> None:
    """Neither at once nor when the slot, still in use, is published under another digest."""
    ledger = make_ledger(5)
    cache(ledger, "abc")
    noted = ledger.generation.take(slots(1, 2))
    claim(ledger, 2)

    ledger.unpublish(slots(1, 2))
    assert ledger.claim(slots(1), noted[:1], SEQUENCE) == 0
    ledger.publish(slots(2), as_digests(chain("x")))

    assert ledger.claim(slots(2), noted[1:], SEQUENCE) == 0
    assert claim(ledger, 2) == 1
