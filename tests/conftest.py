"""How long property tests search for a counterexample, and from which seed.

By default each searches twice: from a fixed seed, so that two runs of one commit agree, and from a random one, printed
at the top, so that every run looks somewhere new. A failure names the seed that finds it again at once.
"""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.stateful import RuleBasedStateMachine

FIXED_SEED = 1
SEEDS_MIN = 20
LONG_S = 1800.0
# Batches of a few seconds: a search stops at the end of one, and the next has the next seed.
BATCH = hypothesis.settings(
    max_examples=40,
    stateful_step_count=50,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
    report_multiple_bugs=False,
)
RANDOM_SEED = pytest.StashKey[int]()


@dataclass(frozen=True)
class Search:
    """A search for a counterexample: batch after batch, each with a seed one above the last, until the time is over."""

    seed: int
    seconds: float

    def __call__(self, machine: type[RuleBasedStateMachine]) -> None:
        """Run a state machine; at least one batch."""
        end_s = time.monotonic() + self.seconds
        for seed in itertools.count(self.seed):
            try:
                run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=BATCH)
            except BaseException as error:
                error.add_note(_again(machine, seed))
                raise
            if time.monotonic() >= end_s:
                return

    def each(self, run: Callable[[int], None]) -> None:
        """Call something with every seed from the first on; at least with `SEEDS_MIN` of them."""
        end_s = time.monotonic() + self.seconds
        for seed in itertools.count(self.seed):
            try:
                run(seed)
            except BaseException as error:
                error.add_note(_again(run, seed))
                raise
            if time.monotonic() >= end_s and seed - self.seed + 1 >= SEEDS_MIN:
                return


def _again(searched: Callable[[int], None] | type[RuleBasedStateMachine], seed: int) -> str:
    return f"\nTo see this again: python -m pytest {searched.__module__.replace('.', '/')}.py --seed {seed}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the searches."""
    group = parser.getgroup("property tests")
    group.addoption(
        "--property-seconds", type=float, default=10.0, metavar="S", help="seconds of each search (default: 10)"
    )
    group.addoption("--long", action="store_true", help="search for 30 minutes from the random seed, or that of --seed")
    group.addoption("--seed", type=int, metavar="N", help="search only once, from this seed")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the random seed."""
    config.stash[RANDOM_SEED] = random.SystemRandom().randrange(10**9)


def pytest_report_header(config: pytest.Config) -> str:
    """Print it."""
    seed = config.getoption("--seed")
    return f"property tests: seed {config.stash[RANDOM_SEED] if seed is None else seed}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that takes a `search` its searches."""
    if "search" not in metafunc.fixturenames:
        return
    seed = metafunc.config.getoption("--seed")
    seconds = metafunc.config.getoption("--property-seconds")
    open_end_s = LONG_S if metafunc.config.getoption("--long") else seconds
    if seed is not None:
        searches = {"chosen": Search(seed, open_end_s)}
    else:
        searches = {
            "fixed": Search(FIXED_SEED, seconds),
            "random": Search(metafunc.config.stash[RANDOM_SEED], open_end_s),
        }
    metafunc.parametrize("search", searches.values(), ids=searches.keys())
