"""Retention priorities that last for a while: when their time has passed, a block falls back to the default."""

from __future__ import annotations

from kvtroupe.coordinator.ledger import Holder
from tests.coordinator.pools import cache, everything, free, make_ledger, publish
from tests.coordinator.support import as_digests, chain, slots


def test_a_priority_falls_back_when_its_time_has_passed() -> None:
    """Not before; then its free slots are the most recently freed ones of the default priority."""
    ledger = make_ledger(7)
    cache(ledger, "ab", priority=90, expires_s=10.0)
    cache(ledger, "c")

    ledger.expire(9.999)
    assert free(ledger) == [4, 5, 6, 3, 1, 2]
    assert ledger.free_order.priority[[1, 2, 3]].tolist() == [90, 90, 35]
    ledger.expire(10.0)

    assert free(ledger) == [4, 5, 6, 3, 1, 2]
    assert ledger.free_order.priority[[1, 2, 3]].tolist() == [35, 35, 35]
    cache(ledger, "defg", priority=36)
    assert free(ledger)[:3] == [1, 2, 4]


def test_a_priority_below_the_default_rises_when_it_expires() -> None:
    """Falling back means to the default, from either side."""
    ledger = make_ledger(5)
    cache(ledger, "a", priority=0, expires_s=1.0)
    cache(ledger, "b")
    assert free(ledger) == [3, 4, 1, 2]

    ledger.expire(1.0)

    assert free(ledger)[2:] == [2, 1]


def test_the_default_priority_may_expire_too() -> None:
    """It stays 35, and the slot is as if freed now."""
    ledger = make_ledger(5)
    cache(ledger, "a", expires_s=1.0)
    cache(ledger, "b")

    ledger.expire(2.0)

    assert free(ledger)[2:] == [2, 1]


def test_a_slot_in_use_falls_back_where_it_is() -> None:
    """When it is freed later, it goes to the queue of the default priority."""
    ledger = make_ledger(6)
    held = publish(ledger, "ab", priority=90, expires_s=5.0)
    cache(ledger, "c", priority=50)

    ledger.expire(5.0)
    assert free(ledger) == [4, 5, 3]
    ledger.release(slots(*held), Holder.SEQUENCE)

    assert free(ledger) == [4, 5, 1, 2, 3]


def test_several_durations_end_in_order_of_time_then_of_publication() -> None:
    """One late tick moves slots as many punctual ones would have."""
    late, punctual = make_ledger(12), make_ledger(12)
    for ledger in (late, punctual):
        cache(ledger, "a", priority=90, expires_s=30.0)
        cache(ledger, "bc", priority=10, expires_s=10.0)
        cache(ledger, "d", priority=90, expires_s=20.0)
        cache(ledger, "e", priority=80, expires_s=10.0)
        cache(ledger, "f")

    late.expire(100.0)
    for now_s in (10.0, 20.0, 30.0):
        punctual.expire(now_s)

    assert free(late)[5:] == [6, 2, 3, 5, 4, 1]
    assert free(punctual) == free(late)


def test_a_slot_that_was_taken_again_falls_back_in_the_order_of_its_new_publication() -> None:
    """Old and new content have the same time: the old publication, the first of all, does not move the slot early."""
    ledger = make_ledger(3)
    cache(ledger, "a", priority=10, expires_s=10.0)
    cache(ledger, "b", priority=90, expires_s=10.0)
    assert cache(ledger, "c", priority=90, expires_s=10.0) == [1]

    ledger.expire(10.0)

    assert free(ledger) == [2, 1]


def test_a_slot_that_was_taken_again_does_not_expire_with_its_old_content() -> None:
    """The time belongs to what was published, not to the slot."""
    ledger = make_ledger(3)
    cache(ledger, "a", priority=90, expires_s=10.0)
    cache(ledger, "b", priority=90, expires_s=10.0)
    taken, _ = ledger.take(2, Holder.SEQUENCE)
    ledger.publish(slots(1), as_digests(chain("x")), 80, None)
    ledger.publish(slots(2), as_digests(chain("y")), 80, 20.0)
    ledger.release(taken, Holder.SEQUENCE)

    ledger.expire(15.0)
    assert ledger.free_order.priority[[1, 2]].tolist() == [80, 80]
    assert ledger.expires_s[[1, 2]].tolist() == [float("inf"), 20.0]
    ledger.expire(20.0)

    assert ledger.free_order.priority[[1, 2]].tolist() == [80, 35]


def test_a_slot_that_was_taken_and_not_published_does_not_expire() -> None:
    """It is in the front stack, and stays there."""
    ledger = make_ledger(3)
    cache(ledger, "ab", priority=90, expires_s=10.0)
    taken, _ = ledger.take(1, Holder.SEQUENCE)
    ledger.release(taken, Holder.SEQUENCE)
    before = everything(ledger)

    ledger.expire(5.0)
    assert everything(ledger) == before
    ledger.expire(10.0)

    assert free(ledger) == [1, 2]


def test_an_unpublished_slot_does_not_expire() -> None:
    """A block that its group has lost has no priority any more."""
    ledger = make_ledger(4)
    cache(ledger, "ab", priority=90, expires_s=10.0)
    ledger.unpublish(slots(1))

    ledger.expire(10.0)

    assert free(ledger) == [1, 3, 2]


def test_time_passes_once() -> None:
    """A slot that has fallen back does not move again at the next tick."""
    ledger = make_ledger(4)
    cache(ledger, "a", priority=90, expires_s=10.0)
    ledger.expire(10.0)
    cache(ledger, "b")

    ledger.expire(11.0)

    assert free(ledger) == [3, 1, 2]


def test_thousands_of_publications_with_a_duration_leave_only_the_last_to_expire() -> None:
    """What was forgotten about slots taken since does not disturb those that still hold what they held."""
    ledger = make_ledger(4)
    cache(ledger, "k", priority=90, expires_s=500.0)
    for number in range(300):
        taken, _ = ledger.take(1, Holder.SEQUENCE)
        ledger.publish(taken, as_digests(chain([number])), 40, 1000.0 + number)
        ledger.release(taken, Holder.SEQUENCE)
    assert ledger.free_order.priority[1:].tolist() == [90, 40, 40]

    ledger.expire(500.0)
    assert ledger.free_order.priority[1:].tolist() == [35, 40, 40]
    ledger.expire(1298.0)  # the last but one

    assert ledger.free_order.priority[1:].tolist() == [35, 35, 40]
