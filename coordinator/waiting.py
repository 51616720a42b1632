"""Requests that wait: for a round, in order of arrival, or for room; and messages whose requests are not all answered.

Whoever waits for room holds nothing. It tries again when there is more room than when it was last refused, before those
that have come later; and once more, for the last time, when its time is up.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from kvtroupe.coordinator.claims import NO_WAIT, Ask
from kvtroupe.coordinator.errors import RequestError
from kvtroupe.coordinator.messages import AdmitReply, NewSequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvtroupe.coordinator.messages import AdmitResult, PinId, SequenceId


@dataclass(slots=True)
class Pending:
    """An `AdmitRequest` some of whose sequences wait: the results so far, and how many are missing."""

    results: list[AdmitResult | None]
    missing: int


class WaitingRoom:
    """See the module.

    Args:
        round_blocks_max: blocks, counted in every group, that the requests of one round ask for.
        unit_blocks: blocks of one unit, counted in every group.

    Attributes:
        sequences: those that wait, the round that runs included, by id.
        pins: likewise.
        for_room: requests that wait for room, in order of arrival.
    """

    def __init__(self, round_blocks_max: int, unit_blocks: int) -> None:
        self.sequences: dict[SequenceId, Ask] = {}
        self.pins: dict[PinId, Ask] = {}
        self.for_room: list[Ask] = []
        self._round_blocks_max = round_blocks_max
        self._unit_blocks = unit_blocks
        self._asks: deque[Ask] = deque()
        self._arrivals = 0
        self._pending: dict[int, Pending] = {}

    def __len__(self) -> int:
        """Requests that wait for a round to come."""
        return len(self._asks)

    # -- who comes -----------------------------------------------------------------------------------------------------

    def check_new(self, request_id: int) -> None:
        """Refuse the number of a request that waits.

        Raises:
            RequestError: it does.
        """
        if request_id in self._pending:
            raise RequestError(f"request {request_id!r} waits for its answer already; number requests anew")

    def admit(self, request_id: int, asks: Iterable[Ask | AdmitResult]) -> AdmitReply | None:
        """Let the sequences of a message wait: its reply, if none of them has to."""
        results: list[AdmitResult | None] = []
        waiting = 0
        for ask in asks:
            if isinstance(ask, Ask):
                waiting += 1
                results.append(None)
                self._arrive(ask)
                if isinstance(ask.request, NewSequence):
                    self.sequences[ask.request.sequence_id] = ask
            else:
                results.append(ask)
        self._pending[request_id] = Pending(results, waiting)
        return None if waiting else self._reply(request_id)

    def _arrive(self, ask: Ask) -> None:
        """Queue up: behind those who wait for room, where it would wait for it as they do."""
        self._arrivals += 1
        ask.arrival = self._arrivals
        if self.for_room and ask.waits_until_s > NO_WAIT:
            self.for_room.append(ask)
        else:
            self._asks.append(ask)

    def add(self, ask: Ask) -> None:
        """Let a request wait that nothing else can clash with."""
        self._asks.append(ask)

    def pin(self, pin_id: PinId, ask: Ask) -> None:
        """Let a pin wait."""
        self.pins[pin_id] = ask
        self._asks.append(ask)

    # -- rounds --------------------------------------------------------------------------------------------------------

    def next_asks(self) -> list[Ask]:
        """The requests of the next round: those that have waited longest, up to its limit, and at least one."""
        asks = [self._asks.popleft()]
        room = self._round_blocks_max - asks[0].units * self._unit_blocks
        while self._asks and self._asks[0].units * self._unit_blocks <= room:
            asks.append(self._asks.popleft())
            room -= asks[-1].units * self._unit_blocks
        return asks

    def put_back(self, asks: list[Ask]) -> None:
        """These requests of the last round wait again, before all others."""
        self._asks.extendleft(reversed(asks))

    def wait_for_room(self, ask: Ask) -> None:
        """There is no room for a request of the last round: it waits at its place."""
        insort(self.for_room, ask, key=attrgetter("arrival"))

    def try_again(self, free_blocks: int) -> None:
        """Let the first of those who wait for room try again: as many as may find some, and at least one."""
        count, room = 0, free_blocks
        while count < len(self.for_room) and (room > 0 or not count):
            room -= self.for_room[count].units * self._unit_blocks
            count += 1
        leaving, self.for_room = self.for_room[:count], self.for_room[count:]
        self.put_back(leaving)

    def time_passed(self, now_s: float) -> None:
        """Let those try again, for the last time, whose time is up."""
        self._leave_room(lambda ask: ask.waits_until_s <= now_s)

    def _leave_room(self, is_leaving: Callable[[Ask], bool]) -> None:
        leaving = [ask for ask in self.for_room if is_leaving(ask)]
        if leaving:
            self.for_room = [ask for ask in self.for_room if not is_leaving(ask)]
            self.put_back(leaving)

    # -- who goes ------------------------------------------------------------------------------------------------------

    def cancel(self, session: int, request_id: int | None = None) -> None:
        """What a request of a session waits for, or all that a session does, is not wanted: it is given nothing."""
        for ask in (*self.sequences.values(), *self.pins.values()):
            ask.is_cancelled |= ask.session == session and request_id in (None, ask.request_id)
        self._leave_room(lambda ask: ask.is_cancelled)

    def admitted(self, ask: Ask, sequence_id: SequenceId, result: AdmitResult) -> AdmitReply | None:
        """A sequence has its result: the reply to its message, if it was the last one."""
        del self.sequences[sequence_id]
        pending = self._pending[ask.request_id]
        pending.results[ask.position] = result
        pending.missing -= 1
        return None if pending.missing else self._reply(ask.request_id)

    def _reply(self, request_id: int) -> AdmitReply:
        results = self._pending.pop(request_id).results
        return AdmitReply(request_id, tuple([result for result in results if result is not None]))
