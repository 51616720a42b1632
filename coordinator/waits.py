"""Sequences that wait for copies: to read what these write, or to write where these read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtroupe.coordinator.messages import SequenceId
    from kvtroupe.coordinator.sequences import Sequence as RunningSequence


@dataclass(frozen=True, slots=True)
class Awaited:
    """Transfers that somebody has to await.

    Attributes:
        reads_after: before anything that they bring is read.
        writes_after: before anything is written where they still read or write.
    """

    reads_after: tuple[int, ...]
    writes_after: tuple[int, ...]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.reads_after or self.writes_after)


NOTHING_AWAITED = Awaited((), ())


@dataclass(slots=True, eq=False)
class Wait:
    """A sequence that waits.

    Attributes:
        sequence: who waits.
        reads_after: transfers that bring what it reads, those not done yet.
        writes_after: transfers that still read or write where it will write, likewise.
        slots: for each pool how many slots it holds meanwhile.
    """

    sequence: RunningSequence
    reads_after: set[int]
    writes_after: set[int]
    slots: Sequence[int]


class Waits:
    """See the module.

    Args:
        pools: how many there are.
    """

    def __init__(self, pools: int) -> None:
        self._waits: dict[SequenceId, Wait] = {}
        self._of_transfer: dict[int, dict[SequenceId, None]] = {}  # a set in order
        self._slots_waiting = [0] * pools

    def slots_waiting(self, pool: int) -> int:
        """Slots of a pool held by sequences that cannot be computed because what they read is not there."""
        return self._slots_waiting[pool]

    def begin(self, sequence: RunningSequence, awaited: Awaited, slots: Sequence[int]) -> None:
        """A sequence was told to wait.

        Args:
            sequence: who waits.
            awaited: what for.
            slots: that it holds, for each pool.
        """
        reads_after, writes_after = awaited.reads_after, awaited.writes_after
        wait = self._waits.get(sequence.sequence_id)
        if wait is None:
            wait = self._waits[sequence.sequence_id] = Wait(sequence, set(), set(), slots)
        if not wait.reads_after and reads_after:
            self._count(slots, 1)
            wait.slots = slots
        wait.reads_after.update(reads_after)
        wait.writes_after.update(writes_after)
        for transfer_id in {*reads_after, *writes_after}:
            self._of_transfer.setdefault(transfer_id, {})[sequence.sequence_id] = None

    def reads(self, sequence_id: SequenceId) -> set[int]:
        """Transfers that bring what a sequence reads and that are not done."""
        wait = self._waits.get(sequence_id)
        return wait.reads_after if wait is not None else set()

    def awaited(self, sequence_id: SequenceId) -> tuple[int, ...]:
        """Transfers that a sequence was told to await and that are not done."""
        wait = self._waits.get(sequence_id)
        return () if wait is None else tuple(sorted(wait.reads_after | wait.writes_after))

    def waiting_for(self, transfer_id: int) -> list[Wait]:
        """Who waits for a transfer."""
        found = [self._waits.get(one) for one in self._of_transfer.get(transfer_id, ())]
        return [one for one in found if one is not None and transfer_id in (one.reads_after | one.writes_after)]

    def done(self, transfer_id: int) -> list[int]:
        """A transfer is done: the sessions whose sequences waited for it."""
        waiting = self.waiting_for(transfer_id)
        self._of_transfer.pop(transfer_id, None)
        for wait in waiting:
            if transfer_id in wait.reads_after:
                wait.reads_after.remove(transfer_id)
                if not wait.reads_after:
                    self._count(wait.slots, -1)
            wait.writes_after.discard(transfer_id)
            if not wait.reads_after and not wait.writes_after:
                del self._waits[wait.sequence.sequence_id]
        return list(dict.fromkeys([wait.sequence.session for wait in waiting]))

    def ended(self, sequence_id: SequenceId) -> None:
        """A sequence is no more."""
        wait = self._waits.pop(sequence_id, None)
        if wait is not None and wait.reads_after:
            self._count(wait.slots, -1)

    def _count(self, slots: Sequence[int], sign: int) -> None:
        for pool, count in enumerate(slots):
            self._slots_waiting[pool] += sign * count
