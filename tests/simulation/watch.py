"""What has to hold in a world between any two steps, beyond what a coordinator can see of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.check_events import check_events
from kvtroupe.coordinator.event_mirror import Mirror
from kvtroupe.coordinator.messages import ClientOutput, ClientReply, ResetReply

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtroupe.coordinator.messages import SequenceId, SessionsOutput
    from kvtroupe.coordinator.replica import Replica
    from tests.simulation.actors import GroupActor
    from tests.simulation.memory import Memory


class Watch:
    """See the module.

    Args:
        replica: that is watched.
        memory: of all its pools.
    """

    def __init__(self, replica: Replica, memory: Memory) -> None:
        self._replica = replica
        self._memory = memory
        self._near, self._far = Mirror(replica.config.digest_bytes), Mirror(replica.config.digest_bytes)
        self._content_epoch = 0
        self._resets = 0
        self._resets_done = 0  # of those that were answered, the last one
        self._reset_of: dict[int, int] = {}  # by content epoch
        self._resets_before: dict[SequenceId, int] = {}

    def restarted(self) -> None:
        """Another coordinator is there."""
        self._content_epoch = self._replica.state.resets.content_epoch

    def resets_before(self, sequence_id: SequenceId) -> int:
        """How many resets there were when a sequence was admitted."""
        return self._resets_before[sequence_id]

    def stepped(self, outputs: Iterable[SessionsOutput]) -> None:
        """The coordinator has made a step: sequences begin, resets begin and are done."""
        state = self._replica.state
        content_epoch = state.resets.content_epoch
        if content_epoch > self._content_epoch:
            self._resets += 1
            self._content_epoch = content_epoch
            self._reset_of[content_epoch] = self._resets
        for output in outputs:
            if isinstance(output, ClientOutput) and isinstance(output.message, ClientReply):
                result = output.message.result
                if isinstance(result, ResetReply):
                    self._resets_done = max(self._resets_done, self._reset_of.get(result.content_epoch, 0))
        for sequence_id in state.records.sequences.keys() - self._resets_before.keys():
            self._resets_before[sequence_id] = self._resets

    def look(self, groups: list[GroupActor]) -> None:
        """Every invariant that can be seen now."""
        self._memory.check_published(self._replica.state, self._resets_done)
        check_events(self._replica, self._near)
        sent = self._replica.state.mail.sent
        if not any(one.inbox or one.outbox or one.group.applied != sent[one.group.number] for one in groups):
            self._replica.groups = [group.group for group in groups]
            check(self._replica)

    def read_events(self) -> None:
        """A mirror that reads events seldom reads what it has missed, and knows what the coordinator knows."""
        check_events(self._replica, self._far)

    def check_punctual(self, now_s: float) -> None:
        """The timer has just fired: nobody waits for longer than the limits say, whoever is silent."""
        state = self._replica.state
        current = state.current_round
        assert current is None or current.deadline_s > now_s, "a round waits for a silent group"
        for transfer in state.tiers.traffic.transfers.open_transfers():
            if transfer.deadline_s <= now_s:
                waiting = state.records.waits.waiting_for(transfer.transfer_id)
                assert not waiting, "a sequence waits for a silent tier"
