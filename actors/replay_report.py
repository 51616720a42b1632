"""What a replay has to report: as JSON for programs, as a table for people."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np
from rich.table import Table

from kvtroupe.actors.replay import Replay


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a replay was run.

    Attributes:
        trace: file that the requests came from.
        sequential: one request after the other, not at the times of the trace.
        groups: window groups, as given on the command line.
        block_tokens: tokens of a block.
        block_bytes: bytes of a block.
        device_blocks: slots of the device pool, the null block included.
        policy: the order in which cached blocks are given up.
        limit: requests replayed at most; None: all.
        seed: told into the namespace.
    """

    trace: str
    sequential: bool
    groups: str
    block_tokens: int
    block_bytes: int
    device_blocks: int
    policy: str
    limit: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Median and 99th percentile."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The outcome of a replay. The fields are the keys of the JSON form.

    Attributes:
        requests: requests replayed, those refused included.
        prompt_tokens: tokens of their prompts.
        hit_tokens: tokens found in the cache.
        token_hit_rate: share of the prompt tokens.
        hit_tokens_by_tier: the same tokens by the tier they were in.
        blocks_verified: blocks that hits read, each compared with its digest in each group.
        blocks_wrong: those of them with a wrong byte.
        moved_bytes: bytes copied between tiers.
        evictions: cached blocks given up for others.
        refused: requests that did not fit.
        waited: requests that had to wait for room.
        admit_us: duration of an admission, hashing not included.
        requests_per_s: over the whole replay, hashing, writing and comparing included.
        options: how the replay was run.
    """

    requests: int
    prompt_tokens: int
    hit_tokens: int
    token_hit_rate: float
    hit_tokens_by_tier: dict[str, int]
    blocks_verified: int
    blocks_wrong: int
    moved_bytes: int
    evictions: int
    refused: int
    waited: int
    admit_us: Quantiles
    requests_per_s: float
    options: ReplayOptions

    def to_json(self) -> str:
        """The report as a JSON object, over several lines."""
        return json.dumps(asdict(self), indent=2)

    def to_table(self) -> Table:
        """The report for a terminal."""
        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in self._rows():
            table.add_row(name, value)
        return table

    def _rows(self) -> list[tuple[str, str]]:
        options = self.options
        return [
            ("groups", options.groups),
            ("device pool", f"{options.device_blocks:,} blocks of {options.block_tokens:,} tokens"),
            ("requests", f"{self.requests:,}"),
            ("prompt tokens", f"{self.prompt_tokens:,}"),
            *((f"hit tokens, {tier}", f"{tokens:,}") for tier, tokens in self.hit_tokens_by_tier.items()),
            ("token hit rate", f"{self.token_hit_rate:.4f}"),
            ("blocks verified", f"{self.blocks_verified:,}"),
            ("blocks wrong", f"{self.blocks_wrong:,}"),
            ("evictions", f"{self.evictions:,}"),
            ("refused", f"{self.refused:,}"),
            ("admission, median", f"{self.admit_us.p50:,.0f} us"),
            ("admission, 99 %", f"{self.admit_us.p99:,.0f} us"),
            ("requests per second", f"{self.requests_per_s:,.0f}"),
        ]


def report_on(replay: Replay, options: ReplayOptions, elapsed_s: float) -> ReplayReport:
    """The report of a replay that has seen at least one request.

    Args:
        replay: that was run.
        options: how it was run.
        elapsed_s: how long that took.
    """
    tally = replay.tally
    p50_ns, p99_ns = np.percentile(np.asarray(tally.admit_ns), (50, 99)).tolist()
    return ReplayReport(
        requests=tally.requests,
        prompt_tokens=tally.prompt_tokens,
        hit_tokens=tally.hit_tokens,
        token_hit_rate=tally.hit_tokens / tally.prompt_tokens,
        hit_tokens_by_tier={"device": tally.hit_tokens},
        blocks_verified=tally.blocks_verified,
        blocks_wrong=tally.blocks_wrong,
        moved_bytes=0,  # there is one tier
        evictions=replay.replica.counters().evictions,
        refused=tally.refused,
        waited=0,  # one request after the other: none meets another one
        admit_us=Quantiles(p50_ns / 1000, p99_ns / 1000),
        requests_per_s=tally.requests / elapsed_s,
        options=options,
    )
