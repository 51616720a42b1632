"""Running sequences and what they hold: block tables, digests known so far, slots on their way back."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtroupe.coordinator.errors import FenceError, UnknownSequence
from kvtroupe.coordinator.ledger import Holder

if TYPE_CHECKING:
    from kvtroupe.coordinator.bands import Shape
    from kvtroupe.coordinator.ledger import Ledger
    from kvtroupe.coordinator.messages import Content, SequenceId, Slots
    from kvtroupe.coordinator.retention import Retention
    from kvtroupe.coordinator.tables import BlockTable

NO_STEP = -1  # before the first step of the engine


@dataclass(slots=True, eq=False)
class Sequence:
    """A running sequence.

    Attributes:
        sequence_id: chosen by the client.
        shape: of its tables.
        tokens: tokens appended so far, computed or not.
        cached_tokens: found in the cache at admission.
        committed_tokens: computed on every rank.
        capacity_tokens: that fit into the blocks held.
        digests: for each scale those of its blocks, as far as the client has told them.
        digest_count: of its hash blocks, likewise; some may be of a block that is not complete yet.
        considered_blocks: for each scale, how many blocks were offered to the indexes so far, or hit.
        tables: one for each band.
        retention: of the blocks it publishes.
        content: as far as its client has told it; None where blocks are not reused in part.
        is_void: what was published before the last reset is void, and with it all that the sequence has computed on top
            of that: it publishes nothing any more.
        publishing: publications of its blocks that some group has not answered; none of its blocks is freed before.
        returned: slots it has given back that wait for those answers.
    """

    sequence_id: SequenceId
    shape: Shape
    tokens: int
    cached_tokens: int
    committed_tokens: int
    capacity_tokens: int
    digests: list[bytes]
    digest_count: int
    considered_blocks: list[int]
    tables: tuple[BlockTable, ...]
    retention: Retention
    content: Content | None = None
    is_void: bool = False
    publishing: int = 0
    returned: list[Return] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Return:
    """Slots that a client has given back.

    Attributes:
        sequence_id: who held them.
        fence: the engine step after which nothing touches them; None: nothing does any more.
        slots: for each pool, in the order of giving back.
    """

    sequence_id: SequenceId
    fence: int | None
    slots: tuple[Slots, ...]


class Returns:
    """Slots on their way back to the free order: steps of the engine may still touch them, or groups name them.

    Args:
        ledgers: of the pools.
    """

    def __init__(self, ledgers: list[Ledger]) -> None:
        self.done_step = NO_STEP
        self._ledgers = ledgers
        self._fenced: list[tuple[int, int, Return]] = []  # heap by fence, then order of arrival
        self._arrivals = 0

    def give_back(self, sequence: Sequence, returned: Return) -> None:
        """Free slots of a sequence as soon as their fence has passed and all its publications are answered."""
        if not sequence.publishing and self._is_passed(returned.fence):
            self._release(returned, Holder.SEQUENCE)
            return
        for ledger, slots in zip(self._ledgers, returned.slots, strict=True):
            ledger.hand_over(len(slots), Holder.SEQUENCE, Holder.FENCE)
        if sequence.publishing:
            sequence.returned.append(returned)
        else:
            self._wait_for_fence(returned)

    def published(self, sequence: Sequence) -> None:
        """All publications of a sequence are answered: what it has given back waits for its fence only."""
        for returned in sequence.returned:
            if self._is_passed(returned.fence):
                self._release(returned, Holder.FENCE)
            else:
                self._wait_for_fence(returned)
        sequence.returned.clear()

    def steps_done(self, step: int) -> None:
        """All engine steps up to `step` are complete: free what waited for them, by fence, then by order of arrival.

        Raises:
            FenceError: a later step was done already.
        """
        if step < self.done_step:
            raise FenceError(f"step {step} was reported done after step {self.done_step}; steps are done in order")
        self.done_step = step
        while self._fenced and self._fenced[0][0] <= step:
            self._release(heapq.heappop(self._fenced)[2], Holder.FENCE)

    def fenced(self) -> list[Return]:
        """What waits for a fence now, for inspection."""
        return [returned for _, _, returned in sorted(self._fenced, key=lambda entry: entry[:2])]

    def _is_passed(self, fence: int | None) -> bool:
        return fence is None or fence <= self.done_step

    def _wait_for_fence(self, returned: Return) -> None:
        assert returned.fence is not None, "only slots with a fence wait for it"
        self._arrivals += 1
        heapq.heappush(self._fenced, (returned.fence, self._arrivals, returned))

    def _release(self, returned: Return, holder: Holder) -> None:
        for ledger, slots in zip(self._ledgers, returned.slots, strict=True):
            if len(slots):
                ledger.release(slots, holder)


def unknown_sequence(sequence_id: SequenceId) -> UnknownSequence:
    """The error for an id that no running sequence has."""
    return UnknownSequence(
        f"no sequence {sequence_id!r} is running: it was never admitted, or it was released already; admit it first"
    )
