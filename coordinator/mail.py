"""Messages to groups, numbered, so that a group which has missed one is found out.

Everything that changes a group has the next number; a question carries the number of the last change, and the answer
repeats the number that the group has seen last. A group that is lost is sent nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtroupe.coordinator.messages import GroupOutput, MatchRequest

if TYPE_CHECKING:
    from kvtroupe.coordinator.messages import Output, ToGroup


class Mail:
    """See the module.

    Args:
        groups: how many there are.
        epoch: of the coordinator.

    Attributes:
        sent: for each group the number of the last message that changes it.
        lost: groups that are lost.
    """

    def __init__(self, groups: int, epoch: int) -> None:
        self.epoch = epoch
        self.sent = [0] * groups
        self.lost: set[int] = set()

    def to(self, group: int, message: ToGroup) -> GroupOutput:
        """Number a message."""
        if not isinstance(message, MatchRequest):
            self.sent[group] += 1
        return GroupOutput(group, message, self.sent[group], self.epoch)

    def deliverable(self, outputs: list[Output]) -> list[Output]:
        """Outputs without what is for lost groups."""
        return [one for one in outputs if not (isinstance(one, GroupOutput) and one.group in self.lost)]
