"""What operations cost here beside another checkout: `python -m benchmarks.compare PATH --only hit --tokens 8192`.

The two take turns, a fresh process each, so that a machine that is slow for a while is slow for both. What an operation
costs more here than in a checkout of an earlier commit is what has been added since costs those who do not use it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[1]
PACKAGE_FOLDERS = ("actors", "coordinator", "kernels")

Key: TypeAlias = tuple[str, int, int]  # operation, groups, tokens

HELP = """Measure operations in this checkout and in another one, turn by turn, and print the ratio of the medians.

What comes after -- goes to `benchmarks.admission` in both, for instance: -- --only hit --tokens 8192 --repeats 100.
Operations that one of them does not know cannot be compared.
"""


@contextmanager
def importable(checkout: Path) -> Iterator[Path]:
    """A folder from which the package and the benchmarks of a checkout can be imported."""
    with TemporaryDirectory() as name:
        root = Path(name)
        package = root / "kvtroupe"
        package.mkdir()
        (package / "__init__.py").symlink_to(checkout / "actors" / "public" / "__init__.py")
        for folder in PACKAGE_FOLDERS:
            (package / folder).symlink_to(checkout / folder)
        (root / "benchmarks").symlink_to(checkout / "benchmarks")
        yield root


def measure(root: Path, options: list[str]) -> dict[Key, float]:
    """Microseconds of each operation, from one run in one checkout."""
    command = [sys.executable, "-m", "benchmarks.admission", "--json", "-", *options]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    if done.returncode:
        raise typer.BadParameter(f"the benchmark does not run in {root}: {done.stderr[-2000:]}")
    return {(one["operation"], one["groups"], one["tokens"]): one["us"] for one in json.loads(done.stdout)}


def to_table(here: list[dict[Key, float]], there: list[dict[Key, float]]) -> Table:
    """Medians of all runs, and of the ratios of the runs that were next to each other."""
    table = Table()
    for heading in ("operation", "groups", "tokens", "other us", "us", "us / other"):
        table.add_column(heading, justify="left" if heading == "operation" else "right")
    for key in here[0]:
        if key in there[0] and not key[0].endswith("_model"):
            ratio = median([ours[key] / theirs[key] for ours, theirs in zip(here, there, strict=True)])
            other_us, us = (median([run[key] for run in runs]) for runs in (there, here))
            table.add_row(key[0], str(key[1]), f"{key[2]:,}", f"{other_us:.2f}", f"{us:.2f}", f"{ratio:.2f}")
    return table


def main(
    other: Annotated[Path, typer.Argument(exists=True, file_okay=False, resolve_path=True, help="The other checkout.")],
    options: Annotated[list[str] | None, typer.Argument(help="Of `benchmarks.admission`.")] = None,
    *,
    pairs: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 5,
) -> None:
    """Measure, then print."""
    here: list[dict[Key, float]] = []
    there: list[dict[Key, float]] = []
    with importable(HERE) as ours, importable(other) as theirs:
        for pair in range(pairs):
            turns = [(ours, here), (theirs, there)]
            for root, runs in turns if pair % 2 else reversed(turns):
                runs.append(measure(root, options or []))
    Console().print(to_table(here, there))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
