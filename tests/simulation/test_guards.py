"""Whichever rule is taken away, a simulation finds out: it sees the faults that the rules guard against."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.simulation.guards import GUARDS, Guard
from tests.simulation.test_simulation import failure_of, make_config

STEPS = 800
SEEDS_MAX = 300


@pytest.mark.parametrize("guard", GUARDS, ids=[guard.fault for guard in GUARDS])
def test_a_simulation_finds_out_that_a_rule_is_gone(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same worlds are without fault when the rule is there."""
    guard.take_away(monkeypatch)
    for seed in range(1, SEEDS_MAX):
        chance = random.Random(seed)  # noqa: S311 - chooses test cases
        config = make_config(chance)
        decisions = [chance.randrange(2**32) for _ in range(STEPS)]
        if failure_of(config, guard.faults, decisions) is not None:
            break
    else:
        pytest.fail(f"{SEEDS_MAX} worlds without this rule, and nothing was wrong in any")
    monkeypatch.undo()
    assert failure_of(config, guard.faults, decisions) is None


def test_the_documentation_lists_every_rule() -> None:
    """And where it is."""
    page = (Path(__file__).parents[2] / "docs" / "checking.md").read_text()
    for guard in GUARDS:
        for one in (guard, *guard.together):
            module = one.owner.__module__.rpartition(".")[2]
            assert f"| {guard.fault} | `{module}.py`, `{one.owner.__name__}.{one.method}` |" in page
