"""Running sequences and what they hold: block tables, digests known so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtroupe.coordinator.errors import UnknownSequence
from kvtroupe.coordinator.session_messages import LOCAL_SESSION

if TYPE_CHECKING:
    from kvtroupe.coordinator.bands import Shape
    from kvtroupe.coordinator.errors import LossError
    from kvtroupe.coordinator.messages import SequenceId
    from kvtroupe.coordinator.retention import Retention
    from kvtroupe.coordinator.returns import Return
    from kvtroupe.coordinator.tables import BlockTable


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
        session: of its client.
        request_id: of its admission.
        is_void: what was published before the last reset is void, and with it all that the sequence has computed on top
            of that: it publishes nothing any more.
        publishing: publications of its blocks that some group has not answered; none of its blocks is freed before.
        returned: slots it has given back that wait for those answers.
        error: why it has failed; None: it has not.
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
    session: int = LOCAL_SESSION
    request_id: int = 0
    is_void: bool = False
    publishing: int = 0
    returned: list[Return] = field(default_factory=list)
    error: LossError | None = None


def unknown_sequence(sequence_id: SequenceId) -> UnknownSequence:
    """The error for an id that no running sequence has."""
    return UnknownSequence(
        f"no sequence {sequence_id!r} is running: it was never admitted, or it was released already; admit it first"
    )
