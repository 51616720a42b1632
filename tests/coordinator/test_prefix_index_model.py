"""The prefix index compared with a dict under thousands of random steps, in small runs that branch and die a lot."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from kvtroupe.coordinator import prefix_index
from kvtroupe.coordinator.prefix_index import PrefixIndex
from tests.coordinator.support import DIGEST_BYTES, chain, slots, split

if TYPE_CHECKING:
    from kvtroupe.coordinator.messages import Evidence

BLOCKS = 70
LONGEST_CHAIN = 12


class Pair:
    """An index, and a dict of what is in it; the same happens to both, by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - chooses test cases
        self.index = PrefixIndex((BLOCKS,), DIGEST_BYTES)
        self.places: dict[bytes, tuple[int, int]] = {}  # digest -> slot and generation
        self.unused = list(range(1, BLOCKS))
        self.generation = 0
        self.chains = [""]
        self.lent: list[tuple[Evidence, list[int], list[int]]] = []

    def some_chain(self) -> bytes:
        """One seen before, a prefix of it, or one that leaves it somewhere."""
        seen = self.chance.choice(self.chains)
        words = seen[: self.chance.randint(0, len(seen))] if self.chance.random() < 0.7 else seen
        words += "".join(self.chance.choice("ab") for _ in range(self.chance.randint(0, 6)))
        words = words[:LONGEST_CHAIN] or "a"
        self.chains = [*self.chains[-30:], words]
        return chain(words)

    def insert(self) -> None:
        """Publish the end of a chain, in slots that hold nothing: those enter whose digest is not there."""
        digests = split(self.some_chain())
        start = self.chance.choice([0, 0, len(digests) - 1, self.chance.randrange(len(digests))])
        if len(self.unused) < len(digests) - start:
            return
        offered = self.chance.sample(self.unused, len(digests) - start)
        self.generation += 1

        entered = self.index.insert(b"".join(digests), start, slots(*offered), slots(*[self.generation] * len(offered)))

        expected = [digest not in self.places for digest in digests[start:]]
        assert ([True] * len(offered) if entered is None else entered.tolist()) == expected
        for digest, slot in zip(digests[start:], offered, strict=True):
            if digest not in self.places:
                self.places[digest] = slot, self.generation
                self.unused.remove(slot)

    def evict(self) -> None:
        """Blocks leave: any, those of a stretch of slots, or all."""
        published = sorted(slot for slot, _ in self.places.values())
        if not published:
            return
        first = self.chance.randrange(len(published))
        gone = self.chance.choice(
            [
                self.chance.sample(published, self.chance.randint(1, min(4, len(published)))),
                published[first : first + 10],
                published if self.chance.random() < 0.1 else published[:1],
            ]
        )
        self.index.evict(slots(*gone))
        self._forget(gone)

    def drop(self) -> None:
        """Places turn out to be stale: those named under the generation that the index knows leave."""
        if not self.places:
            return
        named = self.chance.sample(sorted(self.places.values()), self.chance.randint(1, min(4, len(self.places))))
        right = [self.chance.random() < 0.5 for _ in named]
        generations = [generation - (not fits) for (_, generation), fits in zip(named, right, strict=True)]

        self.index.drop(slots(*(slot for slot, _ in named)), slots(*generations))

        self._forget([slot for (slot, _), fits in zip(named, right, strict=True) if fits])

    def _forget(self, gone: list[int]) -> None:
        self.places = {digest: place for digest, place in self.places.items() if place[0] not in gone}
        self.unused += gone

    def match(self) -> None:
        """The bits of a chain are those of its digests in the dict; where one is set, the place is that of the dict."""
        digests = split(self.some_chain())
        limit = self.chance.randint(0, len(digests))

        found = self.index.match(b"".join(digests), limit)

        expected = [digest in self.places for digest in digests[:limit]]
        assert [bool(found.present >> block & 1) for block in range(limit)] == expected
        assert found.present.bit_length() <= found.path_blocks <= limit
        assert len(found.slots) == len(found.generations) == found.path_blocks
        for block, there in enumerate(expected):
            if there:
                assert (found.slots[block], found.generations[block]) == self.places[digests[block]]
        self.lent = [*self.lent[-8:], (found, found.slots.tolist(), found.generations.tolist())]

    def check(self) -> None:
        """The index holds what the dict holds, and what it lent out has not changed."""
        entries = {digest: (slot, generation) for digest, slot, generation in self.index.entries()}
        assert entries == self.places
        assert self.index.size == len(self.places)
        for evidence, its_slots, its_generations in self.lent:
            assert evidence.slots.tolist() == its_slots
            assert evidence.generations.tolist() == its_generations


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("appended_run_max", "reaped_per_insert"), [(1, 1), (2, 4), (3, 1), (1024, 1), (1024, 4)])
def test_the_index_is_a_dict_of_digests(
    seed: int, appended_run_max: int, reaped_per_insert: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block is found exactly when its digest is published, under any history of inserts and losses."""
    monkeypatch.setattr(prefix_index, "APPENDED_RUN_MAX", appended_run_max)
    monkeypatch.setattr(prefix_index, "REAPED_PER_INSERT", reaped_per_insert)
    pair = Pair(seed)

    for _ in range(600):
        pair.chance.choice([pair.insert, pair.insert, pair.evict, pair.drop, pair.match, pair.match, pair.match])()
        pair.check()

    while pair.places:
        pair.evict()
    pair.check()
    pair.index.reap(10_000)

    assert [run for run in pair.index.runs if run is not None] == [pair.index.root]
    assert not pair.index.root.branches
