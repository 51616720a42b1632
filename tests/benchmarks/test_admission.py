"""The benchmark of admission runs and reports. What it measures is checked by itself; no time is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
OPERATIONS = {
    "list_to_array",
    "hash",
    "lookup",
    "hit",
    "miss_free",
    "miss_evict",
    "miss_evict_mixed",
    "admit_64",
    "commit",
    "extend",
    "grow_64",
    "release",
}
WITHOUT_MODEL = {"list_to_array", "lookup", "admit_64"}
TINY = ("--repeats", "2", "--pool-blocks", "500")


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.admission", *options]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("order", [(), ("--scattered",)], ids=["in order", "scattered"])
def test_every_operation_is_measured_for_all_groups_and_prompts_beside_the_model(order: tuple[str, ...]) -> None:
    """The JSON list on standard output has one median for each of them, and nothing else is printed."""
    done = _run("--tokens", "256", "--tokens", "2048", "--json", "-", *TINY, *order)

    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    models = {f"{operation}_model" for operation in OPERATIONS - WITHOUT_MODEL}
    assert {frozenset(one) for one in measured} == {frozenset({"operation", "groups", "tokens", "us"})}
    assert sorted((one["operation"], one["groups"], one["tokens"]) for one in measured) == sorted(
        product(OPERATIONS | models, (1, 3), (256, 2048))
    )
    assert all(isinstance(one["us"], float) and one["us"] > 0 for one in measured)


def test_a_written_list_holds_the_chosen_operations_and_a_table_is_printed_as_well(tmp_path: Path) -> None:
    """Whoever keeps the figures in a file still sees them, ours beside the model's and the ratio."""
    file = tmp_path / "figures.json"

    done = _run("--tokens", "256", "--only", "hit", "--only", "extend", "--json", str(file), *TINY)

    assert done.returncode == 0, done.stderr
    names = {one["operation"] for one in json.loads(file.read_text())}
    assert names == {"hit", "hit_model", "extend", "extend_model"}
    assert "1 full group, 2 sliding groups" in done.stdout
    assert done.stdout.count("hit") == done.stdout.count("extend") == len((1, 3))
    assert done.stdout.count("model / ours") == len((1, 3))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [(("--tokens", "1000"), "1000 is no multiple of 16"), (("--tokens", "128"), "'--tokens'")],
    ids=["no whole blocks", "too short"],
)
def test_prompts_that_cannot_be_measured_are_refused_at_once(options: tuple[str, ...], complaint: str) -> None:
    """A run of minutes does not end in a message about its arguments."""
    done = _run(*options)

    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stdout == ""
