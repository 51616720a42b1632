"""What the client of a session holds, when the client gives it up or is gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtroupe.coordinator.messages import CancelEvent, PinId
    from kvtroupe.coordinator.parts import Parts
    from kvtroupe.coordinator.records import Records
    from kvtroupe.coordinator.sequences import Sequence
    from kvtroupe.coordinator.waiting import WaitingRoom


@dataclass(frozen=True)
class Leases:
    """See the module.

    Attributes:
        parts: of the state.
        records: of who holds slots.
        waiting: requests that are not answered.
    """

    parts: Parts
    records: Records
    waiting: WaitingRoom

    def begin(self, session: int) -> None:
        """A session is there."""
        self.records.returns.begin(session)

    def lost(self, session: int) -> None:
        """The client of a session is gone, but its engine may still write."""
        self.records.returns.lose(session)
        self._end_all(session)

    def over(self, session: int) -> None:
        """Nothing of the engine of a session touches any slot any more."""
        self.records.returns.end(session)
        self._end_all(session)

    def _end_all(self, session: int) -> None:
        self.waiting.cancel(session)
        self._end(*self.records.of_session(session))

    def cancel(self, message: CancelEvent) -> None:
        """What a request of a session has made is not wanted."""
        self.waiting.cancel(message.session, message.request_id)
        sequences, pin_ids = self.records.of_session(message.session)
        unwanted = [one for one in sequences if one.request_id == message.request_id]
        self.parts.counters.cancelled += len(unwanted)
        pins = self.records.pins
        self._end(unwanted, [one for one in pin_ids if pins[one].request_id == message.request_id])

    def _end(self, sequences: Iterable[Sequence], pin_ids: Iterable[PinId]) -> None:
        for sequence in sequences:
            self.records.end(sequence, None)
            self.parts.counters.released += 1
        for pin_id in pin_ids:
            self.records.unpin(pin_id)
