"""Rounds whose evidence is out of date, or missing: it costs hits, and nothing else."""

from __future__ import annotations

from kvtroupe.coordinator.messages import (
    AdmitReply,
    Admitted,
    BindEvent,
    Evidence,
    MatchReply,
)
from kvtroupe.coordinator.prefix_index import NOTHING_KNOWN
from tests.coordinator.support import (
    Desk,
    evidence,
    listed,
    make_config,
    make_desk,
    messages_to,
    new,
    replies,
    slots,
    tables,
)


def desk_with_chain(*groups: str) -> Desk:
    """A running sequence has published x, y and z: in slots 1 to 3 of group 0, 5 to 7 of group 1, generation 1."""
    desk = make_desk(*groups)
    desk.admit_unknown(1, 1, new("writer", "xyz"))
    desk.publish("writer", 12)
    return desk


def stale_at(block: int, found: Evidence, generation: int = 0) -> Evidence:
    """The same, but a block is named under a generation that has passed."""
    generations = found.generations.copy()
    generations[block] = generation
    return Evidence(found.present, found.slots, generations, found.path_blocks)


def test_a_stale_place_is_judged_again_without_that_block() -> None:
    """The hit ends before it; it is counted, and the group is told."""
    desk = desk_with_chain("full", "full")
    desk.ask(3, new("reader", "xyz"))

    outputs = desk.answer(2, [evidence(slots(1, 2, 3))], [stale_at(1, evidence(slots(5, 6, 7)))])

    (reply,) = replies(outputs)
    assert isinstance(reply, AdmitReply)
    assert tables(reply.results[0]) == [[1, 9, 10, 11], [5, 12, 13, 14]]
    assert messages_to(0, outputs) == []
    (told,) = messages_to(1, outputs)
    assert isinstance(told, BindEvent)
    assert lost_places(told) == [(6, 0)]
    assert told.evicted.tolist() == []
    assert desk.state.counters.stale_places == 1
    # The writer uses 1 to 8; the reader shares 1 and 5 with it.
    assert desk.state.pools[0].ledger.uses[:16].tolist() == [1, 2, 1, 1, 1, 2, 1, 1, 1] + [1] * 6 + [0]


def test_a_stale_place_of_one_pool_undoes_the_claim_in_another() -> None:
    """The first pool was claimed whole before the second one turned out to be behind."""
    desk = Desk(make_config("full@a", "full@b", blocks={"a": 21, "b": 21}))
    desk.admit_unknown(1, 1, new("writer", "xyz"))
    desk.publish("writer", 12)
    desk.ask(3, new("reader", "xyz"))

    (reply,) = replies(desk.answer(2, [evidence(slots(1, 2, 3))], [stale_at(1, evidence(slots(1, 2, 3)))]))

    assert isinstance(reply, AdmitReply)
    assert tables(reply.results[0]) == [[1, 5, 6, 7], [1, 5, 6, 7]]
    for pool in desk.state.pools:
        assert pool.ledger.uses[:9].tolist() == [1, 2, 1, 1, 1, 1, 1, 1, 0]


def test_a_window_may_serve_a_longer_length_than_the_stale_place() -> None:
    """The length of three blocks needs only the last one; the stale first one is not even looked at."""
    desk = desk_with_chain("sliding:5")
    desk.ask(3, new("reader", "xyz"))

    (reply,) = replies(desk.answer(2, [stale_at(0, evidence(slots(1, 2, 3)))]))

    assert isinstance(reply, AdmitReply)
    assert tables(reply.results[0]) == [[0, 0, 3, 5]]
    assert desk.state.counters.stale_places == 0


def test_every_stale_place_is_found_one_after_the_other() -> None:
    """Two of three in the way: each costs another look, none is claimed, and each is told once."""
    desk = desk_with_chain("sliding:5")
    uses = desk.state.pools[0].ledger.uses.tolist()
    desk.ask(3, new("a", "xyz"), new("b", "xyz"))
    found = stale_at(2, stale_at(1, evidence(slots(1, 2, 3)), generation=7))

    outputs = desk.answer(2, [found, found])

    (reply,) = replies(outputs)
    assert isinstance(reply, AdmitReply)
    assert [tables(result) for result in reply.results] == [[[1, 5, 6, 7]], [[1, 8, 9, 10]]]
    (told,) = messages_to(0, outputs)
    assert isinstance(told, BindEvent)
    assert lost_places(told) == [(3, 0), (2, 7)]
    assert desk.state.counters.stale_places == 2
    uses[1] += 2
    assert desk.state.pools[0].ledger.uses.tolist() == uses[:5] + [1] * 6 + uses[11:]


def test_a_stale_place_costs_a_hit_and_nothing_else() -> None:
    """When nothing at all can be claimed, the prompt is computed from its first token."""
    desk = desk_with_chain("full", "sliding:5")
    free = desk.free()
    desk.ask(3, new("reader", "xyz"))

    outputs = desk.answer(2, [stale_at(0, evidence(slots(1, 2, 3)))], [evidence(slots(5, 6, 7))])

    (reply,) = replies(outputs)
    assert isinstance(reply, AdmitReply)
    assert tables(reply.results[0]) == [free[:4], free[4:8]]
    assert desk.free() == free[8:]


def test_an_answer_of_a_group_is_not_an_answer_of_another() -> None:
    """Evidence that one group gives for a prompt never stands in for that of a silent one."""
    desk = desk_with_chain("full", "full")
    desk.ask(3, new("reader", "xyz"))

    assert desk.send(MatchReply(2, 1, (evidence(slots(5, 6, 7)),))) == []
    (reply,) = replies(desk.send(MatchReply(2, 0, (NOTHING_KNOWN,))))

    assert isinstance(reply, AdmitReply)
    assert isinstance(reply.results[0], Admitted)
    assert reply.results[0].cached_tokens == 0


def lost_places(told: BindEvent) -> list[tuple[int, int]]:
    """The slots and generations of the only loss that a group is told of."""
    (lost,) = told.lost
    assert lost.level == 0
    assert lost.generations is not None
    return list(zip(listed(lost.slots), listed(lost.generations), strict=True))
