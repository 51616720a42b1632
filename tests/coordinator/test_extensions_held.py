"""Copies of hits within a block: who holds what meanwhile, and when there is too little room or knowledge for one."""

from __future__ import annotations

import pytest

from kvtroupe.coordinator.config import GroupConfig
from kvtroupe.coordinator.errors import CommitError, OutOfBlocks, TransferFailed
from kvtroupe.coordinator.messages import (
    Admitted,
    BindEvent,
    Child,
    CommitRequest,
    Content,
    Evidence,
    ReleaseEvent,
    SequenceFailedEvent,
    TimerEvent,
)
from kvtroupe.coordinator.reference_partial import as_bytes
from tests.coordinator.extending import (
    CLOSE,
    CLOSER_NOT,
    FIRST,
    FULL,
    OTHER,
    TIER,
    digests_of,
    make,
    make_config,
    prompt,
)
from tests.coordinator.support import (
    DIGEST_BYTES,
    Desk,
    admitted,
    chain,
    listed,
    messages_to,
    numbers,
    slots,
    snapshot,
    tables,
    without_counters,
)


def test_the_source_is_held_until_the_copy_is_over() -> None:
    """Even if the reader has ended; then it is free cache again, in the place of one that was just used."""
    cluster = make()
    ((_, source),) = cluster.keep(FIRST, OTHER)
    cluster.silent.add(TIER)
    cluster.one(prompt("a", FIRST, CLOSE))
    cluster.send(ReleaseEvent("a"))

    assert cluster.uses(source) == [1]
    cluster.check()

    cluster.silent.clear()
    cluster.deliver()

    assert cluster.uses(source) == [0]
    assert listed(cluster.replica.free_order("device"))[-1] == source
    assert cluster.cached(FIRST, OTHER, (1,)) == 8


def test_requests_of_one_round_may_copy_from_the_same_block() -> None:
    """Three tokens for one, two for the other, each into its own block."""
    cluster = make()
    ((_, source),) = cluster.keep(FIRST, OTHER)
    cluster.silent.add(TIER)

    first, second = cluster.admit(prompt("a", FIRST, CLOSE), prompt("b", FIRST, CLOSER_NOT))

    assert isinstance(first, Admitted)
    assert isinstance(second, Admitted)
    assert (first.cached_tokens, second.cached_tokens) == (7, 6)
    own = [tables(first)[0][1], tables(second)[0][1]]
    asked = cluster.copies()
    assert [
        pair for sources, destinations, tokens in asked for pair in zip(sources, destinations, tokens, strict=True)
    ] == [
        (source, own[0], 3),
        (source, own[1], 2),
    ]
    assert cluster.uses(source) == [2]
    cluster.check()


def test_one_may_hit_whole_what_another_one_copies_from() -> None:
    """In one round; the copy does not stand in the way of the hit."""
    cluster = make()
    ((_, source),) = cluster.keep(FIRST, OTHER)
    cluster.silent.add(TIER)

    first, second = cluster.admit(prompt("a", FIRST, CLOSE), prompt("b", FIRST, OTHER, (1,)))

    assert isinstance(second, Admitted)
    assert (second.cached_tokens, second.reads_after) == (8, ())
    assert tables(second)[0][1] == source
    assert tables(first)[0][1] != source
    assert cluster.uses(source) == [2]


def test_the_block_is_published_when_it_is_complete_under_its_own_digest() -> None:
    """Of 6 tokens 5 are copied. At the commit of 8 the block is that of the prompt and the answer."""
    cluster = make()
    ((first, source),) = cluster.keep(FIRST, OTHER)
    result = cluster.one(prompt("a", FIRST, (5, 6), spare_blocks=1))
    assert result.cached_tokens == 5
    own = tables(result)[0][1]
    cluster.commit("a", 6)
    assert {slot for slot, _ in cluster.replica.published("full").values()} == {first, source}

    told = Content(as_bytes((0, 0)), 4)
    cluster.send(CommitRequest(50, "a", 8, digests_of((*FIRST, *CLOSER_NOT))[DIGEST_BYTES:], None, told))

    published = cluster.replica.published("full")
    assert published[digests_of((*FIRST, *CLOSER_NOT))[DIGEST_BYTES:]][0] == own
    assert published[digests_of((*FIRST, *OTHER))[DIGEST_BYTES:]][0] == source
    assert cluster.cached(FIRST, (5, 6, 0, 1)) == 7


def test_nothing_is_committed_before_the_copy_is_there() -> None:
    """What is computed from it would be wrong."""
    cluster = make()
    cluster.keep(FIRST, OTHER)
    cluster.silent.add(TIER)
    cluster.one(prompt("a", FIRST, CLOSE))

    with pytest.raises(CommitError, match="still bring what it reads"):
        cluster.commit("a", 8)


def test_a_copy_that_fails_undoes_its_reader() -> None:
    """The client admits again; the source is as it was, and nothing is held."""
    cluster = make()
    cluster.keep(FIRST, OTHER)
    free = cluster.replica.pool("device").ledger.free
    cluster.tiers[0, 0].failing = True

    cluster.one(prompt("a", FIRST, CLOSE))

    (failed,) = [one for one in cluster.events if isinstance(one, SequenceFailedEvent)]
    assert isinstance(failed.error, TransferFailed)
    assert (failed.sequence_id, failed.must_be_released) == ("a", False)
    assert cluster.replica.sequences() == []
    assert cluster.replica.pool("device").ledger.free == free
    cluster.check()


def test_a_copy_that_is_overdue_keeps_its_slots() -> None:
    """The reader fails at once; source and destination are in use until the tier actor has answered.

    The source is in use for the copy, and both are because it is overdue.
    """
    cluster = make()
    ((_, source),) = cluster.keep(FIRST, OTHER)
    free = cluster.replica.pool("device").ledger.free
    cluster.silent.add(TIER)
    own = tables(cluster.one(prompt("a", FIRST, CLOSE)))[0][1]

    cluster.now_s = 100.0
    cluster.send(TimerEvent())

    assert cluster.replica.sequences() == []
    assert cluster.uses(source, own) == [2, 1]
    cluster.check()

    cluster.silent.clear()
    cluster.deliver()

    assert cluster.replica.pool("device").ledger.free == free


def test_a_tier_actor_that_does_not_answer_is_not_asked_for_more_than_it_can_do() -> None:
    """It may have as many copies under way as the pool has slots, six. After those, hits end with blocks."""
    cluster = make(blocks=6)
    cluster.keep(FIRST)
    cluster.silent.add(TIER)

    hits = [cluster.cached((1, 2, 3, number)) for number in range(10, 18)]

    assert hits == [3, 3, 3, 3, 3, 3, 0, 0]
    cluster.check()


# -- when there is too little room -------------------------------------------------------------------------------------


def test_an_extension_is_dropped_if_its_source_is_needed() -> None:
    """Three slots, one with the source: a prompt of three blocks gets all of them, and one of two keeps the source."""
    cluster = make(blocks=4)
    cluster.keep(FIRST)

    assert cluster.cached((1, 2, 9, 9), (0, 0, 0, 0)) == 2
    cluster.check()
    assert cluster.cached((1, 2, 9, 9), (0, 0, 0, 0), (0,)) == 0
    cluster.check()
    assert cluster.replica.pool("device").ledger.free == 3


def test_who_does_not_fit_leaves_no_trace() -> None:
    """Neither of what it hit nor of what it would have copied from; the numbers are those without the copy."""
    cluster = make(blocks=8)
    cluster.keep(FIRST, OTHER)
    cluster.one(prompt("runs", (9, 9, 9, 9), (9,)))
    before = snapshot(cluster.replica)

    (result,) = cluster.admit(prompt("a", FIRST, CLOSE, *[(0, 0, 0, 0)] * 4))

    assert isinstance(result, OutOfBlocks)
    assert numbers(result) == (6, 5, 0, 0)
    assert without_counters(snapshot(cluster.replica)) == without_counters(before)


def test_nobody_is_refused_because_a_later_request_copies() -> None:
    """Of three slots the first request needs all; the second would copy from one of them, and has to wait."""
    cluster = make(blocks=4)
    cluster.keep(FIRST)

    first, second = cluster.admit(prompt("a", (9,) * 4, (9,) * 4, (9,)), prompt("b", (1, 2, 0)))

    assert isinstance(first, Admitted)
    assert numbers(second) == (1, 0, 0, 0)
    cluster.check()


def test_a_later_copy_stands_if_dropping_it_would_not_help() -> None:
    """The first request does not fit either way; the second is extended as if it were alone."""
    cluster = make(blocks=6)
    cluster.one(prompt("runs", (8,) * 4, (8,)))
    ((source,),) = cluster.keep(FIRST)
    cluster.silent.add(TIER)

    first, second = cluster.admit(prompt("a", (9,) * 4, (9,) * 4, (9,) * 4, (9,)), prompt("b", (1, 2, 0)))

    assert isinstance(first, OutOfBlocks)
    assert isinstance(second, Admitted)
    assert second.cached_tokens == 2
    assert cluster.uses(source) == [1]
    cluster.check()


def test_copies_of_one_round_have_room_together() -> None:
    """Four are under way of six that may be; of three prompts of the next round two are extended."""
    cluster = make(blocks=6)
    cluster.keep(FIRST)
    cluster.silent.add(TIER)
    hits = [cluster.cached((1, 2, 3, number)) for number in range(10, 14)]

    results = cluster.admit(*[prompt(str(number), (1, 2, number)) for number in range(20, 23)])

    assert hits == [3, 3, 3, 3]
    assert [one.cached_tokens for one in results if isinstance(one, Admitted)] == [2, 2, 0]


# -- answers of groups that are out of date ----------------------------------------------------------------------------


def _with_child(slot: int, generation: int, common_tokens: int = 3) -> Evidence:
    """Evidence of nothing but a block at the beginning that shares tokens."""
    child = Child(common_tokens, chain("x"), 0, slot, generation, leaf=True)
    return Evidence(0, slots(), slots(), 0, (), (child,))


def _desk_with_a_block(*groups: GroupConfig) -> tuple[Desk, list[int]]:
    """A coordinator with a published, free block in each group, and the slots of these."""
    desk = Desk(make_config(*groups))
    nothing = [(Evidence(0, slots(), slots(), 0),)] * len(desk.state.rules)
    desk.ask(1, prompt("kept", FIRST))
    (result,) = admitted(desk.answer(1, *nothing))
    desk.publish("kept", 4)
    desk.send(ReleaseEvent("kept"))
    return desk, [row[0] for row in tables(result)]


def test_a_source_that_was_evicted_after_the_answer_is_not_copied() -> None:
    """Its generation has passed: the hit is that without it, the group is told, and nothing is held."""
    desk, (slot, other) = _desk_with_a_block(FULL, GroupConfig(name="too"))
    free = desk.free()
    desk.ask(2, prompt("a", CLOSE))

    outputs = desk.answer(2, [_with_child(slot, 1)], [_with_child(other, 77)])

    (result,) = admitted(outputs)
    assert (result.cached_tokens, result.reads_after) == (0, ())
    (told,) = messages_to(1, outputs)
    assert isinstance(told, BindEvent)
    ((lost),) = told.lost
    assert lost.generations is not None
    assert (lost.level, listed(lost.slots), listed(lost.generations)) == (0, [other], [77])
    assert desk.free() == [one for one in free if one not in {row[0] for row in tables(result)}]
    assert desk.state.counters.stale_places == 1


def test_nothing_is_held_in_one_pool_if_the_source_in_another_is_gone() -> None:
    """The groups have a pool each. The second one's source has passed: the first one's stays free."""
    desk = Desk(make_config(FULL, GroupConfig(name="too", pool="other"), blocks=9))
    nothing = (Evidence(0, slots(), slots(), 0),)
    desk.ask(1, prompt("kept", FIRST))
    ((slot,), (other,)) = tables(admitted(desk.answer(1, nothing, nothing))[0])
    desk.publish("kept", 4)
    desk.send(ReleaseEvent("kept"))
    desk.ask(2, prompt("a", CLOSE))

    (result,) = admitted(desk.answer(2, [_with_child(slot, 1)], [_with_child(other, 77)]))

    assert result.cached_tokens == 0
    assert [pool.ledger.uses.item(slot) for pool in desk.state.pools] == [0, 0]
    assert [pool.ledger.free for pool in desk.state.pools] == [7, 7]


def test_a_source_that_is_still_there_is_copied() -> None:
    """The same, but for the generation."""
    desk, (slot, other) = _desk_with_a_block(FULL, GroupConfig(name="too"))
    desk.ask(2, prompt("a", CLOSE))

    (result,) = admitted(desk.answer(2, [_with_child(slot, 1)], [_with_child(other, 1)]))

    assert result.cached_tokens == 3


@pytest.mark.parametrize(("common_tokens", "cached_tokens"), [(4, 3), (3, 3), (1, 1), (0, 0), (-1, 0)])
def test_no_group_makes_a_hit_longer_than_the_prompt_or_a_block_allows(common_tokens: int, cached_tokens: int) -> None:
    """Of a block of four tokens at most three are copied, of a prompt of two at most one, whatever a group says."""
    desk, (slot,) = _desk_with_a_block()
    desk.ask(2, prompt("a", CLOSE, (1,)), prompt("b", (5, 6)))
    child = _with_child(slot, 1, common_tokens)

    (first, second) = admitted(desk.answer(2, [child, child]))

    assert (first.cached_tokens, second.cached_tokens) == (cached_tokens, min(cached_tokens, 1))


def test_a_group_that_does_not_answer_extends_nothing() -> None:
    """The round goes on without it."""
    desk, (slot, _) = _desk_with_a_block(FULL, GroupConfig(name="too"))
    desk.ask(2, prompt("a", CLOSE))
    desk.answer(2, [_with_child(slot, 1)])
    desk.now_s = 5.0

    outputs = desk.send(TimerEvent())

    assert [result.cached_tokens for result in admitted(outputs)] == [0]
