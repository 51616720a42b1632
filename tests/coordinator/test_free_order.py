"""The order in which free slots are taken."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from tests.coordinator.pools import Shelf
from tests.coordinator.support import slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def filled_shelf(*queues: tuple[int, Sequence[int]], blocks: int = 13) -> Shelf:
    """A shelf with no slot free but those of back queues: (priority, slots in order of being freed) each."""
    shelf = Shelf(blocks)
    shelf.take(blocks - 1)
    for priority, freed in queues:
        shelf.put_back(*freed, priority=priority)
    return shelf


# -- the order ---------------------------------------------------------------------------------------------------------


def test_at_first_slots_are_taken_in_order_of_their_numbers() -> None:
    """Slot 0, the null block, is not among them."""
    shelf = Shelf(6)

    assert shelf.free() == [1, 2, 3, 4, 5]
    assert shelf.take(2) == [1, 2]
    assert shelf.free() == [3, 4, 5]


def test_taking_nothing_changes_nothing() -> None:
    """A round in which nobody needs a block of a pool may ask for none."""
    shelf = filled_shelf((35, [3, 4]))
    shelf.put_front(9)

    assert shelf.take(0) == []
    assert shelf.free() == [9, 3, 4]


def test_the_newest_worthless_slot_is_taken_first() -> None:
    """The front is a stack: of several pushed at once, the last."""
    shelf = Shelf(6)
    shelf.take(5)

    shelf.put_front(2, 4)
    shelf.put_front(1)

    assert shelf.free() == [1, 4, 2]


def test_worthless_slots_go_before_published_ones_of_every_priority() -> None:
    """Even the lowest priority is kept longer than content that nobody can reuse."""
    shelf = filled_shelf((0, [1, 2]), (100, [3]))

    shelf.put_front(7)

    assert shelf.free() == [7, 1, 2, 3]


def test_lower_priorities_go_first_and_within_one_the_least_recently_freed() -> None:
    """The order of being freed counts within a priority only."""
    shelf = filled_shelf((80, [1]), (35, [2]), (10, [3]), (80, [4]), (10, [5]), (35, [6]))

    assert shelf.free() == [3, 5, 2, 6, 1, 4]


def test_slots_of_several_priorities_may_be_freed_at_once() -> None:
    """Each goes to the end of its own queue, in the order given."""
    shelf = filled_shelf((80, [1]), (10, [2]))
    shelf.order.set_priority(slots(3, 5), 10)
    shelf.order.set_priority(slots(4, 6), 80)

    shelf.put_back(6, 5, 4, 3)

    assert shelf.free() == [2, 5, 3, 1, 6, 4]


def test_a_take_crosses_from_the_front_into_one_queue_after_another() -> None:
    """It says how many of its slots were worthless: those come first."""
    shelf = filled_shelf((10, [1, 2]), (35, [3, 4]), (80, [5]))
    shelf.put_front(8, 9)

    taken, from_front = shelf.order.take(5)

    assert taken.tolist() == [9, 8, 1, 2, 3]
    assert from_front == 2
    assert shelf.free() == [4, 5]


def test_everything_free_can_be_taken() -> None:
    """The last slot of the last queue, too."""
    shelf = filled_shelf((10, [1, 2]), (80, [5]))

    taken, from_front = shelf.order.take(3)

    assert (taken.tolist(), from_front) == ([1, 2, 5], 0)
    assert shelf.free() == []


# -- claims ------------------------------------------------------------------------------------------------------------


def test_a_claimed_slot_leaves_the_order() -> None:
    """It is passed over wherever it stood."""
    shelf = filled_shelf((10, [1, 2, 3]), (80, [4, 5, 6]))

    shelf.claim(2, 5)

    assert shelf.free() == [1, 3, 4, 6]
    assert shelf.take(3) == [1, 3, 4]


def test_undoing_a_claim_restores_the_exact_order() -> None:
    """Slots of any queue come back to where they stood, in whatever order claims are made and undone."""
    shelf = filled_shelf((10, [1, 2, 3]), (35, [7, 8]), (80, [4, 5, 6]))
    shelf.put_front(9)
    before = shelf.free()

    shelf.claim(5, 1, 7)
    shelf.claim(2)
    assert shelf.free() == [9, 3, 8, 4, 6]
    shelf.undo(1, 7, 5)
    assert shelf.free() == [9, 1, 3, 7, 8, 4, 5, 6]
    shelf.undo(2)

    assert shelf.free() == before


def test_a_released_claim_goes_to_the_end_and_its_old_place_is_gone() -> None:
    """A hit that ends makes a block the most recently used one; nothing finds it where it was."""
    shelf = filled_shelf((35, [1, 2, 3, 4]))

    shelf.claim(1, 3)
    shelf.put_back(3, 1)

    assert shelf.free() == [2, 4, 3, 1]
    assert shelf.take(4) == [2, 4, 3, 1]
    assert shelf.free() == []


def test_a_claimed_slot_can_come_back_again_and_again() -> None:
    """Every old entry of a slot stays dead, however many there are."""
    shelf = filled_shelf((35, [1, 2, 3]))

    for _ in range(5):
        shelf.claim(1)
        shelf.put_back(1)

    assert shelf.free() == [2, 3, 1]
    assert shelf.take(3) == [2, 3, 1]


def test_a_slot_is_never_found_through_its_entry_of_another_priority() -> None:
    """Claimed from the first place of one queue and returned to the first place of another, it is in the other only."""
    shelf = filled_shelf((10, [1, 2]))

    shelf.claim(1)
    shelf.put_back(1, priority=80)

    assert shelf.free() == [2, 1]
    assert shelf.take(2) == [2, 1]


def test_a_slot_that_returns_to_its_first_priority_is_not_found_twice() -> None:
    """Its way through another priority leaves entries at equal positions behind; only the last one counts."""
    shelf = filled_shelf((10, [1, 2]), (80, [3]))

    shelf.claim(1)
    shelf.put_back(1, priority=80)
    shelf.claim(1)
    shelf.put_back(1, priority=10)

    assert shelf.free() == [2, 1, 3]
    shelf.claim(1)
    assert shelf.free() == [2, 3]
    shelf.undo(1)
    assert shelf.take(3) == [2, 1, 3]


def test_a_priority_given_in_use_counts_when_the_slot_is_freed() -> None:
    """The default priority is the one of a slot that was never given another."""
    shelf = filled_shelf((34, [1]), (36, [2]))

    shelf.put_back(3)
    shelf.order.set_priority(slots(4), 36)
    shelf.put_back(4)

    assert shelf.free() == [1, 3, 2, 4]


# -- changing place ----------------------------------------------------------------------------------------------------


def test_slots_whose_priority_falls_back_go_to_the_end_of_the_other_queue() -> None:
    """They leave the queue they were in."""
    shelf = filled_shelf((80, [1, 2, 3]), (35, [4]))

    shelf.order.move_back(slots(3, 1), 35)

    assert shelf.free() == [4, 3, 1, 2]
    assert shelf.order.priority[[1, 2, 3]].tolist() == [35, 80, 35]


def test_falling_back_to_the_priority_one_has_moves_to_its_end() -> None:
    """Also within one queue the old entry is gone."""
    shelf = filled_shelf((35, [1, 2, 3]))

    shelf.order.move_back(slots(1), 35)

    assert shelf.free() == [2, 3, 1]
    assert shelf.take(3) == [2, 3, 1]


def test_slots_that_lose_their_content_move_to_the_front() -> None:
    """The last one moved is taken first; the entries left behind never count again."""
    shelf = filled_shelf((80, [1, 2, 3]), (35, [4]))

    shelf.order.move_front(slots(1, 3))

    assert shelf.free() == [3, 1, 4, 2]
    assert shelf.take(2) == [3, 1]
    shelf.put_front(3)
    assert shelf.free() == [3, 4, 2]
    assert shelf.take(3) == [3, 4, 2]


def test_a_claimed_slot_that_loses_its_content_is_not_found_at_its_old_place() -> None:
    """Its entry would count again as soon as it is free, and it would be in the order twice."""
    shelf = filled_shelf((35, [1, 2, 3]))
    shelf.claim(2)

    shelf.order.forget_places(slots(2))
    shelf.put_front(2)

    assert shelf.free() == [2, 1, 3]
    assert shelf.take(3) == [2, 1, 3]


# -- the log -----------------------------------------------------------------------------------------------------------


def grown_by(action: Callable[[], None]) -> int:
    """Bytes by which memory has grown when an action is done."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        action()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_priorities_that_are_hardly_used_cost_little_memory() -> None:
    """With 100 priorities and a slot in each, memory is far below a log of the whole pool for every one (120 MB)."""
    shelf = filled_shelf(blocks=50_001)

    def use_them_all() -> None:
        for priority in range(101):
            shelf.put_back(priority + 1, priority=priority)

    assert grown_by(use_them_all) < 2_000_000
    assert shelf.free() == list(range(1, 102))


def test_the_log_of_a_priority_grows_when_it_is_used_more() -> None:
    """A priority that held one slot takes all of the pool in the end, in order, in three entries a slot at most."""
    blocks = 10_001
    shelf = filled_shelf((80, [1]), blocks=blocks)
    freed = list(range(2, blocks))

    def free_them_all() -> None:
        for at in range(0, len(freed), 7):
            shelf.put_back(*freed[at : at + 7], priority=80)

    assert grown_by(free_them_all) < 3 * blocks * 8 + 50_000
    assert shelf.free() == [1, *freed]


@pytest.mark.parametrize("priority", [35, 80])
def test_a_log_does_not_grow_with_the_number_of_claims(priority: int) -> None:
    """Thousands of entries that no longer count are scrubbed on the way, and the order is that of the last returns."""
    blocks = 200
    shelf = filled_shelf((priority, range(1, blocks)), blocks=blocks)

    hits = [1 + step * 7 % (blocks - 1) for step in range(4000)]  # 7 and 199 share no divisor: each once in 199 steps

    def hit_again_and_again() -> None:
        for slot in hits:
            shelf.claim(slot)
            shelf.put_back(slot)

    assert grown_by(hit_again_and_again) < 3 * blocks * 8 + 20_000
    assert shelf.free() == hits[-(blocks - 1) :]
