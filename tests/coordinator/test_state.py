"""The coordinator as a host sees it: messages in, outputs out; the tests answer for the groups."""

from __future__ import annotations

import itertools

import pytest

from kvtroupe.coordinator.config import Limits
from kvtroupe.coordinator.errors import (
    SequenceTooLong,
    UnknownSequence,
)
from kvtroupe.coordinator.messages import (
    AdmitReply,
    Admitted,
    BindEvent,
    GroupOutput,
    GrowReply,
    GrowRequest,
    MatchReply,
    MatchRequest,
    NewSequence,
    Prompt,
    ReleaseEvent,
    TimerEvent,
)
from kvtroupe.coordinator.prefix_index import NOTHING_KNOWN
from tests.coordinator.support import (
    Desk,
    admitted,
    chain,
    evidence,
    make_config,
    make_desk,
    messages_to,
    new,
    replies,
    slots,
)

UNKNOWN = (NOTHING_KNOWN,)


# -- a round -----------------------------------------------------------------------------------------------------------


def test_an_admission_asks_every_group_for_every_prompt() -> None:
    """Each group gets all prompts in one message; the last token of a prompt is never part of a hit."""
    there = make_desk("full", "sliding:8")

    outputs = there.ask(5, new("a", "xyz", extra_tokens=0), new("b", "uv", extra_tokens=1))

    prompts = (Prompt(chain("xyz"), 2), Prompt(chain("uv"), 2))
    assert outputs == [GroupOutput(0, MatchRequest(1, prompts)), GroupOutput(1, MatchRequest(1, prompts))]
    assert there.state.records.sequences == {}


def test_only_digests_at_the_ends_of_blocks_are_looked_up() -> None:
    """With two hash blocks to a block, groups see every other digest."""
    there = Desk(make_config("full", digests_per_block=2))

    outputs = there.ask(1, NewSequence("a", 13, chain("abcdef")))

    ends = b"".join(chain("abcdef")[at : at + 8] for at in (8, 24, 40))
    assert messages_to(0, outputs) == [MatchRequest(1, (Prompt(ends, 3),))]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_groups_may_answer_in_any_order(order: tuple[int, ...]) -> None:
    """The round ends with the last answer and gives the same result."""
    there = make_desk("full", "full", "sliding:5")
    there.ask(1, new("writer", "xyz"))
    there.answer(1, UNKNOWN, UNKNOWN, UNKNOWN)
    there.publish("writer", 12)
    answers = [(evidence(slots(1, 2, 3)),), (evidence(slots(5, 6, 7)),), (evidence(slots(9, 10, 11)),)]
    there.ask(2, new("reader", "xyz"))

    assert there.send(MatchReply(2, order[0], answers[order[0]])) == []
    assert there.send(MatchReply(2, order[1], answers[order[1]])) == []
    (result,) = admitted(there.send(MatchReply(2, order[2], answers[order[2]])))

    assert result.cached_tokens == 12
    assert [table.tolist() for table in result.tables] == [[1, 2, 3, 13], [5, 6, 7, 14], [0, 0, 11, 15]]


def test_a_group_that_answers_twice_counts_once() -> None:
    """The round still waits for the other."""
    there = make_desk("full", "full")
    there.ask(1, new("a", "x"))

    assert there.send(MatchReply(1, 0, UNKNOWN)) == []
    assert there.send(MatchReply(1, 0, UNKNOWN)) == []

    assert len(admitted(there.send(MatchReply(1, 1, UNKNOWN)))) == 1


def test_requests_that_arrive_during_a_round_ride_together_in_the_next() -> None:
    """Their groups are asked after the first round has been answered."""
    there = make_desk()
    there.ask(1, new("a", "x"))

    assert there.ask(2, new("b", "y")) == []
    assert there.ask(3, new("c", "z")) == []
    outputs = there.answer(1, UNKNOWN)

    assert [result.sequence_id for result in admitted(outputs[:1])] == ["a"]
    assert outputs[1:] == [GroupOutput(0, MatchRequest(2, (Prompt(chain("y"), 1), Prompt(chain("z"), 1))))]
    last = there.answer(2, [NOTHING_KNOWN, NOTHING_KNOWN])
    assert [reply.request_id for reply in replies(last)] == [2, 3]


def test_a_group_hears_what_it_lost_before_it_is_asked_again() -> None:
    """Else its next answer would name blocks that are gone."""
    there = make_desk(blocks=5)
    there.admit_unknown(1, 1, new("writer", "xyz"))
    there.publish("writer", 12)
    there.send(ReleaseEvent("writer"))  # free: slot 4, then 3, 2, 1 with what is published in them
    there.ask(2, new("a", "uv"))
    there.ask(3, new("b", "w", extra_tokens=0))

    outputs = there.answer(2, UNKNOWN)

    bind, ask = messages_to(0, outputs)
    assert isinstance(bind, BindEvent)
    assert bind.evicted.tolist() == [3, 2]
    assert bind.lost == ()
    assert isinstance(ask, MatchRequest)
    assert there.state.counters.evictions == 2


def test_sequences_of_one_message_may_need_several_rounds_and_get_one_answer() -> None:
    """In the order of the message."""
    there = make_desk(limits=Limits(round_blocks_max=4))
    there.ask(1, new("a", "xy"), new("b", "z"), new("c", "u"))

    second = there.answer(1, UNKNOWN)  # a: three blocks
    assert second == [GroupOutput(0, MatchRequest(2, (Prompt(chain("z"), 1), Prompt(chain("u"), 1))))]
    results = admitted(there.answer(2, [NOTHING_KNOWN, NOTHING_KNOWN]))

    assert [result.sequence_id for result in results] == ["a", "b", "c"]
    assert [result.tables[0].tolist() for result in results] == [[1, 2, 3], [4, 5], [6, 7]]


def test_a_message_that_admits_nobody_is_answered_at_once() -> None:
    """An empty batch is a batch."""
    there = make_desk()

    assert there.ask(1) == [AdmitReply(1, ())]


def test_what_can_never_fit_is_refused_at_once_in_its_place() -> None:
    """No round for it alone; others of its message are looked up as if it was not there."""
    there = make_desk(blocks=5)

    (reply,) = there.ask(1, new("huge", "abcdefgh"))
    assert isinstance(reply, AdmitReply)
    assert isinstance(reply.results[0], SequenceTooLong)
    asked = there.ask(2, new("a", "x"), new("huge", "abcdefgh"), new("b", "y"))
    assert asked == [GroupOutput(0, MatchRequest(1, (Prompt(chain("x"), 1), Prompt(chain("y"), 1))))]
    (answer,) = there.answer(1, [NOTHING_KNOWN, NOTHING_KNOWN])

    assert isinstance(answer, AdmitReply)
    assert [type(result) for result in answer.results] == [Admitted, SequenceTooLong, Admitted]
    assert there.state.counters.refused == 2


def test_a_release_during_a_round_makes_room_for_it() -> None:
    """Slots are counted when the round is settled."""
    there = make_desk(blocks=5)
    there.admit_unknown(1, 1, new("old", "xyz"))
    there.ask(2, new("young", "uvw"))

    there.send(ReleaseEvent("old"))

    (result,) = admitted(there.answer(2, UNKNOWN))
    assert result.tables[0].tolist() == [1, 2, 3, 4]


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_a_round_goes_on_without_a_group_that_misses_its_deadline() -> None:
    """The silent group costs the round its hits, nothing else."""
    there = make_desk("full", "full", limits=Limits(match_deadline_s=2.0))
    there.admit_unknown(1, 1, new("writer", "x"))
    there.publish("writer", 4)
    there.now_s = 10.0
    there.ask(2, new("reader", "x"))
    there.send(MatchReply(2, 0, (evidence(slots(1)),)))

    there.now_s = 11.9
    assert there.send(TimerEvent()) == []
    there.now_s = 12.0
    (result,) = admitted(there.send(TimerEvent()))

    assert result.cached_tokens == 0
    assert [table.tolist() for table in result.tables] == [[5, 6], [7, 8]]


def test_a_silent_group_that_needs_nothing_costs_no_hit() -> None:
    """A window of one token serves every length, whatever its index knows."""
    there = make_desk("full", "sliding:1")
    there.admit_unknown(1, 1, new("writer", "x"))
    there.publish("writer", 4)
    there.ask(2, new("reader", "x"))
    there.send(MatchReply(2, 0, (evidence(slots(1)),)))

    there.now_s = 1.0
    (result,) = admitted(there.send(TimerEvent()))

    assert result.cached_tokens == 4
    assert [table.tolist() for table in result.tables] == [[1, 5], [0, 6]]


def test_an_answer_to_an_old_round_is_dropped_and_counted() -> None:
    """It does not count as an answer to the round that runs."""
    there = make_desk("full", "full")
    there.ask(1, new("a", "x"))
    there.ask(2, new("b", "x"))
    there.send(MatchReply(1, 0, UNKNOWN))
    there.now_s = 1.0
    there.send(TimerEvent())  # round 1 is over, round 2 runs

    assert there.send(MatchReply(1, 1, UNKNOWN)) == []
    assert there.send(MatchReply(2, 0, UNKNOWN)) == []
    assert there.state.counters.late_answers == 1
    assert [result.sequence_id for result in admitted(there.send(MatchReply(2, 1, UNKNOWN)))] == ["b"]
    assert there.send(MatchReply(2, 1, UNKNOWN)) == []

    assert there.state.counters.late_answers == 2


def test_each_round_has_its_own_deadline() -> None:
    """The time of a round begins when its groups are asked."""
    there = make_desk(limits=Limits(match_deadline_s=2.0))
    there.ask(1, new("a", "x"))
    there.ask(2, new("b", "x"))
    there.now_s = 2.0
    assert len(admitted(there.send(TimerEvent()))) == 1

    there.now_s = 3.9
    assert there.send(TimerEvent()) == []
    there.now_s = 4.0
    assert len(admitted(there.send(TimerEvent()))) == 1


def test_a_timer_without_a_round_says_nothing() -> None:
    """Only priorities may expire."""
    assert make_desk().send(TimerEvent()) == []


# -- growth ------------------------------------------------------------------------------------------------------------


def test_growth_needs_no_round() -> None:
    """Without one it is answered at once: for each group slots [sequences, blocks]."""
    there = make_desk("full", "full")
    there.admit_unknown(1, 1, new("a", "x"))
    there.admit_unknown(2, 2, new("b", "x"))

    (reply,) = there.send(GrowRequest(7, ("b", "a"), 2))

    assert isinstance(reply, GrowReply)
    assert (reply.request_id, reply.refused) == (7, (None, None))
    assert [one.tolist() for one in reply.slots] == [[[9, 10], [13, 14]], [[11, 12], [15, 16]]]
    its_tables, _ = there.state.tables.lent(there.state.records.running("b"))
    assert [table.tolist() for table in its_tables] == [[5, 6, 9, 10], [7, 8, 11, 12]]


def test_growth_during_a_round_is_settled_with_it_and_comes_first() -> None:
    """It is answered when the round is, and takes its slots before any of the new sequences."""
    there = make_desk()
    there.admit_unknown(1, 1, new("old", "x"))
    there.admit_unknown(2, 2, new("older", "x"))
    there.ask(3, new("young", "yz"))

    assert there.send(GrowRequest(4, ("old",), 1)) == []
    assert there.send(GrowRequest(5, ("older",), 2)) == []
    outputs = there.answer(3, UNKNOWN)

    assert [type(reply) for reply in replies(outputs)] == [GrowReply, GrowReply, AdmitReply]
    assert there.state.tables.lent(there.state.records.running("old"))[0][0].tolist() == [1, 2, 5]
    assert there.state.tables.lent(there.state.records.running("older"))[0][0].tolist() == [3, 4, 6, 7]
    assert admitted(outputs)[0].tables[0].tolist() == [8, 9, 10]


def test_a_sequence_that_grows_again_in_a_round_is_judged_by_what_it_has_got() -> None:
    """Its second growth is settled after the first, so that both together cannot pass the limit on its length."""
    there = make_desk(limits=Limits(sequence_tokens_max=16))
    there.admit_unknown(1, 1, new("old", "x"))
    there.ask(2, new("young", "yz"))
    there.send(GrowRequest(3, ("old",), 1))
    there.send(GrowRequest(4, ("old",), 2))
    room = there.state.records.running("old").capacity_tokens

    first, _, second = replies(there.answer(2, UNKNOWN))

    assert isinstance(first, GrowReply)
    assert isinstance(second, GrowReply)
    assert first.refused == (None,)
    assert isinstance(second.refused[0], SequenceTooLong)
    assert there.state.records.running("old").capacity_tokens == room + 4


def test_a_sequence_released_while_its_growth_waits_gets_nothing() -> None:
    """The others of the message get their blocks; the answer says who was gone."""
    there = make_desk()
    there.admit_unknown(1, 1, new("a", "x"))
    there.admit_unknown(2, 2, new("b", "x"))
    there.ask(3, new("c", "x"))
    there.send(GrowRequest(4, ("a", "b"), 1))

    there.send(ReleaseEvent("a"))
    outputs = there.answer(3, UNKNOWN)

    grown = replies(outputs)[0]
    assert isinstance(grown, GrowReply)
    assert isinstance(grown.refused[0], UnknownSequence)
    assert grown.refused[1] is None
    assert [one.tolist() for one in grown.slots] == [[[1]]]  # of a: 2 was freed first, 1 is on top
    assert admitted(outputs)[0].tables[0].tolist() == [2, 5]
    assert (there.state.counters.grown, there.state.counters.growth_refused) == (1, 1)
