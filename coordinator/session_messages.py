"""Messages about sessions: how clients attach, number what they ask, and are lost. `messages` exports them.

A session belongs to one client process and outlives its connection. What a client asks is numbered, so that it may ask
again over another connection and gets the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from kvtroupe.coordinator.errors import KVTroupeError, LossError
    from kvtroupe.coordinator.messages import ClientMessage, Notice, PinId, SequenceId, ToClient

ProcessId: TypeAlias = str | int

LOCAL_SESSION = 0  # of who uses a replica without a session; it is there always

# -- between a client and the sessions of a coordinator ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """Begin a session, or go on with one over another connection.

    Attributes:
        connection: that it comes over; named by the host, never twice.
        process_id: of the process that maps the device memory; the same one for all of its sessions.
        new_token: 128 random bits, for a session that begins.
        token: of the session to go on with; none: one begins.
        sequence_ids: all sequences that the client holds, or of whose release it has no answer; what the session holds
            besides is released, unless the answer to its admission is still to be delivered.
        pin_ids: likewise of pins.
        confirmed: the answers up to this number have arrived.
    """

    connection: int
    process_id: ProcessId
    new_token: bytes
    token: bytes = b""
    sequence_ids: tuple[SequenceId, ...] = ()
    pin_ids: tuple[PinId, ...] = ()
    confirmed: int = 0


@dataclass(frozen=True, slots=True)
class HeldSequence:
    """A sequence that a session holds.

    Attributes:
        sequence_id: of the sequence.
        error: why it has failed and has to be released; None: it runs.
        awaited: transfers that it was told to await and that are not done.
    """

    sequence_id: SequenceId
    error: LossError | None
    awaited: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AttachReply:
    """A session is attached. The answers that its client has not confirmed follow.

    Attributes:
        session: its number within the epoch.
        token: to attach it again.
        epoch: of the coordinator.
        last_number: of the requests that have arrived; the client sends those after it again.
        sequences: what the session holds. A sequence that the client listed and that is not among them was lost
            meanwhile, and was undone.
        pin_ids: likewise.
    """

    session: int
    token: bytes
    epoch: int
    last_number: int
    sequences: tuple[HeldSequence, ...]
    pin_ids: tuple[PinId, ...]


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """What a client asks.

    Attributes:
        connection: that it comes over.
        number: one more than that of the request before; the first is 1. A number that is repeated is answered as
            before.
        confirmed: the answers up to this number have arrived and need not be kept.
        message: what is asked. Sessions and the numbers by which a coordinator tells requests apart are filled in.
    """

    connection: int
    number: int
    confirmed: int
    message: ClientMessage | CancelRequest | DetachRequest


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """The answer to an earlier request is not wanted: what it admitted, or will, is given back, and its pins.

    Nothing of the engine may have touched what was admitted. Requests of other kinds, and those whose answers are
    confirmed, are not changed.

    Attributes:
        number: of the request.
    """

    number: int


@dataclass(frozen=True, slots=True)
class DetachRequest:
    """End the session. Nothing of its engine touches any slot any more: whatever it holds is free at once."""


@dataclass(frozen=True, slots=True)
class ClientReply:
    """The answer to a request.

    Attributes:
        number: of the request.
        result: the reply; None for what is only confirmed; or why it was refused.
    """

    number: int
    result: ToClient | KVTroupeError | None


@dataclass(frozen=True, slots=True)
class ConnectionLostEvent:
    """Nothing more comes over a connection. Its session waits for the client to attach it again."""

    connection: int


@dataclass(frozen=True, slots=True)
class ProcessGoneEvent:
    """A process is dead: nothing of it writes any more, and no session of it will be attached again."""

    process_id: ProcessId


@dataclass(frozen=True, slots=True)
class LossAcknowledgedEvent:
    """A process uses no slots any more that it was given in a session which is lost, or by an earlier coordinator.

    Attributes:
        process_id: of the process.
        token: of the session; none: of all that an earlier coordinator gave it.
    """

    process_id: ProcessId
    token: bytes = b""


@dataclass(frozen=True, slots=True)
class ClientOutput:
    """What goes to a client."""

    connection: int
    message: AttachReply | ClientReply | Notice


# -- from the sessions to the state of the coordinator -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionBeganEvent:
    """A session is there, with an engine that has done no step."""

    session: int


@dataclass(frozen=True, slots=True)
class SessionLostEvent:
    """The client of a session is gone and its engine may still write: it ends, and its slots are in quarantine."""

    session: int


@dataclass(frozen=True, slots=True)
class SessionOverEvent:
    """Nothing of the engine of a session touches any slot any more: it ends, and all its slots are free.

    Attributes:
        session: of the client; it may have been lost before.
    """

    session: int


@dataclass(frozen=True, slots=True)
class CancelEvent:
    """What a request has made is not wanted: sequences and pins that wait are cancelled, others are given back.

    Nothing of the engine may have touched the sequences.

    Attributes:
        session: of the client.
        request_id: of its request.
    """

    session: int
    request_id: int


@dataclass(frozen=True, slots=True)
class EpochAcknowledgedEvent:
    """A process is dead, or uses nothing any more that the coordinator before this one gave it."""

    process_id: ProcessId
