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
    PinId,
    PinReply,
    PinRequest,
    ResetReply,
    ResetRequest,
    UnpinEvent,
)
from kvtroupe.coordinator.estimate_messages import Estimate, EstimateReply, EstimateRequest, EstimateResult, Pace
from kvtroupe.coordinator.event_messages import (
    BlockFact,
    Cleared,
    Events,
    EventsReply,
    EventsRequest,
    Removed,
    Snapshot,
    Stored,
)
from kvtroupe.coordinator.growth_messages import GrowReply, GrowRequest, GrowResult
from kvtroupe.coordinator.loss_messages import (
    GroupLostEvent,
    GroupReadyEvent,
    RecoverEvent,
    TierLostEvent,
    TierReadyEvent,
)
from kvtroupe.coordinator.retention import DEFAULT_RETENTION, Retention
from kvtroupe.coordinator.session_messages import (
    LOCAL_SESSION,
    AttachReply,
    AttachRequest,
    CancelEvent,
    CancelRequest,
    ClientOutput,
    ClientReply,
    ClientRequest,
    ConnectionLostEvent,
    DetachRequest,
    EpochAcknowledgedEvent,
    HeldSequence,
    LossAcknowledgedEvent,
    ProcessGoneEvent,
    ProcessId,
    SessionBeganEvent,
    SessionLostEvent,
    SessionOverEvent,
)
from kvtroupe.coordinator.tier_messages import (
    ContentEpochReply,
    ContentEpochRequest,
    DropEvent,
    DropReply,
    DropRequest,
    FromTier,
    InventoryReply,
    InventoryRequest,
)

if TYPE_CHECKING:
    from kvtroupe.coordinator.errors import (
        LossError,
        OutOfBlocks,
        SequenceCancelled,
        SequenceTooLong,
        TierLost,
    )

SequenceId: TypeAlias = str | int

__all__ = [
    "LOCAL_SESSION",
    "NO_SLOTS",
    "AdmitReply",
    "AdmitRequest",
    "AdmitResult",
    "Admitted",
    "Arrival",
    "AttachReply",
    "AttachRequest",
    "BindEvent",
    "BlockFact",
    "CancelEvent",
    "CancelRequest",
    "Child",
    "Cleared",
    "ClientMessage",
    "ClientOutput",
    "ClientReply",
    "ClientRequest",
    "CommitReply",
    "CommitRequest",
    "ConnectionLostEvent",
    "Content",
    "ContentEpochReply",
    "ContentEpochRequest",
    "Copies",
    "CopyReply",
    "CopyRequest",
    "DetachRequest",
    "DropEvent",
    "DropReply",
    "DropRequest",
    "EpochAcknowledgedEvent",
    "Estimate",
    "EstimateReply",
    "EstimateRequest",
    "EstimateResult",
    "Events",
    "EventsReply",
    "EventsRequest",
    "Evidence",
    "ForgetEvent",
    "Generations",
    "GroupLostEvent",
    "GroupOutput",
    "GroupReadyEvent",
    "GrowReply",
    "GrowRequest",
    "GrowResult",
    "HeldSequence",
    "InventoryReply",
    "InventoryRequest",
    "LandRequest",
    "LookupReply",
    "LookupRequest",
    "LossAcknowledgedEvent",
    "MatchReply",
    "MatchRequest",
    "MoveReply",
    "MoveRequest",
    "NewSequence",
    "Notice",
    "Output",
    "Pace",
    "PinId",
    "PinReply",
    "PinRequest",
    "Places",
    "PlacesLost",
    "ProcessGoneEvent",
    "ProcessId",
    "Prompt",
    "PublishReply",
    "PublishRequest",
    "RecoverEvent",
    "ReleaseEvent",
    "Removed",
    "ResetReply",
    "ResetRequest",
    "SequenceFailedEvent",
    "SequenceId",
    "SessionBeganEvent",
    "SessionLostEvent",
    "SessionOverEvent",
    "SessionsOutput",
    "Slots",
    "Snapshot",
    "StepsDoneEvent",
    "Stored",
    "TierLostEvent",
    "TierOutput",
    "TierReadyEvent",
    "TimerEvent",
    "ToClient",
    "ToCoordinator",
    "ToGroup",
    "ToSessions",
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
        content: of all tokens of the prompt, where blocks may be reused in part (`Config.partial_reuse`); looked at
            only there. None: those of this sequence are reused whole, or not at all.
    """

    sequence_id: SequenceId
    tokens: int
    digests: bytes = b""
    spare_blocks: int = 0
    retention: Retention = DEFAULT_RETENTION
    beams: int = 1
    encoder_tokens: int = 0
    encoder_digests: bytes = b""
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence runs.

    Attributes:
        sequence_id: of the request.
        cached_tokens: tokens that were found in every group; computing starts there. Where that is within a block, the
            tokens before it are copied into the sequence's own slots.
        tables: for every group an array of the slots of its blocks, 0 (the null block) where the group's window has
            left a block behind, or where a recurrent group keeps no state; read-only. [blocks], or [beams, blocks] for
            a sequence with several beams.
        capacity_tokens: tokens that fit into the blocks of the tables.
        junction_tokens: how much more of the prompt the first group could serve than all groups could: a state kept
            there would make the next hit that much longer.
        encoder_cached: whether the blocks of the encoder input were found in every cross group.
        states: for every group the slots [beams] of the states that a recurrent one computes with; empty for others.
        reads_after: transfers that have to be done before anything of the hit is read, or a block that is hit in part
            is written.
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
    """Sequences to admit in one round, first come first served.

    Attributes:
        request_id: names the reply.
        sequences: to admit.
        wait_s: how long it waits for room before it is refused, at most the limit `waiting_deadline_s`; only for one
            sequence.
        session: of the client.
    """

    request_id: int
    sequences: tuple[NewSequence, ...]
    wait_s: float = 0.0
    session: int = LOCAL_SESSION


AdmitResult: TypeAlias = "Admitted | OutOfBlocks | SequenceTooLong | TierLost | SequenceCancelled"


@dataclass(frozen=True, slots=True)
class AdmitReply:
    """For each sequence, in order, what became of it."""

    request_id: int
    results: tuple[AdmitResult, ...]


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
        content: of the tokens after those whose content is known, up to `tokens`; looked at only where blocks may be
            reused in part. Its first block is the one that is begun, which keeps the extras it has if none come along.
            None: nothing new is told.
    """

    request_id: int
    sequence_id: SequenceId
    tokens: int
    digests: bytes = b""
    fence: int | None = None
    content: Content | None = None


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
    """All steps up to and including `step` of the engine of a session are complete on every rank."""

    step: int
    session: int = LOCAL_SESSION


@dataclass(frozen=True, slots=True)
class TransfersDoneEvent:
    """Transfers that sequences were told to await are over; those that failed have failed their readers as well.

    Attributes:
        transfer_ids: of the transfers.
        session: of the client whose sequences have waited.
    """

    transfer_ids: tuple[int, ...]
    session: int = LOCAL_SESSION


@dataclass(frozen=True, slots=True)
class SequenceFailedEvent:
    """A sequence has failed: what it waited for, or held, is lost. It is not running any more; admit it again.

    Attributes:
        sequence_id: of the sequence.
        error: why.
        must_be_released: it may have been computed already, so that steps of the engine may still touch its slots: they
            stay in use until its client releases it, naming the fence. Otherwise it was undone, as if it had been
            released without a commit.
        session: of its client.
    """

    sequence_id: SequenceId
    error: LossError
    must_be_released: bool = False
    session: int = LOCAL_SESSION


@dataclass(frozen=True, slots=True)
class TimerEvent:
    """Time has passed: priorities expire, deadlines pass."""


ClientMessage: TypeAlias = (
    AdmitRequest
    | GrowRequest
    | CommitRequest
    | ReleaseEvent
    | StepsDoneEvent
    | PinRequest
    | UnpinEvent
    | LookupRequest
    | MoveRequest
    | EstimateRequest
    | ResetRequest
    | EventsRequest
)
ToCoordinator: TypeAlias = (
    ClientMessage
    | CancelEvent
    | SessionBeganEvent
    | SessionLostEvent
    | SessionOverEvent
    | EpochAcknowledgedEvent
    | TimerEvent
    | MatchReply
    | PublishReply
    | CopyReply
    | GroupLostEvent
    | GroupReadyEvent
    | TierLostEvent
    | TierReadyEvent
    | RecoverEvent
    | FromTier
)
ToClient: TypeAlias = (
    AdmitReply | GrowReply | CommitReply | PinReply | LookupReply | MoveReply | EstimateReply | ResetReply | EventsReply
)
Notice: TypeAlias = TransfersDoneEvent | SequenceFailedEvent

Output: TypeAlias = GroupOutput | TierOutput | ToClient | Notice

ToSessions: TypeAlias = (
    ToCoordinator | AttachRequest | ClientRequest | ConnectionLostEvent | ProcessGoneEvent | LossAcknowledgedEvent
)
SessionsOutput: TypeAlias = Output | ClientOutput
