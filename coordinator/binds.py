"""What a step changes in the indexes of groups, collected until the groups are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtroupe.coordinator.messages import NO_SLOTS, BindEvent, PlacesLost

if TYPE_CHECKING:
    from kvtroupe.coordinator.mail import Mail
    from kvtroupe.coordinator.messages import Arrival, Generations, Output, Slots


class Binds:
    """See the module.

    Args:
        mail: to the groups.
    """

    def __init__(self, mail: Mail) -> None:
        self._mail = mail
        self._evicted: dict[int, list[Slots]] = {}
        self._lost: dict[int, list[PlacesLost]] = {}
        self._arrivals: dict[int, list[Arrival]] = {}

    def evicted(self, by_group: dict[int, Slots]) -> None:
        """Device slots of published blocks were taken for other content."""
        for group, slots in by_group.items():
            self._evicted.setdefault(group, []).append(slots)

    def lost(self, group: int, level: int, slots: Slots, generations: Generations | None = None) -> None:
        """Places hold nothing of the index any more; without generations: whatever the index names there."""
        self._lost.setdefault(group, []).append(PlacesLost(level, slots, generations))

    def arrives(self, group: int, arrival: Arrival) -> None:
        """Blocks are on their way to another level."""
        self._arrivals.setdefault(group, []).append(arrival)

    def outputs(self) -> list[Output]:
        """What is to be sent; all is forgotten here.

        Losses come before arrivals: a slot that has lost one block may be on its way to hold another.
        """
        outputs: list[Output] = []
        if not (self._evicted or self._lost or self._arrivals):
            return outputs
        for group in sorted({*self._evicted, *self._lost, *self._arrivals}):
            evicted = _joined(self._evicted.get(group, []))
            lost, arrivals = tuple(self._lost.get(group, ())), tuple(self._arrivals.get(group, ()))
            if lost and arrivals:
                outputs.append(self._mail.to(group, BindEvent(NO_SLOTS, lost)))
                lost = ()
            outputs.append(self._mail.to(group, BindEvent(evicted, lost, arrivals)))
        self._evicted.clear()
        self._lost.clear()
        self._arrivals.clear()
        return outputs


def _joined(parts: list[Slots]) -> Slots:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else NO_SLOTS
