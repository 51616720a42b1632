"""A client process of a simulation: its engine, its session, and the connection between it and the coordinator.

What is on its way when a connection is lost is lost. The client comes back over another connection, with its token,
and asks again what was not answered; or is told that its session is gone: then its engine is left to end its steps, it
says so when they are done, and begins anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from kvtroupe.coordinator.errors import KVTroupeError, SessionLost, UnknownSequence
from kvtroupe.coordinator.messages import (
    AdmitRequest,
    AttachReply,
    AttachRequest,
    CancelRequest,
    ClientReply,
    ClientRequest,
    LossAcknowledgedEvent,
    PinRequest,
    ReleaseEvent,
    UnpinEvent,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from kvtroupe.coordinator.messages import ClientMessage, Notice
    from tests.simulation.engine import Engine

FromCoordinator: TypeAlias = "AttachReply | ClientReply | Notice | KVTroupeError"

UNCONFIRMED_MAX = 200  # it asks no more before some answers have come
REPEATED_MAX = 3  # requests that it sends again at one time


@dataclass
class Leftover:
    """An engine that has lost its session, or its coordinator, and has still to end its steps.

    Attributes:
        engine: the engine.
        token: of the session; none: it was one of an earlier coordinator.
    """

    engine: Engine
    token: bytes


@dataclass
class Client:
    """See the module.

    Attributes:
        process_id: of the process.
        make_engine: makes an engine that has done nothing.
        connection: None: there is none.
        outbox: on its way to the coordinator.
        inbox: on its way from it.
        leftovers: engines that it has to let end.
        owes_acknowledgement: whether it has to tell a new coordinator that it uses nothing of the old one's.
        is_of_earlier: whether its session is one of an earlier coordinator, and it does not know.
    """

    process_id: str
    make_engine: Callable[[], Engine]
    connection: int | None = None
    outbox: deque[AttachRequest | ClientRequest] = field(default_factory=deque)
    inbox: deque[FromCoordinator] = field(default_factory=deque)
    leftovers: list[Leftover] = field(default_factory=list)
    owes_acknowledgement: bool = False
    is_of_earlier: bool = False

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """With nothing asked, and no session."""
        self.engine = self.make_engine()
        self.token = b""
        self.is_attached = False
        self._number = 0
        self._confirmed = 0
        self._unanswered: dict[int, ClientMessage | CancelRequest] = {}
        self._heard: set[int] = set()  # answers that came before others
        self._cancelled: set[int] = set()  # whose answers are not wanted

    # -- connection ----------------------------------------------------------------------------------------------------

    def attach(self, connection: int, new_token: bytes) -> None:
        """Connect."""
        self.connection = connection
        unanswered = self._unanswered.values()
        released = [one.sequence_id for one in unanswered if isinstance(one, ReleaseEvent)]
        unpinned = [one.pin_id for one in unanswered if isinstance(one, UnpinEvent)]
        waiting = self.engine.outbox
        request = AttachRequest(
            connection,
            self.process_id,
            new_token,
            self.token,
            (*self.engine.running, *released, *[one.sequence_id for one in waiting if isinstance(one, ReleaseEvent)]),
            (*self.engine.pins, *unpinned, *[one.pin_id for one in waiting if isinstance(one, UnpinEvent)]),
            self._confirmed,
        )
        self.outbox.append(request)

    def lose_connection(self) -> None:
        """With all that is under way."""
        self.connection = None
        self.is_attached = False
        self.outbox.clear()
        self.inbox.clear()

    def coordinator_lost(self) -> None:
        """Another one is there, which knows nothing of its sessions, and waits for it to end what it began in them."""
        self.lose_connection()
        self.is_of_earlier = bool(self.token)
        self.owes_acknowledgement = True
        for leftover in self.leftovers:
            leftover.token = b""

    def _attached(self, reply: AttachReply) -> None:
        self.is_attached = True
        self.token = reply.token
        self.engine.held(reply.sequences)
        for number, message in self._unanswered.items():
            if number > reply.last_number:
                self._send(number, message)

    def _refused(self, error: KVTroupeError) -> None:
        """The session is gone: nothing of it is asked any more, and what was begun has to end."""
        if not self.token:
            raise error
        self.leftovers.append(Leftover(self.engine, self.token if isinstance(error, SessionLost) else b""))
        self.is_of_earlier = False
        if not isinstance(error, SessionLost):  # for all that it can know, one of an earlier coordinator: it says so
            self.owes_acknowledgement = True
        self.lose_connection()
        self._begin()

    # -- requests ------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send what the engine asks."""
        while self.is_attached and self.engine.outbox and self._number - self._confirmed < UNCONFIRMED_MAX:
            self._ask(self.engine.outbox.popleft())

    def _ask(self, message: ClientMessage | CancelRequest) -> None:
        self._number += 1
        self._unanswered[self._number] = message
        self._send(self._number, message)

    def _send(self, number: int, message: ClientMessage | CancelRequest) -> None:
        assert self.connection is not None, "who is attached has a connection"
        self.outbox.append(ClientRequest(self.connection, number, self._confirmed, message))

    def repeat(self, chance: random.Random) -> None:
        """Send some of what is not answered again."""
        if self._unanswered:
            numbers = chance.sample([*self._unanswered], min(len(self._unanswered), REPEATED_MAX))
            for number in numbers:
                self._send(number, self._unanswered[number])

    def cancel(self, chance: random.Random) -> None:
        """Give up something whose answer was not heard."""
        number = chance.choice(self.able_to_cancel())
        message = self._unanswered[number]
        assert isinstance(message, AdmitRequest | PinRequest)
        self.engine.forget(message.request_id)
        self._cancelled.add(number)
        self._ask(CancelRequest(number))

    def able_to_cancel(self) -> list[int]:
        """Numbers of requests that it may give up."""
        if not self.is_attached:
            return []
        return [
            number
            for number, message in self._unanswered.items()
            if isinstance(message, AdmitRequest | PinRequest) and number not in self._cancelled
        ]

    # -- answers -------------------------------------------------------------------------------------------------------

    def hear(self) -> None:
        """Read a message."""
        message = self.inbox.popleft()
        if isinstance(message, AttachReply):
            self._attached(message)
        elif isinstance(message, KVTroupeError):
            self._refused(message)
        elif isinstance(message, ClientReply):
            self._answered(message)
        else:
            self.engine.hear(message)

    def _answered(self, reply: ClientReply) -> None:
        message = self._unanswered.pop(reply.number, None)
        if message is None:
            assert reply.number <= self._confirmed or reply.number in self._heard, "an answer to nothing"
            return
        self._heard.add(reply.number)
        while self._confirmed + 1 in self._heard:
            self._confirmed += 1
            self._heard.remove(self._confirmed)
        if reply.number in self._cancelled:
            return
        if isinstance(reply.result, KVTroupeError):
            if not isinstance(reply.result, UnknownSequence):  # it had failed, and this is how its client learns
                raise reply.result
            self.engine.refused(message)
        elif reply.result is not None:
            assert not isinstance(message, CancelRequest | ReleaseEvent)
            self.engine.hear(replace(reply.result, request_id=getattr(message, "request_id", 0)))

    # -- leftovers -----------------------------------------------------------------------------------------------------

    def engines(self) -> list[Engine]:
        """All that may still do steps."""
        return [self.engine, *[one.engine for one in self.leftovers]]

    def acknowledgements(self) -> list[bytes]:
        """The lost sessions whose engines have ended; no token for all those of earlier coordinators."""
        if any(one.engine.steps for one in self.leftovers if not one.token) or self.is_of_earlier:
            return self._ended()
        return [*self._ended(), *([b""] if self.owes_acknowledgement else [])]

    def _ended(self) -> list[bytes]:
        return [one.token for one in self.leftovers if one.token and not one.engine.steps]

    def acknowledge(self, token: bytes) -> LossAcknowledgedEvent:
        """Say that an engine, or all of those of earlier coordinators, have ended."""
        self.leftovers = [one for one in self.leftovers if one.token != token]
        if not token:
            self.owes_acknowledgement = False
        return LossAcknowledgedEvent(self.process_id, token)

    def is_busy(self) -> bool:
        """Whether anything is to be done for it before all is at rest."""
        engine = self.engine
        return bool(
            self.inbox
            or self.outbox
            or self.leftovers
            or self.owes_acknowledgement
            or self._unanswered
            or engine.outbox
            or engine.steps
            or engine.running
            or engine.pins
        )
