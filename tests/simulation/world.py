"""A world in which everything that may happen does, in any order that the channels allow, drawn from numbers.

Coordinator, groups, tier actors of every rank and an engine exchange messages over channels that keep their order and
take any time. Every decision is one number, so that a run is a list of numbers: the same list is the same run, and a
shorter list is a shorter run.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias

from kvtroupe.coordinator.check import quiescent
from kvtroupe.coordinator.errors import SessionLost, UnknownSession
from kvtroupe.coordinator.messages import (
    AttachRequest,
    ClientOutput,
    ConnectionLostEvent,
    GroupLostEvent,
    GroupOutput,
    GroupReadyEvent,
    LookupRequest,
    ProcessGoneEvent,
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
from tests.simulation.client import Client
from tests.simulation.engine import Engine
from tests.simulation.memory import Memory
from tests.simulation.watch import Watch

if TYPE_CHECKING:
    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.messages import ToSessions

Action: TypeAlias = Callable[[random.Random], object]

CLIENTS = 2
SAID_SHARE = 0.5  # of the losses are said before the new actor is there
ROUNDS_TO_END = 1000
LATE_SHARE = 0.3  # of the answers to an old coordinator come to the new one
ASKS_AT_ONCE = 4  # with many more, hardly any would be admitted


@dataclass(frozen=True)
class Faults:
    """What goes wrong in a world.

    Attributes:
        copies: how often a copy fails.
        losses: how likely it is that a group dies, or a tier actor.
        restarts: the same of the coordinator.
        resets: how likely it is that content is thrown away.
        clients: how likely it is that a client loses its connection; that it dies is a third of it.
        connects: how likely a client that has none is to connect.
        drops: how likely it is that a group is never given a message.
        tiers: how likely the tier actors of the device, the host and the disk are to do something.
        steps: the same of engines.
    """

    copies: float = 0.02
    losses: float = 0.1
    restarts: float = 0.03
    resets: float = 0.03
    clients: float = 0.15
    connects: float = 0.4
    drops: float = 0.02
    tiers: tuple[float, float, float] = (2, 2, 2)
    steps: float = 4


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
        self.watch = Watch(self.replica, self.memory)
        self.groups = [GroupActor(group) for group in self.replica.groups]
        self.tiers = {
            (pool, rank): TierActor(TierRows(pool, rank), self.memory)
            for pool in range(len(config.pools))
            for rank in range(config.ranks)
        }
        self._ids = itertools.count(1)
        self._connections = itertools.count(1)
        self._tokens = itertools.count(1)
        self._supervised: deque[ToSessions] = deque()  # losses that the coordinator is about to be told
        self.clients = [self._new_client() for _ in range(CLIENTS)]

    def _new_client(self) -> Client:
        return Client(f"process {next(self._ids)}", self._new_engine)

    def _new_engine(self) -> Engine:
        return Engine(
            self.config, self.memory, self.config.rules(), self._is_running, self.watch.resets_before, self._ids
        )

    @property
    def state(self) -> CoordinatorState:
        """Of the coordinator."""
        return self.replica.state

    # -- a run ---------------------------------------------------------------------------------------------------------

    def run(self, decisions: list[int]) -> None:
        """Let happen what the numbers say, then let everything end, and see that nothing is left."""
        for decision in decisions:
            self._choose(decision)(random.Random(decision))  # noqa: S311 - chooses test cases
            for client in self.clients:
                client.pump()
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
        actions: list[tuple[str, float, Action]] = [
            ("pass time", 0.3, self._pass_time),
            ("read events", 0.3, sure(self.watch.read_events)),
        ]
        for number, client in enumerate(self.clients):
            actions += [(f"{what} of {number}", weight, action) for what, weight, action in self._of_client(client)]
        actions += [(f"group {one.group.number}", 4, sure(one.work)) for one in self.groups if one.inbox]
        actions += [
            (f"tier {pool} {rank}", self._pace(pool), partial(self._tier_works, tier))
            for (pool, rank), tier in self.tiers.items()
            if tier.inbox
        ]
        for number, actor in enumerate(self._actors()):
            if actor.outbox:
                actions.append((f"deliver {number}", 4, sure(partial(self._deliver, actor))))
        if self._supervised:
            actions.append(("tell losses", 1, sure(self._tell_loss)))
        return actions + self._faults()

    def _of_client(self, client: Client) -> list[tuple[str, float, Action]]:
        """What can happen to a client and its engines."""
        engine = client.engine
        may_ask = sum([len(one.engine.running) + len(one.engine.requests) for one in self.clients]) < ASKS_AT_ONCE
        actions: list[tuple[str, float, Action]] = [
            ("ask", 1 if may_ask else 0.1, engine.ask),
            ("ask about", 0.35, engine.ask_about),
        ]
        if engine.able_to_grow():
            actions.append(("grow", 0.5, engine.grow))
        if engine.running or engine.requests:
            actions.append(("end", 0.6, engine.end))
        if engine.able_to_compute():
            actions.append(("begin step", 3, engine.begin_step))
        if client.able_to_cancel():
            actions.append(("cancel", 0.3, client.cancel))
        if client.is_attached:
            actions.append(("repeat", 0.1, client.repeat))
        if client.connection is None:
            actions.append(("connect", self.faults.connects, sure(partial(self._connect, client))))
        if client.inbox:
            actions.append(("hear", 6, sure(client.hear)))
        for number, one in enumerate(client.engines()):
            weight = self.faults.steps / 4 if number else self.faults.steps  # those left to end take their time
            ranks = one.ranks_with_work()
            actions += [(f"step {number} on {rank}", weight, sure(partial(one.work, rank))) for rank in ranks]
        actions += [
            ("acknowledge", 0.3, sure(partial(self._acknowledge, client))) for _ in client.acknowledgements()[:1]
        ]
        return actions

    def _tier_works(self, tier: TierActor, chance: random.Random) -> None:
        tier.work(chance, self.faults.copies)
        for one in self.tiers.values():
            self.memory.check_told(one.rows)

    def _actors(self) -> list[Client | GroupActor | TierActor]:
        """Everybody with a channel to the coordinator."""
        return [*self.clients, *self.groups, *self.tiers.values()]

    def _faults(self) -> list[tuple[str, float, Action]]:
        faults: list[tuple[str, float, Action]] = []
        if self.faults.resets:
            faults.append(("reset", self.faults.resets, sure(self.clients[0].engine.reset)))
        if self.faults.losses:
            faults += [(f"lose {what}", self.faults.losses, lose) for what, lose in self._losses()]
        if self.faults.drops and any(group.inbox for group in self.groups):
            faults.append(("drop", self.faults.drops, self._drop))
        if self.faults.restarts:
            faults.append(("restart", self.faults.restarts, self._restart))
        if self.faults.clients:
            faults += [
                ("disconnect", self.faults.clients, self._disconnect),
                ("kill", self.faults.clients / 3, self._kill),
            ]
        return faults

    def _losses(self) -> list[tuple[str, Action]]:
        return [("group", self._lose_group), ("tier", self._lose_tier)]

    def _pace(self, pool: int) -> float:
        return self.faults.tiers[("device", "host", "disk").index(self.config.pools[pool].tier)]

    def end(self) -> None:
        """Let everything that is under way end, give all back, and see that every slot is free."""
        for _ in range(ROUNDS_TO_END):
            if not self._is_busy():
                break
            self._end_clients()
            self._deliver_all()
        else:
            raise AssertionError("something is never done")
        self.watch.look(self.groups)
        if not quiescent(self.replica):
            held = {pool.name: self.replica.holders(pool.name) for pool in self.config.pools}
            raise AssertionError(f"something was not given back: {held}")

    def _end_clients(self) -> None:
        """Every step is done, and everything that a client holds is given back."""
        for client in self.clients:
            self._end_client(client)
        is_heard = not any(group.inbox or group.outbox for group in self.groups)
        if is_heard and self.state.current_round is not None:  # a group has missed the question
            self.now_s += self.config.limits.match_deadline_s
            self.send(TimerEvent())
        if self._is_anything_missed():  # the next round finds out
            self.clients[0].engine.outbox.append(LookupRequest(next(self._ids), b""))

    def _end_client(self, client: Client) -> None:
        if client.connection is None:
            self._connect(client)
        for engine in client.engines():
            for rank in range(self.config.ranks):
                while rank in engine.ranks_with_work():
                    engine.work(rank)
        while client.acknowledgements():
            self._acknowledge(client)
        engine = client.engine
        for one in list(engine.running.values()):
            engine.release(one)
        while engine.pins:
            engine.outbox.append(UnpinEvent(engine.pins.pop()))
        client.pump()

    def _is_anything_missed(self) -> bool:
        return any(group.group.applied != self.state.mail.sent[group.group.number] for group in self.groups)

    def _deliver_all(self) -> None:
        """Every actor does all that it was asked, and is heard; no copy fails any more."""
        calm = random.Random(0)  # noqa: S311 - chooses test cases
        while self._supervised:
            self._tell_loss()
        for tier in self.tiers.values():
            while tier.inbox:
                tier.work(calm, 0.0)
        for group in self.groups:
            while group.inbox:
                group.work()
        for actor in self._actors():
            while actor.outbox:
                self._deliver(actor)
        for client in self.clients:
            while client.inbox:
                client.hear()
            client.pump()

    def _is_busy(self) -> bool:
        actors = self._actors()
        return (
            any(actor.inbox or actor.outbox for actor in actors)
            or any(client.is_busy() for client in self.clients)
            or bool(self._supervised)
            or self._is_anything_missed()
        )

    # -- messages ------------------------------------------------------------------------------------------------------

    def _deliver(self, actor: Client | GroupActor | TierActor) -> None:
        """The next message of an actor reaches the coordinator."""
        message = actor.outbox.popleft()
        try:
            self.send(message)
        except (SessionLost, UnknownSession) as error:
            assert isinstance(actor, Client)
            assert isinstance(message, AttachRequest), "who is attached has a session"
            actor.inbox.append(error)

    def send(self, message: ToSessions) -> None:
        """Step, and put what comes of it into channels; then look at everything."""
        if isinstance(message, GroupReadyEvent):
            self.groups[message.group].is_there = True
        elif isinstance(message, TierReadyEvent):
            self.tiers[message.pool, message.rank].is_there = True
            self.memory.away.discard((message.pool, message.rank))
        outputs = self.replica.step(message, self.now_s)
        for output in outputs:
            if isinstance(output, GroupOutput):
                if self.groups[output.group].is_there:
                    self.groups[output.group].inbox.append(output)
            elif isinstance(output, TierOutput):
                if self.tiers[output.engine, output.rank].is_there:
                    self.tiers[output.engine, output.rank].inbox.append(output)
            else:
                assert isinstance(output, ClientOutput), "nobody asks without a session"
                for client in self.clients:
                    if client.connection == output.connection:
                        client.inbox.append(output.message)
        self.watch.stepped(outputs)
        self.watch.look(self.groups)

    def _is_running(self, number: int) -> bool:
        return number in self.state.records.sequences and not self._device_is_lost()

    def _device_is_lost(self) -> bool:
        return any(pool == 0 for pool, _ in self.memory.away)

    # -- time and faults -----------------------------------------------------------------------------------------------

    def _pass_time(self, chance: random.Random) -> None:
        self.now_s += chance.choice([0.1, 0.5, 2.0, 7.0])
        self.send(TimerEvent())
        self.watch.check_punctual(self.now_s)

    def _drop(self, chance: random.Random) -> None:
        chance.choice([group for group in self.groups if group.inbox]).inbox.popleft()

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

    def _restart(self, chance: random.Random) -> None:
        """The coordinator dies, with its groups and all messages; clients are told later, and go on until then.

        What tier actors were asked they still do, whatever they are asked later; their answers are of no use. What
        supervisors have to say of actors that are not there yet is said to the new one; and so may some answers be that
        were for the old one.
        """
        self.epoch += 1
        self.replica.restart(self.epoch)
        self.watch.restarted()
        for group in self.groups:
            group.inbox.clear()
        copying = [tier.process_id for tier in self.tiers.values() if tier.coordinator_lost()]
        actors: list[GroupActor | TierActor] = [*self.groups, *self.tiers.values()]
        for actor in actors:
            for _ in range(len(actor.outbox)):
                message = actor.outbox.popleft()
                if isinstance(message, GroupReadyEvent | TierReadyEvent) or chance.random() < LATE_SHARE:
                    actor.outbox.append(message)
        for client in self.clients:
            client.coordinator_lost()
        dead = [one for one in self._supervised if isinstance(one, ProcessGoneEvent)]
        self._supervised = deque(dead)
        tier_epochs = tuple(
            (pool, rank, self.memory.epochs[pool, rank] - (not tier.is_there))
            for (pool, rank), tier in self.tiers.items()
        )
        processes = [one.process_id for one in self.clients] + [one.process_id for one in dead]
        self.send(RecoverEvent((*processes, *copying), tier_epochs))
        for group in self.groups:
            if not group.is_there:
                self.send(GroupLostEvent(group.group.number))
        for (pool, rank), tier in self.tiers.items():
            if not tier.is_there:
                self.send(TierLostEvent(pool, rank))

    # -- clients -------------------------------------------------------------------------------------------------------

    def _connect(self, client: Client) -> None:
        client.attach(next(self._connections), next(self._tokens).to_bytes(16, "little"))

    def _acknowledge(self, client: Client) -> None:
        """Engines that have lost their session, or their coordinator, have ended their steps, and this is said."""
        self.send(client.acknowledge(client.acknowledgements()[0]))

    def _disconnect(self, chance: random.Random) -> None:
        client = chance.choice(self.clients)
        if client.connection is not None:
            self._supervised.append(ConnectionLostEvent(client.connection))
            client.lose_connection()

    def _kill(self, chance: random.Random) -> None:
        """A process dies with its engines, in the middle of their steps."""
        number = chance.randrange(len(self.clients))
        client = self.clients[number]
        if client.connection is not None:
            self._supervised.append(ConnectionLostEvent(client.connection))
        self._supervised.append(ProcessGoneEvent(client.process_id))
        self.clients[number] = self._new_client()

    def _tell_loss(self) -> None:
        self.send(self._supervised.popleft())


def sure(action: Callable[[], object]) -> Action:
    """An action in which nothing is left to chance."""
    return lambda _: action()
