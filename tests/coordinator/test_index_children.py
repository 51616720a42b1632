"""Which blocks a group names that share leading tokens with a prompt at the end of its path."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvtroupe.coordinator import index_children
from kvtroupe.coordinator.group import Group
from kvtroupe.coordinator.messages import (
    Arrival,
    BindEvent,
    Child,
    Content,
    ForgetEvent,
    LandRequest,
    MatchReply,
    MatchRequest,
    PlacesLost,
    Prompt,
    PublishRequest,
)
from kvtroupe.coordinator.reference_partial import as_bytes, common
from tests.coordinator.support import DIGEST_BYTES, chain, last_digest, listed, slots

if TYPE_CHECKING:
    from kvtroupe.coordinator.messages import Evidence
    from tests.conftest import Search

Tokens = tuple[int, ...]


def content(*blocks: Tokens, extras: tuple[bytes, ...] = ()) -> Content:
    """Content in blocks of four tokens; the last one may be shorter."""
    return Content(as_bytes(tuple(token for block in blocks for token in block)), 4, extras)


class Shelf:
    """A group of one host level and blocks of four tokens; each word has its own tokens, and slots count up from 1."""

    def __init__(self) -> None:
        self.group = Group(0, (1000, 1000), DIGEST_BYTES)
        self.last_slot = 0
        self.slot_of: dict[str, int] = {}

    def publish(self, words: str, *blocks: Tokens, extras: tuple[bytes, ...] = ()) -> None:
        """Publish the last blocks of a chain, those whose tokens are given."""
        start = len(words) - len(blocks)
        numbers = list(range(self.last_slot + 1, self.last_slot + 1 + len(blocks)))
        self.last_slot += len(blocks)
        for at, slot in enumerate(numbers, start + 1):
            self.slot_of[words[:at]] = slot
        generations = np.ones(len(numbers), np.int64)
        told = content(*blocks, extras=extras)
        self.group.handle(PublishRequest(1, chain(words), start, slots(*numbers), generations, content=told))

    def evict(self, *chains: str) -> None:
        """The last blocks of some chains are gone from the device."""
        self.group.handle(BindEvent(slots(*(self.slot_of[words] for words in chains))))

    def demote(self, words: str, host_slot: int) -> None:
        """The last block of a chain leaves for the host."""
        source = slots(self.slot_of[words])
        self.group.handle(BindEvent(source, arrivals=(Arrival(0, source, 1, slots(host_slot), slots(9)),)))

    def land(self, host_slot: int) -> None:
        """It is there."""
        self.group.handle(LandRequest(1, 1, slots(host_slot), slots(9)))

    def match(self, words: str, *tokens: Tokens, extras: tuple[bytes, ...] = ()) -> Evidence:
        """What is there of a chain, and of the tokens of all its blocks and those that follow."""
        prompt = Prompt(chain(words), len(words), content(*tokens, extras=extras))
        reply = self.group.handle(MatchRequest(1, (prompt,)))
        assert isinstance(reply, MatchReply)
        return reply.evidence[0]

    def children(self, words: str, *tokens: Tokens, extras: tuple[bytes, ...] = ()) -> list[tuple[int, int]]:
        """Common tokens and slot of each child."""
        return [(one.common_tokens, one.slot) for one in self.match(words, *tokens, extras=extras).children]


A, B, C, D = (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3), (4, 4, 4, 4)


def test_children_come_with_the_most_common_tokens_first() -> None:
    """Of three blocks after a, they share 1, 3 and 2 tokens with (5, 6, 7, 9)."""
    shelf = Shelf()
    shelf.publish("ab", A, (5, 0, 0, 0))
    shelf.publish("ac", (5, 6, 7, 8))
    shelf.publish("ad", (5, 6, 0, 0))

    assert shelf.children("a", A, (5, 6, 7, 9)) == [(3, 3), (2, 4), (1, 2)]


def test_equally_good_children_come_in_the_order_of_their_tokens() -> None:
    """Two before and two after the place of the wanted block share one token each."""
    shelf = Shelf()
    shelf.publish("a", (5, 9, 0, 0))
    shelf.publish("b", (5, 1, 0, 0))
    shelf.publish("c", (5, 8, 0, 0))
    shelf.publish("d", (5, 2, 0, 0))

    assert shelf.children("", (5, 5, 5)) == [(1, 2), (1, 4), (1, 3), (1, 1)]


def test_a_few_children_are_enough() -> None:
    """Eight of ten that share one token: the first ones in their order."""
    shelf = Shelf()
    for number in range(10):
        shelf.publish(str(number), (5, 9 - number, 0, 0))

    assert shelf.children("", (5, 77)) == [(1, slot) for slot in range(10, 2, -1)]


def test_a_block_without_a_common_token_is_no_child() -> None:
    """Nor is there any when nothing is wanted after the path."""
    shelf = Shelf()
    shelf.publish("ab", A, B)

    assert shelf.children("a", A, C) == []
    assert shelf.children("a", A) == []


def test_a_short_rest_is_matched_by_a_whole_block() -> None:
    """(2, 2) is all that is wanted, and all of it is in b; of a block that is wanted whole, too."""
    shelf = Shelf()
    shelf.publish("ab", A, B)

    assert shelf.children("a", A, (2, 2)) == [(2, 2)]
    assert shelf.children("a", A, B) == [(4, 2)]


def test_children_hang_at_the_root_in_the_middle_and_at_the_end_of_runs() -> None:
    """One run is abc; x hangs beside a, y below a, z below c."""
    shelf = Shelf()
    shelf.publish("abc", A, B, C)
    shelf.publish("x", (1, 1, 9, 9))
    shelf.publish("ay", (2, 9, 9, 9))
    shelf.publish("abcz", D)

    assert shelf.children("", (1, 1, 1, 9)) == [(3, 1), (2, 4)]
    assert shelf.children("a", A, (2, 2, 5)) == [(2, 2), (1, 5)]
    assert shelf.children("abc", A, B, C, (4, 0)) == [(1, 6)]


def test_the_path_ends_with_the_last_block_that_is_there() -> None:
    """After c is gone, abc ends after b, where d follows, which begins as c did; a hole before that does not count."""
    shelf = Shelf()
    shelf.publish("abc", A, B, (3, 3, 3, 3))
    shelf.publish("abd", (3, 3, 3, 4))
    shelf.evict("abc", "a")

    found = shelf.match("abc", A, B, (3, 3, 3, 3))

    assert (found.path_blocks, found.present, listed(found.slots[1:])) == (2, 0b10, [2])
    assert [(one.common_tokens, one.slot) for one in found.children] == [(3, 4)]


def test_extras_have_to_be_equal() -> None:
    """The same tokens with an image are another block; so are those of the first block under another salt."""
    shelf = Shelf()
    shelf.publish("ab", A, B, extras=(b"", b"image"))
    shelf.publish("s", B, extras=(b"salt",))

    assert shelf.children("a", A, B) == []
    assert shelf.children("a", A, B, extras=(b"", b"image")) == [(4, 2)]
    assert shelf.children("a", A, B, extras=(b"", b"other")) == []
    assert shelf.children("", B) == []
    assert shelf.children("", B, extras=(b"salt",)) == [(4, 3)]


def test_extras_are_not_taken_for_a_parent() -> None:
    """The extras of a first block that read like the digest of another one do not make it a child of that one."""
    shelf = Shelf()
    shelf.publish("a", A)
    shelf.publish("b", B, extras=(last_digest("a"),))

    assert shelf.children("a", A, B) == []


def test_what_is_gone_is_no_child_and_comes_back() -> None:
    """One is evicted and published again in another slot."""
    shelf = Shelf()
    shelf.publish("ab", A, B)
    shelf.evict("ab")

    assert shelf.children("a", A, (2, 2)) == []
    assert len(shelf.group.children) == 1

    shelf.publish("ab", B)

    assert shelf.children("a", A, (2, 2)) == [(2, 3)]


def test_a_child_below_the_device_says_so() -> None:
    """On its way to the host it is nowhere; when it has landed, it is named there."""
    shelf = Shelf()
    shelf.publish("ab", A, B)
    shelf.demote("ab", 77)

    assert shelf.match("a", A, (2,)).children == ()

    shelf.land(77)

    assert shelf.match("a", A, (2,)).children == (Child(1, last_digest("ab"), 1, 77, 9, leaf=True),)

    shelf.group.handle(BindEvent(slots(), lost=(PlacesLost(1, slots(77)),)))

    assert shelf.match("a", A, (2,)).children == ()


def test_a_leaf_is_followed_by_nothing_that_is_published() -> None:
    """Until they are gone, b is followed by c, d by e on the host, and f by a hole with g below it."""
    shelf = Shelf()
    shelf.publish("abc", A, B, C)
    shelf.publish("ade", (2, 3, 3, 3), C)
    shelf.publish("afxg", (2, 4, 4, 4), C, C)
    shelf.publish("af", (2, 4, 4, 4))
    shelf.demote("ade", 77)
    shelf.land(77)
    shelf.evict("afx")

    def leaves() -> dict[int, bool]:
        return {one.slot: one.leaf for one in shelf.match("a", A, (2,)).children}

    assert leaves() == {2: False, 4: False, 6: False}

    shelf.evict("abc", "afxg")
    shelf.group.handle(BindEvent(slots(), lost=(PlacesLost(1, slots(77)),)))

    assert leaves() == {2: True, 4: True, 6: True}


def test_blocks_without_tokens_are_no_children() -> None:
    """Of a publication of two blocks the tokens of the first are known."""
    shelf = Shelf()
    shelf.group.handle(PublishRequest(1, chain("ab"), 0, slots(1, 2), slots(1, 1), content=content(A)))

    assert shelf.children("", A) == [(4, 1)]
    assert shelf.children("a", A, B) == []


def test_a_prompt_without_tokens_is_asked_for_no_children() -> None:
    """Its answer is what it always was."""
    shelf = Shelf()
    shelf.publish("ab", A, B)

    reply = shelf.group.handle(MatchRequest(1, (Prompt(chain("a"), 1),)))

    assert isinstance(reply, MatchReply)
    assert reply.evidence[0].children == ()


def test_an_index_that_forgets_forgets_tokens_too() -> None:
    """After a reset there is nothing, and later children are those of the new index."""
    shelf = Shelf()
    shelf.publish("ab", A, B)
    shelf.group.handle(ForgetEvent())

    assert len(shelf.group.children) == 0
    assert shelf.children("", A) == []

    shelf.publish("c", (1, 9, 9, 9))

    assert shelf.children("", A) == [(1, 3)]


def test_tokens_of_what_is_gone_do_not_pile_up() -> None:
    """A thousand blocks come and go; the one on the host and the one on its way there stay known."""
    shelf = Shelf()
    shelf.publish("h", A)
    shelf.demote("h", 77)
    shelf.land(77)
    shelf.publish("i", (1, 1, 2, 2))
    shelf.demote("i", 78)
    for number in range(400):
        shelf.publish("x" + chr(1000 + number), B, (number, 0, 0, 0))
        shelf.evict("x", "x" + chr(1000 + number))

    assert len(shelf.group.children) < 100

    shelf.land(78)

    assert shelf.children("", (1, 1, 2)) == [(3, 78), (2, 77)]


def test_any_search_finds_what_looking_at_each_block_finds(search: Search) -> None:
    """Siblings come and go; their tokens are few, so that many are equal."""
    search.each(_compare_with_looking_at_each)


def _compare_with_looking_at_each(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - chooses test cases
    shelf = Shelf()
    there: dict[str, Tokens] = {}
    names = (chr(1000 + number) for number in itertools.count())
    for _ in range(60):
        if there and chance.random() < 0.4:
            name = chance.choice(list(there))
            del there[name]
            shelf.evict(name)
        else:
            name = next(names)
            there[name] = tuple(chance.choice([-1, 0, 1, 256]) for _ in range(4))
            shelf.publish(name, there[name])
        wanted = tuple(chance.choice([-1, 0, 1, 256]) for _ in range(chance.randint(0, 4)))
        found = [
            (-common(tokens, wanted), as_bytes(tokens), last_digest(name), shelf.slot_of[name])
            for name, tokens in there.items()
        ]
        nearest = sorted(one for one in found if one[0])[: index_children.CHILDREN_MAX]
        expected = [(-count, slot) for count, _, _, slot in nearest]
        assert shelf.children("", wanted) == expected


@pytest.mark.parametrize("count", [100])
def test_siblings_that_are_gone_are_met_once(count: int) -> None:
    """A search that comes past blocks that are gone forgets them."""
    shelf = Shelf()
    for number in range(count):
        shelf.publish(chr(1000 + number), (5, number, 0, 0))
    for number in range(count - 1):
        shelf.evict(chr(1000 + number))

    assert shelf.children("", (5,)) == [(1, count)]
    assert len(shelf.group.children) == 1
