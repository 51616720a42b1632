"""Who holds slots: running sequences, pins, and what is on its way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.ledger import Holder
from kvtroupe.coordinator.returns import Return, Returns
from kvtroupe.coordinator.sequences import unknown_sequence
from kvtroupe.coordinator.waits import Waits

if TYPE_CHECKING:
    from kvtroupe.coordinator.errors import LossError
    from kvtroupe.coordinator.grants import Tables
    from kvtroupe.coordinator.messages import PinId, SequenceId, Slots
    from kvtroupe.coordinator.parts import Parts
    from kvtroupe.coordinator.sequences import Sequence


@dataclass(frozen=True, slots=True)
class Pin:
    """A prefix that is kept.

    Attributes:
        session: of who keeps it.
        request_id: by which it was made.
        slots: for each pool, in the order of giving back.
    """

    session: int
    request_id: int
    slots: tuple[Slots, ...]


class Records:
    """See the module.

    Args:
        parts: of the state.
        tables: of sequences.

    Attributes:
        sequences: those that run, in order of admission.
        failed: those that have failed and whose clients have not released them yet.
        pins: those that stand.
        returns: slots given back that are not free yet.
        waits: sequences that wait for copies.
    """

    def __init__(self, parts: Parts, tables: Tables) -> None:
        self.sequences: dict[SequenceId, Sequence] = {}
        self.failed: dict[SequenceId, Sequence] = {}
        self.pins: dict[PinId, Pin] = {}
        self.returns = Returns([pool.ledger for pool in parts.pools])
        self.waits = Waits(len(parts.pools))
        self._pools = parts.pools
        self._tables = tables
        # By transfer, slots that it touches and nobody else may need any more: pool, slots.
        self._kept: dict[int, list[tuple[int, Slots]]] = {}

    def running(self, sequence_id: SequenceId) -> Sequence:
        """The record of a running sequence.

        Raises:
            UnknownSequence: it is not running.
        """
        try:
            return self.sequences[sequence_id]
        except (KeyError, TypeError):  # a value that cannot be hashed names nothing
            raise unknown_sequence(sequence_id) from None

    def holding(self, sequence_id: SequenceId) -> Sequence:
        """The record of a sequence that holds slots: one that runs, or has failed and was not released.

        Raises:
            UnknownSequence: there is none.
        """
        try:
            return self.failed[sequence_id]
        except (KeyError, TypeError):
            return self.running(sequence_id)

    def of_session(self, session: int) -> tuple[list[Sequence], list[PinId]]:
        """Everything that the client of a session holds: sequences, those that have failed included, and pins."""
        holding = [*self.sequences.values(), *self.failed.values()]
        return (
            [one for one in holding if one.session == session],
            [pin_id for pin_id, pin in self.pins.items() if pin.session == session],
        )

    def fail(self, sequence: Sequence, error: LossError) -> None:
        """A sequence runs no more; what it holds stays in use until its client releases it."""
        sequence.error = error
        del self.sequences[sequence.sequence_id]
        self.failed[sequence.sequence_id] = sequence
        self.waits.ended(sequence.sequence_id)

    def end(self, sequence: Sequence, fence: int | None) -> None:
        """A sequence ends: what it holds goes back."""
        if self.failed.pop(sequence.sequence_id, None) is None:
            del self.sequences[sequence.sequence_id]
        self.waits.ended(sequence.sequence_id)
        self.returns.give_back(sequence, Return(sequence.sequence_id, fence, self._tables.held(sequence)))

    def slide(self, sequence: Sequence, fence: int | None) -> None:
        """Give back the blocks that no token to come of a sequence can attend to."""
        gone = self._tables.slide(sequence)
        if gone is not None:
            self.returns.give_back(sequence, Return(sequence.sequence_id, fence, gone))

    def unpin(self, pin_id: PinId) -> None:
        """A pin that stands is given back."""
        for pool, slots in zip(self._pools, self.pins.pop(pin_id).slots, strict=True):
            pool.ledger.release(slots, Holder.PIN)

    # -- slots that are kept until a copy is over ----------------------------------------------------------------------

    def keep(self, transfer_id: int, pool: int, slots: Slots) -> None:
        """Slots are not free before a transfer is over, whoever else uses them or does not."""
        ledger = self._pools[pool].ledger
        unused = ledger.take_these(slots, Holder.TRANSFER)
        others = slots if not len(unused) else slots.compress(~np.isin(slots, unused))
        ledger.hold(others, Holder.TRANSFER)
        self._kept.setdefault(transfer_id, []).append((pool, slots))

    def release_kept(self, transfer_id: int) -> None:
        """The transfer is over."""
        for pool, slots in self._kept.pop(transfer_id, ()):
            self._pools[pool].ledger.release(slots, Holder.TRANSFER)

    # -- inspection ----------------------------------------------------------------------------------------------------

    def holders(self, pool: int, publishing: list[Sequence]) -> list[tuple[str, SequenceId | PinId, Slots]]:
        """Everyone who uses slots of a pool, copies left out, as (kind, id, slots).

        Args:
            pool: its number.
            publishing: sequences whose publications are not all answered; they may have ended.
        """
        returned = [one for sequence in publishing for one in sequence.returned] + self.returns.fenced()
        holding = [*self.sequences.values(), *self.failed.values()]
        return [
            *[("sequence", one.sequence_id, self._tables.held(one)[pool]) for one in holding],
            *[("fence", one.sequence_id, one.slots[pool]) for one in returned],
            *[("quarantine", one.sequence_id, one.slots[pool]) for one in self.returns.quarantined()],
            *[("pin", pin_id, pin.slots[pool]) for pin_id, pin in self.pins.items()],
            *[
                ("transfer", f"until {transfer_id} is over", slots)
                for transfer_id, kept in self._kept.items()
                for its_pool, slots in kept
                if its_pool == pool
            ],
        ]
