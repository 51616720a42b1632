"""A world in which everything that may happen does, in any order that the channels allow, drawn from numbers.

Coordinator, groups, tier actors of every rank and an engine exchange messages over channels that keep their order and
take any time. Every decision is one number, so that a run is a list of numbers: the same list is the same run, and a
shorter list is a shorter run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias

from kvtroupe.coordinator.check import check, quiescent
from kvtroupe.coordinator.check_events import check_events
from kvtroupe.coordinator.errors import UnknownSequence
from kvtroupe.coordinator.event_mirror import Mirror
from kvtroupe.coordinator.messages import (
    GroupLostEvent,
    GroupOutput,
    GroupReadyEvent,
    RecoverEvent,
    TierLostEvent,
    TierOutput,
    TierReadyEvent,
    TimerEvent,
    UnpinEvent,
)
from kvtroupe.coordinator.replica import Replica
from kvtroupe.coordinator.state import CoordinatorState
from tests.coordinator.cluster import TierRows
from tests.simulation.actors import GroupActor, TierActor
from tests.simulation.engine import Engine
from tests.simulation.memory import Memory

if TYPE_CHECKING:
    from collections import deque

    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.messages import ToCoordinator

Action: TypeAlias = Callable[[random.Random], object]

PROCESS = "engine"
SAID_SHARE = 0.5  # of the losses are said before the new actor is there
ASKS_AT_ONCE = 4  # with many more, hardly any would be admitted


@dataclass(frozen=True)
class Faults:
    """What goes wrong in a world.

    Attributes:
        copies: how often a copy fails.
        losses: whether groups and tiers die.
        restarts: whether the coordinator does.
        resets: whether content is thrown away.
    """

    copies: float = 0.02
    losses: bool = True
    restarts: bool = True
    resets: bool = True


class World:
    """See the module.

    Args:
        config: of the replica.
        faults: what goes wrong.
    """

    def __init__(self, config: Config, faults: Faults) -> None:
        self.config = config
        self.faults = faults
        self.now_s = 0.0
        self.epoch = 0
        self.memory = Memory(config)
        self.replica = Replica(config)
        self._near, self._far = Mirror(config.digest_bytes), Mirror(config.digest_bytes)  # one reads events seldom
        self.groups = [GroupActor(group) for group in self.replica.groups]
        self.tiers = {
            (pool, rank): TierActor(TierRows(pool, rank), self.memory)
            for pool in range(len(config.pools))
            for rank in range(config.ranks)
        }
        self.engine = Engine(config, self.memory, config.rules(), self._is_running)
        self._old_engines: dict[str, Engine] = {}  # by process, those of coordinators that are gone

    @property
    def state(self) -> CoordinatorState:
        """Of the coordinator."""
        return self.replica.state

    # -- a run ---------------------------------------------------------------------------------------------------------

    def run(self, decisions: list[int]) -> None:
        """Let happen what the numbers say, then let everything end, and see that nothing is left."""
        for decision in decisions:
            self._choose(decision)(random.Random(decision))  # noqa: S311 - chooses test cases
        self.end()

    def _choose(self, decision: int) -> Action:
        """An action by its weight. Of those that could happen without it, it hardly depends which could.

        So leaving out one decision changes few of the actions that the others stand for.
        """
        prefix = decision.to_bytes(4, "little")
        best, chosen = -math.inf, None
        for name, weight, action in self._actions():
            drawn = int.from_bytes(blake2b(prefix + name.encode(), digest_size=7).digest(), "little") + 1
            score = math.log(drawn / 2**56) / weight
            if score > best:
                best, chosen = score, action
        assert chosen is not None, "a client can always ask for something"
        return chosen

    def _actions(self) -> list[tuple[str, float, Action]]:
        """What can happen now: name, how likely it is, and what it is."""
        engine = self.engine
        actions: list[tuple[str, float, Action]] = [
            ("ask", 2 if len(engine.running) + len(engine.requests) < ASKS_AT_ONCE else 0.2, engine.ask),
            ("ask about", 0.7, engine.ask_about),
            ("grow", 1, engine.grow),
            ("end", 1.2, engine.end),
            ("begin step", 4, engine.begin_step),
            ("pass time", 0.3, self._pass_time),
            ("read events", 0.3, sure(partial(self._mirror, self._far))),
        ]
        actions += [(f"step on {rank}", 4, sure(partial(engine.work, rank))) for rank in engine.ranks_with_work()]
        actions += [
            (f"old step of {process} on {rank}", 1, sure(partial(old.work, rank)))
            for process, old in self._old_engines.items()
            for rank in old.ranks_with_work()
        ]
        if engine.inbox:
            actions.append(("hear", 6, sure(engine.hear)))
        actions += [(f"group {one.group.number}", 4, sure(one.work)) for one in self.groups if one.inbox]
        actions += [
            (f"tier {pool} {rank}", 2, partial(tier.work, failure_rate=self.faults.copies))
            for (pool, rank), tier in self.tiers.items()
            if tier.inbox
        ]
        actions += [
            (f"deliver {number}", 4, sure(partial(self._deliver, outbox)))
            for number, outbox in enumerate(self._outboxes())
            if outbox
        ]
        return actions + self._faults()

    def _outboxes(self) -> list[deque[ToCoordinator]]:
        """Everything that is on its way to the coordinator."""
        return [
            self.engine.outbox,
            *[group.outbox for group in self.groups],
            *[tier.outbox for tier in self.tiers.values()],
        ]

    def _faults(self) -> list[tuple[str, float, Action]]:
        faults: list[tuple[str, float, Action]] = []
        if self.faults.resets:
            faults.append(("reset", 0.03, sure(self.engine.reset)))
        if self.faults.losses:
            faults += [("lose group", 0.1, self._lose_group), ("lose tier", 0.1, self._lose_tier)]
        if self.faults.restarts:
            faults.append(("restart", 0.03, self._restart))
            faults += [
                (f"acknowledge {process}", 0.3, sure(partial(self._acknowledge, process)))
                for process, old in self._old_engines.items()
                if not old.steps
            ]
        return faults

    def end(self) -> None:
        """Let everything that is under way end, give all back, and see that every slot is free."""
        while self._old_engines or self.engine.running or self.engine.pins or self._is_busy():
            self._end_engines()
            self._deliver_all()
        self._look()
        if not quiescent(self.replica):
            held = {pool.name: self.replica.holders(pool.name) for pool in self.config.pools}
            raise AssertionError(f"something was not given back: {held}")

    def _end_engines(self) -> None:
        """Every step is done, and everything that a client holds is given back."""
        for process, old in list(self._old_engines.items()):
            for rank in range(self.config.ranks):
                while rank in old.ranks_with_work():
                    old.work(rank)
            self._acknowledge(process)
        for rank in self.engine.ranks_with_work():
            self.engine.work(rank)
        for one in list(self.engine.running.values()):
            self.engine.release(one)
        while self.engine.pins:
            self.engine.outbox.append(UnpinEvent(self.engine.pins.pop()))

    def _deliver_all(self) -> None:
        """Every actor does all that it was asked, and is heard; no copy fails any more."""
        calm = random.Random(0)  # noqa: S311 - chooses test cases
        for tier in self.tiers.values():
            while tier.inbox:
                tier.work(calm, 0.0)
        for group in self.groups:
            while group.inbox:
                group.work()
        for outbox in self._outboxes():
            while outbox:
                self._deliver(outbox)
        while self.engine.inbox:
            self.engine.hear()

    def _is_busy(self) -> bool:
        inboxes = [
            self.engine.inbox,
            *[group.inbox for group in self.groups],
            *[tier.inbox for tier in self.tiers.values()],
        ]
        return bool(self.engine.steps) or any(inboxes) or any(self._outboxes())

    # -- messages ------------------------------------------------------------------------------------------------------

    def _deliver(self, channel: deque[ToCoordinator]) -> None:
        """The next message of a channel reaches the coordinator."""
        self.send(channel.popleft())

    def send(self, message: ToCoordinator) -> None:
        """Step, and put what comes of it into channels; then look at everything."""
        if isinstance(message, GroupReadyEvent):
            self.groups[message.group].is_there = True
        elif isinstance(message, TierReadyEvent):
            self.tiers[message.pool, message.rank].is_there = True
            self.memory.away.discard((message.pool, message.rank))
        try:
            outputs = self.replica.step(message, self.now_s)
        except UnknownSequence:
            outputs = []  # of a client that did not know yet that its sequence had failed
        for output in outputs:
            if isinstance(output, GroupOutput):
                if self.groups[output.group].is_there:
                    self.groups[output.group].inbox.append(output)
            elif isinstance(output, TierOutput):
                if self.tiers[output.engine, output.rank].is_there:
                    self.tiers[output.engine, output.rank].inbox.append(output)
            else:
                self.engine.inbox.append(output)
        self._look()

    def _look(self) -> None:
        """Every invariant that can be seen now."""
        self.memory.check_published(self.state)
        self._mirror(self._near)
        if not any(group.inbox or group.outbox for group in self.groups):
            self.replica.groups = [group.group for group in self.groups]
            check(self.replica)

    def _mirror(self, mirror: Mirror) -> None:
        """A mirror reads what it has missed, and knows what the coordinator knows."""
        check_events(self.replica, mirror)

    def _is_running(self, number: int) -> bool:
        return number in self.state.records.sequences and not self._device_is_lost()

    def _device_is_lost(self) -> bool:
        return any(pool == 0 for pool, _ in self.memory.away)

    # -- time and faults -----------------------------------------------------------------------------------------------

    def _pass_time(self, chance: random.Random) -> None:
        self.now_s += chance.choice([0.1, 0.5, 2.0, 7.0])
        self.send(TimerEvent())

    def _lose_group(self, chance: random.Random) -> None:
        number = chance.randrange(len(self.groups))
        group = self.groups[number]
        if not group.is_there:
            return
        group.die()
        if chance.random() < SAID_SHARE:
            group.outbox.append(GroupLostEvent(number))
        group.outbox.append(GroupReadyEvent(number))

    def _lose_tier(self, chance: random.Random) -> None:
        pool, rank = chance.choice(list(self.tiers))
        tier = self.tiers[pool, rank]
        if not tier.is_there:
            return
        tier.die(keeps_rows=self.config.pools[pool].tier == "disk")
        if chance.random() < SAID_SHARE:
            tier.outbox.append(TierLostEvent(pool, rank))
        tier.outbox.append(TierReadyEvent(pool, rank, self.memory.epochs[pool, rank]))

    def _restart(self, chance: random.Random) -> None:  # noqa: ARG002 - as every action
        """The coordinator dies, with its groups and all messages; the engine is told later, and goes on until then.

        What supervisors have to say of actors that are not there yet is said to the new one.
        """
        self._old_engines[f"{PROCESS} {self.epoch}"] = self.engine
        self.epoch += 1
        self.replica.state = CoordinatorState(self.config, self.epoch)
        actors: list[GroupActor | TierActor] = [*self.groups, *self.tiers.values()]
        for actor in actors:
            actor.inbox.clear()
            said = [one for one in actor.outbox if isinstance(one, GroupReadyEvent | TierReadyEvent)]
            actor.outbox.clear()
            actor.outbox.extend(said)
        last_id = self.engine.last_id
        self.engine = Engine(self.config, self.memory, self.config.rules(), self._is_running, last_id=last_id)
        tier_epochs = tuple(
            (pool, rank, self.memory.epochs[pool, rank] - (not tier.is_there))
            for (pool, rank), tier in self.tiers.items()
        )
        self.send(RecoverEvent(tuple(self._old_engines), tier_epochs))
        for group in self.groups:
            if not group.is_there:
                self.send(GroupLostEvent(group.group.number))
        for (pool, rank), tier in self.tiers.items():
            if not tier.is_there:
                self.send(TierLostEvent(pool, rank))

    def _acknowledge(self, process: str) -> None:
        """The engine of an earlier coordinator has ended its steps, and says so."""
        del self._old_engines[process]
        self.state.acknowledged(process)
        self._look()


def sure(action: Callable[[], object]) -> Action:
    """An action in which nothing is left to chance."""
    return lambda _: action()
