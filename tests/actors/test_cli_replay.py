"""The command `kvtroupe replay`: options, output, errors and exit statuses."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

from kvtroupe.actors.cli.main import app
from kvtroupe.actors.cli.values import parse_block_bytes, parse_groups
from kvtroupe.kernels.memory_pool import MemoryPool

POOL = "kvtroupe.actors.cli.replay.MemoryPool"
KEYS = {
    "requests",
    "prompt_tokens",
    "hit_tokens",
    "token_hit_rate",
    "hit_tokens_by_tier",
    "blocks_verified",
    "blocks_wrong",
    "moved_bytes",
    "evictions",
    "refused",
    "waited",
    "admit_us",
    "requests_per_s",
    "options",
}


def _line(hash_ids: list[int], input_length: int, output_length: int = 1) -> str:
    fields = {"timestamp": 0, "input_length": input_length, "output_length": output_length, "hash_ids": hash_ids}
    return f"{json.dumps(fields)}\n"


# Requests 2 and 3 find the first two blocks of request 1.
LINES = [_line([1, 2, 3], 1300), _line([1, 2, 4], 1300), _line([1, 2, 5], 1300)]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of three requests."""
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(LINES))
    return path


def _replay(trace: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["replay", str(trace), "--sequential", *options])


def _report(trace: Path, *options: str) -> dict[str, Any]:
    result = _replay(trace, "--json", "-", *options)

    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_json_on_standard_output_stands_alone(trace: Path) -> None:
    """Standard output is one JSON object with all keys, and standard error is empty without a terminal."""
    result = _replay(trace, "--json", "-")

    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert set(report) == KEYS
    assert (report["requests"], report["prompt_tokens"], report["hit_tokens"]) == (3, 3900, 2048)
    assert report["token_hit_rate"] == pytest.approx(2048 / 3900)
    assert report["hit_tokens_by_tier"] == {"device": 2048}
    assert (report["blocks_verified"], report["blocks_wrong"]) == (4, 0)
    assert (report["moved_bytes"], report["evictions"], report["refused"], report["waited"]) == (0, 0, 0, 0)
    assert 0 < report["admit_us"]["p50"] <= report["admit_us"]["p99"]
    assert report["requests_per_s"] > 0


def test_the_report_says_how_it_came_about(trace: Path) -> None:
    """All options are in it, sizes in bytes."""
    options = "--groups full,sliding:1024 --block-tokens 16 --block-bytes 1KiB --device-blocks 900 --limit 2 --seed 7"
    report = _report(trace, *options.split())

    assert report["options"] == {
        "trace": str(trace),
        "sequential": True,
        "groups": "full,sliding:1024",
        "block_tokens": 16,
        "block_bytes": 1024,
        "device_blocks": 900,
        "policy": "lru",
        "limit": 2,
        "seed": 7,
    }


def test_the_defaults_are_those_of_the_trace_and_of_a_small_pool(trace: Path) -> None:
    """One full group, the blocks of the trace, 4 KiB each, 10,000 of them."""
    options = _report(trace)["options"]

    assert (options["groups"], options["block_tokens"], options["block_bytes"]) == ("full", 512, 4096)
    assert (options["device_blocks"], options["policy"], options["limit"], options["seed"]) == (10_000, "lru", None, 0)


def test_json_in_a_file_leaves_standard_output_to_the_table(trace: Path, tmp_path: Path) -> None:
    """People read the one, programs the other."""
    result = _replay(trace, "--json", str(tmp_path / "report.json"))

    assert result.exit_code == 0
    assert json.loads((tmp_path / "report.json").read_text())["hit_tokens"] == 2048
    assert re.search(r"token hit rate\W+0\.5251\b", result.stdout)
    assert re.search(r"blocks wrong\W+0\b", result.stdout)


def test_a_compressed_trace_is_read(trace: Path, tmp_path: Path) -> None:
    """As its suffix says."""
    packed = tmp_path / "trace.jsonl.xz"
    packed.write_bytes(lzma.compress(trace.read_bytes()))

    assert _report(packed)["hit_tokens"] == 2048


def test_a_limit_ends_the_replay_early(trace: Path) -> None:
    """What comes after the limit is not even read."""
    trace.write_text("".join([*LINES[:2], "broken\n"]))
    report = _report(trace, "--limit", "2")

    assert (report["requests"], report["hit_tokens"]) == (2, 1024)


@pytest.mark.parametrize(("block_tokens", "hit_tokens"), [("16", 2048), ("1024", 2048), ("1000", 2000), ("2048", 0)])
def test_block_tokens_divide_or_join_the_tokens_of_the_trace(trace: Path, block_tokens: str, hit_tokens: int) -> None:
    """Requests 2 and 3 share 1,024 tokens with request 1: whole blocks of them are hit."""
    assert _report(trace, "--block-tokens", block_tokens)["hit_tokens"] == hit_tokens


def test_another_seed_gives_other_bytes_and_the_same_hits(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed is part of the namespace, which all digests start from."""
    pools: list[MemoryPool] = []

    class KeptPool(MemoryPool):
        def __init__(self, slots: int, block_bytes: int) -> None:
            super().__init__(slots, block_bytes)
            pools.append(self)

    monkeypatch.setattr(POOL, KeptPool)
    hits = [_report(trace, "--seed", seed)["hit_tokens"] for seed in ("0", "0", "1")]

    assert hits == [2048, 2048, 2048]
    assert np.array_equal(pools[0].blocks, pools[1].blocks)
    assert not np.array_equal(pools[0].blocks[1], pools[2].blocks[1])


def _flip(slot: int) -> Callable[[MemoryPool], None]:
    def flip(pool: MemoryPool) -> None:
        pool.blocks[slot, 5] ^= 1

    return flip


def _swap_groups(pool: MemoryPool) -> None:
    pool.blocks[[2, 5]] = pool.blocks[[5, 2]]


@pytest.mark.parametrize(
    ("damage", "named", "wrong"),
    [
        (_flip(2), "request 2, group 'full', block 1, slot 2", 1),
        (_flip(4), "request 2, group 'sliding:1024', block 0, slot 4", 1),
        (_swap_groups, "request 2, group 'full', block 1, slot 2", 2),
    ],
)
def test_a_wrong_byte_ends_the_replay_with_status_1(
    trace: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[MemoryPool], None], named: str, wrong: int
) -> None:
    """Request, group, block and slot are named in one line, and the report up to there is written."""

    class FaultyPool(MemoryPool):
        """Memory that goes bad once the blocks of the last group are written."""

        def write(self, slots: NDArray[np.int64], digests: NDArray[np.uint8], group: int) -> None:
            super().write(slots, digests, group)
            if group == 1:
                damage(self)

    monkeypatch.setattr(POOL, FaultyPool)
    result = _replay(trace, "--groups", "full,sliding:1024", "--json", "-")

    assert result.exit_code == 1
    assert result.stderr == f"Error: {named}: the bytes are not those of the block's digest\n"
    report = json.loads(result.stdout)
    assert (report["requests"], report["blocks_verified"], report["blocks_wrong"]) == (2, 4, wrong)


def test_refused_requests_are_counted_and_explained(trace: Path) -> None:
    """A pool of two usable blocks holds no request of three: the replay ends well, and says so."""
    result = _replay(trace, "--device-blocks", "3", "--json", "-")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["refused"] == 3
    assert result.stderr.startswith("Refused for lack of --device-blocks: 3 of 3 requests. The first: request 1: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--groups", "", "'' is no window group; use full or sliding:TOKENS, separated by commas"),
        ("--groups", "full,", "'' is no window group"),
        ("--groups", "fool", "'fool' is no window group"),
        ("--groups", "full:3", "'full:3' is no window group"),
        ("--groups", "sliding", "'sliding' is no window group"),
        ("--groups", "sliding:-1", "'sliding:-1' is no window group"),
        ("--groups", "sliding:1.5", "'sliding:1.5' is no window group"),
        ("--groups", "sliding:0", "'sliding:0': a window has 1 to 2147483647 tokens"),
        ("--groups", "sliding:2147483648", "'sliding:2147483648': a window has 1 to 2147483647 tokens"),
        ("--block-tokens", "0", "greater than or equal to 1"),
        ("--block-tokens", "65537", "less than or equal to 65536"),
        ("--block-tokens", "many", "a valid integer"),
        ("--block-bytes", "0", "'0' is outside 1B to 64MiB"),
        ("--block-bytes", "65MiB", "'65MiB' is outside 1B to 64MiB"),
        ("--block-bytes", "-4KiB", "'-4KiB' is no size"),
        ("--block-bytes", "1.5KiB", "'1.5KiB' is no size"),
        ("--block-bytes", "4KiX", "'4KiX' is no size"),
        ("--block-bytes", "", "'' is no size"),
        ("--device-blocks", "1", "greater than or equal to 2"),
        ("--device-blocks", "2147483649", "less than or equal to 2147483648"),
        ("--policy", "fifo", "'fifo'"),
        ("--limit", "0", "greater than or equal to 1"),
        ("--seed", "x", "a valid integer"),
        ("--json", "nowhere/report.json", "'nowhere/report.json' cannot be written"),
        ("--json", ".", "'.' cannot be written"),
    ],
)
def test_a_bad_option_is_named_with_what_is_wrong(trace: Path, option: str, value: str, complaint: str) -> None:
    """Status 2, before anything is read."""
    result = _replay(trace, option, value)

    assert result.exit_code == 2
    assert option in result.stderr
    assert complaint in result.stderr
    assert result.stdout == ""


def test_arrivals_in_time_are_refused_as_long_as_they_are_missing(trace: Path) -> None:
    """A replay without --sequential must not quietly be a sequential one."""
    result = CliRunner().invoke(app, ["replay", str(trace)])

    assert result.exit_code == 2
    assert "not supported yet; add --sequential" in result.stderr


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", " is empty: a trace has one JSON object for each request, one a line"),
        (f"{LINES[0]}\n", ", line 2: the line is empty; every line is a request"),
        (f"{LINES[0]}oops\n", ", line 2: not JSON: Expecting value (column 1)"),
        (_line([1], 0), ", line 1: input_length is 0, outside 1 to 16777216 tokens"),
    ],
)
def test_a_bad_trace_is_one_line_and_status_2(trace: Path, content: str, complaint: str) -> None:
    """File, line and fault; no result is shown."""
    trace.write_text(content)
    result = _replay(trace)

    assert result.exit_code == 2
    assert result.stderr == f"Error: {trace}{complaint}\n"
    assert result.stdout == ""


def test_a_missing_trace_is_one_line_and_status_2(tmp_path: Path) -> None:
    """The path and the reason."""
    result = _replay(tmp_path / "nowhere.jsonl")

    assert result.exit_code == 2
    assert result.stderr == f"Error: {tmp_path / 'nowhere.jsonl'} cannot be read: No such file or directory\n"


def test_a_pool_that_does_not_fit_into_memory_is_one_line_and_status_2(trace: Path) -> None:
    """A hundred pebibytes are more than any machine has."""
    result = _replay(trace, "--device-blocks", "2000000000", "--block-bytes", "64MiB")

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: 2000000000 blocks of 67108864 bytes do not fit into memory")
    assert result.stderr.count("\n") == 1


def test_an_interrupt_is_one_line_and_status_130(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at any time of the replay shows no traceback and no result."""

    class InterruptedPool(MemoryPool):
        def write(self, *_: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(POOL, InterruptedPool)
    result = _replay(trace)

    assert result.exit_code == 130
    assert (result.stdout, result.stderr) == ("", "Interrupted.\n")


def test_memory_that_runs_out_is_one_line_and_no_wrong_byte(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it runs out."""

    class HungryPool(MemoryPool):
        def write(self, *_: object) -> None:
            raise MemoryError

    monkeypatch.setattr(POOL, HungryPool)
    result = _replay(trace)

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: out of memory")
    assert result.stderr.count("\n") == 1


def test_help_names_every_option() -> None:
    """What there is can be found without documentation."""
    shown = CliRunner().invoke(app, ["replay", "--help"]).stdout
    found = set(re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE))

    sizes = {"--block-tokens", "--block-bytes", "--device-blocks"}
    assert found == sizes | {"--sequential", "--groups", "--policy", "--limit", "--seed", "--json", "--help"}
    assert "Exit status:" in shown
    assert "replay" in CliRunner().invoke(app, ["--help"]).stdout


def test_the_version_is_that_of_the_installed_package() -> None:
    """One version, in the package's metadata."""
    result = CliRunner().invoke(app, ["--version"])

    assert result.exit_code == 0
    assert result.stdout == f"kvtroupe {metadata.version('kvtroupe')}\n"


@pytest.mark.parametrize(
    ("text", "block_bytes"),
    [
        ("1", 1),
        ("4096", 4096),
        ("7B", 7),
        ("4KiB", 4096),
        ("4 kib", 4096),
        ("2KB", 2000),
        ("2MB", 2_000_000),
        ("64MiB", 64 * 1024**2),
    ],
)
def test_sizes_have_the_usual_units(text: str, block_bytes: int) -> None:
    """Decimal and binary ones, in any case, bytes without one."""
    assert parse_block_bytes(text) == block_bytes


@pytest.mark.parametrize("text", ["1GB", "1GiB", "99999999999999999GiB"])
def test_sizes_beyond_any_block_are_refused(text: str) -> None:
    """The unit is known, the size is absurd."""
    with pytest.raises(ValueError, match="outside 1B to 64MiB"):
        parse_block_bytes(text)


def test_groups_are_named_as_they_are_written() -> None:
    """Those that occur again are numbered, so that every name is unique."""
    groups = parse_groups("full, sliding:1024,full,sliding:1024,full,sliding:16")

    names = [group.name for group in groups]
    assert names == ["full", "sliding:1024", "full#2", "sliding:1024#2", "full#3", "sliding:16"]
    assert [group.window_tokens for group in groups] == [None, 1024, None, 1024, None, 16]
    assert [group.kind for group in groups] == ["full", "sliding"] * 3
