"""The error tree is what its documentation says, and every error survives a process border."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from kvtroupe.coordinator import errors


def _descendants(base: type[errors.KVTroupeError]) -> list[type[errors.KVTroupeError]]:
    return [found for child in base.__subclasses__() for found in (child, *_descendants(child))]


ALL_ERRORS: list[type[errors.KVTroupeError]] = [errors.KVTroupeError, *_descendants(errors.KVTroupeError)]


def _fields(error: type[errors.KVTroupeError]) -> dict[str, str]:
    """Names and types of the fields that an error is made with: none if it takes a message only."""
    if error.__init__ is Exception.__init__:
        return {}
    return {name: parameter.annotation for name, parameter in inspect.signature(error).parameters.items()}


def _sample(error: type[errors.KVTroupeError]) -> errors.KVTroupeError:
    """One error with a different value in every field."""
    values: dict[str, list[str | int | float]] = {
        "str": ["a", "b", "c"],
        "int": [*range(1, 9)],
        "float": [0.5, 1.5],
        "str | int": ["s", 17],
    }
    fields = _fields(error)
    return error(*(values[kind].pop() for kind in fields.values())) if fields else error("8 slots needed, 7 there")


def _documented_parents() -> dict[str, str]:
    """The tree that the module docstring draws: each class name with the name above it."""
    parents: dict[str, str] = {}
    above = ["KVTroupeError"]
    for line in (errors.__doc__ or "").splitlines():
        drawn = re.match(r"    ((?:│   |    )*)[├└]── (\w+)", line)
        if drawn:
            depth = len(drawn[1]) // 4 + 1
            parents[drawn[2]] = above[depth - 1]
            above[depth:] = [drawn[2]]
    return parents


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", ALL_ERRORS)
def test_an_error_survives_pickling_with_message_and_fields(error: type[errors.KVTroupeError], protocol: int) -> None:
    """Actors in other processes raise these errors, so nothing of them may be lost on the way."""
    original = _sample(error)

    copy = pickle.loads(pickle.dumps(original, protocol))  # noqa: S301 - bytes of our own, made one line above

    assert type(copy) is error
    assert str(copy) == str(original)
    assert str(copy)
    assert copy.args == original.args
    assert vars(copy) == vars(original)


@pytest.mark.parametrize("error", ALL_ERRORS)
def test_every_field_is_kept_under_its_own_name(error: type[errors.KVTroupeError]) -> None:
    """What an error was made with can be read from it by name and from its arguments in order."""
    original = _sample(error)

    values = original.args if _fields(error) else ()
    assert vars(original) == dict(zip(_fields(error), values, strict=True))


def test_the_documented_tree_names_exactly_the_classes_that_exist() -> None:
    """The tree in the module docstring has every class, under the class that it derives from, and no other."""
    defined = {error.__name__: error.__bases__[0].__name__ for error in ALL_ERRORS[1:]}

    assert _documented_parents() == defined


def test_every_exception_of_the_module_belongs_to_the_tree() -> None:
    """`except KVTroupeError` catches everything that kvtroupe raises on purpose."""
    raisable = [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, BaseException)]

    assert set(raisable) == set(ALL_ERRORS)


def test_every_error_has_one_base_and_a_docstring_of_its_own() -> None:
    """One error is one kind of fault, and says which."""
    for error in ALL_ERRORS:
        assert len(error.__bases__) == 1
        assert error.__dict__.get("__doc__")


def test_out_of_blocks_says_what_was_needed_and_what_was_there() -> None:
    """The message of the most common refusal has all its numbers and what to do."""
    message = str(errors.OutOfBlocks("device", 12, 3, 4, 1))

    assert message == (
        "pool 'device' is short of blocks: 12 needed, 3 free, 4 coming, 1 reserved; "
        "release sequences, or try again when some have ended"
    )
