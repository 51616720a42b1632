"""Clients of a cluster: they attach, and ask in numbered requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtroupe.coordinator.ledger import Holder
from kvtroupe.coordinator.messages import (
    AdmitReply,
    AdmitRequest,
    Admitted,
    AttachReply,
    AttachRequest,
    CancelRequest,
    ClientOutput,
    ClientReply,
    ClientRequest,
    ConnectionLostEvent,
    DetachRequest,
    TimerEvent,
)
from tests.coordinator.cluster import Cluster
from tests.coordinator.support import make_config

if TYPE_CHECKING:
    from kvtroupe.coordinator.config import Limits
    from kvtroupe.coordinator.messages import ClientMessage, NewSequence, PinId, SequenceId

GROUP = ("group", 0, 0)


@dataclass
class Client:
    """One client process.

    Attributes:
        cluster: whose client it is.
        process_id: its name.
        connection: over which it speaks.
        token: of its session.
        number: of its last request.
        confirmed: what it confirms with the next.
    """

    cluster: Cluster
    process_id: str
    connection: int
    token: bytes = b""
    number: int = 0
    confirmed: int = 0

    def attach(
        self, connection: int, sequence_ids: tuple[SequenceId, ...] = (), pin_ids: tuple[PinId, ...] = ()
    ) -> tuple[AttachReply, list[ClientReply]]:
        """Attach over a connection, for the first time or again: the reply, and the answers that follow."""
        self.connection = connection
        new_token = self.process_id.encode().ljust(16, b"-")
        outputs = self.cluster.send(
            AttachRequest(
                connection, self.process_id, new_token, self.token, sequence_ids, pin_ids, confirmed=self.confirmed
            )
        )
        mine = [one.message for one in outputs if isinstance(one, ClientOutput) and one.connection == connection]
        reply, *answers = mine
        assert isinstance(reply, AttachReply)
        self.token = reply.token
        return reply, [one for one in answers if isinstance(one, ClientReply)]

    def lose_connection(self) -> None:
        """Nothing more comes over its connection."""
        self.cluster.send(ConnectionLostEvent(self.connection))

    def ask(self, message: ClientMessage | CancelRequest | DetachRequest) -> list[object]:
        """Ask: all that the client is sent because of it."""
        self.number += 1
        return self.send(self.number, message)

    def send(self, number: int, message: ClientMessage | CancelRequest | DetachRequest) -> list[object]:
        """Send a request under a number."""
        outputs = self.cluster.send(ClientRequest(self.connection, number, self.confirmed, message))
        return [one.message for one in outputs if isinstance(one, ClientOutput) and one.connection == self.connection]

    def result(self, message: ClientMessage | CancelRequest | DetachRequest) -> object:
        """Ask, and be answered at once: the result."""
        (reply,) = self.ask(message)
        assert isinstance(reply, ClientReply)
        assert reply.number == self.number
        return reply.result

    def admit(self, *sequences: NewSequence, wait_s: float = 0.0) -> list[Admitted]:
        """Admit sequences, all of which must be admitted at once."""
        reply = self.result(AdmitRequest(0, sequences, wait_s))
        assert isinstance(reply, AdmitReply), reply
        admitted = [one for one in reply.results if isinstance(one, Admitted)]
        assert len(admitted) == len(reply.results), reply
        return admitted


def attached(cluster: Cluster, process_id: str, connection: int) -> Client:
    """A client with a session of its own."""
    client = Client(cluster, process_id, connection)
    client.attach(connection)
    return client


def cluster_of(blocks: int = 9, limits: Limits | None = None) -> Cluster:
    """One pool of `blocks - 1` slots for one group, in blocks of four tokens."""
    return Cluster(make_config("full", blocks=blocks, limits=limits))


def free(cluster: Cluster) -> int:
    """Free slots of the device."""
    return cluster.replica.pool("device").ledger.free


def quarantined(cluster: Cluster) -> int:
    """Slots of the device in quarantine."""
    return cluster.replica.pool("device").ledger.uses_by_holder[Holder.QUARANTINE]


def let_pass(cluster: Cluster, seconds: float) -> None:
    """Time passes, and the timer says so."""
    cluster.now_s += seconds
    cluster.send(TimerEvent())
    cluster.check()
