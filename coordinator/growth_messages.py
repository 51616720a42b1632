"""Messages by which running sequences get more room. `messages` exports them with all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kvtroupe.coordinator.actor_messages import Slots

if TYPE_CHECKING:
    from kvtroupe.coordinator.errors import OutOfBlocks, SequenceTooLong, UnknownSequence
    from kvtroupe.coordinator.messages import SequenceId


@dataclass(frozen=True, slots=True)
class GrowRequest:
    """More spare blocks, in every group, for running sequences.

    Attributes:
        request_id: names the reply.
        sequence_ids: the sequences, each at most once, all with the same number of beams.
        blocks: blocks for each of them; in units where groups have blocks of different sizes.
    """

    request_id: int
    sequence_ids: tuple[SequenceId, ...]
    blocks: int


GrowResult: TypeAlias = "OutOfBlocks | SequenceTooLong | UnknownSequence | None"


@dataclass(frozen=True, slots=True)
class GrowReply:
    """What each sequence got.

    Attributes:
        request_id: of the request.
        refused: for each sequence, in order, None or why it got nothing.
        slots: for every group the new slots [granted sequences, blocks], or [granted sequences, beams, blocks]; 0 where
            a recurrent group keeps no state; read-only.
        writes_after: transfers that have to be done before anything is written into these slots.
    """

    request_id: int
    refused: tuple[GrowResult, ...]
    slots: tuple[Slots, ...]
    writes_after: tuple[int, ...] = ()
