"""Hits that go on within a block: what is copied, who holds it meanwhile, and when it is not done.

Blocks have four tokens. A prompt is the tokens of its blocks; the digest of a block stands for its tokens and for all
before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.errors import CommitError, OutOfBlocks, TransferFailed
from kvtroupe.coordinator.messages import (
    Admitted,
    BindEvent,
    Child,
    CommitRequest,
    Content,
    CopyRequest,
    Evidence,
    GroupOutput,
    MatchRequest,
    MoveRequest,
    NewSequence,
    PublishRequest,
    ReleaseEvent,
    SequenceFailedEvent,
    TierOutput,
    TimerEvent,
)
from kvtroupe.coordinator.reference_partial import as_bytes
from tests.coordinator.cluster import Cluster
from tests.coordinator.support import (
    DIGEST_BYTES,
    Desk,
    admitted,
    chain,
    evidence,
    listed,
    messages_to,
    numbers,
    slots,
    snapshot,
    tables,
    without_counters,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

FULL = GroupConfig(name="full")
TIER = ("tier", 0, 0)

FIRST = (1, 2, 3, 4)
OTHER = (5, 6, 7, 8)
CLOSE = (5, 6, 7, 9)  # shares three tokens with OTHER
CLOSER_NOT = (5, 6, 0, 0)  # and this one two


def make_config(*groups: GroupConfig, blocks: int = 21, host_blocks: int = 0, partial_reuse: str = "copy") -> Config:
    """A replica that reuses parts of blocks."""
    pools: list[dict[str, object]] = [{"name": "device", "blocks": blocks}]
    if host_blocks:
        pools[0]["below"] = "host"
        pools.append({"name": "host", "tier": "host", "blocks": host_blocks})
    return Config.model_validate(
        {
            "namespace": "test",
            "block_tokens": 4,
            "digest_bytes": DIGEST_BYTES,
            "groups": groups or (FULL,),
            "pools": tuple(PoolConfig.model_validate(pool) for pool in pools),
            "partial_reuse": partial_reuse,
        }
    )


def digests_of(tokens: Sequence[int]) -> bytes:
    """Digests of the whole blocks of a prompt."""
    return chain([tokens[at : at + 4] for at in range(0, len(tokens) - 3, 4)])


def prompt(
    sequence_id: str, *blocks: tuple[int, ...], extras: tuple[bytes, ...] = (), spare_blocks: int = 0, beams: int = 1
) -> NewSequence:
    """A prompt of these tokens, whose content is told."""
    tokens = tuple(token for block in blocks for token in block)
    content = Content(as_bytes(tokens), 4, extras)
    return NewSequence(sequence_id, len(tokens), digests_of(tokens), spare_blocks, beams=beams, content=content)


class Replicas(Cluster):
    """A cluster whose groups are told tokens."""

    def keep(self, *blocks: tuple[int, ...], extras: tuple[bytes, ...] = ()) -> list[list[int]]:
        """Let a prompt run and end, so that its blocks stay as cache: its tables."""
        (result,) = self.admit(prompt("kept", *blocks, extras=extras))
        self.commit("kept", 4 * len(blocks))
        self.send(ReleaseEvent("kept"))
        return tables(result)

    def cached(self, *blocks: tuple[int, ...], extras: tuple[bytes, ...] = ()) -> int:
        """How many tokens of a prompt are hit; it ends at once."""
        (result,) = self.admit(prompt("probe", *blocks, extras=extras))
        self.send(ReleaseEvent("probe"))
        assert isinstance(result, Admitted)
        return result.cached_tokens

    def one(self, new: NewSequence) -> Admitted:
        """Admit one that must fit."""
        (result,) = self.admit(new)
        assert isinstance(result, Admitted), result
        return result

    def copies(self) -> list[tuple[list[int], list[int], list[int]]]:
        """What the device's tier actor is asked to copy: sources, destinations, tokens of each."""
        asked = []
        for output in self.inbox(TIER):
            assert isinstance(output, TierOutput)
            assert isinstance(output.message, CopyRequest)
            copies = output.message.copies
            assert copies.tokens is not None
            asked.append((listed(copies.sources), listed(copies.destinations), listed(copies.tokens)))
        return asked

    def uses(self, *of: int) -> list[int]:
        """How many holders slots of the device have."""
        return [self.replica.pool("device").ledger.uses.item(slot) for slot in of]


def make(*groups: GroupConfig, blocks: int = 21, host_blocks: int = 0) -> Replicas:
    """A cluster of these groups."""
    return Replicas(make_config(*groups, blocks=blocks, host_blocks=host_blocks))


# -- how long the hit is -----------------------------------------------------------------------------------------------


def test_the_block_that_shares_the_most_tokens_is_copied() -> None:
    """After the first block two others follow, which share two and three tokens with the prompt."""
    cluster = make()
    cluster.keep(FIRST, CLOSER_NOT)
    ((_, source),) = cluster.keep(FIRST, OTHER)
    cluster.silent.add(TIER)

    result = cluster.one(prompt("a", FIRST, CLOSE, (1,)))

    ((first, private, last),) = tables(result)
    assert (result.cached_tokens, first) == (7, 1)
    assert private not in (source, last)
    assert cluster.copies() == [([source], [private], [3])]
    assert len(result.reads_after) == 1
    assert cluster.replica.counters().partial_hits == 2  # the second one that was kept had two tokens of the first


def test_the_first_block_may_be_copied_in_part() -> None:
    """The path of the prompt ends where it begins."""
    cluster = make()
    cluster.keep(FIRST)

    assert cluster.cached((1, 2, 9, 9), (1,)) == 2


def test_the_last_token_is_always_computed() -> None:
    """The kept prompt itself again: of its last block all tokens but one. With a token more it is hit whole."""
    cluster = make()
    cluster.keep(FIRST, OTHER)

    assert cluster.cached(FIRST, OTHER) == 7
    assert cluster.cached(FIRST, OTHER, (1,)) == 8
    assert cluster.cached(FIRST, (5,)) == 4
    assert cluster.cached(FIRST, (5, 5)) == 5
    assert cluster.cached((1,)) == 0


def test_a_block_that_is_equal_under_another_digest_is_not_hit_whole() -> None:
    """A prompt that tells no digests hits a block's first tokens, but never all of it."""
    cluster = make()
    cluster.keep(FIRST)
    new = NewSequence("a", 6, b"", content=Content(as_bytes((*FIRST, 9, 9)), 4))

    assert cluster.one(new).cached_tokens == 3


def test_other_extras_are_another_block() -> None:
    """A block with an image is not copied for a prompt without it, and the other way round."""
    cluster = make()
    cluster.keep(FIRST, OTHER, extras=(b"", b"image"))

    assert cluster.cached(FIRST, CLOSE) == 4
    assert cluster.cached(FIRST, CLOSE, extras=(b"", b"another")) == 4
    assert cluster.cached(FIRST, CLOSE, extras=(b"", b"image")) == 7


def test_what_nobody_told_the_tokens_of_is_hit_whole_or_not_at_all() -> None:
    """Neither a prompt nor a cached block without content takes part."""
    cluster = make()
    cluster.one(NewSequence("silent", 8, digests_of((*FIRST, *OTHER))))
    cluster.commit("silent", 8)
    cluster.keep((7, 7, 7, 7))

    assert cluster.cached(FIRST, CLOSE) == 4
    assert cluster.one(NewSequence("b", 4, digests_of((7, 7, 7, 0)))).cached_tokens == 0


def test_every_group_has_to_have_the_block() -> None:
    """The second group has lost it; then it has another one, with fewer tokens in common, that the first has not."""
    cluster = make(FULL, GroupConfig(name="too"))
    ((_, first), (_, second)) = cluster.keep(FIRST, OTHER)
    assert cluster.cached(FIRST, CLOSE) == 7

    _forget(cluster, 1, second)
    assert cluster.cached(FIRST, CLOSE) == 4

    ((_, other), _) = cluster.keep(FIRST, CLOSER_NOT)
    assert cluster.cached(FIRST, CLOSE) == 6

    _forget(cluster, 0, other)
    assert cluster.cached(FIRST, CLOSE) == 4
    assert cluster.uses(first, second, other) == [0, 0, 0]


def _forget(cluster: Replicas, group: int, slot: int) -> None:
    """A published block of one group is gone."""
    cluster.replica.pool("device").ledger.unpublish(slots(slot))
    cluster.replica.groups[group].handle(BindEvent(slots(slot)))


def test_the_path_has_to_end_with_the_hit_in_every_group() -> None:
    """The first group knows the prompt's second block, the second does not: what follows the first is of no use."""
    cluster = make(FULL, GroupConfig(name="too"))
    (_, (_, gone)) = cluster.keep(FIRST, OTHER)
    cluster.keep(FIRST, CLOSE)
    _forget(cluster, 1, gone)

    assert cluster.cached(FIRST, OTHER, (1,)) == 4


def test_what_is_only_below_the_device_is_not_copied_in_part() -> None:
    """It is hit whole from there, though."""
    cluster = make(host_blocks=21)
    ((_, gone),) = cluster.keep(FIRST, OTHER)
    cluster.send(MoveRequest(1, digests_of((*FIRST, *OTHER)), 1))
    _forget(cluster, 0, gone)

    assert cluster.cached(FIRST, CLOSE) == 4
    assert cluster.cached(FIRST, OTHER, (1,)) == 8


def test_a_window_that_has_left_a_block_behind_gives_it_back() -> None:
    """A window of four: the 5th token sees the 2nd to 4th, the 8th only its own block. The first block is not held."""
    cluster = make(GroupConfig(name="sliding", kind="sliding", window_tokens=4))
    ((first, _),) = cluster.keep(FIRST, OTHER)

    result = cluster.one(prompt("a", FIRST, CLOSE))

    assert result.cached_tokens == 7
    assert tables(result)[0][0] == 0
    assert cluster.uses(first) == [0]
    cluster.check()


def test_groups_without_a_say_have_none() -> None:
    """Fixed blocks and encoder blocks are as they always were."""
    cluster = make(FULL, GroupConfig(name="ring", kind="fixed", blocks=2), GroupConfig(name="cross", kind="cross"))
    cluster.keep(FIRST, OTHER)
    cluster.silent.add(TIER)

    result = cluster.one(prompt("a", FIRST, CLOSE))

    assert result.cached_tokens == 7
    assert [len(sources) for sources, _, _ in cluster.copies()] == [1]


def test_every_beam_gets_a_copy() -> None:
    """The block that the prompt fills is shared by the beams, the one that it only begins is not."""
    cluster = make()
    ((_, source),) = cluster.keep(FIRST, OTHER)
    cluster.silent.add(TIER)

    shared = cluster.one(prompt("shared", FIRST, CLOSE, beams=2))
    begun = cluster.one(prompt("begun", FIRST, (5, 6, 0), beams=2))

    ((_, one),) = {tuple(row) for row in shared.tables[0].tolist()}
    (_, first), (_, second) = begun.tables[0].tolist()
    assert cluster.copies() == [([source], [one], [3]), ([source, source], [first, second], [2, 2])]
    assert cluster.uses(source) == [2]


# -- what is held ------------------------------------------------------------------------------------------------------


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
    """The reader fails at once; source and destination are in use until the tier actor has answered."""
    cluster = make()
    ((_, source),) = cluster.keep(FIRST, OTHER)
    free = cluster.replica.pool("device").ledger.free
    cluster.silent.add(TIER)
    own = tables(cluster.one(prompt("a", FIRST, CLOSE)))[0][1]

    cluster.now_s = 100.0
    cluster.send(TimerEvent())

    assert cluster.replica.sequences() == []
    assert cluster.uses(source, own) == [1, 1]
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
    config = make_config(FULL, GroupConfig(name="too", pool="other"))
    both = tuple(PoolConfig(name=name, blocks=9) for name in ("device", "other"))
    desk = Desk(Config.model_validate({**dict(config), "pools": both}))
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


def test_copies_of_one_round_have_room_together() -> None:
    """Four are under way of six that may be; of three prompts of the next round two are extended."""
    cluster = make(blocks=6)
    cluster.keep(FIRST)
    cluster.silent.add(TIER)
    hits = [cluster.cached((1, 2, 3, number)) for number in range(10, 14)]

    results = cluster.admit(*[prompt(str(number), (1, 2, number)) for number in range(20, 23)])

    assert hits == [3, 3, 3, 3]
    assert [one.cached_tokens for one in results if isinstance(one, Admitted)] == [2, 2, 0]


def test_a_source_that_is_still_there_is_copied() -> None:
    """The same, but for the generation."""
    desk, (slot, other) = _desk_with_a_block(FULL, GroupConfig(name="too"))
    desk.ask(2, prompt("a", CLOSE))

    (result,) = admitted(desk.answer(2, [_with_child(slot, 1)], [_with_child(other, 1)]))

    assert result.cached_tokens == 3


def test_a_group_that_does_not_answer_extends_nothing() -> None:
    """The round goes on without it."""
    desk, (slot, _) = _desk_with_a_block(FULL, GroupConfig(name="too"))
    desk.ask(2, prompt("a", CLOSE))
    desk.answer(2, [_with_child(slot, 1)])
    desk.now_s = 5.0

    outputs = desk.send(TimerEvent())

    assert [result.cached_tokens for result in admitted(outputs)] == [0]


# -- messages ----------------------------------------------------------------------------------------------------------


def test_where_blocks_are_not_reused_in_part_no_message_grows() -> None:
    """Content is not looked at, not even if it makes no sense, and goes nowhere."""
    desk = Desk(make_config(partial_reuse="off"))
    new = NewSequence("a", 8, digests_of((*FIRST, *OTHER)), content=Content(b"torn", 3))

    ((asked,),) = [messages_to(0, desk.ask(1, new))]
    desk.answer(1, [evidence(slots())])
    outputs = desk.send(CommitRequest(2, "a", 8, content=Content(b"torn", 3)))

    assert isinstance(asked, MatchRequest)
    assert [one.content for one in asked.prompts] == [None]
    ((offered,),) = [messages_to(0, outputs)]
    assert isinstance(offered, PublishRequest)
    assert offered.content is None
    assert desk.state.records.running("a").content is None


def test_groups_are_asked_without_the_last_token_and_told_of_what_is_published() -> None:
    """Extras go with their blocks; an answer's content is joined with that of the prompt."""
    desk = Desk(make_config())

    ((asked,),) = [messages_to(0, desk.ask(1, prompt("a", FIRST, (5, 6), extras=(b"x", b"y"))))]
    desk.answer(1, [evidence(slots())])
    first = desk.send(CommitRequest(2, "a", 6))
    told = Content(as_bytes((7, 8)), 4, (b"z",))
    second = desk.send(CommitRequest(3, "a", 8, digests_of((*FIRST, *OTHER))[DIGEST_BYTES:], None, told))

    assert isinstance(asked, MatchRequest)
    assert asked.prompts[0].content == Content(as_bytes((*FIRST, 5)), 4, (b"x", b"y"))
    contents = [
        one.message.content
        for one in (*first, *second)
        if isinstance(one, GroupOutput)
        if isinstance(one.message, PublishRequest)
    ]
    assert contents == [Content(as_bytes(FIRST), 4, (b"x",)), Content(as_bytes(OTHER), 4, (b"z",))]
