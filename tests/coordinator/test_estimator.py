"""Requests for estimates in the face for hosts: whose turn it is, and what is seen while groups are asked."""

from __future__ import annotations

from kvtroupe.coordinator.messages import (
    AdmitReply,
    Estimate,
    EstimateReply,
    EstimateRequest,
    GroupLostEvent,
    GroupOutput,
    GrowReply,
    GrowRequest,
    MatchRequest,
    NewSequence,
    Output,
)
from kvtroupe.coordinator.prefix_index import NOTHING_KNOWN
from tests.coordinator.clients import attached, cluster_of
from tests.coordinator.support import evidence, make_desk, new, replies, slots


def what_if(request_id: int, *sequences: NewSequence, running: tuple[str, ...] = ()) -> EstimateRequest:
    """Which of these would be admitted? None of them goes on after its prompt."""
    return EstimateRequest(request_id, running, sequences, (0,) * (len(running) + len(sequences)))


def prompts_asked(outputs: list[Output]) -> list[int]:
    """Of every question to a group, about how many prompts it is."""
    messages = [output.message for output in outputs if isinstance(output, GroupOutput)]
    return [len(message.prompts) for message in messages if isinstance(message, MatchRequest)]


def estimates(reply: object) -> list[Estimate]:
    """Of a reply none of whose sequences is too long."""
    assert isinstance(reply, EstimateReply)
    found = [one for one in reply.estimates if isinstance(one, Estimate)]
    assert len(found) == len(reply.estimates)
    return found


def test_running_sequences_are_answered_at_once_and_new_ones_when_groups_have_answered() -> None:
    """In one reply, the running ones first; the group is asked about the new ones only."""
    there = make_desk()
    there.admit_unknown(1, 1, new("a", "xy"))

    [at_once] = replies(there.send(what_if(2, running=("a",))))
    assert prompts_asked(there.send(what_if(3, new("b", "x"), new("c", "xy"), running=("a",)))) == [2]
    [later] = replies(there.answer(2, [evidence(slots(1)), evidence(slots(1, 2))]))

    assert [one.slots_now for one in estimates(at_once)] == [(0,)]
    assert [(one.hit_tokens, one.slots_now) for one in estimates(later)] == [(0, (0,)), (4, (1,)), (8, (1,))]
    assert later.request_id == 3


def test_an_empty_request_has_an_empty_reply() -> None:
    """Nothing has to be looked up."""
    assert make_desk().send(what_if(1)) == [EstimateReply(1, ())]


def test_estimates_and_admissions_take_turns() -> None:
    """Two requests for estimates and two admissions wait for a round: one after the other, estimates first."""
    there = make_desk()
    there.ask(1, new("a", "x"))
    for number in (2, 3):
        there.send(what_if(number, new("?", "x")))
    there.ask(4, new("b", "x"))

    answers = [there.answer(number, [NOTHING_KNOWN]) for number in range(1, 5)]

    assert [[one.request_id for one in replies(outputs)] for outputs in answers] == [[1], [2], [4], [3]]
    assert isinstance(replies(answers[2])[0], AdmitReply)


def test_growth_that_comes_while_groups_are_asked_has_its_slots_before_they_are_counted() -> None:
    """Of 20 slots 3 are taken, then one more: the new sequence is judged with 16 free."""
    there = make_desk()
    there.admit_unknown(1, 1, new("a", "xy"))
    there.send(what_if(2, NewSequence("b", 65)))
    assert there.send(GrowRequest(3, ("a",), 1)) == []

    grown, reply = replies(there.answer(2, [NOTHING_KNOWN]))

    assert isinstance(grown, GrowReply)
    [estimate] = estimates(reply)
    assert (estimate.free_slots, estimate.slots_now, estimate.fits_now) == ((16,), (17,), False)


def test_a_group_that_is_lost_costs_an_estimate_its_hits() -> None:
    """It is not waited for."""
    there = make_desk()
    there.send(what_if(1, new("a", "xy")))

    [reply] = replies(there.send(GroupLostEvent(0)))

    assert [(one.hit_tokens, one.slots_now) for one in estimates(reply)] == [(0, (3,))]


def test_a_client_of_a_session_asks_about_its_own_sequences_and_new_ones() -> None:
    """Of 8 slots its own sequence has three; it has 9 tokens in room for 12, and takes one more at 13."""
    client = attached(cluster_of(), "p", 1)
    client.admit(new("a", "ab"))

    reply = client.result(EstimateRequest(0, ("a",), (new("b", "abcd"), new("c", "x")), (4, 0, 0)))

    found = estimates(reply)
    assert [(one.slots_now, one.slots_to_end, one.fits_now) for one in found] == [
        ((0,), (1,), True),
        ((5,), (5,), True),
        ((2,), (2,), False),
    ]
