"""Digest chains: golden vectors worked out from the definition, and what must never share a digest."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from struct import pack
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtroupe.coordinator.errors import ConfigError, DigestError
from kvtroupe.coordinator.extra_keys import cbor_extra_keys
from kvtroupe.coordinator.extras import (
    NO_EXTRAS,
    Extras,
    LoRA,
    MultimodalItem,
    PromptEmbeddings,
    TokenExtraIds,
)
from kvtroupe.coordinator.identity import MAX_HASH_BLOCK_TOKENS, PrefixDigests, block_digests, digest_chain

IMAGE = MultimodalItem("img", 2, 5)
ADAPTER = LoRA("L", "/p")
CHAINS = ["sha256", "sha256_cbor"]

# An extra as the definition has it: its tag and its bytes.
Tagged = tuple[int, bytes]


def digests_of(chain: str, tokens: list[int], extras: Extras = NO_EXTRAS, block_tokens: int = 4) -> list[bytes]:
    """Digests of all full blocks, made by the module under test."""
    found = PrefixDigests(digest_chain(chain, block_tokens, "model"), extras).append(tokens)
    return [found[at : at + 32] for at in range(0, len(found), 32)]


def defined(blocks: list[tuple[list[int], list[Tagged]]], namespace: str = "model") -> list[bytes]:
    """Digests of blocks, written down from the definition of the default chain: tokens and extras of each block."""
    parent = sha256(namespace.encode()).digest()
    found = []
    for tokens, extras in blocks:
        message = parent + pack("<I", len(tokens)) + b"".join(pack("<i", token) for token in tokens)
        message += pack("<H", len(extras))
        for tag, content in extras:
            message += pack("<B", tag) + pack("<I", len(content)) + content
        parent = sha256(message).digest()
        found.append(parent)
    return found


LORA_EXTRA = (1, b"\x01\0\0\0" + b"L" + b"\x02\0\0\0" + b"/p")
ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)
GOLDEN: dict[str, tuple[Extras, list[Tagged], list[Tagged]]] = {
    "none": (NO_EXTRAS, [], []),
    "lora": (Extras(lora=ADAPTER), [LORA_EXTRA], [LORA_EXTRA]),
    "multimodal": (
        Extras(multimodal=(IMAGE,)),
        [(2, pack("<iI", 2, 5) + b"img")],
        [(2, pack("<iI", -2, 5) + b"img")],
    ),
    "two items, given in the wrong order": (
        Extras(multimodal=(MultimodalItem("b", 3, 1), MultimodalItem("a", 0, 2))),
        [(2, pack("<iI", 0, 2) + b"a"), (2, pack("<iI", 3, 1) + b"b")],
        [],
    ),
    "salt": (Extras(cache_salt="s\u00fc"), [(3, b"s\xc3\xbc")], []),
    "prompt embeddings": (
        Extras(prompt_embeddings=PromptEmbeddings.from_rows(ROWS)),
        [(4, pack("<II", 4, 8) + sha256(ROWS[:4].tobytes()).digest())],
        [(4, pack("<II", 2, 8) + sha256(ROWS[4:].tobytes()).digest())],
    ),
    "token extra ids": (
        Extras(token_extra_ids=TokenExtraIds.from_ids([0, 0, 0, 0, 0, 2**64 - 1])),
        [],
        [(5, pack("<4Q", 0, 2**64 - 1, 0, 0))],
    ),
    "lookahead": (Extras(lookahead_tokens=2), [(6, pack("<2i", 4, 5))], [(6, pack("<2i", 8, 9))]),
    "lookahead window": (
        Extras(
            multimodal=(MultimodalItem("img", 5, 2),),
            prompt_embeddings=PromptEmbeddings.from_rows(ROWS),
            token_extra_ids=TokenExtraIds.from_ids([0, 0, 0, 0, 0, 7]),
            lookahead_tokens=2,
        ),
        [
            (2, pack("<iI", 5, 2) + b"img"),
            (4, pack("<II", 6, 8) + sha256(ROWS.tobytes()).digest()),
            (5, pack("<6Q", 0, 0, 0, 0, 0, 7)),
            (6, pack("<2i", 4, 5)),
        ],
        [
            (2, pack("<iI", 1, 2) + b"img"),
            (4, pack("<II", 2, 8) + sha256(ROWS[4:].tobytes()).digest()),
            (5, pack("<6Q", 0, 7, 0, 0, 0, 0)),
            (6, pack("<2i", 8, 9)),
        ],
    ),
    "everything": (
        Extras(
            lora=ADAPTER,
            multimodal=(IMAGE,),
            cache_salt="s",
            prompt_embeddings=PromptEmbeddings.from_rows(ROWS[:4]),
            token_extra_ids=TokenExtraIds.from_ids([9]),
            lookahead_tokens=1,
        ),
        [
            LORA_EXTRA,
            (2, pack("<iI", 2, 5) + b"img"),
            (3, b"s"),
            (4, pack("<II", 4, 8) + sha256(ROWS[:4].tobytes()).digest()),
            (5, pack("<5Q", 9, 0, 0, 0, 0)),
            (6, pack("<i", 4)),
        ],
        [LORA_EXTRA, (2, pack("<iI", -2, 5) + b"img"), (6, pack("<i", 8))],
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_default_chain_hashes_exactly_the_defined_bytes(case: str) -> None:
    """Each kind of extra is hashed in the blocks and in the bytes that the definition gives."""
    extras, first, second = GOLDEN[case]

    found = digests_of("sha256", list(range(10)), extras)

    assert found == defined([([0, 1, 2, 3], first), ([4, 5, 6, 7], second)])


def test_default_chain_gives_the_published_digests() -> None:
    """The digests of the namespace `model` and tokens 0 to 3, plain and with the salt `s`, as sha256sum gives them."""
    root = "9372c470eeadd5ecd9c3c74c2b3cb633f8e2f2fad799250a0f70d652b6b825e4"
    plain = "2457aae13344387e8d0647de1ec9ef199c1868a990407f576295c05c93152b76"
    salted = "874b9ca0cdafc4ddf5161fdd741a791e3d0ab7eacf09e7e758fe9bcc8b7452c1"

    assert digest_chain("sha256", 4, "model").root.hex() == root
    assert digests_of("sha256", [0, 1, 2, 3])[0].hex() == plain
    assert digests_of("sha256", [0, 1, 2, 3], Extras(cache_salt="s"))[0].hex() == salted


CBOR_GOLDEN = {
    "plain": (
        NO_EXTRAS,
        "c49ab11fb576db6f376aef58c24f728a0ba1807e8cac5f940f1a5c4c20741898",
        "9d0a7c928c548f9aeea31ae98471cf515045a206851732ac14cb3083c18d40f9",
    ),
    "salt": (
        Extras(cache_salt="s"),
        "133f45b0653b06a987ebab68a95537b0e94b5986856599cd117752c96df80d39",
        "953fdc20c8ad1ca25a9c6437376ae35d00c1794bf71db2cd05b61a82aaa4bec5",
    ),
    "lora": (
        Extras(lora=ADAPTER),
        "60413a9a18819e26e4d8ba2f1123df4411c51946c78c50d4f7bb93e8f64ac35a",
        "3a16bf4782fae116d5416c4f9b3de7e299ad0f7de9600d606a0e898fd907bca3",
    ),
    "multimodal": (
        Extras(multimodal=(IMAGE,)),
        "36fa96af2fe3413ac63e2aa7f3aaf7fbf3023b28e1f6387ea712e36705113d77",
        "2aeb4aadde00258608b53fe77fe4709e26bf799a544379e04ec88f1eab82f277",
    ),
    "all three": (
        Extras(lora=ADAPTER, multimodal=(IMAGE,), cache_salt="s"),
        "2f9a82fc588318fbba3313a75fabc01b2640da4e15893d14da1c42badce532d7",
        "89ce3bb40497ee596b1d751b5c213c9fb6c3059b4091db9a39eb84ee7415e593",
    ),
}


@pytest.mark.parametrize("case", CBOR_GOLDEN)
def test_cbor_chain_gives_the_digests_of_vllm(case: str) -> None:
    """Nine tokens in blocks of four have the two digests that vLLM gives them under its default seed."""
    extras, first, second = CBOR_GOLDEN[case]

    found = [digest.hex() for digest in digests_of("sha256_cbor", list(range(9)), extras)]

    assert found == [first, second]


def test_cbor_chain_with_lookahead_gives_the_digests_of_vllm() -> None:
    """With two lookahead tokens, eleven tokens have the two digests that vLLM gives them."""
    found = [digest.hex() for digest in digests_of("sha256_cbor", list(range(11)), Extras(lookahead_tokens=2))]

    assert found == [
        "90edc544853ac3c1ab8f14e5bcb6c8f2f0de5f874b842cbfc2549717850ad2bc",
        "7adc9e136df5c7fc7a28b617c608a21f7aeb60639e1ddccbca90268da5899f03",
    ]


def test_cbor_chain_with_lookahead_sees_the_extras_of_the_lookahead_tokens() -> None:
    """An item at the second of two lookahead tokens is in the block's extra keys, which come before these tokens."""
    chain = digest_chain("sha256_cbor", 4, "model")
    extras = Extras(multimodal=(MultimodalItem("i", 5, 1),), lookahead_tokens=2)
    # [parent, [0, 1, 2, 3], [[["mm", "i", 5]], 4, 5]], byte by byte.
    message = b"\x83\x58\x20" + chain.root + b"\x84\0\1\2\3" + b"\x83\x81\x83\x62mm\x61i\5" + b"\4\5"

    found = PrefixDigests(chain, extras).append(range(6))

    assert found == sha256(message).digest()


def test_root_of_the_cbor_chain_is_the_hash_of_its_seed_whatever_the_namespace() -> None:
    """The default seed gives vLLM's root; another seed gives the SHA-256 of its canonical CBOR: a head and the text."""
    default = digest_chain("sha256_cbor", 4, "model")
    other = digest_chain("sha256_cbor", 4, "another model", cbor_seed="42")

    assert default.root.hex() == "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0"
    assert other.root == sha256(b"\x6242").digest()


def test_cbor_extra_keys_come_tagged_and_in_the_order_of_vllm() -> None:
    """Adapter, items relative to the block, the salt in the first block only, then the hash of the embedded rows."""
    rows = PromptEmbeddings.from_rows(ROWS)
    extras = Extras(lora=ADAPTER, multimodal=(IMAGE,), cache_salt="s", prompt_embeddings=rows)

    first = cbor_extra_keys(extras, 0, 4)
    second = cbor_extra_keys(extras, 4, 8)
    third = cbor_extra_keys(extras, 8, 12)

    assert first == (
        ("lora", "L", "/p"),
        ("mm", "img", 2),
        ("cache_salt", "s"),
        ("prompt_embeds", sha256(ROWS[:4].tobytes()).digest()),
    )
    assert second == (("lora", "L", "/p"), ("mm", "img", -2), ("prompt_embeds", sha256(ROWS[4:].tobytes()).digest()))
    assert third == (("lora", "L", "/p"), ("prompt_embeds", sha256(b"").digest()))
    assert cbor_extra_keys(Extras(cache_salt="s"), 4, 8) is None


@pytest.mark.parametrize("chain", CHAINS)
def test_equal_texts_in_different_extras_never_give_equal_digests(chain: str) -> None:
    """An adapter, a salt, an item and halves of their names in two places are all told apart, in every block."""
    tokens = list(range(8))
    variants = [
        NO_EXTRAS,
        Extras(lora=LoRA("foo")),
        Extras(cache_salt="foo"),
        Extras(multimodal=(MultimodalItem("foo", 0, 8),)),
        Extras(cache_salt="fo", lora=LoRA("o")),
        Extras(cache_salt="f", lora=LoRA("oo")),
        Extras(cache_salt="fo", multimodal=(MultimodalItem("o", 0, 8),)),
        Extras(cache_salt="f", multimodal=(MultimodalItem("oo", 0, 8),)),
        Extras(lora=LoRA("f", "oo")),
        Extras(lora=LoRA("fo", "o")),
    ]

    found = [digests_of(chain, tokens, extras) for extras in variants]

    assert all(len({digests[block] for digests in found}) == len(variants) for block in (0, 1))


def test_namespaces_separate_equal_prompts() -> None:
    """The same tokens under two models have no digest in common."""
    found = [PrefixDigests(digest_chain("sha256", 4, name)).append(range(8)) for name in ("model", "model2")]

    assert found[0][:32] != found[1][:32]
    assert found[0][32:] != found[1][32:]


TEXTS = st.sampled_from(["f", "o", "fo", "\0"])
ITEMS = st.builds(MultimodalItem, TEXTS, st.integers(0, 9), st.integers(1, 6))
ANY_EXTRAS = st.builds(
    Extras,
    lora=st.none() | st.builds(LoRA, TEXTS, st.just("") | TEXTS),
    multimodal=st.lists(ITEMS, max_size=2).map(tuple),
    cache_salt=st.just("") | TEXTS,
    prompt_embeddings=st.none()
    | st.builds(PromptEmbeddings, st.sampled_from([b"\0\1", b"\0\1\0\1", bytes(12)]), st.sampled_from([1, 2])),
    token_extra_ids=st.none() | st.lists(st.integers(0, 1), min_size=1, max_size=9).map(TokenExtraIds.from_ids),
    lookahead_tokens=st.integers(0, 2),
)
FIELDS = ["lora", "multimodal", "cache_salt", "prompt_embeddings", "token_extra_ids", "lookahead_tokens"]


def visible(tokens: list[int], extras: Extras, start: int) -> tuple[Any, ...]:
    """All that a block of four tokens sees, in plain words: two blocks are the same when this is equal up to them."""
    end = start + 4 + extras.lookahead_tokens
    window = range(start, end)
    rows, ids = extras.prompt_embeddings, extras.token_extra_ids
    known = np.frombuffer(ids.data, "<u8").tolist() if ids else []
    seen_ids = [known[at] if at < len(known) else 0 for at in window]
    seen_items = [
        (item.offset_tokens - start, item.length_tokens, item.identifier)
        for item in extras.multimodal
        if any(item.offset_tokens <= at < item.offset_tokens + item.length_tokens for at in window)
    ]
    seen_rows = [rows.rows(at, at + 1) for at in window if at < rows.tokens] if rows else []
    salt = extras.cache_salt if start == 0 else ""
    return tokens[start:end], extras.lora, seen_items, salt, seen_rows, seen_ids if any(seen_ids) else []


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(0, 1), min_size=10, max_size=10),
    others=st.none() | st.lists(st.integers(0, 1), min_size=10, max_size=10),
    extras=ANY_EXTRAS,
    another=ANY_EXTRAS,
    changed=st.sets(st.sampled_from(FIELDS)),
)
def test_digests_are_equal_exactly_when_all_that_the_blocks_see_is(
    tokens: list[int], others: list[int] | None, extras: Extras, another: Extras, changed: set[str]
) -> None:
    """Two prefixes share a digest if and only if tokens and extras are equal in every block up to it."""
    changes: dict[str, Any] = {name: getattr(another, name) for name in changed}
    other_extras = replace(extras, **changes)
    other_tokens = others or tokens
    equal = [visible(tokens, extras, start) == visible(other_tokens, other_extras, start) for start in (0, 4)]

    left, right = digests_of("sha256", tokens, extras), digests_of("sha256", other_tokens, other_extras)

    assert [one == two for one, two in zip(left, right, strict=True)] == [equal[0], equal[0] and equal[1]]


@settings(deadline=None)
@given(tokens=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40), extras=ANY_EXTRAS)
def test_long_sequences_hash_what_each_block_sees_by_the_definition(tokens: list[int], extras: Extras) -> None:
    """Blocks with and without extras in one sequence are all encoded as the definition says."""
    blocks = []
    for start in range(0, len(tokens) - extras.lookahead_tokens - 3, 4):
        block_tokens, lora, items, salt, rows, ids = visible(tokens, extras, start)
        tagged = []
        if lora:
            name, path = lora.name.encode(), lora.path.encode()
            tagged.append((1, pack("<I", len(name)) + name + pack("<I", len(path)) + path))
        tagged += [(2, pack("<iI", at, length) + text.encode()) for at, length, text in items]
        if salt:
            tagged.append((3, salt.encode()))
        if rows:
            tagged.append((4, pack("<II", len(rows), len(rows[0])) + sha256(b"".join(rows)).digest()))
        if ids:
            tagged.append((5, pack(f"<{len(ids)}Q", *ids)))
        if extras.lookahead_tokens:
            tagged.append((6, pack(f"<{extras.lookahead_tokens}i", *block_tokens[4:])))
        blocks.append((block_tokens[:4], tagged))

    assert digests_of("sha256", tokens, extras) == defined(blocks)


PROGRAM = """
from kvtroupe.coordinator.extras import Extras, LoRA
from kvtroupe.coordinator.identity import PrefixDigests, digest_chain

for name in ("sha256", "sha256_cbor"):
    for first in (0, 100, 200):
        for extras in (Extras(), Extras(cache_salt="s"), Extras(lora=LoRA("a", "/b"))):
            print(PrefixDigests(digest_chain(name, 4, "model"), extras).append(range(first, first + 12)).hex())
"""


def test_fresh_processes_agree_whatever_their_hash_seed() -> None:
    """Digests of three prompts, plain, salted and with an adapter, are those of this process in four others."""
    printed = [
        subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split()
        for seed in ("0", "1", "4294967295", "random")
    ]
    here = [
        b"".join(digests_of(name, list(range(first, first + 12)), extras)).hex()
        for name, first, extras in itertools.product(
            CHAINS, (0, 100, 200), (NO_EXTRAS, Extras(cache_salt="s"), Extras(lora=LoRA("a", "/b")))
        )
    ]

    assert len(set(here)) == 18
    assert printed == [here] * 4


def test_unknown_chains_and_unusable_settings_are_refused() -> None:
    """A wrong name, hash block, namespace or seed is named in the refusal."""
    with pytest.raises(ConfigError, match="no digest chain 'md5'; use 'sha256' or 'sha256_cbor'"):
        digest_chain("md5", 16, "model")
    for wrong in (0, -1, MAX_HASH_BLOCK_TOKENS + 1, 16.0, True):
        with pytest.raises(ConfigError, match=rf"hash_block_tokens must be an integer from 1 to 65536, got {wrong}"):
            digest_chain("sha256", wrong, "model")  # type: ignore[arg-type]  # some are no integers
    with pytest.raises(ConfigError, match="namespace of the sha256 chain must have 1 to 65536 bytes of UTF-8, got 0"):
        digest_chain("sha256", 16, "")
    with pytest.raises(ConfigError, match="seed of the sha256_cbor chain cannot be written as UTF-8"):
        digest_chain("sha256_cbor", 16, "model", cbor_seed="\ud800")


def test_cbor_chain_refuses_token_extra_ids_that_it_would_ignore() -> None:
    """Extras without a place in a chain are refused before any token is hashed, never left out."""
    extras = Extras(token_extra_ids=TokenExtraIds.from_ids([1, 2]))

    with pytest.raises(ConfigError, match="sha256_cbor chain has no place for token extra ids; use the sha256 chain"):
        PrefixDigests(digest_chain("sha256_cbor", 4, "model"), extras)


def test_a_group_block_has_the_digest_of_its_last_hash_block() -> None:
    """Of the digests A B C D, blocks of two hash blocks have B and D; an unfinished block has none."""
    a, b, c, d = (bytes([letter]) * 31 + b"\0" for letter in b"ABCD")

    assert block_digests(a + b + c + d, 32, 1) == a + b + c + d
    assert block_digests(a + b + c + d, 32, 2) == b + d
    assert block_digests(a + b + c, 32, 2) == b
    assert block_digests(a + b + c + d, 32, 4) == d
    assert block_digests(a + b + c, 32, 4) == b""
    assert block_digests(b"", 32, 2) == b""


def test_digests_of_a_wrong_length_are_refused() -> None:
    """Half a digest, or a block without hash blocks, is an error and no shorter answer."""
    with pytest.raises(DigestError, match="48 bytes are no whole number of digests of 32 bytes"):
        block_digests(bytes(48), 32, 1)
    with pytest.raises(ConfigError, match="a block holds 0 hash blocks"):
        block_digests(bytes(64), 32, 0)
