"""How the extras that a block sees are written into its digest, for each of the two chains.

In the `sha256` chain each extra is `tag u8 | length of the bytes u32 | bytes`, numbers little-endian. They ascend by
tag, then by offset, and their number (u16) comes first. `start` is the position of the block's first token; the window
of a block is its tokens and the lookahead tokens after it:

    1 LORA              every block
                        length of the name u32, name, length of the path u32, path, both in UTF-8
    2 MULTIMODAL        blocks whose window overlaps the item, one extra for each item
                        the item's offset - start int32 (negative in later blocks), its length u32, identifier in UTF-8
    3 SALT              the block at token 0, which passes it on through the chain
                        salt in UTF-8
    4 PROMPT_EMBEDDING  blocks whose window has rows
                        number of these rows u32, bytes of one row u32, SHA-256 of the rows' bytes
    5 TOKEN_EXTRA       blocks whose window has an id other than 0
                        ids of the whole window, uint64 each
    6 LOOKAHEAD         every block, if there is a lookahead
                        ids of the lookahead tokens, int32 each

In the `sha256_cbor` chain they are a tuple of tagged tuples, or None without extras. It has no place for extra ids of
tokens, and the lengths of items are no part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from hashlib import sha256
from struct import pack
from typing import TypeAlias

from kvtroupe.coordinator.extras import Extras

CborKey: TypeAlias = tuple[str | int | bytes, ...]


class ExtraTag(IntEnum):
    """Kinds of extras in the `sha256` chain, in the order in which they are hashed."""

    LORA = 1
    MULTIMODAL = 2
    SALT = 3
    PROMPT_EMBEDDING = 4
    TOKEN_EXTRA = 5
    LOOKAHEAD = 6


def tagged_extras(extras: Extras, start: int, end: int, lookahead: bytes) -> bytes:
    """Extras of the block whose window goes from `start` to before `end`, for the `sha256` chain.

    Args:
        extras: those of the whole sequence.
        start: position of the block's first token.
        end: position behind the last lookahead token.
        lookahead: ids of the lookahead tokens, int32 each.
    """
    return _encode([*_lora(extras), *_varying(extras, start, end), *_lookahead(lookahead)])


def uniform_extras(extras: Extras, lookahead: bytes) -> bytes:
    """The same for blocks that see the adapter and the lookahead tokens only; these come last, after a fixed part."""
    return _encode([*_lora(extras), *_lookahead(lookahead)])


def cbor_extra_keys(extras: Extras, start: int, end: int) -> tuple[CborKey, ...] | None:
    """Extra keys of the block whose window goes from `start` to before `end`, for the `sha256_cbor` chain."""
    keys: list[CborKey] = []
    if extras.lora:
        keys.append(("lora", extras.lora.name, extras.lora.path))
    keys += [("mm", item.identifier, item.offset_tokens - start) for item in extras.multimodal_in(start, end)]
    if extras.cache_salt and start == 0:
        keys.append(("cache_salt", extras.cache_salt))
    if extras.prompt_embeddings:
        # In blocks behind the last row too, where it is the hash of nothing.
        keys.append(("prompt_embeds", sha256(extras.prompt_embeddings.rows(start, end)).digest()))
    return tuple(keys) or None


def _lora(extras: Extras) -> Iterator[tuple[ExtraTag, bytes]]:
    if extras.lora:
        name, path = extras.lora.name.encode(), extras.lora.path.encode()
        yield ExtraTag.LORA, pack("<I", len(name)) + name + pack("<I", len(path)) + path


def _varying(extras: Extras, start: int, end: int) -> Iterator[tuple[ExtraTag, bytes]]:
    for item in extras.multimodal_in(start, end):
        place = pack("<iI", item.offset_tokens - start, item.length_tokens)
        yield ExtraTag.MULTIMODAL, place + item.identifier.encode()
    if extras.cache_salt and start == 0:
        yield ExtraTag.SALT, extras.cache_salt.encode()
    if extras.prompt_embeddings and (rows := extras.prompt_embeddings.rows(start, end)):
        row_bytes = extras.prompt_embeddings.row_bytes
        yield ExtraTag.PROMPT_EMBEDDING, pack("<II", len(rows) // row_bytes, row_bytes) + sha256(rows).digest()
    if extras.token_extra_ids and (ids := extras.token_extra_ids.window(start, end)):
        yield ExtraTag.TOKEN_EXTRA, ids


def _lookahead(following: bytes) -> Iterator[tuple[ExtraTag, bytes]]:
    if following:
        yield ExtraTag.LOOKAHEAD, following


def _encode(extras: list[tuple[ExtraTag, bytes]]) -> bytes:
    parts = [pack("<BI", tag, len(held)) + held for tag, held in extras]
    return pack("<H", len(parts)) + b"".join(parts)
