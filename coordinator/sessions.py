"""Sessions: clients attach, ask in numbered requests, lose their connection and come back, or are lost themselves.

All that clients send passes through here, to the state of the coordinator; all that the state has for a client passes
through here, to the connection over which its session is attached. What others send is handed through.

- A session outlives its connection for a grace period. The client attaches it again with its token.
- After that it is lost. The process of the client may still write into slots of its sequences: these are in quarantine
  until the process is known to be dead, or has said that it uses them no more.
- Requests are numbered. Answers are kept until the client confirms them; a number that is repeated is answered as
  before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvtroupe.coordinator.asks import check_id
from kvtroupe.coordinator.errors import (
    CapacityError,
    Overloaded,
    RequestError,
    SessionExists,
    SessionLost,
    UnknownPin,
    UnknownSession,
)
from kvtroupe.coordinator.messages import (
    LOCAL_SESSION,
    AdmitRequest,
    AttachReply,
    AttachRequest,
    CancelEvent,
    CancelRequest,
    ClientOutput,
    ClientRequest,
    CommitRequest,
    ConnectionLostEvent,
    DetachRequest,
    EpochAcknowledgedEvent,
    EstimateRequest,
    EventsRequest,
    GroupOutput,
    GrowRequest,
    HeldSequence,
    LookupRequest,
    LossAcknowledgedEvent,
    MoveRequest,
    PinRequest,
    ProcessGoneEvent,
    ReleaseEvent,
    ResetRequest,
    SequenceFailedEvent,
    SessionBeganEvent,
    SessionLostEvent,
    SessionOverEvent,
    StepsDoneEvent,
    TierOutput,
    TimerEvent,
    TransfersDoneEvent,
    UnpinEvent,
)
from kvtroupe.coordinator.sequences import unknown_sequence
from kvtroupe.coordinator.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtroupe.coordinator.errors import KVTroupeError
    from kvtroupe.coordinator.messages import (
        ClientMessage,
        ProcessId,
        SequenceId,
        SessionsOutput,
        ToClient,
        ToCoordinator,
        ToSessions,
    )
    from kvtroupe.coordinator.state import CoordinatorState

TOKEN_BYTES = 16

_ANSWERED_WITH_REPLY = (
    AdmitRequest,
    GrowRequest,
    CommitRequest,
    PinRequest,
    LookupRequest,
    MoveRequest,
    EstimateRequest,
    ResetRequest,
    EventsRequest,
)
_ANSWERED_WITH_NOTHING = (ReleaseEvent, UnpinEvent, StepsDoneEvent)
_TUPLES = {
    AdmitRequest: ("sequences",),
    GrowRequest: ("sequence_ids",),
    EstimateRequest: ("running", "sequences", "new_tokens_max"),
}


class Sessions:
    """See the module.

    Args:
        state: of the coordinator.
    """

    def __init__(self, state: CoordinatorState) -> None:
        self._state = state
        self._limits = state.config.limits
        self._epoch = state.mail.epoch
        self._sessions: dict[int, Session] = {}
        self._by_token: dict[bytes, Session] = {}
        self._by_connection: dict[int, Session] = {}
        self._lost: dict[bytes, Session] = {}  # whose processes may still write
        self._last_session = 0
        self._last_request_id = 0  # below it: they are none of those by which a host asks the state itself
        self._requests: dict[int, tuple[int, int]] = {}  # the state's number of a request -> session, its number
        self._handlers: dict[type, Callable[[Any, float], list[SessionsOutput]]] = {
            AttachRequest: self._on_attach,
            ClientRequest: self._on_request,
            ConnectionLostEvent: self._on_connection_lost,
            ProcessGoneEvent: self._on_process_gone,
            LossAcknowledgedEvent: self._on_loss_acknowledged,
            TimerEvent: self._on_timer,
        }

    def step(self, message: ToSessions, now_s: float) -> list[SessionsOutput]:
        """Apply one message.

        Args:
            message: from a client or about one, or to the state of the coordinator.
            now_s: the time now.

        Returns:
            messages to be sent, in order.

        Raises:
            RequestError: the message is malformed, or its session is not there; nothing was changed. What the state
                finds wrong with a numbered request is not raised: it is the answer.
            Overloaded: a limit on sessions is reached; nothing was changed.
        """
        handler = self._handlers.get(type(message))
        return self._apply(message, now_s) if handler is None else handler(message, now_s)  # type: ignore[arg-type]

    # -- attach --------------------------------------------------------------------------------------------------------

    def _on_attach(self, message: AttachRequest, now_s: float) -> list[SessionsOutput]:
        if message.connection in self._by_connection:
            raise SessionExists(f"connection {message.connection} has a session already; one connection has one")
        check_id("process", message.process_id)
        if type(message.token) is not bytes:
            raise RequestError(f"{message.token!r:.60} is no token of a session; a token is bytes")
        _check_tuple("sequence_ids", message.sequence_ids)
        _check_tuple("pin_ids", message.pin_ids)
        return self._attach_again(message, now_s) if message.token else self._begin(message, now_s)

    def _begin(self, message: AttachRequest, now_s: float) -> list[SessionsOutput]:
        token = message.new_token
        if type(token) is not bytes or len(token) != TOKEN_BYTES or token in self._by_token or token in self._lost:
            raise RequestError(f"the token of a new session has to be {TOKEN_BYTES} random bytes, never used before")
        held = len(self._sessions) + len(self._lost)
        if held >= self._limits.sessions_max:
            raise Overloaded(f"there are {held} sessions, as many as sessions_max; try again when some have ended")
        self._last_session += 1
        self._state.counters.sessions_begun += 1
        session = Session(self._last_session, token, message.process_id, message.connection)
        self._sessions[session.session] = self._by_token[token] = self._by_connection[message.connection] = session
        outputs = self._apply(SessionBeganEvent(session.session), now_s)
        return [*outputs, self._attached(session, message.connection)]

    def _attach_again(self, message: AttachRequest, now_s: float) -> list[SessionsOutput]:
        session = self._by_token.get(message.token)
        if session is None or session.process_id != message.process_id:
            lost = self._lost.get(message.token)
            if lost is not None and lost.process_id == message.process_id:
                raise SessionLost(lost.session, self._limits.grace_s)
            raise UnknownSession(
                f"no session of process {message.process_id!r} has this token: it was never there, it has ended, or it "
                "was one of an earlier coordinator; stop using its slots, say so, and attach anew"
            )
        session.check_confirmed(message.confirmed)
        session.confirm(message.confirmed)
        if session.connection is not None:  # its loss was not noticed yet
            del self._by_connection[session.connection]
        session.connection = message.connection
        self._by_connection[message.connection] = session
        outputs: list[SessionsOutput] = []
        for event in self._not_listed(session, message):
            outputs += self._apply(event, now_s)
        answers = [ClientOutput(message.connection, answer) for answer in session.answers()]
        return [*outputs, self._attached(session, message.connection), *answers]

    def _not_listed(self, session: Session, message: AttachRequest) -> list[ReleaseEvent | UnpinEvent]:
        """Give back what a session holds and its client does not: it neither lists it, nor is to be told of it yet."""
        untold = {asked.request_id for asked in session.asked.values()}
        records = self._state.records
        sequences, pin_ids = records.of_session(session.session)
        gone = [one for one in sequences if one.sequence_id not in message.sequence_ids]
        unpinned = [one for one in pin_ids if one not in message.pin_ids]
        return [
            *[ReleaseEvent(one.sequence_id) for one in gone if one.request_id not in untold],
            *[UnpinEvent(one) for one in unpinned if records.pins[one].request_id not in untold],
        ]

    def _attached(self, session: Session, connection: int) -> ClientOutput:
        sequences, pin_ids = self._state.records.of_session(session.session)
        awaited = self._state.records.waits.awaited
        held = tuple([HeldSequence(one.sequence_id, one.error, awaited(one.sequence_id)) for one in sequences])
        reply = AttachReply(session.session, session.token, self._epoch, session.last_number, held, tuple(pin_ids))
        return ClientOutput(connection, reply)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _on_request(self, request: ClientRequest, now_s: float) -> list[SessionsOutput]:
        session = self._by_connection.get(request.connection)
        if session is None:
            raise UnknownSession(f"no session is attached over connection {request.connection}; attach one first")
        session.check_confirmed(request.confirmed)
        session.confirm(request.confirmed)
        if not session.is_new(request.number, self._limits.kept_answers_max):
            return self._answer_again(session, request.number)
        session.ask(request.number)
        try:
            return self._ask(session, request.number, request.message, now_s)
        except (RequestError, CapacityError) as error:
            return self._answer(session, request.number, error)

    def _answer_again(self, session: Session, number: int) -> list[SessionsOutput]:
        asked = session.asked.get(number)
        self._state.counters.requests_repeated += 1
        if asked is None or asked.answer is None or session.connection is None:
            return []  # it is confirmed, or will be answered
        return [ClientOutput(session.connection, asked.answer)]

    def _ask(self, session: Session, number: int, message: object, now_s: float) -> list[SessionsOutput]:
        """Hand a new request to the state.

        Raises:
            RequestError: it is malformed, or names what the session does not hold.
            CapacityError: a limit is reached.
        """
        for name in _TUPLES.get(type(message), ()):
            _check_tuple(name, getattr(message, name))
        if isinstance(message, CancelRequest):
            return self._cancel(session, message.number, now_s) + self._answer(session, number, None)
        if isinstance(message, DetachRequest):
            outputs = self._end(session, SessionOverEvent(session.session), now_s)
            return outputs + self._answer(session, number, None)
        if isinstance(message, _ANSWERED_WITH_NOTHING):
            self._check_owns(session, message)
            if isinstance(message, StepsDoneEvent):
                message = replace(message, session=session.session)
            return self._apply(message, now_s) + self._answer(session, number, None)
        if not isinstance(message, _ANSWERED_WITH_REPLY):
            raise RequestError(f"{message!r:.60} is no request of a client; see messages.ClientMessage")
        self._last_request_id -= 1
        request_id = self._last_request_id
        self._check_owns(session, message)
        if isinstance(message, AdmitRequest | PinRequest):
            message = replace(message, session=session.session)
        self._requests[request_id] = session.session, number
        try:
            outputs = self._apply(replace(message, request_id=request_id), now_s)
        except (RequestError, CapacityError):
            del self._requests[request_id]
            raise
        session.asked[number].request_id = request_id
        return outputs

    def _cancel(self, session: Session, number: int, now_s: float) -> list[SessionsOutput]:
        if type(number) is not int:
            raise RequestError(f"request {number!r:.60} cannot be cancelled: requests are numbered")
        asked = session.asked.get(number)
        if asked is None or asked.request_id is None:
            return []  # confirmed, so that the client knows what it has; or it made nothing
        return self._apply(CancelEvent(session.session, asked.request_id), now_s)

    def _check_owns(self, session: Session, message: ClientMessage) -> None:
        """Refuse a request that names what another session holds.

        Raises:
            UnknownSequence: a sequence that is not one of this session.
            UnknownPin: likewise a pin.
        """
        records = self._state.records
        sequence_ids: tuple[SequenceId, ...] = ()
        if isinstance(message, CommitRequest | ReleaseEvent):
            sequence_ids = (message.sequence_id,)
        elif isinstance(message, GrowRequest):
            sequence_ids = message.sequence_ids
        elif isinstance(message, EstimateRequest):
            sequence_ids = message.running
        elif isinstance(message, UnpinEvent):
            check_id("pin", message.pin_id)
            pin = records.pins.get(message.pin_id)
            if pin is not None and pin.session != session.session:
                raise UnknownPin(f"no pin {message.pin_id!r} of session {session.session} stands; give back your own")
        for sequence_id in sequence_ids:
            if records.holding(sequence_id).session != session.session:
                raise unknown_sequence(sequence_id)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _apply(self, message: ToCoordinator, now_s: float) -> list[SessionsOutput]:
        """Let the state apply a message: its outputs, those for clients on their way to these."""
        outputs: list[SessionsOutput] = []
        for output in self._state.step(message, now_s):
            if isinstance(output, GroupOutput | TierOutput):
                outputs.append(output)
            elif isinstance(output, TransfersDoneEvent | SequenceFailedEvent):
                outputs += self._notify(output)
            else:
                outputs += self._reply(output)
        return outputs

    def _notify(self, notice: TransfersDoneEvent | SequenceFailedEvent) -> list[SessionsOutput]:
        if notice.session == LOCAL_SESSION:
            return [notice]
        session = self._sessions.get(notice.session)
        if session is None or session.connection is None:
            return []  # whoever attaches again is told what has become of its sequences
        return [ClientOutput(session.connection, notice)]

    def _reply(self, reply: ToClient) -> list[SessionsOutput]:
        asked = self._requests.pop(reply.request_id, None)
        if asked is None:
            return [reply]  # to a host that has asked the state itself
        session_id, number = asked
        session = self._sessions.get(session_id)
        if session is None:
            return []  # it has ended meanwhile
        return self._answer(session, number, replace(reply, request_id=number))

    def _answer(self, session: Session, number: int, result: ToClient | KVTroupeError | None) -> list[SessionsOutput]:
        answer = session.answer(number, result)
        return [] if session.connection is None else [ClientOutput(session.connection, answer)]

    # -- losses --------------------------------------------------------------------------------------------------------

    def _on_connection_lost(self, message: ConnectionLostEvent, now_s: float) -> list[SessionsOutput]:
        session = self._by_connection.pop(message.connection, None)
        if session is not None:
            session.connection = None
            session.lost_s = now_s
        return []

    def _on_timer(self, message: TimerEvent, now_s: float) -> list[SessionsOutput]:
        outputs: list[SessionsOutput] = []
        for session in [*self._sessions.values()]:
            if session.connection is None and now_s >= session.lost_s + self._limits.grace_s:
                outputs += self._give_up(session, now_s)
        return outputs + self._apply(message, now_s)

    def _give_up(self, session: Session, now_s: float) -> list[SessionsOutput]:
        """Wait for a client no more. One that never asked for anything has no slot that it could still write."""
        self._state.counters.sessions_lost += 1
        if not session.last_number:
            return self._end(session, SessionOverEvent(session.session), now_s)
        session.asked.clear()
        self._lost[session.token] = session
        return self._end(session, SessionLostEvent(session.session), now_s)

    def _on_process_gone(self, message: ProcessGoneEvent, now_s: float) -> list[SessionsOutput]:
        outputs: list[SessionsOutput] = []
        for session in [*self._sessions.values()]:
            if session.process_id == message.process_id:
                outputs += self._end(session, SessionOverEvent(session.session), now_s)
        for session in [*self._lost.values()]:
            if session.process_id == message.process_id:
                outputs += self._lift_quarantine(session, now_s)
        return outputs + self._apply(EpochAcknowledgedEvent(message.process_id), now_s)

    def _on_loss_acknowledged(self, message: LossAcknowledgedEvent, now_s: float) -> list[SessionsOutput]:
        if not message.token:
            return self._apply(EpochAcknowledgedEvent(message.process_id), now_s)
        session = self._lost.get(message.token)
        if session is None or session.process_id != message.process_id:
            return []  # acknowledged before, or given by an earlier coordinator
        return self._lift_quarantine(session, now_s)

    def _lift_quarantine(self, session: Session, now_s: float) -> list[SessionsOutput]:
        del self._lost[session.token]
        return self._apply(SessionOverEvent(session.session), now_s)

    def _end(self, session: Session, event: SessionLostEvent | SessionOverEvent, now_s: float) -> list[SessionsOutput]:
        """A session is no more: nothing but this is answered to it."""
        del self._sessions[session.session], self._by_token[session.token]
        if session.connection is not None:
            del self._by_connection[session.connection]
        return self._apply(event, now_s)

    # -- inspection ----------------------------------------------------------------------------------------------------

    def attached(self) -> int:
        """How many sessions have a connection."""
        return len(self._by_connection)

    def away(self) -> int:
        """How many sessions have none, and may be attached again."""
        return len(self._sessions) - len(self._by_connection)

    def kept_answers(self) -> int:
        """Of the session that has the most, how many answers are wanted or not confirmed."""
        return max([len(session.asked) for session in self._sessions.values()], default=0)

    def quarantined(self) -> list[ProcessId]:
        """The processes of lost sessions, once for each session, that may still write."""
        return [session.process_id for session in self._lost.values()]


def _check_tuple(name: str, value: object) -> None:
    """Refuse something else where several are named.

    Raises:
        RequestError: it is no tuple.
    """
    if not isinstance(value, tuple):
        raise RequestError(f"{name} is {value!r:.60}; it has to be a tuple")
