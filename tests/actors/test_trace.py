"""Reading of request traces."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtroupe.actors.trace import HASH_ID_MAX, LINE_BYTES_MAX, REQUEST_TOKENS_MAX, count_requests, read_trace
from kvtroupe.coordinator.errors import TraceError

GOOD: dict[str, Any] = {"timestamp": 12.5, "input_length": 600, "output_length": 3, "hash_ids": [4, 9]}
BLOCK_TOKENS = 512


def _line(**changed: object) -> bytes:
    """A good line with some values changed, or keys left out (`...`)."""
    fields = {key: value for key, value in (GOOD | changed).items() if value is not ...}
    return json.dumps(fields).encode() + b"\n"


def _trace(folder: Path, *lines: bytes) -> Path:
    path = folder / "trace.jsonl"
    path.write_bytes(b"".join(lines))
    return path


def _refusal(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    return str(caught.value)


def test_every_line_is_a_request(tmp_path: Path) -> None:
    """All fields arrive, keys that are not known are ignored, and requests are numbered by line."""
    first, second = read_trace(_trace(tmp_path, _line(session="a"), _line(timestamp=13, input_length=1, hash_ids=[0])))

    assert (first.number, first.timestamp_ms, first.input_tokens, first.output_tokens) == (1, 12.5, 600, 3)
    assert first.hash_ids.tolist() == [4, 9]
    assert (second.number, second.timestamp_ms, second.input_tokens) == (2, 13.0, 1)


def test_tokens_follow_from_the_ids_of_their_blocks(tmp_path: Path) -> None:
    """Token j of the block with id h is h * 512 + j, cut to the length of the prompt, in int32."""
    (request,) = read_trace(_trace(tmp_path, _line()))

    prompt = request.prompt()

    assert prompt.dtype == np.int32
    assert prompt.tolist() == [*range(4 * 512, 5 * 512), *range(9 * 512, 9 * 512 + 88)]


@pytest.mark.parametrize("hash_id", [2**22 - 1, 2**22, 2**22 + 5, 2**32, HASH_ID_MAX])
def test_tokens_of_large_ids_wrap_at_two_to_the_31(tmp_path: Path, hash_id: int) -> None:
    """The product does not fit into 31 bits; the remainder counts, as the format says."""
    (request,) = read_trace(_trace(tmp_path, _line(input_length=512, hash_ids=[hash_id])))

    assert request.prompt().tolist() == [(hash_id * 512 + j) % 2**31 for j in range(BLOCK_TOKENS)]


def test_the_last_line_needs_no_end(tmp_path: Path) -> None:
    """A missing newline at the end of the file does not lose a request."""
    path = _trace(tmp_path, _line(), _line().rstrip())

    assert [request.number for request in read_trace(path)] == [1, 2]
    assert count_requests(path, 9) == 2


def test_compressed_traces_are_read_directly(tmp_path: Path) -> None:
    """The suffix .xz decides."""
    path = tmp_path / "trace.jsonl.xz"
    path.write_bytes(lzma.compress(_line() * 3))

    assert [request.number for request in read_trace(path)] == [1, 2, 3]
    assert count_requests(path, 9) == 3


def test_requests_before_a_bad_line_are_given_out(tmp_path: Path) -> None:
    """A trace is a stream: the error comes where it is met."""
    requests = read_trace(_trace(tmp_path, _line(), b"oops\n"))

    assert next(requests).number == 1
    with pytest.raises(TraceError, match="line 2"):
        next(requests)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"\n", "the line is empty"),
        (b"   \n", "the line is empty"),
        (b"{nope}\n", "not JSON: Expecting property name"),
        (b'{"timestamp": 0\n', "not JSON"),
        (_line().replace(b"timestamp", b"time\xff"), "no UTF-8 text"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (b"[1, 2]\n", "expected a JSON object, found [1, 2]"),
        (b"null\n", "expected a JSON object, found null"),
        (b'{"input_length": 1' + b"0" * 5000 + b"}\n", "thousands of digits"),
        (b" " * LINE_BYTES_MAX + _line(), "longer than 1048576 bytes"),
        (_line(timestamp=...), "timestamp is missing"),
        (_line(input_length=...), "input_length is missing"),
        (_line(output_length=...), "output_length is missing"),
        (_line(hash_ids=...), "hash_ids is missing"),
        (_line(timestamp="12"), 'timestamp is a number of milliseconds, not "12"'),
        (_line(timestamp=True), "timestamp is a number of milliseconds, not true"),
        (_line(timestamp=float("nan")), "timestamp is NaN, outside"),
        (_line(timestamp=float("inf")), "timestamp is Infinity, outside"),
        (_line(timestamp=-1), "timestamp is -1, outside"),
        (_line(timestamp=10**400), "timestamp is 1000"),
        (_line(input_length=600.0), "input_length is a whole number of tokens, not 600.0"),
        (_line(input_length=True), "input_length is a whole number of tokens, not true"),
        (_line(input_length="600"), 'input_length is a whole number of tokens, not "600"'),
        (_line(input_length=None), "input_length is a whole number of tokens, not null"),
        (_line(input_length=0, hash_ids=[]), "input_length is 0, outside 1 to 16777216 tokens"),
        (_line(input_length=-5), "input_length is -5, outside"),
        (_line(input_length=REQUEST_TOKENS_MAX + 1), "input_length is 16777217, outside"),
        (_line(output_length=0), "output_length is 0, outside 1 to 16777216 tokens"),
        (_line(output_length=-1), "output_length is -1, outside"),
        (_line(output_length=10**30), "output_length is 1000000000000000000000000000000, outside"),
        (_line(output_length=False), "output_length is a whole number of tokens, not false"),
        (_line(hash_ids=4), "hash_ids is a list of block ids, not 4"),
        (_line(hash_ids={"0": 1, "1": 2}), "hash_ids is a list of block ids, not {"),
        (_line(hash_ids=[4]), "hash_ids has 1 ids, but input_length 600 makes 2 blocks of 512 tokens"),
        (_line(hash_ids=[4, 5, 6]), "hash_ids has 3 ids, but input_length 600 makes 2 blocks"),
        (_line(input_length=512), "hash_ids has 2 ids, but input_length 512 makes 1 blocks"),
        (_line(hash_ids=[4, -1]), "hash_ids[1] is -1, no whole number from 0"),
        (_line(hash_ids=[4, HASH_ID_MAX + 1]), "hash_ids[1] is 9223372036854775808, no whole number"),
        (_line(hash_ids=[4, 5.0]), "hash_ids[1] is 5.0, no whole number"),
        (_line(hash_ids=[True, 5]), "hash_ids[0] is true, no whole number"),
        (_line(hash_ids=["4", 5]), 'hash_ids[0] is "4", no whole number'),
        (_line(hash_ids=[None, 5]), "hash_ids[0] is null, no whole number"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_line_that_is_no_request_is_named_with_what_is_wrong(tmp_path: Path, line: bytes, complaint: str) -> None:
    """File, line number and fault are in one message of one line."""
    path = _trace(tmp_path, _line(), line, _line())

    message = _refusal(path)

    assert message.startswith(f"{path}, line 2: ")
    assert complaint in message
    assert "\n" not in message
    assert len(message) < len(str(path)) + 200


def test_the_longest_allowed_request_is_read(tmp_path: Path) -> None:
    """The limits of lengths, ids and lines fit together."""
    ids = [HASH_ID_MAX] * (REQUEST_TOKENS_MAX // 512)
    longest = _line(input_length=REQUEST_TOKENS_MAX, output_length=REQUEST_TOKENS_MAX, hash_ids=ids)

    (request,) = read_trace(_trace(tmp_path, longest))

    assert len(longest) <= LINE_BYTES_MAX
    assert len(request.prompt()) == REQUEST_TOKENS_MAX


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    """A replay of nothing would look like a result."""
    assert "is empty" in _refusal(_trace(tmp_path))


def test_an_empty_compressed_trace_is_refused(tmp_path: Path) -> None:
    """Also when the emptiness is well compressed."""
    path = tmp_path / "trace.xz"
    path.write_bytes(lzma.compress(b""))

    assert "is empty" in _refusal(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The path and the reason are named."""
    message = _refusal(tmp_path / "nowhere.jsonl")

    assert message == f"{tmp_path / 'nowhere.jsonl'} cannot be read: No such file or directory"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    """It exists, but is no trace."""
    assert _refusal(tmp_path) == f"{tmp_path} cannot be read: Is a directory"


def test_a_file_that_was_not_compressed_is_refused(tmp_path: Path) -> None:
    """The suffix promises xz."""
    path = tmp_path / "trace.jsonl.xz"
    path.write_bytes(_line())

    assert "damaged after line 0, or was not made by xz" in _refusal(path)


def test_a_truncated_compressed_trace_is_refused(tmp_path: Path) -> None:
    """What could be read is given out; then the error says how far that was."""
    path = tmp_path / "trace.jsonl.xz"
    lines = b"".join(_line(timestamp=number) for number in range(5000))
    path.write_bytes(lzma.compress(lines)[:-200])
    numbers: list[int] = []

    with pytest.raises(TraceError) as caught:
        numbers.extend(request.number for request in read_trace(path))

    assert numbers == list(range(1, len(numbers) + 1))
    assert str(caught.value).startswith(f"{path} is damaged after line {len(numbers)}, ")


def test_a_corrupt_compressed_trace_is_refused(tmp_path: Path) -> None:
    """A flipped byte does not give other requests."""
    path = tmp_path / "trace.jsonl.xz"
    packed = bytearray(lzma.compress(_line() * 100))
    packed[len(packed) // 2] ^= 0xFF
    path.write_bytes(packed)

    assert f"{path} is damaged after line " in _refusal(path)


@pytest.mark.parametrize("name", ["nowhere.jsonl", "nowhere.jsonl.xz"])
def test_an_unreadable_trace_has_no_count(tmp_path: Path, name: str) -> None:
    """Counting is for a progress bar: the error is for whoever reads the requests, and only if it gets that far."""
    assert count_requests(tmp_path / name, 9) is None


def test_counting_stops_where_nobody_wants_to_know_more(tmp_path: Path) -> None:
    """A small compressed file may unpack to more lines than anybody has time for, or be damaged further on."""
    path = tmp_path / "trace.jsonl.xz"
    path.write_bytes(lzma.compress(b"\n" * 100_000)[:-20])

    assert count_requests(path, 1000) == 1000
    assert count_requests(path, 10**9) is None


def test_a_line_nested_as_deeply_as_can_be_read_is_refused(tmp_path: Path) -> None:
    """Whether the reader or the writer of the message gives up first."""
    for depth in range(900, 1100, 3):
        refusal = _refusal(_trace(tmp_path, b"[" * depth + b"]" * depth))

        assert "expected a JSON object" in refusal or "nested too deeply" in refusal
