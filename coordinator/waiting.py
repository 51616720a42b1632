"""Requests that wait for a round, in order of arrival, and messages whose requests are not all answered yet."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtroupe.coordinator.claims import Ask
from kvtroupe.coordinator.errors import RequestError
from kvtroupe.coordinator.messages import AdmitReply, NewSequence

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        sequence_ids: of the sequences that wait, those in the round that runs included.
        pin_ids: likewise of pins.
    """

    def __init__(self, round_blocks_max: int, unit_blocks: int) -> None:
        self.sequence_ids: set[SequenceId] = set()
        self.pin_ids: set[PinId] = set()
        self._round_blocks_max = round_blocks_max
        self._unit_blocks = unit_blocks
        self._asks: deque[Ask] = deque()
        self._pending: dict[int, Pending] = {}

    def __len__(self) -> int:
        """Requests that wait for a round to come."""
        return len(self._asks)

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
                self._asks.append(ask)
                if isinstance(ask.request, NewSequence):
                    self.sequence_ids.add(ask.request.sequence_id)
            else:
                results.append(ask)
        self._pending[request_id] = Pending(results, waiting)
        return None if waiting else self._reply(request_id)

    def add(self, ask: Ask) -> None:
        """Let a request wait that nothing else can clash with."""
        self._asks.append(ask)

    def pin(self, pin_id: PinId, ask: Ask) -> None:
        """Let a pin wait."""
        self.pin_ids.add(pin_id)
        self._asks.append(ask)

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

    def admitted(self, ask: Ask, sequence_id: SequenceId, result: AdmitResult) -> AdmitReply | None:
        """A sequence has its result: the reply to its message, if it was the last one."""
        self.sequence_ids.remove(sequence_id)
        pending = self._pending[ask.request_id]
        pending.results[ask.position] = result
        pending.missing -= 1
        return None if pending.missing else self._reply(ask.request_id)

    def _reply(self, request_id: int) -> AdmitReply:
        results = self._pending.pop(request_id).results
        return AdmitReply(request_id, tuple([result for result in results if result is not None]))
