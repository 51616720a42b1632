"""The ledger compared with a slow one that sorts, under thousands of random steps."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvtroupe.coordinator import free_order
from kvtroupe.coordinator.ledger import Holder, Ledger
from tests.coordinator.pools import free
from tests.coordinator.support import DIGEST_BYTES, as_digests, listed, slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRIORITIES = (0, 35, 35, 60, 100)
TIMES_S = (1.0, 2.0, 2.0, 5.0, math.inf)  # from now


@dataclass
class Block:
    """What is published in a slot."""

    group: int
    digest: bytes
    priority: int
    expires_s: float
    published_at: int
    below: tuple[int, int] = (0, 0)


@dataclass
class Slot:
    """A slot, free if nobody holds it. The stamp is of the moment at which it last got its place in the order."""

    stamp: int
    holders: list[Holder] = field(default_factory=list)
    block: Block | None = None


class SortedPool:
    """A pool that sorts its free slots whenever it is asked for their order."""

    def __init__(self, blocks: int) -> None:
        self.moment = 0
        self.slots = {number: Slot(-number) for number in range(1, blocks)}

    def free(self) -> list[int]:
        """Unpublished ones first, newest first; then by priority, oldest first."""

        def place(number: int) -> tuple[int, int]:
            slot = self.slots[number]
            return (-1, -slot.stamp) if slot.block is None else (slot.block.priority, slot.stamp)

        return sorted((number for number, slot in self.slots.items() if not slot.holders), key=place)

    def published(self, group: int | None = None) -> list[int]:
        """Those that hold a block, or one of a group."""
        return [n for n, slot in self.slots.items() if slot.block and group in (None, slot.block.group)]

    def restamp(self, number: int) -> None:
        """A slot gets a new place in the order."""
        self.moment += 1
        self.slots[number].stamp = self.moment

    def unpublish(self, numbers: list[int]) -> None:
        """Forget blocks."""
        for number in numbers:
            self.slots[number].block = None
            self.restamp(number)

    def expire(self, now_s: float) -> None:
        """Let what is over fall back: first by time, then in the order of publication."""
        over = [(s.block.expires_s, s.block.published_at, n) for n, s in self.slots.items() if s.block]
        for expires_s, _, number in sorted(over):
            block = self.slots[number].block
            if expires_s <= now_s and block is not None:
                block.priority, block.expires_s = 35, math.inf
                self.restamp(number)


class Pair:
    """A ledger and a sorted pool, to which the same happens, by chance."""

    def __init__(self, blocks: int, seed: int) -> None:
        self.ledger = Ledger(blocks, DIGEST_BYTES)
        self.pool = SortedPool(blocks)
        self.chance = random.Random(seed)  # noqa: S311 - chooses test cases
        self.now_s = 0.0
        self.publications = 0

    def some(self, among: list[int]) -> list[int]:
        """A few of these, in any order; often only one."""
        most = self.chance.choice([1, 3, len(among)])
        return self.chance.sample(among, self.chance.randint(0, min(most, len(among))))

    def got(self, expected: list[int], evicted: dict[int, list[int]]) -> None:
        """These slots were taken from the pool, too."""
        lost: dict[int, list[int]] = {}
        for number in expected:
            slot = self.pool.slots[number]
            if slot.block is not None:
                lost.setdefault(slot.block.group, []).append(number)
                digest, block = self.ledger.digests_of(slots(number)).tobytes(), slot.block
                assert (digest, self.kept(number)) == (block.digest, (block.priority, block.expires_s))
            slot.holders, slot.block = [Holder.SEQUENCE], None
        assert evicted == lost

    def kept(self, number: int) -> tuple[int, float]:
        """Priority and time that the ledger names."""
        asked = slots(number)
        return int(self.ledger.priority_of(asked)[0]), float(self.ledger.expires_of(asked)[0])

    def take(self) -> None:
        """Look at the next few, and take them."""
        order = self.pool.free()
        count = self.chance.randint(0, min(len(order), 8))
        assert listed(self.ledger.peek(count)) == order[:count]
        taken, evicted = self.ledger.take(count, Holder.SEQUENCE)
        assert listed(taken) == order[:count]
        self.got(order[:count], {group: listed(lost) for group, lost in evicted.items()})

    def take_droppable(self) -> None:
        """Take the next few of those that are not kept."""
        kept = set(self.some(self.pool.published()))
        wanted = self.pool.free()[: self.chance.randint(0, 8)]
        ends = [at for at, number in enumerate(wanted) if number in kept]
        expected = wanted[: ends[0]] if ends else wanted
        taken, evicted = self.ledger.take_droppable(
            len(wanted), Holder.SEQUENCE, lambda asked: np.isin(asked, list(kept))
        )
        assert listed(taken) == expected
        self.got(expected, {group: listed(lost) for group, lost in evicted.items()})

    def publish(self) -> None:
        """Publish some that are held, with values for all or for each."""
        numbers = self.some([n for n, slot in self.pool.slots.items() if slot.holders and not slot.block])
        self.publications += 1
        group = self.chance.randrange(3)
        digests = [self.chance.randbytes(DIGEST_BYTES) for _ in numbers]
        priorities = [self.chance.choice(PRIORITIES) for _ in numbers]
        times_s = [self.now_s + self.chance.choice(TIMES_S) for _ in numbers]
        priority: int | NDArray[np.uint8] = np.array(priorities, np.uint8)
        expires_s: float | NDArray[np.float64] | None = np.array(times_s)
        if self.chance.random() < 0.5:
            priority = self.chance.choice(PRIORITIES)
            priorities = [priority] * len(numbers)
        if self.chance.random() < 0.5:
            time_s = self.now_s + self.chance.choice(TIMES_S)
            expires_s = None if time_s == math.inf else time_s
            times_s = [time_s] * len(numbers)
        self.ledger.publish(slots(*numbers), as_digests(b"".join(digests)), priority, expires_s, group)
        for at, number in enumerate(numbers):
            published_at = self.publications * 1000 + at
            self.pool.slots[number].block = Block(group, digests[at], priorities[at], times_s[at], published_at)

    def claim(self) -> None:
        """Claim some, and undo it half of the time."""
        numbers = self.some(self.pool.published())
        holder = self.chance.choice([Holder.PIN, Holder.TRANSFER])
        claimed = slots(*numbers)
        assert self.ledger.claim(claimed, self.ledger.generation.take(claimed), holder) == len(numbers)
        if self.chance.random() < 0.5:
            self.ledger.peek(self.ledger.free)
            self.ledger.undo_claim(claimed, holder)
            return
        for number in numbers:
            self.pool.slots[number].holders.append(holder)

    def release(self) -> None:
        """Give back some uses of one kind of holder."""
        holder = self.chance.choice([Holder.SEQUENCE, Holder.PIN, Holder.TRANSFER])
        numbers = self.some([n for n, slot in self.pool.slots.items() if holder in slot.holders])
        self.ledger.release(slots(*numbers), holder)
        for number in numbers:
            slot = self.pool.slots[number]
            slot.holders.remove(holder)
            if not slot.holders:
                self.pool.restamp(number)

    def link(self) -> None:
        """Link some that are published."""
        numbers = self.some(self.pool.published())
        below = [(self.chance.randint(1, 99), self.chance.randint(1, 99)) for _ in numbers]
        self.ledger.link_below(slots(*numbers), slots(*(a for a, _ in below)), slots(*(b for _, b in below)))
        for number, link in zip(numbers, below, strict=True):
            block = self.pool.slots[number].block
            assert block is not None
            block.below = link

    def forget(self) -> None:
        """Some blocks, those of a group, or all."""
        what = self.chance.choice(["some", "some", "group", "all"])
        if what == "some":
            numbers = self.some(self.pool.published())
            self.ledger.unpublish(slots(*numbers))
        elif what == "group":
            group = self.chance.randrange(3)
            numbers = self.pool.published(group)
            assert listed(self.ledger.forget_group(group)) == numbers
        else:
            numbers = self.pool.published()
            assert listed(self.ledger.forget_all()) == numbers
        self.pool.unpublish(numbers)

    def expire(self) -> None:
        """Time passes."""
        self.now_s += self.chance.choice([0.5, 1.0, 4.0])
        self.ledger.expire(self.now_s)
        self.pool.expire(self.now_s)

    def compare(self) -> None:
        """Everything that can be seen."""
        assert free(self.ledger) == self.pool.free()
        below = [listed(part) for part in self.ledger.below_of(slots(*self.pool.slots))]
        for at, (number, slot) in enumerate(self.pool.slots.items()):
            assert self.ledger.uses[number] == len(slot.holders)
            block = slot.block
            assert (below[0][at], below[1][at]) == (block.below if block else (0, 0))
            assert self.ledger.published[number] == (block.group + 1 if block else 0)
            if block:
                assert self.kept(number) == (block.priority, block.expires_s)
                assert self.ledger.digests_of(slots(number)).tobytes() == block.digest


@pytest.mark.parametrize("seed", range(8))
def test_a_ledger_does_what_a_sorted_pool_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of random steps in small pools, where the logs of the free order are scrubbed all the time."""
    monkeypatch.setattr(free_order, "SMALLEST_LOG", 1)
    monkeypatch.setattr(free_order, "SCRUB_SLACK", 0)
    pair = Pair(blocks=[3, 6, 9, 14][seed % 4], seed=seed)
    often = [pair.take, pair.take_droppable, pair.publish, pair.publish, pair.claim, pair.release, pair.release]

    for number in range(1500):
        rare = [pair.forget, pair.expire, pair.expire, pair.link, pair.link] if number % 5 == 0 else []
        pair.chance.choice(rare or often)()
        pair.compare()
