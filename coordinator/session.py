"""One session: what its client has asked, what it was answered, and over which connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtroupe.coordinator.errors import Overloaded, RequestError
from kvtroupe.coordinator.messages import ClientReply

if TYPE_CHECKING:
    from kvtroupe.coordinator.errors import KVTroupeError
    from kvtroupe.coordinator.messages import ProcessId, ToClient


@dataclass(slots=True)
class Asked:
    """A request whose answer the client has not confirmed.

    Attributes:
        request_id: by which the state of the coordinator knows it; None: it does not.
        answer: None: it has none yet.
    """

    request_id: int | None = None
    answer: ClientReply | None = None


@dataclass(slots=True)
class Session:
    """See the module.

    Attributes:
        session: its number.
        token: by which its client attaches it again.
        process_id: of the client.
        connection: None: it is lost.
        lost_s: when the connection was lost.
        last_number: of the requests that have arrived.
        asked: by number, those whose answers are not confirmed.
    """

    session: int
    token: bytes
    process_id: ProcessId
    connection: int | None
    lost_s: float = 0.0
    last_number: int = 0
    asked: dict[int, Asked] = field(default_factory=dict)

    def check_confirmed(self, confirmed: int) -> None:
        """Refuse to have an answer confirmed that was not given.

        Raises:
            RequestError: there is no such answer.
        """
        if type(confirmed) is not int or not 0 <= confirmed <= self.last_number:
            raise RequestError(
                f"session {self.session} confirms {confirmed!r}; its last request was number {self.last_number}"
            )
        for number, asked in self.asked.items():
            if number > confirmed:
                return
            if asked.answer is None:
                raise RequestError(f"session {self.session} confirms the answer to request {number}, which has none")

    def confirm(self, confirmed: int) -> None:
        """The answers up to this number have arrived."""
        while self.asked and (number := next(iter(self.asked))) <= confirmed:
            del self.asked[number]

    def is_new(self, number: int, kept_answers_max: int) -> bool:
        """Whether a request was not there before.

        Args:
            number: of the request.
            kept_answers_max: how many answers may be wanted or unconfirmed at one time.

        Raises:
            RequestError: numbers are missing before it, or it is none.
            Overloaded: too many answers are wanted or unconfirmed; the number is not used up.
        """
        if type(number) is not int or not 1 <= number <= self.last_number + 1:
            raise RequestError(
                f"request {number!r} of session {self.session} follows number {self.last_number}: send what is missing"
            )
        if number <= self.last_number:
            return False
        if len(self.asked) >= kept_answers_max:
            raise Overloaded(
                f"session {self.session} has not confirmed {len(self.asked)} answers, as many as kept_answers_max; "
                "await and confirm some, and send the request again"
            )
        return True

    def ask(self, number: int) -> None:
        """Note a new request."""
        self.last_number = number
        self.asked[number] = Asked()

    def answer(self, number: int, result: ToClient | KVTroupeError | None) -> ClientReply:
        """Note the answer to a request."""
        reply = self.asked[number].answer = ClientReply(number, result)
        return reply

    def answers(self) -> list[ClientReply]:
        """Those that are not confirmed, in order of the requests."""
        return [asked.answer for asked in self.asked.values() if asked.answer is not None]
