"""What can be read of a replica from outside. Reading changes nothing, not even an order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvtroupe.coordinator.errors import RequestError
from kvtroupe.coordinator.gauges import gauges_of

if TYPE_CHECKING:
    from kvtroupe.coordinator.claims import Pool
    from kvtroupe.coordinator.config import Config
    from kvtroupe.coordinator.counters import Counters
    from kvtroupe.coordinator.gauges import Gauges
    from kvtroupe.coordinator.group import Group
    from kvtroupe.coordinator.messages import Events, PinId, SequenceId, Slots, Snapshot
    from kvtroupe.coordinator.sequences import Sequence
    from kvtroupe.coordinator.sessions import Sessions
    from kvtroupe.coordinator.state import CoordinatorState


class Inspection:
    """See the module.

    Attributes:
        config: of the replica.
        state: of its coordinator.
        sessions: of its clients.
        groups: its window groups.
    """

    config: Config
    state: CoordinatorState
    sessions: Sessions
    groups: list[Group]

    def sequences(self) -> list[SequenceId]:
        """Ids of the running sequences, in order of admission."""
        return list(self.state.records.sequences)

    def sequence(self, sequence_id: SequenceId) -> Sequence:
        """The record of a running sequence. Read it only.

        Raises:
            UnknownSequence: it is not running.
        """
        return self.state.records.running(sequence_id)

    def tables(self, sequence_id: SequenceId) -> tuple[Slots, ...]:
        """For each group an array of the slots of a sequence's blocks, 0 where a window has left one behind.

        Raises:
            UnknownSequence: it is not running.
        """
        return self.state.tables.lent(self.sequence(sequence_id))[0]

    def free_order(self, pool: str) -> Slots:
        """Every free slot of a pool, in the order in which they would be taken."""
        return self.pool(pool).ledger.free_order.slots()

    def holders(self, pool: str) -> list[tuple[str, SequenceId | PinId, Slots]]:
        """Everyone who uses slots of a pool.

        Returns:
            (kind, id, slots) of each; the kind is `sequence`, `fence` (given back, not free yet), `quarantine` (of lost
            clients, likewise; ids are of sequences), `pin`, or `transfer` (a copy; the id says which).
        """
        return self.state.holders(self.state.pools.index(self.pool(pool)))

    def published(self, group: str) -> dict[bytes, tuple[int, int]]:
        """The published blocks of a group: digest -> (slot, generation)."""
        names = [config.name for config in self.config.groups]
        if group not in names:
            raise RequestError(f"no group {group!r}; the groups are {names}")
        index = self.groups[names.index(group)].index
        return {digest: (slot, generation) for digest, slot, generation in index.entries()}

    def events_since(self, position: tuple[int, int] | None = None) -> Events | Snapshot:
        """What has happened to published blocks since a block event, or, where that is not known, what is published.

        Args:
            position: epoch and number of the last event that is known, as `Mirror.position` has them; None: none is.

        Raises:
            RequestError: the configuration has events switched off, or the position is malformed.
        """
        return self.state.events.since(position)

    def counters(self) -> Counters:
        """What has happened since the start; a copy."""
        return replace(self.state.counters)

    def gauges(self) -> Gauges:
        """How much there is now of everything that has a limit."""
        return gauges_of(self.state, self.sessions)

    def pool(self, name: str) -> Pool:
        """A pool by its name.

        Raises:
            RequestError: there is none of this name.
        """
        for pool in self.state.pools:
            if pool.name == name:
                return pool
        raise RequestError(f"no pool {name!r}; the pools are {[pool.name for pool in self.state.pools]}")
