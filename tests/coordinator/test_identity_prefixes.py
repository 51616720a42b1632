"""Digests of growing sequences: any chunking gives the same, and each token is hashed once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtroupe.coordinator.errors import TokenError
from kvtroupe.coordinator.extras import Extras, LoRA, MultimodalItem, PromptEmbeddings
from kvtroupe.coordinator.identity import PrefixDigests, Sha256Chain, block_digests, digest_chain

if TYPE_CHECKING:
    from numpy.typing import NDArray


SPECIAL = Extras(
    lora=LoRA("x"),
    multimodal=(MultimodalItem("a", 3, 9), MultimodalItem("b", 5, 2), MultimodalItem("c", 20, 1)),
    cache_salt="salt",
    prompt_embeddings=PromptEmbeddings(bytes(range(15)), 1),
)


class RecordingChain(Sha256Chain):
    """The default chain, which also remembers the positions that it was given to hash."""

    def __init__(self, hash_block_tokens: int) -> None:
        super().__init__("model", hash_block_tokens)
        self.hashed: list[int] = []
        self.most_tokens = 0

    def extend(self, parent: bytes, tokens: NDArray[np.int32], first_token: int, extras: Extras) -> bytes:
        """Note the positions of the blocks, then hash."""
        self.hashed += range(first_token, first_token + len(tokens) - extras.lookahead_tokens)
        self.most_tokens = max(self.most_tokens, len(tokens))
        return super().extend(parent, tokens, first_token, extras)


@settings(deadline=None)
@given(
    chain_name=st.sampled_from(["sha256", "sha256_cbor"]),
    chunks=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=11), min_size=1, max_size=12),
    block_tokens=st.integers(1, 5),
    lookahead_tokens=st.integers(0, 7),
    special=st.sampled_from([Extras(), SPECIAL]),
)
def test_any_chunking_gives_the_digests_of_one_append(
    chain_name: str, chunks: list[list[int]], block_tokens: int, lookahead_tokens: int, special: Extras
) -> None:
    """Appends return what they complete, and together exactly what one append of everything returns."""
    extras = replace(special, lookahead_tokens=lookahead_tokens)
    chain = digest_chain(chain_name, block_tokens, "model")
    tokens = [token for chunk in chunks for token in chunk]

    whole = PrefixDigests(chain, extras)
    at_once = whole.append(tokens)
    growing = PrefixDigests(chain, extras)
    pieces = []
    for chunk in chunks:
        pieces.append(growing.append(chunk))
        complete = max(0, len(growing.tokens) - lookahead_tokens) // block_tokens
        assert len(b"".join(pieces)) == 32 * complete

    assert b"".join(pieces) == growing.digests == whole.digests == at_once
    assert growing.tokens.tolist() == whole.tokens.tolist() == tokens


@pytest.mark.parametrize("lookahead_tokens", [0, 3])
def test_each_token_is_hashed_once_and_none_is_visited_again(lookahead_tokens: int) -> None:
    """A long sequence that grows token by token never brings more to hash than one block and what it looks at."""
    chain = RecordingChain(hash_block_tokens=4)
    prefix = PrefixDigests(chain, Extras(lookahead_tokens=lookahead_tokens))

    for token in range(100):
        prefix.append([token])

    assert chain.hashed == list(range((100 - lookahead_tokens) // 4 * 4))
    assert chain.most_tokens == 4 + lookahead_tokens


def test_single_appends_seldom_move_the_tokens() -> None:
    """A thousand appends of one token move those before them at most ten times, once for each doubling."""
    prefix = PrefixDigests(digest_chain("sha256", 4, "model"))
    moves = 0

    for token in range(1000):
        before = prefix.tokens
        prefix.append([token])
        moves += not np.shares_memory(before, prefix.tokens)

    # The first append has nothing to move, but nothing to share either.
    assert moves <= 1 + 10


def test_a_digest_waits_for_its_lookahead_tokens() -> None:
    """With blocks of four and two lookahead tokens, nine tokens have one digest, ten have two and eleven still two."""
    prefix = PrefixDigests(digest_chain("sha256", 4, "model"), Extras(lookahead_tokens=2))

    counts = [len(prefix.append(chunk)) // 32 for chunk in (range(5), [5, 6, 7, 8], [9], [10])]

    assert counts == [0, 1, 1, 0]
    assert len(prefix.digests) == 2 * 32


def test_nothing_is_known_of_an_empty_sequence() -> None:
    """Before the first append there are no tokens and no digests."""
    prefix = PrefixDigests(digest_chain("sha256", 4, "model"))

    assert prefix.digests == b""
    assert prefix.tokens.tolist() == []


def test_a_refused_append_leaves_the_sequence_as_it_was() -> None:
    """After tokens that were refused, the same appends give the same digests as without them."""
    chain = digest_chain("sha256", 4, "model")
    prefix = PrefixDigests(chain)
    prefix.append([1, 2, 3])

    with pytest.raises(TokenError, match=r"tokens\[1\] is 2147483648, outside int32"):
        prefix.append([4, 2**31])
    with pytest.raises(TokenError, match="no tokens"):
        prefix.append([])

    assert prefix.tokens.tolist() == [1, 2, 3]
    assert prefix.append([4]) == PrefixDigests(chain).append([1, 2, 3, 4])


def test_tokens_are_the_sequence_own_copy() -> None:
    """Neither the caller's array nor the array handed out can change what the sequence holds."""
    given_tokens = np.arange(6, dtype=np.int32)
    prefix = PrefixDigests(digest_chain("sha256", 4, "model"))
    prefix.append(given_tokens)
    early = prefix.tokens

    given_tokens[:] = 99
    prefix.append(range(6, 40))

    assert early.tolist() == list(range(6))
    assert prefix.tokens.tolist() == list(range(40))
    with pytest.raises(ValueError, match="read-only"):
        prefix.tokens[0] = 1


def test_blocks_of_several_hash_blocks_reuse_the_fine_digests() -> None:
    """With hash blocks of 4 and group blocks of 12, block j has the fine digest that ends at token 12 * (j + 1)."""
    chain = digest_chain("sha256", 4, "model")
    fine = PrefixDigests(chain).append(range(31))

    coarse = block_digests(fine, chain.digest_bytes, 3)

    assert coarse == PrefixDigests(chain).append(range(12))[-32:] + PrefixDigests(chain).append(range(24))[-32:]
