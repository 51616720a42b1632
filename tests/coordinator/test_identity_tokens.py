"""Token ids from every kind of container, and what is refused."""

from __future__ import annotations

import array
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from kvtroupe.coordinator.errors import TokenError
from kvtroupe.coordinator.tokens import extra_id_array, token_array

KINDS: dict[str, Any] = {
    "list": [3, 1, 2],
    "tuple": (3, 1, 2),
    "deque": deque([3, 1, 2]),
    "list of NumPy integers": [np.int64(3), np.uint8(1), np.int32(2)],
    "array.array int": array.array("i", [3, 1, 2]),
    "array.array unsigned long long": array.array("Q", [3, 1, 2]),
    "int8": np.array([3, 1, 2], np.int8),
    "uint16": np.array([3, 1, 2], np.uint16),
    "int32": np.array([3, 1, 2], np.int32),
    "int64": np.array([3, 1, 2], np.int64),
    "uint64": np.array([3, 1, 2], np.uint64),
    "big-endian int32": np.array([3, 1, 2], ">i4"),
    "every other of an array": np.array([3, 0, 1, 0, 2], np.int32)[::2],
    "objects": np.array([3, 1, 2], object),
    "memoryview": memoryview(array.array("i", [3, 1, 2])),
    "torch int64": torch.tensor([3, 1, 2]),
    "torch int32": torch.tensor([3, 1, 2], dtype=torch.int32),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_integers_becomes_contiguous_int32(kind: str) -> None:
    """Lists, arrays and tensors of any integer type hold the same tokens."""
    found = token_array(KINDS[kind])

    assert found.tolist() == [3, 1, 2]
    assert found.dtype == np.dtype(np.int32)
    assert found.dtype.isnative
    assert found.shape == (3,)
    assert found.flags.c_contiguous


def test_contiguous_int32_is_not_copied() -> None:
    """An int32 array, also a read-only one, array.array and tensor come back as the same memory."""
    owned = np.arange(5, dtype=np.int32)
    read_only = np.arange(5, dtype=np.int32)
    read_only.flags.writeable = False
    standard = array.array("i", range(5))
    tensor = torch.arange(5, dtype=torch.int32)

    assert token_array(owned) is owned
    assert token_array(read_only) is read_only
    assert np.shares_memory(token_array(standard), np.frombuffer(standard, np.int32))
    assert np.shares_memory(token_array(tensor), tensor.numpy())


def test_the_ends_of_int32_are_taken() -> None:
    """The smallest and the largest id are tokens as any other, from a list and from an array."""
    ends = [-(2**31), 2**31 - 1]

    assert token_array(ends).tolist() == ends
    assert token_array(np.array(ends, np.int64)).tolist() == ends


@pytest.mark.parametrize("kind", [[], (), np.empty(0, np.int32), np.empty(0), array.array("q"), torch.empty(0)])
def test_no_tokens_are_refused(kind: Any) -> None:  # noqa: ANN401  # any container
    """An empty container of any kind is an error, as a sequence has at least one token."""
    with pytest.raises(TokenError, match="no tokens: give at least one"):
        token_array(kind)


BAD: dict[str, tuple[Any, str]] = {
    "too large in a list": ([1, 2**31], r"tokens\[1\] is 2147483648, outside int32 \(-2147483648 to 2147483647\)"),
    "too small in a list": ([-(2**31) - 1], r"tokens\[0\] is -2147483649, outside int32"),
    "far too large in a list": ([1, 2, 10**30, -(2**40)], r"tokens\[2\] is 10+, outside int32"),
    "too large in an array": (np.array([5, -7, 2**31, 2**40]), r"tokens\[2\] is 2147483648, outside int32"),
    "too small in an array": (np.array([5, -(2**31) - 1]), r"tokens\[1\] is -2147483649, outside int32"),
    "too large unsigned": (np.array([5, 2**64 - 1], np.uint64), r"tokens\[1\] is 18446744073709551615, outside int32"),
    "too large in array.array": (array.array("q", [0, 2**31]), r"tokens\[1\] is 2147483648, outside int32"),
    "too large in a tensor": (torch.tensor([0, 2**31]), r"tokens\[1\] is 2147483648, outside int32"),
    "too large among objects": (np.array([5, 2**70], object), r"tokens\[1\] is 1180591620717411303424, outside int32"),
    "float in a list": ([1, 2.0], r"tokens\[1\] is 2.0 \(float\), not an integer"),
    "not a number": ([1, float("nan")], r"tokens\[1\] is nan \(float\), not an integer"),
    "floats in an array": (np.array([1.0, 2.0]), r"tokens\[0\] is 1.0 \(float64\), not an integer"),
    "floats in a tensor": (torch.tensor([1.5]), r"tokens\[0\] is 1.5 \(float32\), not an integer"),
    "boolean in a list": ([1, 2, True], r"tokens\[2\] is True \(bool\), not an integer"),
    "false in a list": ([False], r"tokens\[0\] is False \(bool\), not an integer"),
    "NumPy boolean in a list": ([3, np.True_], r"tokens\[1\] is np.True_ \(bool\), not an integer"),
    "booleans in an array": (np.array([True]), r"tokens\[0\] is True \(bool\), not an integer"),
    "string in a list": ([1, "2"], r"tokens\[1\] is '2' \(str\), not an integer"),
    "strings in an array": (np.array(["7"]), r"tokens\[0\] is '7' \(<U1\), not an integer"),
    "times in an array": (np.array([7], "m8[ns]"), r"tokens\[0\] is 7 \(timedelta64\[ns\]\), not an integer"),
    "none in a list": ([None], r"tokens\[0\] is None \(NoneType\), not an integer"),
    "text": ("123", "must be integers, not text or raw bytes: got '123'"),
    "bytes": (b"123", "must be integers, not text or raw bytes: got b'123'"),
    "ragged": ([[1, 2], [3]], r"tokens\[0\] is \[1, 2\] \(list\), not an integer"),
    "two-dimensional list": ([1, [2, 3]], r"tokens\[1\] is \[2, 3\] \(list\), not an integer"),
    "two-dimensional array": (np.zeros((2, 3), int), r"one-dimensional, got shape \(2, 3\)"),
    "batch of one": (torch.zeros((1, 3), dtype=torch.int64), r"one-dimensional, got shape \(1, 3\)"),
    "one number": (np.int64(5), r"one-dimensional, got shape \(\)"),
    "plain number": (5, "must be a sequence or an array of integers, got 5"),
    "nothing": (None, "must be a sequence or an array of integers, got None"),
    "set": ({5}, r"must be a sequence or an array of integers, got \{5\}"),
    "tensor without memory": (torch.empty(2, device="meta"), "cannot be read as an array in CPU memory: .*meta"),
}


@pytest.mark.parametrize("case", BAD)
def test_values_that_are_no_token_ids_are_refused_by_name(case: str) -> None:
    """The first bad value and its position are in the message, or what is wrong with the whole."""
    tokens, message = BAD[case]

    with pytest.raises(TokenError, match=message):
        token_array(tokens)


def test_a_huge_value_does_not_flood_the_message() -> None:
    """What is wrong is shown shortened."""
    with pytest.raises(TokenError) as refused:
        token_array([1, "x" * 100_000])  # type: ignore[list-item]  # no token

    assert len(str(refused.value)) < 200


def test_extra_ids_are_uint64() -> None:
    """Ids reach the end of uint64, and refusals speak of ids."""
    ends = [0, 2**64 - 1]

    assert extra_id_array(ends).tolist() == ends
    assert extra_id_array(np.array([7], np.int8)).tolist() == [7]
    with pytest.raises(TokenError, match=r"token extra ids\[1\] is -1, outside uint64 \(0 to 18446744073709551615\)"):
        extra_id_array([0, -1])
    with pytest.raises(TokenError, match=r"token extra ids\[0\] is -1, outside uint64"):
        extra_id_array(np.array([-1, 2]))
    with pytest.raises(TokenError, match=r"token extra ids\[0\] is True \(bool\)"):
        extra_id_array([True])
