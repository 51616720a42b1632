"""Every message between the actors of a replica.

All are frozen. Arrays in them belong to the receiver or are never written again by the sender. Digests are the bytes
of all digests of a chain, one after the other, from the first block on; slots and generations are int64 arrays.

A name ends with its direction: `...Request` is answered by `...Reply`, `...Event` is not answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kvtroupe.coordinator.actor_messages import (
    NO_SLOTS,
    Arrival,
    BindEvent,
    Child,
    Content,
    Copies,
    CopyReply,
    CopyRequest,
    Evidence,
    ForgetEvent,
    Generations,
    GroupOutput,
    LandRequest,
    MatchReply,
    MatchRequest,
    Places,
    PlacesLost,
    Prompt,
    PublishReply,
    PublishRequest,
    Slots,
    TierOutput,
    ToGroup,
    ToTier,
)
from kvtroupe.coordinator.control_messages import (
    LookupReply,
    LookupRequest,
    MoveReply,
    MoveRequest,
    ResetReply,
    ResetRequest,
)
from kvtroupe.coordinator.loss_messages import (
    GroupLostEvent,
    GroupReadyEvent,
    RecoverEvent,
    TierLostEvent,
    TierReadyEvent,
)
from kvtroupe.coordinator.retention import DEFAULT_RETENTION, Retention
from kvtroupe.coordinator.tier_messages import (
    ContentEpochReply,
    ContentEpochRequest,
    DropEvent,
    InventoryReply,
    InventoryRequest,
)

if TYPE_CHECKING:
    from kvtroupe.coordinator.errors import LossError, OutOfBlocks, SequenceTooLong, TierLost, UnknownSequence

SequenceId: TypeAlias = str | int
PinId: TypeAlias = str | int

__all__ = [
    "NO_SLOTS",
    "AdmitReply",
    "AdmitRequest",
    "AdmitResult",
    "Admitted",
    "Arrival",
    "BindEvent",
    "Child",
    "CommitReply",
    "CommitRequest",
    "Content",
    "ContentEpochReply",
    "ContentEpochRequest",
    "Copies",
    "CopyReply",
    "CopyRequest",
    "DropEvent",
    "Evidence",
    "ForgetEvent",
    "Generations",
    "GroupLostEvent",
    "GroupOutput",
    "GroupReadyEvent",
    "GrowReply",
    "GrowRequest",
    "GrowResult",
    "InventoryReply",
    "InventoryRequest",
    "LandRequest",
    "LookupReply",
    "LookupRequest",
    "MatchReply",
    "MatchRequest",
    "MoveReply",
    "MoveRequest",
    "NewSequence",
    "Notice",
    "Output",
    "PinId",
    "PinReply",
    "PinRequest",
    "Places",
    "PlacesLost",
    "Prompt",
    "PublishReply",
    "PublishRequest",
    "RecoverEvent",
    "ReleaseEvent",
    "ResetReply",
    "ResetRequest",
    "SequenceFailedEvent",
    "SequenceId",
    "Slots",
    "StepsDoneEvent",
    "TierLostEvent",
    "TierOutput",
    "TierReadyEvent",
    "TimerEvent",
    "ToClient",
    "ToCoordinator",
    "ToGroup",
    "ToTier",
    "TransfersDoneEvent",
    "UnpinEvent",
]

# -- client and coordinator --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence to admit.

    Attributes:
        sequence_id: not in use in this replica.
        tokens: tokens of the prompt, at least 1.
        digests: digests of the prompt's hash blocks, from the first on; fewer than the prompt has if the rest is not
            to be shared.
        spare_blocks: blocks in every group beyond those of the prompt, for the tokens to come; in units
            (`Config.unit_tokens`) where groups have blocks of different sizes.
        retention: of the blocks that the sequence publishes; ranges say nothing about its encoder input.
        beams: rows of its tables in every group. Blocks that the prompt fills are the same in all of them, the others
            differ; only those of the prompt are published.
        encoder_tokens: tokens of its encoder input, for cross groups.
        encoder_digests: of the blocks of the encoder input, the last one included; none if it is not to be shared. The
            first commit publishes these blocks.
    """

    sequence_id: SequenceId
    tokens: int
    digests: bytes = b""
    spare_blocks: int = 0
    retention: Retention = DEFAULT_RETENTION
    beams: int = 1
    encoder_tokens: int = 0
    encoder_digests: bytes = b""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence runs.

    Attributes:
        sequence_id: of the request.
        cached_tokens: tokens whose blocks were found in every group; computing starts there.
        tables: for every group an array of the slots of its blocks, 0 (the null block) where the group's window has
            left a block behind, or where a recurrent group keeps no state; read-only. [blocks], or [beams, blocks] for
            a sequence with several beams.
        capacity_tokens: tokens that fit into the blocks of the tables.
        junction_tokens: how much more of the prompt the first group could serve than all groups could: a state kept
            there would make the next hit that much longer.
        encoder_cached: whether the blocks of the encoder input were found in every cross group.
        states: for every group the slots [beams] of the states that a recurrent one computes with; empty for others.
        reads_after: transfers that have to be done before anything of the hit is read.
        writes_after: transfers that have to be done before anything is written into the other slots.
    """

    sequence_id: SequenceId
    cached_tokens: int
    tables: tuple[Slots, ...]
    capacity_tokens: int
    junction_tokens: int = 0
    encoder_cached: bool = False
    states: tuple[Slots, ...] = ()
    reads_after: tuple[int, ...] = ()
    writes_after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmitRequest:
    """Sequences to admit in one round, first come first served."""

    request_id: int
    sequences: tuple[NewSequence, ...]


AdmitResult: TypeAlias = "Admitted | OutOfBlocks | SequenceTooLong | TierLost"


@dataclass(frozen=True, slots=True)
class AdmitReply:
    """For each sequence, in order, what became of it."""

    request_id: int
    results: tuple[AdmitResult, ...]


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


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Tokens whose KV entries are written, in every layer on every rank.

    Attributes:
        request_id: names the reply.
        sequence_id: of a running sequence.
        tokens: all tokens of the sequence that are computed now; never fewer than before.
        digests: of the hash blocks that follow those already known to the replica, none beyond `tokens`.
        fence: the engine step after which nothing of the engine reads blocks that slide out of a window with this
            commit; None: nothing does any more.
    """

    request_id: int
    sequence_id: SequenceId
    tokens: int
    digests: bytes = b""
    fence: int | None = None


@dataclass(frozen=True, slots=True)
class CommitReply:
    """The blocks of the commit are published.

    Attributes:
        request_id: of the request.
        published_blocks: blocks that entered the index of each group; one whose digest was there already stays private.
    """

    request_id: int
    published_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseEvent:
    """A sequence has ended.

    Attributes:
        sequence_id: of a running sequence.
        fence: the engine step after which nothing of the engine touches its slots; None: nothing does any more.
    """

    sequence_id: SequenceId
    fence: int | None = None


@dataclass(frozen=True, slots=True)
class StepsDoneEvent:
    """All engine steps up to and including `step` are complete on every rank."""

    step: int


@dataclass(frozen=True, slots=True)
class PinRequest:
    """Keep what a prompt of these digests would hit, until the pin is given back.

    Attributes:
        request_id: names the reply.
        pin_id: not in use in this replica.
        digests: of the prefix to pin.
    """

    request_id: int
    pin_id: PinId
    digests: bytes


@dataclass(frozen=True, slots=True)
class PinReply:
    """The tokens of the prefix that all groups could serve; their blocks cannot be taken while the pin stands."""

    request_id: int
    pinned_tokens: int


@dataclass(frozen=True, slots=True)
class UnpinEvent:
    """A pin is given back."""

    pin_id: PinId


@dataclass(frozen=True, slots=True)
class TransfersDoneEvent:
    """Transfers that sequences were told to await are over; those that failed have failed their readers as well."""

    transfer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SequenceFailedEvent:
    """A sequence has failed: what it waited for, or held, is lost. It is not running any more; admit it again.

    Attributes:
        sequence_id: of the sequence.
        error: why.
        must_be_released: it may have been computed already, so that steps of the engine may still touch its slots: they
            stay in use until its client releases it, naming the fence. Otherwise it was undone, as if it had been
            released without a commit.
    """

    sequence_id: SequenceId
    error: LossError
    must_be_released: bool = False


@dataclass(frozen=True, slots=True)
class TimerEvent:
    """Time has passed: priorities expire, deadlines pass."""


ToCoordinator: TypeAlias = (
    AdmitRequest
    | GrowRequest
    | CommitRequest
    | ReleaseEvent
    | StepsDoneEvent
    | PinRequest
    | UnpinEvent
    | LookupRequest
    | MoveRequest
    | ResetRequest
    | TimerEvent
    | MatchReply
    | PublishReply
    | CopyReply
    | GroupLostEvent
    | GroupReadyEvent
    | TierLostEvent
    | TierReadyEvent
    | RecoverEvent
    | InventoryReply
    | ContentEpochReply
)
ToClient: TypeAlias = AdmitReply | GrowReply | CommitReply | PinReply | LookupReply | MoveReply | ResetReply
Notice: TypeAlias = TransfersDoneEvent | SequenceFailedEvent


Output: TypeAlias = GroupOutput | TierOutput | ToClient | Notice
