"""Transfers against a world of bytes: what copies read and clients see is what the order of begin says.

Several pools, copied by three engines on two ranks. Every engine executes its requests in the order sent, whenever the
seed says so, the copies of a request in any order; while it does, their destinations hold nothing of use. Copies fail,
ranks are lost and come back, answers come late, twice or never. The model knows what every slot would hold if copies
were done at once when they are begun.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvtroupe.coordinator.actor_messages import Copies, CopyReply, CopyRequest
from kvtroupe.coordinator.transfer import Finished, Transfer
from kvtroupe.coordinator.transfers import Transfers
from tests.coordinator.copying import asked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RANKS = 2
POOLS = (7, 6, 5)  # slots of the device, the host and the disk
ENGINE_OF = {(0, 0): 0, (0, 1): 1, (1, 0): 1, (1, 1): 1, (1, 2): 2, (2, 1): 2, (0, 2): 2, (2, 0): 2}
CREDITS = {0: 5, 1: 12, 2: 9}
DEADLINE_S = 8.0
EPOCH = 3
GARBAGE = -1  # what a failed or half-done copy leaves
SEEDS = range(40)
STEPS = 1500

Place = tuple[int, int]  # pool, slot


@dataclass(eq=False)
class Copy:
    """One block, as the model knows it."""

    source: Place
    destination: Place
    value: int  # that the source had when it was begun
    writer: Copy | None  # of the open copies that were to write the source, the last
    failed: bool = False
    wrote: dict[int, int] = field(default_factory=dict)  # by rank
    done: bool = False


@dataclass(eq=False)
class Load:
    """The copies of one transfer."""

    engine: int
    deadline_s: float
    copies: dict[int, Copy] = field(default_factory=dict)  # by slot of the destination
    missing: set[int] = field(default_factory=lambda: set(range(RANKS)))
    sent: bool = False
    told: bool = False

    def conflicts(self, other: Load) -> bool:
        """Whether one writes what the other reads or writes."""
        written, written_there = ({copy.destination for copy in load.copies.values()} for load in (self, other))
        read, read_there = ({copy.source for copy in load.copies.values()} for load in (self, other))
        return bool(written & written_there or written & read_there or read & written_there)


@dataclass
class Access:
    """A client that waits before it reads or writes a slot, which nobody may touch meanwhile."""

    place: Place
    writes: bool
    awaited: set[int]


class Engine:
    """Copies of one engine on one rank; both ends of every copy are in the memory of that rank."""

    def __init__(self, memory: dict[Place, int], chance: random.Random) -> None:
        self.memory = memory
        self.chance = chance
        self.queue: list[CopyRequest] = []
        self.started = False

    def step(self, loads: dict[int, Load], number: int, rank: int, failures: float) -> CopyReply | None:
        """Start the next request, or complete it: then its answer."""
        request = self.queue[0]
        copies = request.copies
        pairs = list(zip(copies.sources.tolist(), copies.destinations.tolist(), strict=True))
        if not self.started:
            self.started = True
            for _, slot in pairs:
                self.memory[copies.destination_pool, slot] = GARBAGE
            return None
        self.started = False
        self.queue.pop(0)
        order = list(range(len(pairs)))
        self.chance.shuffle(order)
        failed = tuple(at for at in order if self.chance.random() < failures)
        for at in order:
            source, slot = pairs[at]
            value = GARBAGE if at in failed else self.memory[copies.source_pool, source]
            self.memory[copies.destination_pool, slot] = value
            loads[request.transfer_id].copies[slot].wrote[rank] = value
        return CopyReply(request.transfer_id, EPOCH, number, rank, failed)


class World:
    """Transfers, engines, clients, and what the slots should hold."""

    def __init__(self, seed: int, *, failures: float, losses: bool) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - chooses test cases
        self.failures = failures
        self.losses = losses
        self.transfers = Transfers(POOLS, ENGINE_OF, RANKS, CREDITS, DEADLINE_S, EPOCH)
        self.places = [(pool, slot) for pool, slots in enumerate(POOLS) for slot in range(1, slots)]
        self.values = {place: number + 1 for number, place in enumerate(self.places)}
        self.last_value = len(self.places)
        self.writers: dict[Place, list[Copy]] = {place: [] for place in self.places}  # last one last
        self.memories = [dict(self.values) for _ in range(RANKS)]
        self.engines = {(engine, rank): self.new_engine(rank) for engine in CREDITS for rank in range(RANKS)}
        self.lost: set[tuple[int, int]] = set()
        self.loads: dict[int, Load] = {}
        self.open: set[int] = set()
        self.answers: list[CopyReply] = []
        self.accesses: list[Access] = []
        self.now_s = 0.0
        self.late_answers = 0

    def new_engine(self, rank: int) -> Engine:
        """An engine with nothing to do."""
        return Engine(self.memories[rank], self.chance)

    # -- what may happen -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Copy up to four blocks between two pools."""
        pair = self.chance.choice(sorted(ENGINE_OF))
        engine = ENGINE_OF[pair]
        lost = any(number == engine for number, _ in self.lost)
        mine = [self.loads[number] for number in self.open if self.loads[number].engine == engine]
        under_way = sum(len(load.copies) for load in mine)
        silent = any(load.told and load.sent for load in mine)
        room = 0 if lost or silent else CREDITS[engine] - under_way
        assert self.transfers.room(engine) == room
        waiting = {access.place for access in self.accesses}
        to_be_written = {access.place for access in self.accesses if access.writes}
        sources = [p for p in self.places if p[0] == pair[0] and self.values[p] != GARBAGE and p not in to_be_written]
        destinations = [p for p in self.places if p[0] == pair[1] and p not in waiting]
        chosen = []
        for _ in range(self.chance.randint(0, min(room, 4))):
            source, destination = self.chance.choice(sources or [None]), self.chance.choice(destinations or [None])
            if source and destination and source != destination:
                chosen.append((source, destination))
        if chosen or not lost:
            self.begin_these(pair, chosen)

    def begin_these(self, pair: tuple[int, int], chosen: list[tuple[Place, Place]]) -> None:
        """Begin copies; for the model they are done at once, one after the other."""
        copies = []
        for source, destination in chosen:
            writers = [writer for writer in self.writers[source] if not writer.done]
            copy = Copy(source, destination, self.values[source], writers[-1] if writers else None)
            self.values[destination] = copy.value
            self.writers[destination].append(copy)
            copies.append(copy)
        asked = Copies(
            pair[0],
            np.array([source[1] for source, _ in chosen], np.int64),
            pair[1],
            np.array([destination[1] for _, destination in chosen], np.int64),
        )
        urgent = self.chance.random() < 0.5
        ids: list[int] = self.transfers.begin(asked, self.now_s, urgent=urgent).tolist()
        for transfer_id, copy in zip(ids, copies, strict=True):
            load = self.loads.setdefault(transfer_id, Load(ENGINE_OF[pair], self.now_s + DEADLINE_S))
            assert not load.sent
            assert copy.destination[1] not in load.copies
            load.copies[copy.destination[1]] = copy
            self.open.add(transfer_id)

    def flush(self) -> None:
        """Give the engines what may be sent."""
        for output in self.transfers.flush():
            self.engines[output.engine, output.rank].queue.append(asked(output))
            self.loads[asked(output).transfer_id].sent = True
        assert all(self.is_held(number) for number in self.open if not self.loads[number].sent)

    def is_held(self, number: int) -> bool:
        """Whether a conflicting transfer that comes first is of another engine, or not sent itself."""
        load = self.loads[number]
        first = [self.loads[other] for other in self.open if other < number]
        return any((other.engine != load.engine or not other.sent) and other.conflicts(load) for other in first)

    def work(self) -> None:
        """Let some engine do something."""
        busy = [key for key, engine in self.engines.items() if engine.queue]
        if busy:
            number, rank = self.chance.choice(busy)
            answer = self.engines[number, rank].step(self.loads, number, rank, self.failures)
            if answer:
                self.answers.append(answer)

    def deliver(self) -> None:
        """Some answer arrives, perhaps not for the last time."""
        if not self.answers:
            return
        answer = self.chance.choice(self.answers)
        if self.chance.random() < 0.9:
            self.answers.remove(answer)
        epoch = EPOCH if self.chance.random() < 0.95 else EPOCH - 1
        load = self.loads[answer.transfer_id]
        is_late = epoch != EPOCH or answer.transfer_id not in self.open or answer.rank not in load.missing
        self.late_answers += is_late
        if not is_late:
            load.missing.remove(answer.rank)
            slots = [copy for at, copy in enumerate(self.in_order(answer.transfer_id)) if at in answer.failed]
            for copy in slots:
                copy.failed = True
        elif epoch != EPOCH and answer not in self.answers:
            self.answers.append(answer)
        told = CopyReply(answer.transfer_id, epoch, answer.engine, answer.rank, answer.failed)
        self.finished(self.transfers.answered(told))
        assert self.transfers.late_answers == self.late_answers

    def in_order(self, transfer_id: int) -> list[Copy]:
        """The copies of an open transfer by position."""
        transfer = self.transfers.get(transfer_id)
        assert transfer is not None
        return [self.loads[transfer_id].copies[slot] for slot in transfer.copies.destinations.tolist()]

    def lose(self) -> None:
        """A rank of an engine dies in the middle of what it does, or is back."""
        if self.lost and self.chance.random() < 0.7:
            key = self.chance.choice(sorted(self.lost))
            self.lost.remove(key)
            self.transfers.rank_back(*key)
            return
        key = self.chance.choice(sorted(self.engines))
        self.engines[key] = self.new_engine(key[1])
        self.lost.add(key)
        for transfer_id in self.open:
            load = self.loads[transfer_id]
            if load.engine == key[0] and key[1] in load.missing:
                load.missing = load.missing - {key[1]} if load.sent else set()
                for copy in load.copies.values():
                    copy.failed = True
        self.finished(self.transfers.rank_lost(*key))

    def finished(self, finished: Iterable[Finished]) -> None:
        """Every copy that has not failed has read what it had to; what has failed, had to."""
        for result in finished:
            load = self.loads[result.transfer_id]
            assert result.transfer_id in self.open
            assert not load.missing
            self.open.remove(result.transfer_id)
            slots: list[int] = result.copies.destinations.tolist()
            assert sorted(slots) == sorted(load.copies)
            mask = [False] * len(slots) if result.failed is None else result.failed.tolist()
            for slot, failed in zip(slots, mask, strict=True):
                self.copied(load.copies[slot], sent=load.sent, failed=failed)

    def copied(self, copy: Copy, *, sent: bool, failed: bool) -> None:
        """One copy is finished."""
        if copy.writer is not None:
            assert copy.writer.done or not sent
            copy.failed |= copy.writer.failed
        copy.done = True
        assert failed == copy.failed
        if failed:
            if self.writers[copy.destination][-1:] == [copy]:
                self.values[copy.destination] = GARBAGE
        else:
            assert copy.wrote == dict.fromkeys(range(RANKS), copy.value)

    def ask(self) -> None:
        """A client wants to read or to write a slot."""
        waiting = {access.place for access in self.accesses}
        place = self.chance.choice(self.places)
        writes = self.chance.random() < 0.5
        if place in waiting or (self.values[place] == GARBAGE and not writes):
            return
        asked = self.transfers.awaited_before_writing if writes else self.transfers.awaited_before_reading
        ids = asked(place[0], np.array([place[1]], np.int64))
        assert ids == self.expected_to_be_awaited(place, writes=writes)
        self.accesses.append(Access(place, writes, set(ids)))

    def expected_to_be_awaited(self, place: Place, *, writes: bool) -> tuple[int, ...]:
        """Open transfers with a copy that touches a place."""
        touching = set()
        for transfer_id in self.open:
            for copy in self.loads[transfer_id].copies.values():
                if copy.destination == place or (writes and copy.source == place):
                    touching.add(transfer_id)
        return tuple(sorted(touching))

    def access(self) -> None:
        """Those who need not wait any more read what they should, and write."""
        ready = [access for access in self.accesses if not access.awaited & self.open]
        for access in ready:
            self.accesses.remove(access)
            if access.writes:
                self.last_value += 1
                self.values[access.place] = self.last_value
                self.writers[access.place].clear()
                for memory in self.memories:
                    memory[access.place] = self.last_value
            elif self.values[access.place] != GARBAGE:
                assert [memory[access.place] for memory in self.memories] == [self.values[access.place]] * RANKS

    def wait(self) -> None:
        """Time passes."""
        self.now_s += self.chance.choice([0.5, 2.0])
        due = [self.loads[number].deadline_s for number in sorted(self.open) if not self.loads[number].told]
        assert self.transfers.next_deadline_s() == min(due, default=None)
        late = [number for number in sorted(self.open) if not self.loads[number].told]
        late = [number for number in late if self.loads[number].deadline_s <= self.now_s]
        for number in late:
            self.loads[number].told = True
        assert self.transfers.overdue(self.now_s) == late

    # -- a life --------------------------------------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        """Random steps, and then an end."""
        often: list[Callable[[], None]] = [self.begin, self.flush, self.ask, self.access]
        often += [self.work] * 4 + [self.deliver] * 3
        for _ in range(steps):
            if self.losses and self.chance.random() < 0.02:
                self.lose()
            elif self.chance.random() < 0.05:
                self.wait()
            else:
                self.chance.choice(often)()
            self.look()
        self.end()

    def look(self) -> None:
        """What can be asked at any time."""
        assert [transfer.transfer_id for transfer in self.transfers.open_transfers()] == sorted(self.open)
        for transfer in self.transfers.open_transfers():
            load = self.loads[transfer.transfer_id]
            assert (transfer.engine, transfer.sent, transfer.overdue) == (load.engine, load.sent, load.told)
            assert transfer.missing == load.missing

    def end(self) -> None:
        """Everything ends, and every slot holds what it should, or is known to hold nothing of use."""
        for _ in range(100 * len(self.open) + 100):
            if not (self.open or self.accesses or self.answers):
                break
            for step in (self.flush, self.work, self.work, self.work, self.deliver, self.access):
                step()
        for key in sorted(self.lost):
            self.transfers.rank_back(*key)
        assert not self.open
        assert not self.transfers.open_transfers()
        assert not self.accesses
        assert not any(self.transfers.busy(pool) for pool in range(len(POOLS)))
        assert {engine: self.transfers.room(engine) for engine in CREDITS} == CREDITS
        for place, value in self.values.items():
            assert value == GARBAGE or [memory[place] for memory in self.memories] == [value] * RANKS


def run(*seeds: int) -> None:
    """Lives; in one of three nothing fails, in another one ranks are lost too."""
    for seed in seeds:
        World(seed, failures=(0.0, 0.1, 0.05)[seed % 3], losses=seed % 3 == 2).live(STEPS)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_read_is_what_the_order_of_begin_says(seed: int) -> None:
    """Whatever the engines do first, whatever fails, and whoever waits only for what was named."""
    run(seed)


def uncut(_self: Transfers, _copies: Copies) -> bool:
    """No copies conflict with one another."""
    return True


def without_order(_other: Transfer, _transfer: Transfer) -> bool:
    """No transfer has to wait for another one."""
    return False


def only_in_one_engine(other: Transfer, transfer: Transfer) -> bool:
    """No transfer has to wait for another engine."""
    return other.engine == transfer.engine and not other.sent


def forgotten(_self: Transfer, _writer: int, _slots: Any) -> None:  # noqa: ANN401
    """What fails, fails alone."""


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Transfers, "_unordered", uncut),
        (Transfers, "_precedes", staticmethod(without_order)),
        (Transfers, "_precedes", staticmethod(only_in_one_engine)),
        (Transfer, "fail_what_it_read", forgotten),
    ],
    ids=["no cutting into waves", "no holding back", "no holding back for other engines", "no propagation of failures"],
)
def test_the_world_sees_what_is_missing(
    owner: type, name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one of the rules some life ends early: the search above can fail."""
    monkeypatch.setattr(owner, name, broken)

    with pytest.raises(AssertionError):
        run(*SEEDS)
