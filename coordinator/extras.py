"""What else, besides tokens, decides the contents of a block: its extras.

An adapter, images and the like, a salt, prompt embeddings and extra ids of tokens all change keys and values, so blocks
that differ in them must not be taken for each other. This file holds the values and says which of them a block sees;
how that is written into a digest is the business of `extra_keys.py`. Rules:

- Values are immutable, compare by value and are checked when made.
- Positions count from the first token of the sequence.
- A block sees what overlaps its *window*: its own tokens and the lookahead tokens after it.
"""

from __future__ import annotations

import reprlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from kvtroupe.coordinator.errors import ConfigError, TokenError
from kvtroupe.coordinator.tokens import SupportsArray, TokenInput, extra_id_array

MAX_TEXT_BYTES = 65_536
MAX_MULTIMODAL_ITEMS = 65_000
MAX_LOOKAHEAD_TOKENS = 1_024
# Positions are written as int32.
MAX_POSITION = 2**31 - 1

_EXTRA_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class LoRA:
    """An adapter. The path is part of identity, so that a name that comes to mean other weights meets no old blocks.

    Raises:
        ConfigError: the name is empty, or one of both is no text that UTF-8 can hold in `MAX_TEXT_BYTES`.
    """

    name: str
    path: str = ""

    def __post_init__(self) -> None:
        check_text("the name of a LoRA adapter", self.name, least_bytes=1)
        check_text("the path of a LoRA adapter", self.path)


@dataclass(frozen=True, slots=True)
class MultimodalItem:
    """An image, a video, a piece of audio: the placeholder tokens at `offset_tokens` that its encoding replaces.

    The identifier stands for the contents, as a hash of them does.

    Raises:
        ConfigError: the identifier is empty or no text, the item has no tokens, or it ends beyond `MAX_POSITION`.
    """

    identifier: str
    offset_tokens: int
    length_tokens: int

    def __post_init__(self) -> None:
        check_text("the identifier of a multimodal item", self.identifier, least_bytes=1)
        check_count("offset_tokens of a multimodal item", self.offset_tokens, 0, MAX_POSITION - 1)
        check_count("length_tokens of a multimodal item", self.length_tokens, 1, MAX_POSITION - self.offset_tokens)

    @property
    def end_tokens(self) -> int:
        """Position after the item's last token."""
        return self.offset_tokens + self.length_tokens


@dataclass(frozen=True, slots=True)
class PromptEmbeddings:
    """Embeddings that a prompt has instead of token ids: one row for each of its first tokens, as raw bytes.

    Raises:
        ConfigError: there is no row, or the bytes are no whole number of rows.
    """

    data: bytes = field(repr=False)
    row_bytes: int

    def __post_init__(self) -> None:
        check_count("row_bytes of prompt embeddings", self.row_bytes, 1, MAX_POSITION)
        if complaint := _rows_complaint(self.data, self.row_bytes):
            raise ConfigError(f"prompt embeddings {complaint}")

    @classmethod
    def from_rows(cls, rows: SupportsArray) -> PromptEmbeddings:
        """Copy an array [tokens, hidden] of numbers of any width, little-endian.

        Types that NumPy lacks, such as bfloat16, come in viewed as integers of the same width.

        Raises:
            ConfigError: the array cannot be read, has another shape, or holds no numbers.
        """
        try:
            array = np.asarray(rows)
        except (TypeError, ValueError, RuntimeError) as error:
            message = f"prompt embeddings cannot be read as an array in CPU memory: {error}; view bfloat16 as int16"
            raise ConfigError(message) from error
        if array.ndim != 2 or not array.size or array.dtype.kind not in "fiu":
            message = f"prompt embeddings must be numbers [tokens, hidden], got {array.dtype} {array.shape}"
            raise ConfigError(message)
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return cls(little.tobytes(), array.shape[1] * array.itemsize)

    @property
    def tokens(self) -> int:
        """Number of rows."""
        return len(self.data) // self.row_bytes

    def rows(self, start: int, end: int) -> bytes:
        """Raw bytes of the rows of the tokens from `start` to before `end`, as far as there are rows."""
        return self.data[start * self.row_bytes : end * self.row_bytes]


@dataclass(frozen=True, slots=True)
class TokenExtraIds:
    """One more number for each of the first tokens, as uint64, little-endian. Tokens after them have 0.

    An id of 0 says nothing: a block whose window has no other id is the same block as one without ids.

    Raises:
        TokenError: the bytes are no whole number of ids, or there is none.
    """

    data: bytes = field(repr=False)
    # From the first token with an id other than 0 to behind the last: where blocks may see one.
    span: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if complaint := _rows_complaint(self.data, _EXTRA_ID_BYTES):
            raise TokenError(f"token extra ids {complaint}")
        used = np.flatnonzero(np.frombuffer(self.data, np.uint64))
        object.__setattr__(self, "span", (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0))

    @classmethod
    def from_ids(cls, ids: TokenInput) -> TokenExtraIds:
        """Copy ids [tokens] from a list or an array of integers.

        Raises:
            TokenError: no ids, more than one dimension, or a value that is no uint64 integer.
        """
        return cls(extra_id_array(ids).astype("<u8", copy=False).tobytes())

    @property
    def tokens(self) -> int:
        """Number of ids."""
        return len(self.data) // _EXTRA_ID_BYTES

    def window(self, start: int, end: int) -> bytes:
        """Ids of the tokens from `start` to before `end`, 0 where there is none; nothing at all if all are 0."""
        ids = self.data[start * _EXTRA_ID_BYTES : end * _EXTRA_ID_BYTES]
        return ids.ljust((end - start) * _EXTRA_ID_BYTES, b"\0") if any(ids) else b""


@dataclass(frozen=True, slots=True)
class Extras:
    """Everything of a sequence that is part of its blocks' identity, but for its tokens.

    Attributes:
        lora: the adapter; seen by every block.
        multimodal: items in any order; kept in order of their offsets.
        cache_salt: separates those who do not share it; seen by the first block, which passes it on. Empty: none.
        prompt_embeddings: rows for the first tokens.
        token_extra_ids: ids for the first tokens.
        lookahead_tokens: how many tokens after a block its contents depend on, for the layers of draft models.

    Raises:
        ConfigError: a value of the wrong type, too many items, or a lookahead beyond `MAX_LOOKAHEAD_TOKENS`.
    """

    lora: LoRA | None = None
    multimodal: tuple[MultimodalItem, ...] = ()
    cache_salt: str = ""
    prompt_embeddings: PromptEmbeddings | None = None
    token_extra_ids: TokenExtraIds | None = None
    lookahead_tokens: int = 0
    # For each item, where the longest of it and those before it ends: ascending, so that it can be bisected.
    _reach: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_type("lora", self.lora, LoRA)
        _check_type("prompt_embeddings", self.prompt_embeddings, PromptEmbeddings)
        _check_type("token_extra_ids", self.token_extra_ids, TokenExtraIds)
        check_text("cache_salt", self.cache_salt)
        check_count("lookahead_tokens", self.lookahead_tokens, 0, MAX_LOOKAHEAD_TOKENS)
        items = sorted(_checked_items(self.multimodal), key=lambda item: item.offset_tokens)
        object.__setattr__(self, "multimodal", tuple(items))
        object.__setattr__(self, "_reach", tuple(accumulate((item.end_tokens for item in items), max)))

    def check_prompt(self, prompt_tokens: int) -> None:
        """Refuse extras that do not fit a prompt of this many tokens.

        Raises:
            ConfigError: an item or a row of embeddings beyond the prompt.
            TokenError: more or fewer extra ids than tokens.
        """
        if self._reach and self._reach[-1] > prompt_tokens:
            message = f"a multimodal item ends at token {self._reach[-1]}, but the prompt has {prompt_tokens}"
            raise ConfigError(message)
        if self.prompt_embeddings and self.prompt_embeddings.tokens > prompt_tokens:
            message = f"{self.prompt_embeddings.tokens} rows of prompt embeddings, but the prompt has {prompt_tokens}"
            raise ConfigError(f"{message} tokens; give at most one row a token")
        if self.token_extra_ids and self.token_extra_ids.tokens != prompt_tokens:
            message = f"{self.token_extra_ids.tokens} token extra ids for a prompt of {prompt_tokens} tokens"
            raise TokenError(f"{message}; give one id a token, 0 where it has none")

    def multimodal_in(self, start: int, end: int) -> tuple[MultimodalItem, ...]:
        """Items that overlap the tokens from `start` to before `end`, in order of their offsets."""
        if not self.multimodal:
            return ()
        first = bisect_right(self._reach, start)
        behind = bisect_left(self.multimodal, end, key=lambda item: item.offset_tokens)
        return tuple(item for item in self.multimodal[first:behind] if item.end_tokens > start)

    def varying_blocks(self, first_token: int, blocks: int, block_tokens: int) -> set[int]:
        """Blocks, counted from the one that starts at `first_token`, that may see more than the adapter and lookahead.

        All other blocks of the sequence look alike but for their tokens. Some blocks between tokens with extra ids are
        named although they see none.
        """
        end = first_token + blocks * block_tokens + self.lookahead_tokens
        spans = [(item.offset_tokens, item.end_tokens) for item in self.multimodal_in(first_token, end)]
        if self.cache_salt and first_token == 0:
            spans.append((0, 1))
        if self.prompt_embeddings:
            spans.append((0, self.prompt_embeddings.tokens))
        if self.token_extra_ids:
            spans.append(self.token_extra_ids.span)
        touched: set[int] = set()
        for start, stop in spans:
            # The first block whose window reaches the span, and the first that begins behind it.
            first = (start - first_token - self.lookahead_tokens) // block_tokens
            behind = -((first_token - stop) // block_tokens)
            touched.update(range(max(first, 0), min(behind, blocks)))
        return touched


def _checked_items(items: object) -> tuple[MultimodalItem, ...]:
    if not isinstance(items, (tuple, list)):
        raise ConfigError(f"multimodal must be a tuple of MultimodalItem, got {reprlib.repr(items)}")
    if len(items) > MAX_MULTIMODAL_ITEMS:
        raise ConfigError(f"{len(items)} multimodal items in one sequence, at most {MAX_MULTIMODAL_ITEMS} are allowed")
    for position, item in enumerate(items):
        if not isinstance(item, MultimodalItem):
            raise ConfigError(f"multimodal[{position}] must be a MultimodalItem, got {reprlib.repr(item)}")
    return tuple(items)


def _rows_complaint(data: object, row_bytes: int) -> str:
    """What is wrong with the bytes of an array of rows; nothing if nothing is."""
    if not isinstance(data, bytes):
        return f"must be bytes, got {reprlib.repr(data)}"
    if not data or len(data) % row_bytes:
        return f"must be whole rows of {row_bytes} bytes, at least one, got {len(data)} bytes"
    return ""


def _check_type(name: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{name} must be a {kind.__name__} or None, got {reprlib.repr(value)}")


def check_count(name: str, value: object, least: int, most: int) -> None:
    """Refuse what is no integer from `least` to `most`.

    Raises:
        ConfigError: that is so.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{name} must be an integer from {least} to {most}, got {reprlib.repr(value)}")


def check_text(name: str, value: object, least_bytes: int = 0) -> None:
    """Refuse what is no string, or has fewer bytes in UTF-8 than `least_bytes` or more than `MAX_TEXT_BYTES`.

    Raises:
        ConfigError: that is so.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a string, got {reprlib.repr(value)}")
    try:
        held_bytes = len(value.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name} cannot be written as UTF-8: {error}") from error
    if not least_bytes <= held_bytes <= MAX_TEXT_BYTES:
        message = f"{name} must have {least_bytes} to {MAX_TEXT_BYTES} bytes of UTF-8, got {held_bytes}"
        raise ConfigError(message)


NO_EXTRAS = Extras()
