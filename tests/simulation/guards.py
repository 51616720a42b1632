"""Rules that guard against faults, and how to take one away: a simulation must then find out.

A rule is taken away by changing one place in the source of a method, for the time of a test. A place that is not there
any more is an error, so that no rule is silently left untested.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtroupe.coordinator import (
    arriving,
    landings,
    leases,
    lifts,
    losses,
    outcomes,
    publications,
    recovery,
    resets,
    returns,
    rounds,
    session,
    sessions,
    state,
    takeovers,
    tiers,
    transfers,
    waiting,
)
from tests.simulation import memory
from tests.simulation.world import Faults

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


@dataclass(frozen=True)
class Guard:
    """A rule in one method.

    Attributes:
        fault: what it guards against.
        owner: the class.
        method: its name.
        rule: text in the source of the method, there once.
        without: what is there when the rule is taken away.
        faults: of a world in which that soon makes a difference.
        together: rules that guard against it as well, and are taken away with it.
    """

    fault: str
    owner: type
    method: str
    rule: str
    without: str
    faults: Faults
    together: tuple[Guard, ...] = ()

    def take_away(self, patch: pytest.MonkeyPatch) -> None:
        """For the time of a test."""
        function: Callable[..., object] = inspect.unwrap(inspect.getattr_static(self.owner, self.method))
        function = getattr(function, "__func__", function)
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.rule) == 1, f"{self.owner.__name__}.{self.method} has not once: {self.rule}"
        names = vars(sys.modules[self.owner.__module__])
        code = compile(
            source.replace(self.rule, self.without), f"<{self.fault}>", "exec", __future__.annotations.compiler_flag
        )
        made: dict[str, object] = {}
        exec(code, names, made)  # noqa: S102 - our own source
        patch.setattr(self.owner, self.method, made[self.method])
        for guard in self.together:
            guard.take_away(patch)


ALL = Faults()
CLIENTS = Faults(losses=0, restarts=0, resets=0, drops=0, clients=0.5)
AWAY = Faults(losses=0, restarts=0, resets=0, drops=0, clients=0.3, connects=0.03, steps=0.5)
AWAY_FROM_COPIES = Faults(losses=0, restarts=0, resets=0, drops=0, clients=1, tiers=(2, 0.2, 0.2))
COPIES = Faults(losses=0, restarts=0, resets=0, drops=0, clients=0, copies=0.3)
DROPS = Faults(losses=0, restarts=0, resets=0, clients=0, drops=0.3)
LOSSES = Faults(losses=0.4, restarts=0, resets=0, drops=0, clients=0)
NONE = Faults(losses=0, restarts=0, resets=0, drops=0, clients=0)
RESETS = Faults(losses=0, restarts=0, resets=0.3, drops=0, clients=0)
VOIDS = Faults(losses=0.3, resets=0.3, restarts=0, clients=0, drops=0)
RESTARTS = Faults(losses=0, restarts=0.4, resets=0, drops=0, clients=0, steps=0.5)
SLOW = Faults(losses=0, restarts=0, resets=0, drops=0, clients=0, tiers=(2, 0.1, 0.02))

GUARDS = [
    # -- the coordinator -------------------------------------------------------------------------------------------
    Guard(
        "a new coordinator hands out what processes of the old one still write",
        recovery.Recovery,
        "begin",
        "set(process_ids)",
        "set()",
        RESTARTS,
    ),
    Guard(
        "one process of several has acknowledged that the coordinator was lost",
        recovery.Recovery,
        "acknowledged",
        "if self._processes:",
        "if False:",
        RESTARTS,
    ),
    Guard(
        "a group answers a new coordinator out of what it knew under the old one",
        losses.Losses,
        "recover",
        "[self.parts.mail.to(group, ForgetEvent()) for group in self.parts.layout.indexed]",
        "[]",
        RESTARTS,
    ),
    Guard(
        "a new coordinator believes one rank where the inventories of two disagree",
        takeovers.Takeovers,
        "take_over",
        "agreed(inventories)",
        "agreed(inventories[:1] * len(inventories))",
        ALL,
    ),
    # -- clients ---------------------------------------------------------------------------------------------------
    Guard(
        "a client writes after its grace period",
        leases.Leases,
        "lost",
        "self.records.returns.lose(session)",
        "self.records.returns.end(session); self.records.returns.begin(session)",
        AWAY,
    ),
    Guard(
        "an engine writes after its sequence was released",
        returns._Engine,  # noqa: SLF001 - a rule in it
        "is_passed",
        "(fence is None or fence <= self.done_step)",
        "True",
        NONE,
    ),
    Guard(
        "slots that wait for a fence are free when the session is lost",
        returns.Returns,
        "lose",
        "engine.is_lost = True",
        "self.end(session); self.begin(session)",
        AWAY,
    ),
    Guard(
        "a request that is repeated is done again",
        session.Session,
        "is_new",
        "if number <= self.last_number:",
        "if number in () or number < 0:",
        CLIENTS,
    ),
    Guard(
        "what was cancelled while it waited is admitted, and nobody gives it back",
        waiting.WaitingRoom,
        "cancel",
        "request_id in (None, ask.request_id)",
        "False",
        CLIENTS,
    ),
    Guard(
        "what was cancelled between answer and await is never given back",
        leases.Leases,
        "cancel",
        "for one in sequences if one.request_id == message.request_id",
        "for one in ()",
        CLIENTS,
    ),
    Guard(
        "a client that comes back is not told what its copies are that it has to await",
        sessions.Sessions,
        "_attached",
        "awaited(one.sequence_id)",
        "()",
        AWAY_FROM_COPIES,
    ),
    Guard(
        "who comes back keeps what nobody wants any more",
        sessions.Sessions,
        "_not_listed",
        "for one in gone if",
        "for one in () if",
        CLIENTS,
    ),
    Guard(
        "sequences of a process that is dead hold their slots for ever",
        leases.Leases,
        "_end_all",
        "self._end(*self.records.of_session(session))",
        "pass",
        CLIENTS,
    ),
    # -- publications ----------------------------------------------------------------------------------------------
    Guard(
        "a group answers a publication after the sequence was released",
        returns.Returns,
        "give_back",
        "if sequence.publishing:",
        "if False:",
        NONE,
    ),
    Guard(
        "a group answers a publication that it was offered before a reset",
        resets.Resets,
        "reset",
        "self.publications.give_up(self.parts.layout.indexed)",
        "[], []",
        RESETS,
    ),
    Guard(
        "blocks land that were being copied when all was reset",
        resets.Resets,
        "reset",
        "self.tiers.landings.give_up_group()",
        "[]",
        RESETS,
    ),
    Guard(
        "a sequence publishes what it has computed on top of what was reset",
        resets.Resets,
        "reset",
        "sequence.is_void = True",
        "pass",
        RESETS,
    ),
    Guard(
        "an index names slots that a publication gave up, and that were handed out again",
        publications.Publications,
        "give_up",
        "self._ledgers_of_pools[self._pool_of[group]].give_up(offered)",
        "pass",
        VOIDS,
    ),
    # -- copies ----------------------------------------------------------------------------------------------------
    Guard(
        "an answer of a tier comes twice",
        transfers.Transfers,
        "answered",
        "if reply.rank not in transfer.missing:",
        "if not transfer.missing:",
        NONE,
    ),
    Guard(
        "a copy fails on one rank of two",
        transfers.Transfers,
        "answered",
        "if reply.failed:",
        "if reply.failed and reply.rank == 0:",
        COPIES,
    ),
    Guard(
        "a block is there on one rank of two",
        transfers.Transfers,
        "_new_transfer",
        "set(range(self.ranks))",
        "{0}",
        NONE,
    ),
    Guard(
        "the next owner of a slot writes where a copy still reads or writes",
        tiers.Tiers,
        "writes_after",
        "self._transfers.awaited_before_writing(pool, some)",
        "()",
        SLOW,
    ),
    Guard(
        "a hit is read before it has arrived",
        tiers.Tiers,
        "reads_after",
        "self._transfers.awaited_before_reading(pool, some)",
        "()",
        SLOW,
    ),
    Guard(
        "what failed to be read stays in the index",
        landings.Landings,
        "_lose_sources",
        "ledger.unpublish(unreadable)",
        "pass",
        COPIES,
    ),
    Guard(
        "a failed copy lands",
        landings.Landings,
        "finished",
        "~(failed | void)",
        "~void",
        COPIES,
    ),
    Guard(
        "a sequence goes on whose copies have failed",
        outcomes.Outcomes,
        "_fail_readers",
        "if count and transfer",
        "if False and transfer",
        COPIES,
    ),
    Guard(
        "device and host are full, with a hit in host: what is to be brought up is taken first",
        lifts.Lifts,
        "_begin",
        "device_ledger.claim(destinations, generations, Holder.TRANSFER)",
        "device_ledger.hand_over(0, Holder.TRANSFER, Holder.TRANSFER)",
        NONE,
    ),
    Guard(
        "a copy is sent while another engine still writes what it reads",
        transfers.Transfers,
        "_precedes",
        "other.engine != transfer.engine or not other.sent",
        "not other.sent",
        SLOW,
    ),
    Guard(
        "slots of an overdue copy are handed out, and whoever gets them waits for it",
        outcomes.Outcomes,
        "overdue",
        "self.records.keep(transfer_id, pool, np.unique(slots))",
        "pass",
        SLOW,
    ),
    Guard(
        "a hit joins a copy that is overdue, and waits for it",
        outcomes.Outcomes,
        "overdue",
        "arriving.void(copies.destinations.compress(arriving.brought_by(transfer_id, copies.destinations)))",
        "pass",
        SLOW,
    ),
    # -- losses ----------------------------------------------------------------------------------------------------
    Guard(
        "a silent group holds up the round",
        rounds.Rounds,
        "time_passed",
        "now_s < current.deadline_s",
        "True",
        NONE,
    ),
    Guard(
        "a silent tier holds up those who wait for its copies",
        state.CoordinatorState,
        "_on_timer",
        "self._outcomes.overdue(now_s)",
        "[]",
        SLOW,
    ),
    Guard(
        "a group that has missed a message answers",
        rounds.Rounds,
        "answered",
        "if not current.add_evidence(message):",
        "if not current.add_evidence(message) and False:",
        DROPS,
    ),
    Guard(
        "what is copied between memory that was lost and memory that replaces it lands",
        landings.Landings,
        "give_up_pool",
        "arriving.void_from(pool)",
        "pass",
        LOSSES,
        (
            Guard(
                "either rule is enough: such a copy is refused by the tier, and counts for nothing",
                memory.Memory,
                "is_that_of",
                "and self.epochs[pool, rank] == tier_epoch",
                "",
                LOSSES,
            ),
        ),
    ),
    Guard(
        "a tier is replaced before anybody has noticed",
        losses.Losses,
        "tier_ready",
        "self.tier_lost(pool, rank, now_s)",
        "self._away.setdefault(pool, set()).add(rank) or []",
        LOSSES,
    ),
    Guard(
        "what a lost tier held stays in the index",
        losses.Losses,
        "tier_lost",
        "self.forget_content(pool)",
        "[]",
        LOSSES,
    ),
    Guard(
        "sequences go on after the device was lost",
        losses.Losses,
        "tier_lost",
        "self._fail_sequences(pool)",
        "[]",
        LOSSES,
    ),
    Guard(
        "the index of a group is lost, and the ledger still counts its blocks",
        losses.Losses,
        "group_lost",
        "pool.ledger.forget_group(group)",
        "pass",
        LOSSES,
    ),
    Guard(
        "what was copied from the device before that was lost is thrown away on its way into the index",
        arriving.Arriving,
        "void_from",
        "self.void(slots.compress(self._transfer.take(slots) != NOTHING))",
        "self.void(slots)",
        ALL,
    ),
]
