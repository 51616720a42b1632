"""Extras of a sequence: values that are checked when made, and which blocks see them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtroupe.coordinator.errors import ConfigError, TokenError
from kvtroupe.coordinator.extras import (
    MAX_LOOKAHEAD_TOKENS,
    MAX_MULTIMODAL_ITEMS,
    MAX_POSITION,
    MAX_TEXT_BYTES,
    Extras,
    LoRA,
    MultimodalItem,
    PromptEmbeddings,
    TokenExtraIds,
)

ITEM = MultimodalItem("img", 2, 5)


def full() -> Extras:
    """One of everything."""
    return Extras(
        lora=LoRA("a", "/a"),
        multimodal=(MultimodalItem("late", 9, 1), ITEM),
        cache_salt="s",
        prompt_embeddings=PromptEmbeddings(b"abcd", 2),
        token_extra_ids=TokenExtraIds.from_ids([0, 7, 0]),
        lookahead_tokens=1,
    )


def test_extras_are_values() -> None:
    """Equal extras are equal and hash alike, a changed one is not, and pickling keeps them."""
    assert full() == full()
    assert hash(full()) == hash(full())
    assert full() != Extras(cache_salt="s")
    assert pickle.loads(pickle.dumps(full())) == full()  # noqa: S301  # our own bytes


def test_items_are_kept_in_order_of_their_offsets() -> None:
    """However they are given, a list included, items become a tuple that ascends by offset."""
    late = MultimodalItem("a", 9, 1)

    extras = Extras(multimodal=[late, ITEM])  # type: ignore[arg-type]  # lists are taken too

    assert extras.multimodal == (ITEM, late)


REFUSED: dict[str, tuple[Any, str]] = {
    "adapter without a name": (lambda: LoRA(""), "name of a LoRA adapter must have 1 to 65536 bytes of UTF-8, got 0"),
    "adapter by number": (lambda: LoRA(7), "name of a LoRA adapter must be a string, got 7"),  # type: ignore[arg-type]
    "path no string": (lambda: LoRA("a", None), "path of a LoRA adapter must be a string"),  # type: ignore[arg-type]
    "lora no adapter": (lambda: Extras(lora="a"), "lora must be a LoRA or None, got 'a'"),  # type: ignore[arg-type]
    "item without a name": (lambda: MultimodalItem("", 0, 1), "identifier of a multimodal item must have 1 to"),
    "item before the start": (lambda: MultimodalItem("a", -1, 1), "offset_tokens of .* from 0 to 2147483646, got -1"),
    "item without tokens": (lambda: MultimodalItem("a", 4, 0), "length_tokens of .* from 1 to 2147483643, got 0"),
    "item too long": (lambda: MultimodalItem("a", 4, MAX_POSITION - 3), "length_tokens of .* got 2147483644"),
    "item at half a token": (lambda: MultimodalItem("a", 0.5, 1), "offset_tokens"),  # type: ignore[arg-type]
    "item of true tokens": (lambda: MultimodalItem("a", 0, True), "length_tokens .* got True"),  # noqa: FBT003
    "items no tuple": (lambda: Extras(multimodal=ITEM), "must be a tuple of MultimodalItem"),  # type: ignore[arg-type]
    "items no items": (
        lambda: Extras(multimodal=(ITEM, "img")),  # type: ignore[arg-type]
        r"multimodal\[1\] must be a MultimodalItem, got 'img'",
    ),
    "too many items": (
        lambda: Extras(multimodal=(ITEM,) * (MAX_MULTIMODAL_ITEMS + 1)),
        "65001 multimodal items in one sequence, at most 65000",
    ),
    "salt no string": (lambda: Extras(cache_salt=b"s"), "cache_salt must be a string, got b's'"),  # type: ignore[arg-type]
    "salt no text": (lambda: Extras(cache_salt="\ud800"), "cache_salt cannot be written as UTF-8"),
    "salt too long": (lambda: Extras(cache_salt="\u00fc" * 40_000), "0 to 65536 bytes of UTF-8, got 80000"),
    "lookahead below zero": (lambda: Extras(lookahead_tokens=-1), "lookahead_tokens must be an integer from 0 to 1024"),
    "lookahead too far": (lambda: Extras(lookahead_tokens=MAX_LOOKAHEAD_TOKENS + 1), "to 1024, got 1025"),
    "embeddings as an array": (
        lambda: Extras(prompt_embeddings=np.zeros((2, 2))),  # type: ignore[arg-type]
        "prompt_embeddings must be a PromptEmbeddings or None",
    ),
    "embeddings of one dimension": (
        lambda: PromptEmbeddings.from_rows(np.zeros(3)),
        r"numbers \[tokens, hidden\], got float64 \(3,\)",
    ),
    "embeddings without rows": (lambda: PromptEmbeddings.from_rows(np.zeros((0, 3))), r"got float64 \(0, 3\)"),
    "embeddings of texts": (lambda: PromptEmbeddings.from_rows(np.array([["a"]])), r"got <U1 \(1, 1\)"),
    "embeddings of objects": (lambda: PromptEmbeddings.from_rows(np.array([[None]])), r"got object \(1, 1\)"),
    "embeddings that NumPy lacks": (
        lambda: PromptEmbeddings.from_rows(torch.zeros((1, 2), dtype=torch.bfloat16)),
        "cannot be read as an array in CPU memory: .*BFloat16; view bfloat16 as int16",
    ),
    "embeddings of half a row": (
        lambda: PromptEmbeddings(bytes(5), 2),
        "prompt embeddings must be whole rows of 2 bytes, at least one, got 5 bytes",
    ),
    "embeddings of no bytes": (lambda: PromptEmbeddings(b"", 2), "at least one, got 0 bytes"),
    "embeddings no bytes": (lambda: PromptEmbeddings("ab", 2), "must be bytes, got 'ab'"),  # type: ignore[arg-type]
    "rows of nothing": (lambda: PromptEmbeddings(b"ab", 0), "row_bytes of prompt embeddings must be an integer from 1"),
    "ids as a list": (
        lambda: Extras(token_extra_ids=[1]),  # type: ignore[arg-type]
        "token_extra_ids must be a TokenExtraIds or None",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_extras_are_refused_when_made(case: str) -> None:
    """The message names the value and what it has to be."""
    make, message = REFUSED[case]

    with pytest.raises(ConfigError, match=message):
        make()


def test_wrong_ids_are_refused_as_tokens_are() -> None:
    """Ids below zero, none at all and half an id are token errors."""
    with pytest.raises(TokenError, match=r"token extra ids\[1\] is -3, outside uint64"):
        TokenExtraIds.from_ids([1, -3])
    with pytest.raises(TokenError, match="no token extra ids: give at least one"):
        TokenExtraIds.from_ids([])
    with pytest.raises(TokenError, match="token extra ids must be whole rows of 8 bytes, at least one, got 9 bytes"):
        TokenExtraIds(bytes(9))


def test_the_longest_allowed_texts_and_positions_are_taken() -> None:
    """Limits are the last values that are allowed."""
    assert Extras(cache_salt="s" * MAX_TEXT_BYTES).cache_salt == "s" * MAX_TEXT_BYTES
    assert MultimodalItem("a", 4, MAX_POSITION - 4).end_tokens == MAX_POSITION
    assert Extras(lookahead_tokens=MAX_LOOKAHEAD_TOKENS).lookahead_tokens == MAX_LOOKAHEAD_TOKENS


def test_embeddings_keep_raw_little_endian_rows() -> None:
    """Rows of any numeric type, layout and byte order are kept as their own little-endian bytes, as a copy."""
    rows = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float16)
    expected = PromptEmbeddings(b"\x00\x3c\x00\x40\x00\x42\x00\x44\x00\x45\x00\x46", 4)

    kept = PromptEmbeddings.from_rows(rows)
    same = [PromptEmbeddings.from_rows(form) for form in (rows.astype(">f2"), np.asfortranarray(rows))]
    tensor = PromptEmbeddings.from_rows(torch.tensor(rows.tolist(), dtype=torch.float16))
    rows[:] = 0

    assert [kept, *same, tensor] == [expected] * 4
    assert kept.tokens == 3
    assert kept.rows(1, 9) == b"\x00\x42\x00\x44\x00\x45\x00\x46"
    assert kept.rows(3, 9) == b""


def test_bfloat16_rows_come_in_as_integers() -> None:
    """A bfloat16 tensor viewed as int16 keeps its own bytes."""
    tensor = torch.tensor([[1.0, -2.0]], dtype=torch.bfloat16)

    assert PromptEmbeddings.from_rows(tensor.view(torch.int16)) == PromptEmbeddings(b"\x80\x3f\x00\xc0", 4)


def test_extra_ids_are_zero_behind_the_last_and_nothing_where_all_are() -> None:
    """A window shows its ids as uint64, filled up with zeros, unless there is no other id in it."""
    ids = TokenExtraIds.from_ids(np.array([0, 0, 5, 6]))

    assert ids.tokens == 4
    assert ids.window(2, 5) == bytes([5, *[0] * 7, 6, *[0] * 15])
    assert ids.window(0, 2) == b""
    assert ids.window(4, 8) == b""


def test_extras_that_do_not_fit_the_prompt_are_refused() -> None:
    """Items and rows must end within the prompt, and there must be as many extra ids as tokens."""
    items = Extras(multimodal=(ITEM, MultimodalItem("b", 3, 1)))
    rows = Extras(prompt_embeddings=PromptEmbeddings(bytes(8), 1))
    ids = Extras(token_extra_ids=TokenExtraIds.from_ids([1, 2, 3]))

    Extras().check_prompt(1)
    items.check_prompt(7)
    rows.check_prompt(8)
    ids.check_prompt(3)
    with pytest.raises(ConfigError, match="a multimodal item ends at token 7, but the prompt has 6"):
        items.check_prompt(6)
    with pytest.raises(ConfigError, match="8 rows of prompt embeddings, but the prompt has 7"):
        rows.check_prompt(7)
    for wrong in (2, 4):
        with pytest.raises(TokenError, match=f"3 token extra ids for a prompt of {wrong} tokens"):
            ids.check_prompt(wrong)


@settings(deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 15)), max_size=6),
    start=st.integers(0, 40),
    length=st.integers(1, 12),
)
def test_the_items_of_a_window_are_those_that_share_a_token_with_it(
    spans: list[tuple[int, int]], start: int, length: int
) -> None:
    """Items of any lengths, overlapping ones included, are found exactly where they lie."""
    extras = Extras(multimodal=tuple(MultimodalItem(f"{at}", *span) for at, span in enumerate(spans)))
    window = set(range(start, start + length))

    found = extras.multimodal_in(start, start + length)

    assert found == tuple(
        item for item in extras.multimodal if window & set(range(item.offset_tokens, item.end_tokens))
    )


@pytest.mark.parametrize(
    ("lookahead_tokens", "first_token", "expected"), [(0, 0, {0, 3}), (1, 0, {0, 2, 3}), (0, 4, {2}), (0, 16, set())]
)
def test_only_blocks_that_see_something_vary(lookahead_tokens: int, first_token: int, expected: set[int]) -> None:
    """In blocks of four, a salt touches the first, an item at 12 to 15 the fourth, and the third if it looks ahead."""
    extras = Extras(
        lora=LoRA("a"),
        cache_salt="s",
        multimodal=(MultimodalItem("a", 12, 4),),
        lookahead_tokens=lookahead_tokens,
    )

    assert extras.varying_blocks(first_token, 6, 4) == expected
