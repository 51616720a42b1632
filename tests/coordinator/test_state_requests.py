"""The coordinator as a host sees it: commits and their publication, pins, ids that wait, limits."""

from __future__ import annotations

import numpy as np
import pytest

from kvtroupe.coordinator.config import Limits
from kvtroupe.coordinator.errors import (
    OutOfBlocks,
    Overloaded,
    PinExists,
    RequestError,
    SequenceExists,
)
from kvtroupe.coordinator.messages import (
    AdmitReply,
    CommitReply,
    CommitRequest,
    GroupOutput,
    MatchRequest,
    PinReply,
    PinRequest,
    Prompt,
    PublishReply,
    PublishRequest,
    ReleaseEvent,
    UnpinEvent,
)
from kvtroupe.coordinator.prefix_index import NOTHING_KNOWN
from tests.coordinator.support import (
    admitted,
    chain,
    evidence,
    make_desk,
    messages_to,
    new,
    replies,
    slots,
)

UNKNOWN = (NOTHING_KNOWN,)


# -- commit and publish ------------------------------------------------------------------------------------------------


def test_a_commit_offers_to_each_group_the_blocks_that_it_still_reads() -> None:
    """Digests are those of the chain from its start; null blocks of a hit are not offered."""
    there = make_desk("full", "sliding:5")
    there.admit_unknown(1, 1, new("writer", "xyz"))
    there.publish("writer", 12)
    there.ask(2, new("reader", "xyzu"))
    there.answer(2, [evidence(slots(1, 2, 3))], [evidence(slots(5, 6, 7))])
    assert [table.tolist() for table in there.state.tables.lent(there.state.records.running("reader"))[0]] == [
        [1, 2, 3, 9, 10],
        [0, 0, 7, 11, 12],
    ]

    outputs = there.send(CommitRequest(6, "reader", 17))

    (full,), (sliding,) = messages_to(0, outputs), messages_to(1, outputs)
    assert isinstance(full, PublishRequest)
    assert isinstance(sliding, PublishRequest)
    assert (full.digests, full.start_block, full.slots.tolist()) == (chain("xyzu"), 3, [9])
    assert (sliding.digests, sliding.start_block, sliding.slots.tolist()) == (chain("xyzu"), 3, [11])
    assert full.generations.tolist() == sliding.generations.tolist() == [2]
    assert replies(outputs) == []


def test_a_commit_is_answered_when_every_group_has_answered() -> None:
    """The reply counts what each group took; blocks that stay private are in no count but that of duplicates."""
    there = make_desk("full", "full")
    there.admit_unknown(1, 1, new("a", "xyz"))

    there.send(CommitRequest(6, "a", 12))
    assert there.send(PublishReply(1, 1, np.array([True, False, False]))) == []
    outputs = there.send(PublishReply(1, 0, None))

    assert outputs == [CommitReply(6, (3, 1))]
    assert (there.state.counters.published, there.state.counters.duplicates) == (4, 2)
    assert there.state.pools[0].ledger.published.nonzero()[0].tolist() == [1, 2, 3, 5]


def test_a_commit_without_a_new_whole_block_is_answered_at_once() -> None:
    """There is nothing to publish."""
    there = make_desk("full", "sliding:8")
    there.admit_unknown(1, 1, new("a", "x", extra_tokens=3))

    assert there.send(CommitRequest(6, "a", 3)) == [CommitReply(6, (0, 0))]


def test_slots_of_a_released_sequence_wait_for_the_answers_to_its_publication() -> None:
    """Until then a group may name them; then they go where what was published belongs."""
    there = make_desk("full", "full", blocks=9)
    there.admit_unknown(1, 1, new("a", "xyz"))
    there.send(CommitRequest(6, "a", 12))

    there.send(ReleaseEvent("a"))
    assert there.free() == []
    assert [(kind, one) for kind, one, _ in there.state.holders(0)] == [("fence", "a")]
    assert there.send(PublishReply(1, 0, None)) == []
    assert there.free() == []
    outputs = there.send(PublishReply(1, 1, np.array([True, True, False])))

    # Given back: 4 8, 3 7, 2 6, 1 5. Not published: 4 and 8, and 7, a duplicate.
    assert there.free() == [7, 8, 4, 3, 2, 6, 1, 5]
    assert outputs == [CommitReply(6, (3, 2))]


def test_two_commits_under_way_hold_the_slots_until_both_are_answered() -> None:
    """In whatever order the answers come."""
    there = make_desk(blocks=5)
    there.admit_unknown(1, 1, new("a", "xyz"))
    there.send(CommitRequest(6, "a", 4))
    there.send(CommitRequest(7, "a", 12))
    there.send(ReleaseEvent("a"))

    assert there.send(PublishReply(2, 0, None)) == [CommitReply(7, (2,))]
    assert there.free() == []
    assert there.send(PublishReply(1, 0, None)) == [CommitReply(6, (1,))]

    assert there.free() == [4, 3, 2, 1]


def test_blocks_that_slide_out_with_a_commit_wait_for_its_publication() -> None:
    """They are published first, so that the next prompt can hit them."""
    there = make_desk("sliding:4", blocks=6)
    there.admit_unknown(1, 1, new("a", "xyz"))

    there.send(CommitRequest(6, "a", 12))
    assert there.state.tables.lent(there.state.records.running("a"))[0][0].tolist() == [0, 0, 3, 4]
    assert there.free() == [5]
    there.send(PublishReply(1, 0, None))

    assert there.free() == [5, 2, 1]


# -- ids and limits ----------------------------------------------------------------------------------------------------


def test_a_request_number_names_one_request_at_a_time() -> None:
    """While it waits its number is taken; the second one is refused whole. Afterwards it is free again."""
    there = make_desk()
    there.ask(1, new("a", "x"))

    with pytest.raises(RequestError, match="request 1 waits"):
        there.ask(1, new("b", "x"))
    assert [result.sequence_id for result in admitted(there.answer(1, UNKNOWN))] == ["a"]

    assert there.admit_unknown(1, 2, new("b", "x")) == [3, 4]


def test_a_sequence_that_waits_exists() -> None:
    """In the round that runs or for the next one, until it is refused."""
    there = make_desk(blocks=5)
    there.ask(1, new("a", "xy"))
    there.ask(2, new("b", "xy"))

    for waiting in ("a", "b"):
        with pytest.raises(SequenceExists, match=f"'{waiting}' runs or waits already"):
            there.ask(3, new(waiting, "x"))
    there.answer(1, UNKNOWN)
    (reply,) = there.answer(2, UNKNOWN)
    assert isinstance(reply, AdmitReply)
    assert isinstance(reply.results[0], OutOfBlocks)

    there.send(ReleaseEvent("a"))
    assert there.admit_unknown(3, 3, new("b", "x")) == [1, 2]


def test_sequences_that_wait_count_towards_the_limit() -> None:
    """Two run or wait; a message with one more is refused, and fits when one has ended."""
    there = make_desk(limits=Limits(sequences_max=2))
    there.admit_unknown(1, 1, new("a", "x"))
    there.ask(2, new("b", "x"))

    with pytest.raises(Overloaded, match="2 sequences run or wait and 1 more were sent; sequences_max is 2"):
        there.ask(3, new("c", "x"))
    there.answer(2, UNKNOWN)
    there.send(ReleaseEvent("a"))

    assert there.admit_unknown(3, 3, new("c", "x")) == [1, 2]


# -- pins --------------------------------------------------------------------------------------------------------------


def test_a_pin_rides_in_a_round_and_holds_what_it_hits() -> None:
    """Its blocks are not free until it is given back; then they are as recently used as any."""
    there = make_desk(blocks=6)
    there.admit_unknown(1, 1, new("writer", "xyz"))
    there.publish("writer", 12)
    there.send(ReleaseEvent("writer"))
    assert there.send(PinRequest(2, "p", chain("xyu"))) == [
        GroupOutput(0, MatchRequest(2, (Prompt(chain("xyu"), 3),)), number=1)  # after one that changed the index
    ]

    with pytest.raises(PinExists, match="'p' stands or waits already"):
        there.send(PinRequest(3, "p", chain("x")))
    assert there.answer(2, [evidence(slots(1, 2))]) == [PinReply(2, 8)]
    assert there.free() == [4, 5, 3]
    assert [(kind, one, held.tolist()) for kind, one, held in there.state.holders(0)] == [("pin", "p", [2, 1])]
    assert there.send(UnpinEvent("p")) == []

    assert there.free() == [4, 5, 3, 2, 1]


def test_pins_that_wait_count_towards_the_limit() -> None:
    """The second one is refused while the first still waits for its round."""
    there = make_desk(limits=Limits(pins_max=1))
    there.send(PinRequest(1, "p", chain("x")))

    with pytest.raises(Overloaded, match="1 pins stand"):
        there.send(PinRequest(2, "q", chain("x")))

    assert there.answer(1, UNKNOWN) == [PinReply(1, 0)]
