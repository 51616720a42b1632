"""Slots on their way back to the free order: steps of an engine may still touch them, or groups name them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kvtroupe.coordinator.errors import FenceError
from kvtroupe.coordinator.ledger import Holder
from kvtroupe.coordinator.session_messages import LOCAL_SESSION

if TYPE_CHECKING:
    from kvtroupe.coordinator.ledger import Ledger
    from kvtroupe.coordinator.messages import SequenceId, Slots
    from kvtroupe.coordinator.sequences import Sequence

NO_STEP = -1  # before the first step of an engine


class Return(NamedTuple):
    """Slots that a client has given back.

    Attributes:
        sequence_id: who held them.
        fence: the engine step after which nothing touches them; None: nothing does any more.
        slots: for each pool, in the order of giving back.
    """

    sequence_id: SequenceId
    fence: int | None
    slots: tuple[Slots, ...]


@dataclass(slots=True)
class _Engine:
    """The engine of one session.

    Attributes:
        done_step: all its steps up to this one are complete.
        is_lost: it reports none any more, and may still write: what comes back of it is in quarantine.
        waiting: what came back and is not free: a heap by fence, then by order of arrival.
    """

    done_step: int = NO_STEP
    is_lost: bool = False
    waiting: list[tuple[int, int, Return]] = field(default_factory=list)

    @property
    def holder(self) -> Holder:
        """Who uses what waits."""
        return Holder.QUARANTINE if self.is_lost else Holder.FENCE

    def is_passed(self, fence: int | None) -> bool:
        return not self.is_lost and (fence is None or fence <= self.done_step)


class Returns:
    """Frees slots once no step of the engine that had them may touch them, and no group is about to name them.

    Every session has an engine of its own, with its own count of steps.

    Args:
        ledgers: of the pools.
    """

    def __init__(self, ledgers: list[Ledger]) -> None:
        self._ledgers = ledgers
        self._engines = {LOCAL_SESSION: _Engine()}
        self._arrivals = 0

    # -- sessions ------------------------------------------------------------------------------------------------------

    def begin(self, session: int) -> None:
        """An engine is there that has not done any step."""
        self._engines[session] = _Engine()

    def lose(self, session: int) -> None:
        """Nobody reports steps of an engine any more, which may still write: what comes back waits for `end`."""
        engine = self._engines[session]
        for _, _, returned in engine.waiting:
            self._hand_over(returned, Holder.FENCE, Holder.QUARANTINE)
        engine.is_lost = True

    def end(self, session: int) -> None:
        """An engine does no step any more: what came back of it is free, and whatever else will be at once."""
        engine = self._engines.pop(session)
        for _, _, returned in sorted(engine.waiting, key=lambda entry: entry[:2]):
            self._release(returned, engine.holder)

    def done_step(self, session: int = LOCAL_SESSION) -> int:
        """The last step of an engine that was reported."""
        return self._engines[session].done_step

    def steps_done(self, session: int, step: int) -> None:
        """All steps of an engine up to `step` are complete: free what waited for them, by fence, then by arrival.

        Raises:
            FenceError: a later step was done already.
        """
        engine = self._engines[session]
        if step < engine.done_step:
            raise FenceError(f"step {step} was reported done after step {engine.done_step}; steps are done in order")
        engine.done_step = step
        while engine.waiting and engine.waiting[0][0] <= step:
            self._release(heapq.heappop(engine.waiting)[2], Holder.FENCE)

    # -- sequences -----------------------------------------------------------------------------------------------------

    def give_back(self, sequence: Sequence, returned: Return) -> None:
        """Free slots of a sequence as soon as their fence has passed and all its publications are answered."""
        if sequence.publishing:
            self._hand_over(returned, Holder.SEQUENCE, Holder.FENCE)
            sequence.returned.append(returned)
        else:
            self._free_or_wait(sequence.session, returned, Holder.SEQUENCE)

    def published(self, sequence: Sequence) -> None:
        """All publications of a sequence are answered: what it has given back waits for its fence only."""
        for returned in sequence.returned:
            self._free_or_wait(sequence.session, returned, Holder.FENCE)
        sequence.returned.clear()

    def _free_or_wait(self, session: int, returned: Return, holder: Holder) -> None:
        engine = self._engines.get(session)
        if engine is None or engine.is_passed(returned.fence):
            self._release(returned, holder)
            return
        self._hand_over(returned, holder, engine.holder)
        self._arrivals += 1
        fence = engine.done_step if returned.fence is None else returned.fence
        heapq.heappush(engine.waiting, (fence, self._arrivals, returned))

    def _hand_over(self, returned: Return, giver: Holder, taker: Holder) -> None:
        for ledger, slots in zip(self._ledgers, returned.slots, strict=True):
            ledger.hand_over(len(slots), giver, taker)

    def _release(self, returned: Return, holder: Holder) -> None:
        for ledger, slots in zip(self._ledgers, returned.slots, strict=True):
            if len(slots):
                ledger.release(slots, holder)

    # -- inspection ----------------------------------------------------------------------------------------------------

    def fenced(self) -> list[Return]:
        """What waits for a fence now."""
        return self._waiting(is_lost=False)

    def quarantined(self) -> list[Return]:
        """What waits until an engine is known to do no step any more."""
        return self._waiting(is_lost=True)

    def _waiting(self, *, is_lost: bool) -> list[Return]:
        return [
            returned
            for engine in self._engines.values()
            if engine.is_lost is is_lost
            for _, _, returned in sorted(engine.waiting, key=lambda entry: entry[:2])
        ]
