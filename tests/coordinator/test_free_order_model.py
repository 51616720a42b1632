"""The order in which free slots are taken compared with plain lists, under thousands of random steps."""

from __future__ import annotations

import random

import pytest

from kvtroupe.coordinator import free_order
from tests.coordinator.pools import Shelf
from tests.coordinator.support import listed, slots


class ListedOrder:
    """The same order as plain lists."""

    def __init__(self, blocks: int) -> None:
        self.front = list(range(blocks - 1, 0, -1))
        self.back: dict[int, list[int]] = {}
        self.priority = dict.fromkeys(range(1, blocks), 35)

    def free(self) -> list[int]:
        """The next one to be taken first."""
        return self.front[::-1] + self.published()

    def published(self) -> list[int]:
        """Those in back queues."""
        return [slot for level in sorted(self.back) for slot in self.back[level]]

    def remove(self, slot: int) -> None:
        """Take a slot out, wherever it is."""
        for place in (self.front, *self.back.values()):
            if slot in place:
                place.remove(slot)

    def append(self, slot: int) -> None:
        """Put a slot at the end of the queue of its priority."""
        self.back.setdefault(self.priority[slot], []).append(slot)


class Pair:
    """A shelf and lists, to which the same happens, by chance."""

    def __init__(self, blocks: int, seed: int) -> None:
        self.shelf = Shelf(blocks)
        self.lists = ListedOrder(blocks)
        self.chance = random.Random(seed)  # noqa: S311 - chooses test cases
        self.held: list[int] = []
        self.claimed: set[int] = set()  # those of the held ones that were not taken

    def some(self, among: list[int]) -> list[int]:
        """A few of these, in any order; often only one."""
        most = self.chance.choice([1, 1, 3, len(among)])
        return self.chance.sample(among, self.chance.randint(0, min(most, len(among))))

    def take(self) -> None:
        """Take the next few."""
        count = self.chance.randint(0, min(self.chance.choice([1, 3, 40]), self.shelf.order.count))
        expected = self.lists.free()[:count]
        assert self.shelf.take(count) == expected
        for slot in expected:
            self.lists.remove(slot)
        self.held += expected
        self.claimed -= set(expected)

    def peek(self) -> None:
        """Look at some: that changes nothing, wherever scrubbing stands."""
        count = self.chance.randint(0, self.shelf.order.count)
        peeked, _ = self.shelf.order.peek(count)
        assert listed(peeked) == self.lists.free()[:count]

    def put_front(self) -> None:
        """Free some that are worth nothing, or have lost what was published in them."""
        freed = self._let_go()
        self.shelf.order.forget_places(slots(*self.claimed.intersection(freed)))
        self.shelf.put_front(*freed)
        self.lists.front += freed

    def put_back(self) -> None:
        """Free some that are published, half of the time with a new priority."""
        freed = self._let_go()
        priority = self.chance.choice([None, None, 0, 35, 36, 100])
        self.shelf.put_back(*freed, priority=priority)
        for slot in freed:
            self.lists.priority[slot] = self.lists.priority[slot] if priority is None else priority
            self.lists.append(slot)

    def _let_go(self) -> list[int]:
        freed = self.some(self.held)
        self.held = [slot for slot in self.held if slot not in freed]
        return freed

    def claim(self) -> None:
        """Claim some, and undo it half of the time."""
        claimed = self.some(self.lists.published())
        self.shelf.claim(*claimed)
        if self.chance.random() < 0.5:
            self.shelf.undo(*claimed)
            return
        for slot in claimed:
            self.lists.remove(slot)
        self.held += claimed
        self.claimed |= set(claimed)

    def move_back(self) -> None:
        """Let priorities of some fall back."""
        moved = self.some(self.lists.published())
        self.shelf.order.move_back(slots(*moved), 35)
        for slot in moved:
            self.lists.remove(slot)
            self.lists.priority[slot] = 35
            self.lists.append(slot)

    def move_front(self) -> None:
        """Let some lose their content."""
        moved = self.some(self.lists.published())
        self.shelf.order.move_front(slots(*moved))
        for slot in moved:
            self.lists.remove(slot)
        self.lists.front += moved


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("smallest_log", "slack"), [(1, 0), (4, 0), (1024, 64)])
def test_the_order_is_that_of_plain_lists(
    seed: int, smallest_log: int, slack: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of random steps in small pools, where scrubbing runs all the time, and with no entry to spare."""
    monkeypatch.setattr(free_order, "SMALLEST_LOG", smallest_log)
    monkeypatch.setattr(free_order, "SCRUB_SLACK", slack)
    pair = Pair(blocks=[3, 6, 12, 25, 40, 90][seed], seed=seed)
    steps = [pair.take, pair.put_front, pair.put_back, pair.put_back, pair.claim, pair.claim]

    for number in range(1200):
        rare = [pair.move_back, pair.move_front] if number % 10 == 0 else []
        pair.chance.choice(rare or steps)()
        pair.peek()
        assert pair.shelf.free() == pair.lists.free(), number
