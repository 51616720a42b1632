"""Content of blocks: made of what was hashed, and refused whole where it does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.contents import content_of, of_blocks
from kvtroupe.coordinator.errors import ConfigError, RequestError, TokenError
from kvtroupe.coordinator.extras import Extras, LoRA, MultimodalItem
from kvtroupe.coordinator.identity import PrefixDigests, digest_chain
from kvtroupe.coordinator.messages import Content, NewSequence
from kvtroupe.coordinator.reference_partial import as_bytes
from kvtroupe.coordinator.replica import Replica
from tests.coordinator.support import DIGEST_BYTES, chain, snapshot


def prefix(tokens: range, extras: Extras) -> PrefixDigests:
    """Tokens that were hashed in blocks of two."""
    found = PrefixDigests(digest_chain("sha256", 2, "model"), extras)
    found.append(tokens)
    return found


def replica() -> Replica:
    """One with blocks of four tokens that reuses parts of them; a sequence of 6 tokens runs."""
    made = Replica(
        Config(
            namespace="test",
            block_tokens=4,
            digest_bytes=DIGEST_BYTES,
            groups=(GroupConfig(name="full"),),
            pools=(PoolConfig(blocks=21),),
            partial_reuse="copy",
        )
    )
    content = Content(as_bytes(tuple(range(6))), 4, (b"", b"image"))
    made.admit([NewSequence("runs", 6, chain("a"), 2, content=content)])
    return made


# -- made --------------------------------------------------------------------------------------------------------------


def test_content_is_the_tokens_in_blocks_of_the_replica() -> None:
    """Six tokens are one block of four and a begun one; nothing else decides them."""
    assert content_of(prefix(range(6), Extras()), 4) == Content(as_bytes((0, 1, 2, 3, 4, 5)), 4)


def test_content_from_some_token_on_begins_with_the_block_of_that_token() -> None:
    """Tokens 5 to 8 lie in the blocks that begin at 4 and 8; the image covers token 9 only."""
    talk = prefix(range(10), Extras(multimodal=(MultimodalItem("image", 9, 1),)))

    found = content_of(talk, 4, 5, 9)

    assert found.token_ids == as_bytes((5, 6, 7, 8))
    assert [bool(one) for one in found.extras] == [False, True]


def test_extras_are_of_whole_blocks_relative_to_them() -> None:
    """The same image at the same place of another block has the same extras; a token further on it has not."""
    image = [Extras(multimodal=(MultimodalItem("image", offset, 2),)) for offset in (1, 5, 6)]
    first, second, third = [content_of(prefix(range(8), one), 4).extras for one in image]

    assert first == (second[1], b"")
    assert second[1] == first[0]
    assert second[1] != third[1]


def test_every_block_sees_an_adapter_and_the_first_one_a_salt() -> None:
    """As their digests do."""
    adapter = content_of(prefix(range(8), Extras(lora=LoRA("name"))), 4).extras
    salted = content_of(prefix(range(8), Extras(cache_salt="salt")), 4).extras

    assert adapter[0] == adapter[1] != b""
    assert [bool(one) for one in salted] == [True, False]


def test_there_is_none_with_a_lookahead() -> None:
    """What a draft model keeps of the last common token depends on the next one, which differs."""
    with pytest.raises(ConfigError, match="a lookahead of 1 tokens cannot be matched in part"):
        content_of(prefix(range(8), Extras(lookahead_tokens=1)), 4)


def test_of_blocks_is_what_is_known_of_them() -> None:
    """Of ten tokens in blocks of four two blocks are complete."""
    content = Content(as_bytes(tuple(range(10))), 4, (b"x", b"y", b"z"))

    assert of_blocks(content, 0, 1) == Content(as_bytes((0, 1, 2, 3)), 4, (b"x",))
    assert of_blocks(content, 1, 3) == Content(as_bytes((4, 5, 6, 7)), 4, (b"y",))
    assert of_blocks(content, 2, 3) is None


# -- checked -----------------------------------------------------------------------------------------------------------

EIGHT = as_bytes(tuple(range(8)))
ANYTHING: list[Any] = [0, b"bytes", "text", [], object()]

BAD_PROMPTS: dict[str, tuple[Any, type[RequestError], str]] = {
    "too few tokens": (Content(EIGHT[:-4], 4), TokenError, "has 8 tokens and brings the ids of 7"),
    "too many tokens": (Content(EIGHT + bytes(4), 4), TokenError, "has 8 tokens and brings the ids of 9"),
    "none at all": (Content(b"", 4), TokenError, "has 8 tokens and brings the ids of 0"),
    "a torn token": (Content(EIGHT[:-1], 4), TokenError, "31 bytes of token ids"),
    "too few extras": (Content(EIGHT, 4, (b"x",)), TokenError, "extras of 1 blocks"),
    "too many extras": (Content(EIGHT, 4, (b"x",) * 3), TokenError, "which lie in 2; give one for each"),
    "other blocks": (Content(EIGHT, 8), RequestError, "in blocks of 8 tokens; those of this replica have 4"),
    "a list of tokens": (Content([1] * 8, 4), RequestError, "no bytes and a tuple"),  # type: ignore[arg-type]
    "a list of extras": (Content(EIGHT, 4, [b"", b""]), RequestError, "no bytes and a tuple"),  # type: ignore[arg-type]
    "extras of text": (Content(EIGHT, 4, ("", "")), RequestError, "that are no bytes"),  # type: ignore[arg-type]
    **{f"{one!r:.8}": (one, RequestError, "where Content belongs") for one in ANYTHING},
}


@pytest.mark.parametrize("what", sorted(BAD_PROMPTS))
def test_content_that_does_not_fit_a_prompt_is_refused_whole(what: str) -> None:
    """Not even the good prompt that comes with it is admitted."""
    one = replica()
    before = snapshot(one)
    content, kind, message = BAD_PROMPTS[what]

    with pytest.raises(kind, match=message):
        one.admit([NewSequence("good", 4), NewSequence("bad", 8, content=content)])

    assert snapshot(one) == before


BAD_COMMITS: dict[str, tuple[Any, type[RequestError], str]] = {
    "a gap": (Content(as_bytes((7,)), 4), TokenError, "ids of 1 tokens on top of 6, and commits 8"),
    "beyond what is computed": (Content(as_bytes((6, 7, 8)), 4), TokenError, "ids of 3 tokens on top of 6"),
    "what is known": (Content(EIGHT, 4), TokenError, "ids of 8 tokens on top of 6"),
    "too many extras": (Content(as_bytes((6, 7)), 4, (b"", b"")), TokenError, "tokens from 6 to 8, which lie in 1"),
    "a torn token": (Content(b"torn!", 4), TokenError, "5 bytes of token ids"),
    "other blocks": (Content(as_bytes((6, 7)), 2), RequestError, "in blocks of 2 tokens"),
    **{f"{one!r:.8}": (one, RequestError, "where Content belongs") for one in ANYTHING},
}


@pytest.mark.parametrize("what", sorted(BAD_COMMITS))
def test_content_that_does_not_fit_a_commit_is_refused_whole(what: str) -> None:
    """The commit changes nothing, and can be made again as it should be."""
    one = replica()
    before, known = snapshot(one), one.sequence("runs").content
    content, kind, message = BAD_COMMITS[what]

    with pytest.raises(kind, match=message):
        one.commit("runs", 8, content=content)

    assert snapshot(one) == before
    assert one.sequence("runs").content == known
    one.commit("runs", 8, content=Content(as_bytes((6, 7)), 4))


@pytest.mark.parametrize(
    ("tokens", "extras", "joined"),
    [
        (8, (), (b"", b"image")),
        (9, (), (b"", b"image", b"")),
        (9, (b"other", b"new"), (b"", b"other", b"new")),
        (14, (), (b"", b"image", b"", b"")),
    ],
)
def test_what_a_commit_brings_follows_what_is_known(
    tokens: int, extras: tuple[bytes, ...], joined: tuple[bytes, ...]
) -> None:
    """The block that is begun keeps its extras where none come along, and takes those that do."""
    one = replica()

    one.commit("runs", tokens, content=Content(as_bytes(tuple(range(6, tokens))), 4, extras))

    assert one.sequence("runs").content == Content(as_bytes(tuple(range(tokens))), 4, joined)


def test_a_commit_may_be_the_first_to_tell() -> None:
    """Then it tells all tokens; extras of blocks that were known without any are none."""
    one = replica()
    one.admit([NewSequence("late", 5)])

    one.commit("late", 5, content=Content(as_bytes((0, 1, 2, 3, 4)), 4))
    one.admit([NewSequence("later", 6, spare_blocks=1, content=Content(as_bytes(tuple(range(6))), 4))])
    one.commit("later", 9, content=Content(as_bytes((6, 7, 8)), 4, (b"", b"x")))

    late, later = one.sequence("late").content, one.sequence("later").content
    assert late == Content(as_bytes((0, 1, 2, 3, 4)), 4)
    assert later == Content(as_bytes(tuple(range(9))), 4, (b"", b"", b"x"))
