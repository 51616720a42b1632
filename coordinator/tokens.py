"""Token ids, and numbers that go with them one by one, as contiguous one-dimensional arrays.

Callers hold tokens as lists, `array.array`, NumPy arrays or torch tensors, in any integer type. Rules:

- Numbers are taken as they are or refused, never rounded, wrapped or cut: a wrong id is another prefix.
- The message of a refusal names the first bad value and its position.
- An array that is contiguous and of the right type already is not copied.
"""

from __future__ import annotations

import operator
import reprlib
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from kvtroupe.coordinator.errors import TokenError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SupportsArray(Protocol):
    """What NumPy can read as an array: its own arrays, torch tensors in CPU memory."""

    def __array__(self) -> NDArray[Any]:
        """The values as a NumPy array."""


TokenInput: TypeAlias = Sequence[int] | SupportsArray

# array.array codes of the element types.
_TYPECODES = {np.dtype(np.int32): "i", np.dtype(np.uint64): "Q"}


def token_array(tokens: TokenInput) -> NDArray[np.int32]:
    """Token ids as int32 [tokens], contiguous; the caller's own memory where it has that form already.

    Raises:
        TokenError: no tokens at all, more than one dimension, or a value that is no int32 integer. Booleans, floats
            and strings are no integers, whatever their value.
    """
    return _integers("tokens", tokens, np.dtype(np.int32))


def extra_id_array(ids: TokenInput) -> NDArray[np.uint64]:
    """Extra ids of tokens as uint64 [tokens], contiguous, under the same rules as token ids.

    Raises:
        TokenError: as `token_array` does, for values that are no uint64 integers.
    """
    return _integers("token extra ids", ids, np.dtype(np.uint64))


def _integers(name: str, values: TokenInput, dtype: np.dtype[Any]) -> NDArray[Any]:
    if isinstance(values, (str, bytes, bytearray)):
        raise TokenError(f"{name} must be integers, not text or raw bytes: got {reprlib.repr(values)}")
    if isinstance(values, (array, memoryview)) or hasattr(values, "__array__"):
        found = _from_array(name, values, dtype)
    elif isinstance(values, Sequence):
        found = _from_sequence(name, values, dtype)
    else:
        raise TokenError(f"{name} must be a sequence or an array of integers, got {reprlib.repr(values)}")
    if not found.size:
        raise TokenError(f"no {name}: give at least one")
    return found


def _from_array(name: str, values: TokenInput, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        given: NDArray[Any] = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TokenError(f"{name} cannot be read as an array in CPU memory: {error}") from error
    if given.ndim != 1:
        raise TokenError(f"{name} must be one-dimensional, got shape {given.shape}; give one sequence at a time")
    if given.dtype == dtype or not given.size:
        return np.ascontiguousarray(given, dtype)
    if given.dtype == np.dtype(object):
        return _from_sequence(name, given.tolist(), dtype)
    if given.dtype.kind not in "iu":
        raise TokenError(f"{name}[0] is {reprlib.repr(given[0].item())} ({given.dtype}), not an integer")
    limits = np.iinfo(dtype)
    if int(given.min()) < limits.min or int(given.max()) > limits.max:
        raise _first_bad(name, given.tolist(), dtype)
    return np.ascontiguousarray(given, dtype)


def _from_sequence(name: str, values: Sequence[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        # NumPy would cut floats and parse strings here; array.array takes integers only.
        found: NDArray[Any] = np.asarray(array(_TYPECODES[dtype], values))
    except (TypeError, OverflowError) as error:
        raise _first_bad(name, values, dtype) from error
    # It takes booleans too, as 0 and 1. Few ids are that small, so only those are looked at.
    if any(isinstance(values[position], bool) for position in np.flatnonzero(found <= 1).tolist()):
        raise _first_bad(name, values, dtype)
    return found


def _first_bad(name: str, values: Sequence[Any], dtype: np.dtype[Any]) -> TokenError:
    complaints = (_complaint(value, dtype) for value in values)
    position, complaint = next((at, text) for at, text in enumerate(complaints) if text)
    return TokenError(f"{name}[{position}] is {reprlib.repr(values[position])}{complaint}")


def _complaint(value: object, dtype: np.dtype[Any]) -> str:
    """What is wrong with a value; nothing if nothing is."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # whether it is an integer is the question
    except TypeError:
        return f" ({type(value).__name__}), not an integer"
    if isinstance(value, bool):
        return " (bool), not an integer"
    limits = np.iinfo(dtype)
    if not limits.min <= number <= limits.max:
        return f", outside {dtype.name} ({limits.min} to {limits.max})"
    return ""
