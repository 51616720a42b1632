"""A group over several levels compared with dicts, under thousands of random messages.

The pools are so small that slots change hands all the time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvtroupe.coordinator import index_placements, prefix_index
from kvtroupe.coordinator.group import Group
from kvtroupe.coordinator.index_levels import FurtherPlaces
from kvtroupe.coordinator.messages import (
    NO_SLOTS,
    Arrival,
    BindEvent,
    ForgetEvent,
    LandRequest,
    MatchReply,
    MatchRequest,
    PlacesLost,
    Prompt,
    PublishReply,
    PublishRequest,
)
from tests.coordinator.shelves import DEVICE, Place, Shelves, forget_slots
from tests.coordinator.support import DIGEST_BYTES, chain, slots, split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvtroupe.coordinator.messages import Evidence, Places, Slots
    from kvtroupe.coordinator.prefix_index import PrefixIndex, Run

LONGEST_CHAIN = 9
STEPS = 500
SEEDS = range(8)
POOLS = [(13, 9, 12), (40, 30), (7, 30, 30), (25, 7)]


@dataclass
class Lent:
    """Evidence given out, and what it said."""

    evidence: Evidence
    said: str


class Pair:
    """A group, and the model; the same happens to both, by chance."""

    def __init__(self, seed: int, pools: tuple[int, ...]) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - chooses test cases
        self.group = Group(3, pools, DIGEST_BYTES)
        self.pools = pools
        self.model = Shelves(len(pools))
        self.generation = 0
        self.chains = ["a"]
        self.number = 0
        self.lent: list[Lent] = []

    # -- what there is -------------------------------------------------------------------------------------------------

    def some_chain(self) -> list[bytes]:
        """One seen before, a prefix of it, or one that leaves it somewhere."""
        seen = self.chance.choice(self.chains)
        words = seen[: self.chance.randint(0, len(seen))] if self.chance.random() < 0.7 else seen
        words += "".join(self.chance.choice("ab") for _ in range(self.chance.randint(0, 5)))
        words = words[:LONGEST_CHAIN] or "a"
        self.chains = [*self.chains[-12:], words]
        return split(chain(words))

    def some_level(self) -> int:
        """Any."""
        return self.chance.randrange(len(self.pools))

    def in_use(self, level: int) -> set[int]:
        """Slots that hold something, or will."""
        return {slot for shelf in (self.model.published, self.model.arriving) for slot, _ in shelf[level].values()}

    def take(self, level: int, count: int) -> list[Place]:
        """Slots in which nothing is, under a new generation."""
        unused = sorted(set(range(1, self.pools[level])) - self.in_use(level))
        self.generation += 1
        return [(slot, self.generation) for slot in self.chance.sample(unused, min(count, len(unused)))]

    def some_published(self, level: int, most: int) -> list[Place]:
        """Places of published blocks."""
        places = sorted(self.model.published[level].values())
        return self.chance.sample(places, min(len(places), self.chance.randint(0, most)))

    def send(self, message: BindEvent | ForgetEvent) -> None:
        """Without an answer."""
        self.number += 1
        assert self.group.handle(message, self.number) is None

    def ask(self, message: PublishRequest | LandRequest) -> list[bool]:
        """Which blocks entered."""
        self.number += 1
        reply = self.group.handle(message, self.number)
        assert isinstance(reply, PublishReply)
        assert (reply.publish_id, reply.group) == (message.publish_id, 3)
        if reply.entered is None:
            return [True] * len(message.slots)
        return [bool(entered) for entered in reply.entered]

    # -- what may happen -----------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """The end of a chain, mostly on the device, sometimes with blocks left out."""
        digests = self.some_chain()
        level = self.some_level() if self.chance.random() < 0.3 else DEVICE
        start = self.chance.choice([0, 0, len(digests) - 1, self.chance.randrange(len(digests))])
        offered = self.take(level, len(digests) - start)
        digests = digests[: start + len(offered)]
        sparse = self.chance.random() < 0.3
        if sparse:
            offered = [(0, 0) if self.chance.random() < 0.4 else place for place in offered]
        entered = self.ask(
            PublishRequest(self.number, b"".join(digests), start, *columns(offered), sparse=sparse, level=level)
        )
        assert entered == self.model.publish(level, digests[start:], offered)

    def publish_where_it_arrives(self) -> None:
        """In the slot that a copy fills: the copy lands no more."""
        arriving = sorted(self.model.arriving[DEVICE].items())
        digests = self.some_chain()
        if not arriving or len(digests) > 1:
            return
        place = self.chance.choice(arriving)[1]
        entered = self.ask(PublishRequest(self.number, digests[0], 0, *columns([place])))
        if digests[0] not in self.model.published[DEVICE]:
            assert entered == self.model.publish(DEVICE, digests, [place])
        else:
            assert entered == [False]
            forget_slots(self.model.arriving[DEVICE], [place[0]])

    def evict(self) -> None:
        """Device slots are taken for other content."""
        gone = [slot for slot, _ in self.some_published(DEVICE, 6)]
        self.send(BindEvent(slots(*gone)))
        forget_slots(self.model.published[DEVICE], gone)

    def move(self) -> None:
        """Copies begin, from any level to any other, perhaps into slots that held something until now."""
        arrivals, digests = [], []
        used: set[Place] = set()
        for _ in range(self.chance.choice([1, 1, 2])):
            arrival, named = self.some_arrival(used)
            arrivals.append(arrival)
            digests.append(named)
        evicted = set()
        for arrival in arrivals:
            if arrival.level == DEVICE:
                evicted |= {slot for slot, _ in self.model.published[DEVICE].values() if slot in arrival.slots}
            if arrival.source_level == DEVICE and self.chance.random() < 0.5:
                published = {slot for slot, _ in self.model.published[DEVICE].values()}
                evicted |= published.intersection(arrival.source_slots.tolist())
        lost = self.some_lost() if self.chance.random() < 0.2 else []
        self.send(BindEvent(slots(*evicted), tuple(lost), tuple(arrivals)))
        for arrival, named in zip(arrivals, digests, strict=True):
            self.model.arrive(named, arrival.level, rows(arrival.slots, arrival.generations))
        forget_slots(self.model.published[DEVICE], list(evicted))
        self.model_loses(lost)

    def some_arrival(self, used: set[Place]) -> tuple[Arrival, list[bytes | None]]:
        """A copy of a few blocks, some of whose sources may be no more, and what these are."""
        source_level, level = self.chance.sample(range(len(self.pools)), 2)
        sources = self.some_published(source_level, 4)
        sources += [place for place in self.model.arriving[source_level].values() if self.chance.random() < 0.2]
        sources += sources[:1] if self.chance.random() < 0.1 else []
        sources = [(slot, generation - (self.chance.random() < 0.1)) for slot, generation in sources]
        places = self.take(level, len(sources))
        if self.chance.random() < 0.4:  # slots that still hold something of the index
            taken = sorted(self.in_use(level))
            places = [(slot, self.generation) for slot in self.chance.sample(taken, min(len(taken), len(sources)))]
        places = [place for place in places if (level, place[0]) not in used]
        used |= {(level, slot) for slot, _ in places}
        sources = sources[: len(places)]
        source_slots, source_generations = columns(sources)
        known = self.chance.random() < 0.8
        named = [self.model.found(source_level, slot, generation if known else None) for slot, generation in sources]
        arrival = Arrival(
            source_level,
            source_slots,
            level,
            *columns(places),
            source_generations=source_generations if known else None,
        )
        return arrival, named

    def land(self) -> None:
        """Copies are done; some were given up before, some are told under a generation that has passed."""
        level = self.some_level()
        places = [place for place in self.model.arriving[level].values() if self.chance.random() < 0.5]
        places = [(slot, generation - (self.chance.random() < 0.1)) for slot, generation in places]
        places += self.take(level, 1) + self.some_published(level, 1)
        self.chance.shuffle(places)
        entered = self.ask(LandRequest(self.number, level, *columns(places)))
        assert entered == self.model.land(level, places)

    def lose(self) -> None:
        """Places are no more."""
        lost = self.some_lost()
        self.send(BindEvent(NO_SLOTS, tuple(lost)))
        self.model_loses(lost)

    def some_lost(self) -> list[PlacesLost]:
        """Some that are there, some that are not."""
        lost = []
        for level in self.chance.sample(range(len(self.pools)), self.chance.randint(1, len(self.pools))):
            arriving = [place for place in self.model.arriving[level].values() if self.chance.random() < 0.3]
            by_slot = dict(self.some_published(level, 4) + arriving + self.take(level, 1))
            places = [(slot, made - (self.chance.random() < 0.2)) for slot, made in by_slot.items()]
            lost_slots, generations = columns(places)
            lost.append(PlacesLost(level, lost_slots, generations if self.chance.random() < 0.7 else None))
        return lost

    def model_loses(self, lost: list[PlacesLost]) -> None:
        """The same in the model."""
        for one in lost:
            for slot, generation in rows(one.slots, one.slots if one.generations is None else one.generations):
                self.model.lose(one.level, slot, None if one.generations is None else generation)

    def forget(self) -> None:
        """Everything, now and then."""
        if self.chance.random() < 0.05:
            self.send(ForgetEvent())
            self.model = Shelves(len(self.pools))

    # -- what can be seen ----------------------------------------------------------------------------------------------

    def match(self) -> None:
        """The bits and places of a chain are those of its digests in the dicts."""
        digests = self.some_chain()
        limit = self.chance.randint(0, len(digests))
        reply = self.group.handle(MatchRequest(5, (Prompt(b"".join(digests), limit),)), self.number)
        assert isinstance(reply, MatchReply)
        assert reply.applied == self.number
        [evidence] = reply.evidence
        self.compare(DEVICE, digests[:limit], evidence, evidence.path_blocks)
        there = [any(digest in shelf for digest in digests[:limit]) for shelf in self.model.published[1:]]
        assert [places.level for places in evidence.lower] == [level for level, any_ in enumerate(there, 1) if any_]
        for places in evidence.lower:
            self.compare(places.level, digests[:limit], places, evidence.path_blocks)
        assert evidence.path_blocks <= limit
        assert evidence.children == ()
        self.lent = [*self.lent[-8:], Lent(evidence, told(evidence))]

    def compare(self, level: int, digests: list[bytes], found: Evidence | Places, path_blocks: int) -> None:
        """One level of the evidence."""
        shelf = self.model.published[level]
        expected = [digest in shelf for digest in digests]
        assert [bool(found.present >> block & 1) for block in range(len(digests))] == expected
        assert found.present.bit_length() <= path_blocks == len(found.slots) == len(found.generations)
        for block, digest in enumerate(digests):
            if digest in shelf:
                assert (found.slots[block], found.generations[block]) == shelf[digest]

    def check(self) -> None:
        """The index holds what the model holds, its structure is sound, and what it lent out has not changed."""
        index = self.group.index
        assert as_shelf(index.entries()) == self.model.published[DEVICE]
        assert index.size == len(self.model.published[DEVICE])
        for level in range(len(self.pools)):
            if level != DEVICE:
                assert as_shelf(index.entries_below(level)) == self.model.published[level]
            assert as_shelf(index.arriving(level)) == self.model.arriving[level]
        check_structure(index)
        for lent in self.lent:
            assert told(lent.evidence) == lent.said


# -- what the pair needs -----------------------------------------------------------------------------------------------


def columns(places: list[Place]) -> tuple[Slots, Slots]:
    """Slots and generations as arrays."""
    return slots(*(slot for slot, _ in places)), slots(*(generation for _, generation in places))


def rows(some_slots: Slots, generations: Slots) -> list[Place]:
    """And back."""
    return list(zip(some_slots.tolist(), generations.tolist(), strict=True))


def as_shelf(entries: Iterator[tuple[bytes, int, int]]) -> dict[bytes, Place]:
    """What an index lists; nothing twice."""
    listed = list(entries)
    shelf = {digest: (slot, generation) for digest, slot, generation in listed}
    assert len(shelf) == len(listed)
    return shelf


def told(evidence: Evidence) -> str:
    """All that evidence says."""
    lower = [(one.level, one.present, rows(one.slots, one.generations)) for one in evidence.lower]
    return str((evidence.present, rows(evidence.slots, evidence.generations), evidence.path_blocks, lower))


def check_structure(index: PrefixIndex) -> None:
    """Counts fit what they count, and a run without a place is about to be taken out or leads somewhere."""
    further = index.further
    maps = [*further.below.values(), *further.arriving.values()]
    counted = dict.fromkeys(maps, 0)
    for run in index.runs[1:]:
        if run is None:
            continue
        assert run.parent is not None
        assert run.parent.branches[run.offset][run.digests[:DIGEST_BYTES]] is run
        assert 0 < len(run.slots) == len(run.generations) == len(run.digests) // DIGEST_BYTES
        assert index.live[run.number] == np.count_nonzero(index.published(DEVICE, run))
        assert run.further is None or run.further
        for places, held in (run.further or {}).items():
            there = places.there(run)
            assert len(held.slots) == len(held.generations) == len(run.slots)
            assert 0 < held.live == np.count_nonzero(there)
            assert (places.run_of[held.slots[there]] == run.number).all()
            assert (places.block_of[held.slots[there]] == there.nonzero()[0]).all()
            counted[places] += held.live
        assert index.live[run.number] or run.further or run.branches or run.number in index.dead
    assert counted == {places: places.count for places in maps}


def live(seed: int, steps: int) -> None:
    """A life of a group, to its end."""
    pair = Pair(seed, POOLS[seed % len(POOLS)])
    often = [pair.publish, pair.publish, pair.move, pair.move, pair.land, pair.land, pair.match, pair.match, pair.match]
    for step in range(steps):
        rare = [pair.evict, pair.lose, pair.forget, pair.publish_where_it_arrives]
        pair.chance.choice(rare if step % 4 == 0 else often)()
        pair.check()
    for level, pool in enumerate(pair.pools):
        pair.send(BindEvent(NO_SLOTS, (PlacesLost(level, np.arange(1, pool)),)))
    pair.model = Shelves(len(pair.pools))
    pair.check()
    pair.group.index.reap(10_000)
    assert [run for run in pair.group.index.runs if run is not None] == [pair.group.index.root]


def live_all(seeds: Iterable[int]) -> None:
    """One after the other."""
    for seed in seeds:
        live(seed, STEPS)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("appended_run_max", [1, 3, 1024])
def test_an_index_over_levels_is_a_dict_for_each(
    seed: int, appended_run_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place is found exactly when it was published there and not lost since, under any history of messages."""
    monkeypatch.setattr(prefix_index, "APPENDED_RUN_MAX", appended_run_max)
    monkeypatch.setattr(prefix_index, "REAPED_PER_INSERT", 1 + seed % 4)

    live(seed, STEPS)


def unsettled(_self: FurtherPlaces, _level: int, _run: Run, _blocks: Slots) -> None:
    """What is published goes on arriving."""


def no_end(_self: FurtherPlaces, _run: Run) -> int:
    """Nothing below keeps a run."""
    return 0


def nothing_passes(_index: PrefixIndex, _arrival: Arrival) -> None:
    """A slot that is taken for a copy keeps what was named in it."""


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (FurtherPlaces, "settle", unsettled),
        (FurtherPlaces, "end_of", no_end),
        (index_placements, "_forget_earlier", nothing_passes),
        (prefix_index, "lengthen", lambda _run, _blocks: None),
        (prefix_index, "shorten", lambda _run, _blocks: None),
    ],
    ids=["published wins", "trimming", "slots taken again", "runs that grow", "runs that are cut"],
)
def test_the_model_sees_what_is_missing(
    owner: object, name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one of the rules some life ends early: the search above can fail."""
    monkeypatch.setattr(owner, name, broken)

    with pytest.raises((AssertionError, IndexError, ValueError)):
        live_all(SEEDS)
