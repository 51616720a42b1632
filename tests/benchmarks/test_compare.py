"""Two checkouts are measured turn by turn and set side by side. No time is judged here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.compare", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)


def test_the_operations_of_two_checkouts_stand_side_by_side_with_their_ratio() -> None:
    """This checkout beside itself: a row for each number of groups, and none for the slow model."""
    options = ("--only", "hit", "--tokens", "256", "--repeats", "2", "--pool-blocks", "500")

    done = _run(str(REPOSITORY), "--pairs", "2", "--", *options)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("hit") == len((1, 3))
    assert "us / other" in done.stdout
    assert "model" not in done.stdout


def test_what_the_benchmark_says_of_wrong_options_is_passed_on() -> None:
    """The options go to it unread."""
    done = _run(str(REPOSITORY), "--pairs", "1", "--", "--tokens", "1000")

    assert done.returncode == 2
    assert "1000 is no multiple of 16" in done.stderr
