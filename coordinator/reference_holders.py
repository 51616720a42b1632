"""Who holds what in the slow, obvious model of a replica, and how it comes back. See `reference.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator import errors
from kvtroupe.coordinator.counters import Counters
from kvtroupe.coordinator.errors import OutOfBlocks
from kvtroupe.coordinator.reference_groups import groups_of, last_first
from kvtroupe.coordinator.reference_parts import ReferencePool, ReferenceSequence, slots_in

if TYPE_CHECKING:
    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.messages import PinId, SequenceId
    from kvtroupe.coordinator.reference_groups import Place


class ReferenceHolders:
    """The state of the model, and all of it that needs no round.

    Args:
        config: of the replica.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.unit_tokens = config.unit_tokens
        self.counters = Counters()
        self.pools = [ReferencePool(pool.blocks) for pool in config.pools]
        self.parts = groups_of(config)
        self.groups = self.parts[: len(config.groups)]
        self.running: dict[SequenceId, ReferenceSequence] = {}
        self.pins: dict[PinId, list[Place]] = {}
        self.fences: list[tuple[int, SequenceId, list[Place]]] = []  # engine step, who gave back, what
        self.done_step = -1

    def unpin(self, pin_id: PinId) -> None:
        """Give a pin back."""
        if pin_id not in self.pins:
            raise errors.UnknownPin(f"no pin {pin_id!r} stands")
        self._give_back(self.pins.pop(pin_id))

    def tick(self, now_s: float) -> None:
        """Let time pass: priorities fall back."""
        for pool in self.pools:
            pool.expire(now_s)

    def sequence(self, sequence_id: SequenceId) -> ReferenceSequence:
        """A running sequence."""
        if sequence_id not in self.running:
            raise errors.UnknownSequence(f"no sequence {sequence_id!r} runs")
        return self.running[sequence_id]

    def _return(self, sequence_id: SequenceId, fence: int | None, places: list[Place]) -> None:
        if fence is None or fence <= self.done_step:
            self._give_back(places)
        else:
            self.fences.append((fence, sequence_id, places))

    def _give_back(self, places: list[Place]) -> None:
        for pool, slot in places:
            self.pools[pool].give_back(slot)

    def steps_done(self, step: int) -> None:
        """Free what waited for the steps up to this one: by step, then by order of return."""
        if step < self.done_step:
            raise errors.FenceError(f"step {step} done after {self.done_step}")
        self.done_step = step
        for fence, _, places in sorted(self.fences, key=lambda returned: returned[0]):
            if fence <= step:
                self._give_back(places)
        self.fences = [returned for returned in self.fences if returned[0] > step]

    def _out_of_blocks(self, pool: int, needed: int, free: int, reserved: int) -> OutOfBlocks:
        coming = sum(len(slots_in(pool, places)) for _, _, places in self.fences)
        return OutOfBlocks(self.config.pools[pool].name, needed, free, coming, reserved)

    def holders(self) -> list[tuple[str, SequenceId | PinId, list[Place]]]:
        """Everyone who uses slots: kind, id and places."""
        running = [("sequence", one, last_first(self.parts, it.rows)) for one, it in self.running.items()]
        fenced = [("fence", one, places) for _, one, places in self.fences]
        return [*running, *fenced, *[("pin", one, places) for one, places in self.pins.items()]]
