"""`kvtroupe replay`: replay a request trace and verify every block that is reused."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kvtroupe.actors.cli.exits import exit_on_error
from kvtroupe.actors.cli.values import parse_block_bytes, parse_groups
from kvtroupe.actors.replay import HashedRequest, Replay, hash_prompts
from kvtroupe.actors.replay_report import ReplayOptions, ReplayReport, report_on
from kvtroupe.actors.trace import count_requests, read_trace
from kvtroupe.coordinator.config import Config, GroupConfig, PoolConfig
from kvtroupe.coordinator.errors import ConfigError, CorruptBlock
from kvtroupe.coordinator.identity import MAX_HASH_BLOCK_TOKENS, Sha256Chain
from kvtroupe.kernels.memory_pool import MemoryPool

EXIT_STATUS = (
    "Exit status: 0 when every reused block was right, refused requests or not; 1 when one held a wrong byte; 2 when "
    "the trace or an option cannot be used, or the output not be written; 130 when interrupted; 141 when nobody reads "
    "the output any more."
)
STANDARD_OUTPUT = Path("-")
COUNTED_REQUESTS_MAX = 1_000_000  # only for the progress bar, which shows no end beyond
T = TypeVar("T")


class Policy(StrEnum):
    """Orders in which cached blocks are given up."""

    LRU = "lru"


TraceFile = Annotated[
    Path, typer.Argument(metavar="TRACE", help="Trace in the Mooncake format: JSON lines, plain or compressed (.xz).")
]
Sequential = Annotated[
    bool,
    typer.Option(
        "--sequential", help="Run one request after the other. Required: arrivals in time are not supported yet."
    ),
]
Groups = Annotated[
    str,
    typer.Option(metavar="SPEC", help="Window groups of the model: full, sliding:TOKENS, or several, with commas."),
]
BlockTokens = Annotated[int, typer.Option(min=1, max=MAX_HASH_BLOCK_TOKENS, metavar="N", help="Tokens of a block.")]
BlockBytes = Annotated[str, typer.Option(metavar="SIZE", help="Bytes of a block, at most 64MiB.")]
DeviceBlocks = Annotated[
    int,
    typer.Option(
        min=2, max=2**31, metavar="N", help="Slots of the pool that all groups share; one of them is the null block."
    ),
]
CachePolicy = Annotated[Policy, typer.Option(help="Which cached blocks are given up first.")]
Limit = Annotated[int | None, typer.Option(min=1, max=2**40, metavar="N", help="Replay the first N requests only.")]
Seed = Annotated[
    int, typer.Option(metavar="N", help="Goes into the namespace: other digests and other bytes, the same hits.")
]
JsonFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the result as JSON; - is standard output, and nothing else goes there."),
]


def replay(  # noqa: PLR0913 - every option of the command is a parameter
    trace: TraceFile,
    *,
    sequential: Sequential = False,
    groups: Groups = "full",
    block_tokens: BlockTokens = 512,
    block_bytes: BlockBytes = "4KiB",
    device_blocks: DeviceBlocks = 10_000,
    policy: CachePolicy = Policy.LRU,
    limit: Limit = None,
    seed: Seed = 0,
    json: JsonFile = None,
) -> None:
    """Replay a request trace and verify every block that is reused.

    Each request is admitted, its new blocks are written with bytes that follow from their digests, committed, decoded
    and released. Every block that a hit reads is compared with what its digest says: one wrong byte ends the replay.
    """
    if not sequential:
        raise typer.BadParameter(
            "replaying at the times of the trace is not supported yet; add --sequential to run one request after the "
            "other",
            param_hint="--sequential",
        )
    options = ReplayOptions(
        trace=str(trace),
        sequential=sequential,
        groups=groups,
        block_tokens=block_tokens,
        block_bytes=_parsed("--block-bytes", parse_block_bytes, block_bytes),
        device_blocks=device_blocks,
        policy=policy.value,
        limit=limit,
        seed=seed,
    )
    group_configs = _parsed("--groups", parse_groups, groups)
    if json is not None:
        _check_writable(json)
    with exit_on_error():
        _replay(options, group_configs, json)


def _parsed(option: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _check_writable(json: Path) -> None:
    """Refuse a file that cannot be written now, not after the replay."""
    if json != STANDARD_OUTPUT and (json.is_dir() or not os.access(json if json.exists() else json.parent, os.W_OK)):
        raise typer.BadParameter(f"{str(json)!r} cannot be written", param_hint="--json")


def _replay(options: ReplayOptions, groups: tuple[GroupConfig, ...], json: Path | None) -> None:
    replay, chain = _prepare(options, groups)
    requests = islice(read_trace(Path(options.trace)), options.limit)
    failure = None
    start_s = time.perf_counter()
    try:
        for hashed in _with_progress(hash_prompts(requests, chain), options):
            replay.run(hashed)
    except CorruptBlock as error:
        failure = error
    _show(report_on(replay, options, time.perf_counter() - start_s), json)
    if replay.tally.first_refusal is not None:
        typer.echo(
            f"Refused for lack of --device-blocks: {replay.tally.refused:,} of {replay.tally.requests:,} requests. "
            f"The first: {replay.tally.first_refusal}",
            err=True,
        )
    if failure is not None:
        raise failure


def _prepare(options: ReplayOptions, groups: tuple[GroupConfig, ...]) -> tuple[Replay, Sha256Chain]:
    config = Config(
        namespace=f"kvtroupe replay, seed {options.seed}",
        block_tokens=options.block_tokens,
        groups=groups,
        pools=(PoolConfig(blocks=options.device_blocks),),
    )
    try:
        pool = MemoryPool(options.device_blocks, options.block_bytes)
    except MemoryError as error:
        raise ConfigError(
            f"{options.device_blocks} blocks of {options.block_bytes} bytes do not fit into memory: {error}; give "
            "fewer --device-blocks or smaller --block-bytes"
        ) from error
    return Replay(config, pool), Sha256Chain(config.namespace, config.block_tokens)


def _with_progress(requests: Iterable[HashedRequest], options: ReplayOptions) -> Iterable[HashedRequest]:
    """The requests, with a bar while they are taken if standard error is a terminal."""
    return _track(requests, options) if sys.stderr is not None and sys.stderr.isatty() else requests


def _track(requests: Iterable[HashedRequest], options: ReplayOptions) -> Iterator[HashedRequest]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(requests, _expected_requests(options), description="Replaying")


def _expected_requests(options: ReplayOptions) -> int | None:
    """How many requests there will be, unless it would take long to know."""
    trace = Path(options.trace)
    if not trace.is_file():  # a pipe can be read only once
        return None
    wanted = options.limit or sys.maxsize
    counted = count_requests(trace, min(wanted, COUNTED_REQUESTS_MAX))
    return None if counted == COUNTED_REQUESTS_MAX < wanted else counted


def _show(report: ReplayReport, json: Path | None) -> None:
    if json == STANDARD_OUTPUT:
        typer.echo(report.to_json())
        return
    console = Console()
    with console.capture() as table:
        console.print(report.to_table())
    typer.echo(table.get(), nl=False)
    if json is not None:  # last: where it cannot be written, the table has been
        try:
            json.write_text(f"{report.to_json()}\n")
        except OSError as error:
            raise ConfigError(f"{json} cannot be written: {error.strerror}") from error
