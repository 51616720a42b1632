"""The command `kvtroupe replay` and its streams: closed, full, or a terminal. Each test starts the command itself."""

from __future__ import annotations

import json
import lzma
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

COMMAND = str(Path(sys.executable).parent / "kvtroupe")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of three requests."""
    path = tmp_path / "trace.jsonl"
    fields = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}
    path.write_text(f"{json.dumps(fields)}\n" * 3)
    return path


@pytest.mark.parametrize("options", [[], ["--json", "-"]])
def test_a_closed_pipe_shows_no_traceback(trace: Path, options: list[str]) -> None:
    """Whoever reads the output may stop reading."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [COMMAND, "replay", str(trace), "--sequential", *options]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(write_end)

    assert done.returncode == 141
    assert done.stderr == ""


def test_a_closed_standard_error_is_no_obstacle(trace: Path, tmp_path: Path) -> None:
    """Some daemons start their commands so; the result is written all the same."""
    result = tmp_path / "result.json"
    command = f"exec {COMMAND} replay {trace} --sequential --json {result} 2>&-"
    done = subprocess.run(["/bin/sh", "-c", command], stdout=subprocess.PIPE, timeout=60, check=False)

    assert done.returncode == 0
    assert json.loads(result.read_text())["requests"] == 3


@pytest.mark.parametrize("options", [[], ["--json", "-"]])
def test_a_full_device_is_told_from_a_wrong_byte(trace: Path, options: list[str]) -> None:
    """Output that cannot be written is one line and status 2; status 1 says that the cache is broken."""
    command = [COMMAND, "replay", str(trace), "--sequential", *options]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    assert done.returncode == 2
    assert done.stderr == "Error: the output cannot be written: No space left on device\n"


def _on_a_terminal(*arguments: str) -> tuple[subprocess.CompletedProcess[str], bytes]:
    """A replay whose standard error is a terminal, and what that has shown."""
    terminal, standard_error = pty.openpty()
    command = [COMMAND, "replay", *arguments, "--sequential", "--json", "-"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=standard_error, text=True, timeout=60, check=False)
    os.close(standard_error)
    with open(terminal, "rb", buffering=0) as written:  # noqa: PTH123 - a descriptor has no path
        shown = b""
        # Once all was read, a terminal that nobody holds open any more is an error.
        with suppress(OSError):
            while piece := written.read(4096):
                shown += piece
    return done, shown


def test_progress_is_shown_on_a_terminal_and_only_there(trace: Path) -> None:
    """The bar goes to standard error, counts to the number of requests, and leaves standard output to the result."""
    done, shown = _on_a_terminal(str(trace))

    assert done.returncode == 0
    assert b"Replaying" in shown
    assert b"3/3" in shown
    assert json.loads(done.stdout)["requests"] == 3


def test_a_terminal_does_not_change_how_a_replay_ends(trace: Path, tmp_path: Path) -> None:
    """The bar looks no further than the replay: damage behind the requests that are wanted is nobody's concern."""
    damaged = tmp_path / "damaged.jsonl.xz"
    damaged.write_bytes(lzma.compress(trace.read_bytes() * 1000)[:-40])

    done, shown = _on_a_terminal(str(damaged), "--limit", "2")

    assert (done.returncode, json.loads(done.stdout)["requests"]) == (0, 2)
    assert b"2/2" in shown
