"""Request traces in the Mooncake format: one JSON object a line, plain or compressed with xz.

Each line has `timestamp` (milliseconds since the start of the trace), `input_length` and `output_length` (tokens) and
`hash_ids`: one id for each block of 512 prompt tokens, equal where the tokens and all tokens before them are equal.
Traces carry no text, so token j of the block with id h is defined as `(h * 512 + j) mod 2**31`.

A trace is read line by line and never held as a whole. Nothing in it is taken on trust: what cannot be a request is a
`TraceError` that names the file, the line and what is wrong with it.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtroupe.coordinator.errors import TraceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRACE_BLOCK_TOKENS = 512
TOKEN_IDS = 2**31
# Beyond any model, and far below what would fill the memory.
REQUEST_TOKENS_MAX = 2**24
# A prompt of the greatest length with the greatest ids needs 0.7 MB.
LINE_BYTES_MAX = 2**20
HASH_ID_MAX = 2**63 - 1
# 31,000 years.
TIMESTAMP_MS_MAX = 10**15


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        number: of its line, from 1 on.
        timestamp_ms: of its arrival.
        input_tokens: length of the prompt.
        output_tokens: length of the answer.
        hash_ids: int64 [ceil(input_tokens / 512)], identities of the prompt's blocks.
    """

    number: int
    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    hash_ids: NDArray[np.int64]

    def prompt(self) -> NDArray[np.int32]:
        """The tokens of the prompt, int32 [input_tokens]."""
        # Only the bits of an id that are left after the modulo: the product would not fit otherwise.
        starts = self.hash_ids % (TOKEN_IDS // TRACE_BLOCK_TOKENS) * TRACE_BLOCK_TOKENS
        tokens = np.add.outer(starts.astype(np.int32), np.arange(TRACE_BLOCK_TOKENS, dtype=np.int32))
        return tokens.ravel()[: self.input_tokens]


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """The requests of a trace, in the order of the file.

    Raises:
        TraceError: the file cannot be read, holds nothing, or has a line that is no request; raised where it is met,
            after all requests before it.
    """
    number = 0
    for number, line in enumerate(_lines(path), 1):
        try:
            request = _parse(line, number)
        except TraceError as error:
            raise TraceError(f"{path}, line {number}: {error}") from error
        yield request
    if not number:
        raise TraceError(f"{path} is empty: a trace has one JSON object for each request, one a line")


def count_requests(path: Path, at_most: int) -> int | None:
    """How many lines a trace has, none of them looked at, counting to `at_most`; None if it cannot be read so far."""
    try:
        return sum(1 for _ in islice(_lines(path), at_most))
    except TraceError:
        return None  # whoever reads the requests is told, when it comes to that


def _lines(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            while line := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                yield line
    except (lzma.LZMAError, EOFError) as error:
        raise TraceError(f"{path} is damaged after line {number}, or was not made by xz: {error}") from error
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error


def _parse(line: bytes, number: int) -> TraceRequest:
    """The request of a line.

    Raises:
        TraceError: what is wrong with the line.
    """
    fields = _json_object(line)
    input_tokens = _length(fields, "input_length")
    return TraceRequest(
        number=number,
        timestamp_ms=_timestamp(fields),
        input_tokens=input_tokens,
        output_tokens=_length(fields, "output_length"),
        hash_ids=_hash_ids(fields, input_tokens),
    )


def _json_object(line: bytes) -> dict[str, Any]:
    if len(line) > LINE_BYTES_MAX:
        raise TraceError(f"longer than {LINE_BYTES_MAX} bytes, which no request needs")
    if not line.strip():
        raise TraceError("the line is empty; every line is a request")
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"not JSON: {error.msg} (column {error.colno})") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"not JSON: byte {error.start} is no UTF-8 text") from error
    except ValueError as error:
        raise TraceError("holds a number of thousands of digits") from error
    except RecursionError as error:
        raise TraceError("nested too deeply for a request") from error
    if not isinstance(found, dict):
        raise TraceError(f"expected a JSON object, found {_shown(found)}")
    return found


def _field(fields: dict[str, Any], key: str) -> object:
    if key not in fields:
        raise TraceError(f"{key} is missing")
    return fields[key]


def _length(fields: dict[str, Any], key: str) -> int:
    found = _field(fields, key)
    if not isinstance(found, int) or isinstance(found, bool):
        raise TraceError(f"{key} is a whole number of tokens, not {_shown(found)}")
    if not 1 <= found <= REQUEST_TOKENS_MAX:
        raise TraceError(f"{key} is {_shown(found)}, outside 1 to {REQUEST_TOKENS_MAX} tokens")
    return found


def _timestamp(fields: dict[str, Any]) -> float:
    found = _field(fields, "timestamp")
    if not isinstance(found, int | float) or isinstance(found, bool):
        raise TraceError(f"timestamp is a number of milliseconds, not {_shown(found)}")
    # Not a number and infinity compare as outside, too.
    if not 0 <= found <= TIMESTAMP_MS_MAX:
        raise TraceError(f"timestamp is {_shown(found)}, outside 0 to {TIMESTAMP_MS_MAX} milliseconds")
    return float(found)


def _hash_ids(fields: dict[str, Any], input_tokens: int) -> NDArray[np.int64]:
    found = _field(fields, "hash_ids")
    if not isinstance(found, list):
        raise TraceError(f"hash_ids is a list of block ids, not {_shown(found)}")
    expected = -(-input_tokens // TRACE_BLOCK_TOKENS)
    if len(found) != expected:
        raise TraceError(
            f"hash_ids has {len(found)} ids, but input_length {input_tokens} makes {expected} blocks of "
            f"{TRACE_BLOCK_TOKENS} tokens"
        )
    for position, hash_id in enumerate(found):
        if type(hash_id) is not int or not 0 <= hash_id <= HASH_ID_MAX:
            raise TraceError(f"hash_ids[{position}] is {_shown(hash_id)}, no whole number from 0 to {HASH_ID_MAX}")
    return np.array(found, np.int64)


def _shown(value: object) -> str:
    """A JSON value, shortened for a message."""
    try:
        text = json.dumps(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= 40 else f"{text[:37]}..."
