"""Whatever a client sends in a request is answered: it stops nobody, and nothing is out of order after it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from kvtroupe.coordinator.messages import (
    AdmitRequest,
    CancelRequest,
    ClientReply,
    CommitRequest,
    EstimateRequest,
    EventsRequest,
    GrowRequest,
    LookupRequest,
    MoveRequest,
    PinRequest,
    ReleaseEvent,
    StepsDoneEvent,
    UnpinEvent,
)
from tests.coordinator.clients import attached, cluster_of
from tests.coordinator.support import chain, new

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtroupe.coordinator.messages import ClientMessage

REQUESTS: list[ClientMessage | CancelRequest] = [
    AdmitRequest(0, (new("a", "ab"),)),
    GrowRequest(0, ("runs",), 1),
    CommitRequest(0, "runs", 4),
    ReleaseEvent("runs"),
    StepsDoneEvent(1),
    PinRequest(0, "pin", chain("a")),
    UnpinEvent("pin"),
    LookupRequest(0, chain("a")),
    MoveRequest(0, chain("a"), 0),
    CancelRequest(1),
    EstimateRequest(0, ("runs",)),
    EventsRequest(0),
]
ODD: list[object] = [None, -1, 1.5, "x", b"x", [1], {}, object(), True, (None,), ([],), (1,)]
FIELDS = [
    (request, field.name)
    for request in REQUESTS
    for field in dataclasses.fields(request)
    if field.name not in ("request_id", "session")  # filled in by the coordinator
]
NEW = [(AdmitRequest(0, (new("a", "ab"),)), field.name) for field in dataclasses.fields(new("a", "ab"))]


@pytest.mark.parametrize(
    ("request_", "field"), FIELDS, ids=[f"{type(request).__name__}-{field}" for request, field in FIELDS]
)
def test_odd_values_in_a_request_are_answered(request_: ClientMessage, field: str) -> None:
    """Each in a request of its own, to one coordinator; which then serves as before."""
    _answers_all([dataclasses.replace(request_, **{field: odd}) for odd in ODD])  # type: ignore[arg-type]


@pytest.mark.parametrize(("request_", "field"), NEW, ids=[field for _, field in NEW])
def test_odd_values_in_a_new_sequence_are_answered(request_: AdmitRequest, field: str) -> None:
    """Likewise."""
    (one,) = request_.sequences
    changed = [dataclasses.replace(one, **{field: odd}) for odd in ODD]  # type: ignore[arg-type]
    _answers_all([AdmitRequest(0, (odd,)) for odd in changed])


def _answers_all(requests: Iterable[ClientMessage]) -> None:
    for request in requests:
        cluster = cluster_of(blocks=21)
        client = attached(cluster, "p", 1)
        client.admit(new("runs", "xy"))

        (reply,) = client.ask(request)

        assert isinstance(reply, ClientReply)
        assert reply.number == 2
        cluster.check()
        assert client.admit(new("serves", "xy"))
