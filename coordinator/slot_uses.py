"""Which open transfers use which slots of a pool, in one way: as readers, or as writers.

Asked for every admission, so that the common answers cost next to nothing: no transfer is open, none of these slots is
used, each of them is used once. Only where a slot is used several times are the open transfers searched.

One number for each slot says all of that: every use adds `ONE` and the id of its transfer. So the number of uses stands
in the upper bits, and where it is one, the lower bits are the id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtroupe.coordinator.actor_messages import Slots

ONE = 1 << 40  # above every id; should a sum of ids grow beyond it, the number of uses only seems larger than it is


class SlotUses:
    """Uses of the slots of a pool by open transfers.

    Args:
        slots: of the pool, the null block included.
    """

    def __init__(self, slots: int) -> None:
        self._uses = np.zeros(slots, np.int64)
        self._marks = np.zeros(slots, np.bool_)  # all False between calls
        self._open: dict[int, list[Slots]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, transfer_id: int, slots: Slots) -> None:
        """A transfer uses slots; one slot several times is one use, in a further call it is a further one."""
        self._uses[slots] += ONE + transfer_id
        self._open.setdefault(transfer_id, []).append(slots)

    def remove(self, transfer_id: int) -> None:
        """The transfer uses nothing any more."""
        for slots in self._open.pop(transfer_id):
            self._uses[slots] -= ONE + transfer_id

    def transfers(self, slots: Slots) -> set[int]:
        """Ids of the open transfers that use any of these slots."""
        if not self._open:
            return set()
        uses = self._uses.take(slots)
        if not np.count_nonzero(uses):
            return set()
        if int(uses.max()) < 2 * ONE:
            return {use - ONE for use in _distinct(uses)}
        return set(self._search(slots))

    def users(self, slots: Slots) -> list[tuple[int, NDArray[np.bool_]]]:
        """The same transfers by ascending id, each with a mask over the slots: which of them it uses."""
        if not self._open:
            return []
        uses = self._uses.take(slots)
        if not np.count_nonzero(uses):
            return []
        if int(uses.max()) < 2 * ONE:
            return [(use - ONE, uses == use) for use in sorted(_distinct(uses))]
        return [(transfer_id, self._used_by(transfer_id, slots)) for transfer_id in self._search(slots)]

    def _search(self, slots: Slots) -> list[int]:
        """Ids of the transfers that use any of these slots, ascending: all open ones are looked at."""
        self._marks[slots] = True
        found = [
            transfer_id
            for transfer_id, parts in self._open.items()
            if any(np.count_nonzero(self._marks.take(part)) for part in parts)
        ]
        self._marks[slots] = False
        return sorted(found)

    def _used_by(self, transfer_id: int, slots: Slots) -> NDArray[np.bool_]:
        return self.common(slots, np.concatenate(self._open[transfer_id]))

    def common(self, slots: Slots, others: Slots) -> NDArray[np.bool_]:
        """Which of these slots of the pool are among the others."""
        self._marks[others] = True
        mask = self._marks.take(slots)
        self._marks[others] = False
        return mask


def _distinct(uses: NDArray[np.int64]) -> set[int]:
    """The values but 0. Slots asked for together were often copied together, so that most equal the one before."""
    changes = uses[1:] != uses[:-1]
    return {int(uses[0]), *uses[1:].compress(changes).tolist()} - {0}
