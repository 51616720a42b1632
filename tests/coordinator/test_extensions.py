"""How long hits are that go on within a block, and what is copied for them."""

from __future__ import annotations

from kvtroupe.coordinator.config import GroupConfig
from kvtroupe.coordinator.messages import (
    CommitRequest,
    Content,
    GroupOutput,
    MatchRequest,
    MoveRequest,
    NewSequence,
    PublishRequest,
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
    forget,
    make,
    make_config,
    prompt,
)
from tests.coordinator.support import (
    DIGEST_BYTES,
    Desk,
    evidence,
    messages_to,
    slots,
    tables,
)


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

    forget(cluster, 1, second)
    assert cluster.cached(FIRST, CLOSE) == 4

    ((_, other), _) = cluster.keep(FIRST, CLOSER_NOT)
    assert cluster.cached(FIRST, CLOSE) == 6

    forget(cluster, 0, other)
    assert cluster.cached(FIRST, CLOSE) == 4
    assert cluster.uses(first, second, other) == [0, 0, 0]


def test_the_path_has_to_end_with_the_hit_in_every_group() -> None:
    """The first group knows the prompt's second block, the second does not: what follows the first is of no use."""
    cluster = make(FULL, GroupConfig(name="too"))
    (_, (_, gone)) = cluster.keep(FIRST, OTHER)
    cluster.keep(FIRST, CLOSE)
    forget(cluster, 1, gone)

    assert cluster.cached(FIRST, OTHER, (1,)) == 4


def test_what_is_only_below_the_device_is_not_copied_in_part() -> None:
    """It is hit whole from there, though."""
    cluster = make(host_blocks=21)
    ((_, gone),) = cluster.keep(FIRST, OTHER)
    cluster.send(MoveRequest(1, digests_of((*FIRST, *OTHER)), 1))
    forget(cluster, 0, gone)

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
