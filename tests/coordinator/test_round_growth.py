"""Growth of running sequences, alone and in a round: who gets blocks first, and what the others are told."""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.check import check
from kvtroupe.coordinator.config import Limits
from kvtroupe.coordinator.errors import OutOfBlocks
from kvtroupe.coordinator.messages import (
    AdmitReply,
    Admitted,
    CommitRequest,
    GrowReply,
    GrowRequest,
    MatchReply,
    PinRequest,
    PublishReply,
    ReleaseEvent,
)
from kvtroupe.coordinator.prefix_index import NOTHING_KNOWN
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.support import (
    Desk,
    admit,
    chain,
    evidence,
    make_config,
    make_replica,
    new,
    numbers,
    only_pool,
    replies,
    slots,
    snapshot,
    tables,
    without_counters,
)


def test_growth_serves_as_many_sequences_as_fit_in_every_pool() -> None:
    """The first two of three; the third is told what was left, and no other gets its share."""
    replica = make_replica("full@a", "full@b", blocks={"a": 21, "b": 8})
    for sequence_id in "abc":
        admit(replica, new(sequence_id, sequence_id, extra_tokens=0))

    reply = replica.grow(["c", "a", "b"], 2)

    assert reply.refused[:2] == (None, None)
    assert numbers(reply.refused[2]) == (2, 0, 0, 0)
    assert [one.tolist() for one in reply.slots] == [[[4, 5], [6, 7]], [[4, 5], [6, 7]]]
    assert [replica.sequence(one).capacity_tokens for one in "abc"] == [12, 4, 12]
    check(replica)


def test_growth_that_nobody_gets_leaves_no_trace() -> None:
    """As any refusal."""
    replica = make_replica("full", "full", blocks=8)
    admit(replica, new("a", "x"))
    admit(replica, new("b", ""))
    before = snapshot(replica)

    reply = replica.grow(["a"])

    assert numbers(reply.refused[0]) == (2, 1, 0, 0)
    assert [one.size for one in reply.slots] == [0, 0]
    assert without_counters(snapshot(replica)) == without_counters(before)


def test_growth_comes_before_a_request_that_was_there_first() -> None:
    """Running sequences hold what others wait for: the claim of the new one gives way."""
    desk = Desk(make_config("full", blocks=5))
    desk.ask(1, new("old", "xy", extra_tokens=0))
    desk.answer(1, [NOTHING_KNOWN])
    desk.send(CommitRequest(2, "old", 8))
    desk.send(PublishReply(1, 0, None))
    desk.ask(3, new("young", "xy"))
    desk.send(GrowRequest(4, ("old",), 2))

    grown, refused = replies(desk.answer(2, [evidence(slots(1, 2))]))

    assert isinstance(grown, GrowReply)
    assert [one.tolist() for one in grown.slots] == [[[3, 4]]]
    assert isinstance(refused, AdmitReply)
    assert numbers(refused.results[0]) == (1, 0, 0, 0)


# -- rounds are limited ------------------------------------------------------------------------------------------------


def test_growth_that_fits_in_part_does_not_push_other_growth_out_of_the_round() -> None:
    """One block is free once a pin gives way: the first of three sequences gets it, and both others are told so."""
    desk = Desk(make_config("full", blocks=5))
    desk.admit_unknown(1, 1, new("p", "p", extra_tokens=0))
    desk.send(CommitRequest(2, "p", 4))
    desk.send(PublishReply(1, 0, None))
    desk.send(ReleaseEvent("p"))
    for number, sequence_id in enumerate("abc"):
        desk.admit_unknown(3 + number, 2 + number, new(sequence_id, "", extra_tokens=4))
    desk.send(PinRequest(6, "pin", chain("p")))
    desk.send(GrowRequest(7, ("a", "b"), 1))
    desk.send(GrowRequest(8, ("c",), 1))

    found = evidence(slots(1))
    outputs = desk.send(MatchReply(5, 0, (found,)))

    first, second = replies(outputs)
    assert isinstance(first, GrowReply)
    assert isinstance(second, GrowReply)
    assert (first.request_id, first.refused[0]) == (7, None)
    assert isinstance(first.refused[1], OutOfBlocks)
    assert second.request_id == 8
    assert isinstance(second.refused[0], OutOfBlocks)
    assert desk.state.counters.deferred == 1


@pytest.mark.parametrize(("round_blocks_max", "rounds"), [(1, 4), (5, 4), (6, 3), (12, 2), (14, 2), (15, 1), (100, 1)])
def test_a_round_takes_requests_up_to_its_limit_of_blocks(round_blocks_max: int, rounds: int) -> None:
    """Blocks asked for: 3, 3, 6 and 3, spare ones included; one request alone may exceed the limit."""
    replica = Replica(make_config("full", limits=Limits(round_blocks_max=round_blocks_max)))

    results = replica.admit([new("a", "xy"), new("b", "uv"), new("c", "pqr", spare_blocks=2), new("d", "st")])

    assert [type(result) for result in results] == [Admitted] * 4
    assert [tables(result)[0][0] for result in results] == [1, 4, 7, 13]
    assert replica.counters().rounds == rounds
    assert only_pool(replica).ledger.last_generation == rounds


def test_blocks_of_a_round_are_counted_in_every_group() -> None:
    """Two groups make a request of three blocks one of six slots."""
    replica = Replica(make_config("full", "full", limits=Limits(round_blocks_max=11)))

    replica.admit([new("a", "xy"), new("b", "uv")])

    assert replica.counters().rounds == 2
