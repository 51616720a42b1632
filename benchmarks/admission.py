"""What the operations of a replica cost, each beside the slow, obvious model of it: `python -m benchmarks.admission`.

Compare the ratios, which hold on any machine; compare times only on a quiet one.
"""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.contests import (
    MIXED_POOL_SHARE,
    MIXED_REPEATS_MAX,
    MODEL_EVERY,
    MODEL_POOL_SHARE,
    OF_MODEL,
    Measurement,
    Operation,
    Options,
    measure,
)
from benchmarks.workload import BLOCK_TOKENS, Shape

GROUPS = (1, 3)
PROMPT_TOKENS = (512, 2048, 8192, 32768)
PROMPT_TOKENS_MIN = 256
PROMPT_TOKENS_MAX = 2**17
REPEATS_MAX = 10_000
POOL_BLOCKS_MAX = 2**22

HELP = """Measure what the operations of a replica cost, each beside the slow, obvious model of it.

Figures are medians in microseconds, for one full group, and for one full and two sliding groups (1024 tokens) that
share a pool; blocks have 16 tokens. Replica and model take turns, and the cyclic garbage collector rests meanwhile.

\b
list_to_array     a Python list of the tokens of a prompt becomes an array
hash              digests of a prompt, from an int32 array
lookup            what admission would find, which is all
hit               admission that finds all blocks but the last
miss_free         admission that finds nothing, into slots that hold nothing
miss_evict        admission that finds nothing; every slot it takes evicts a block
miss_evict_mixed  the same; each of the evicted blocks was a prompt of its own
admit_64          64 prompts in one call, each evicting another: for each of them
commit            publication of a whole prompt, and what leaves the windows then
extend            one token into a spare block
grow_64           a block more for 64 sequences in one call, evicting: for each of them
release           end of a sequence that has published its prompt
"""


# -- reporting ---------------------------------------------------------------------------------------------------------


def to_table(measurements: Sequence[Measurement], groups: int) -> Table:
    """The measurements of so many groups, with the ratio of the model's median to ours."""
    us = {(one.operation, one.tokens): one.us for one in measurements if one.groups == groups}
    table = Table(title="1 full group" if groups == 1 else f"1 full group, {groups - 1} sliding groups")
    table.add_column("operation")
    for heading in ("tokens", "us", "model us", "model / ours"):
        table.add_column(heading, justify="right")
    for operation in Operation:
        rows = [(tokens, ours) for (name, tokens), ours in us.items() if name == operation]
        for tokens, ours in rows:
            model = us.get((operation + OF_MODEL, tokens))
            beside = ("", "") if model is None else (_readable(model), f"{model / ours:.1f}")
            table.add_row(operation, f"{tokens:,}", _readable(ours), *beside, end_section=tokens == rows[-1][0])
    return table


def _readable(us: float) -> str:
    return f"{us:,.0f}" if us >= 1000 else f"{us:.1f}" if us >= 10 else f"{us:.2f}"


def _with_progress(shapes: Sequence[Shape]) -> Iterable[Shape]:
    """The shapes, with a bar while they are measured if standard error is a terminal."""
    console = Console(stderr=True)
    return track(shapes, "Measuring", console=console, transient=True) if console.is_terminal else shapes


# -- command -----------------------------------------------------------------------------------------------------------


def _whole_blocks(tokens: list[int] | None) -> list[int] | None:
    for length in tokens or ():
        if length % BLOCK_TOKENS:
            raise typer.BadParameter(f"{length} is no multiple of {BLOCK_TOKENS}, the tokens of a block")
    return tokens


Only = Annotated[
    list[Operation] | None,
    typer.Option("--only", metavar="OPERATION", help="Measure this operation only; may be given several times."),
]
Tokens = Annotated[
    list[int] | None,
    typer.Option(
        min=PROMPT_TOKENS_MIN,
        max=PROMPT_TOKENS_MAX,
        callback=_whole_blocks,
        metavar="N",
        help=f"Tokens of a prompt, a multiple of {BLOCK_TOKENS}; may be given several times. Without it: "
        f"{', '.join(map(str, PROMPT_TOKENS))}.",
    ),
]
Repeats = Annotated[
    int,
    typer.Option(
        min=1,
        max=REPEATS_MAX,
        metavar="N",
        help=f"Timed calls of each operation, but of miss_evict_mixed at most {MIXED_REPEATS_MAX}. The model has "
        f"fewer: one for {MODEL_EVERY}.",
    ),
]
PoolBlocks = Annotated[
    int,
    typer.Option(
        min=1,
        max=POOL_BLOCKS_MAX,
        metavar="N",
        help="Slots of the pool, about: it holds a whole number of prompts, and as many as the repeats need. That "
        f"of miss_evict_mixed has 1/{MIXED_POOL_SHARE} of them, those of the model have 1/{MODEL_POOL_SHARE}.",
    ),
]
Scattered = Annotated[
    bool,
    typer.Option(
        "--scattered",
        help="Let the slots of a prompt lie anywhere in the pool, as after long and mixed traffic, instead of side by "
        "side.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Of tokens, digests and places.")]
JsonFile = Annotated[
    typer.FileTextWrite | None,
    typer.Option(
        atomic=True,
        metavar="FILE",
        help="Write a list of {operation, groups, tokens, us}, the operations of the model with the suffix _model; - "
        "is standard output, and nothing else goes there.",
    ),
]


def main(  # noqa: PLR0913 - every option of the command is a parameter
    *,
    only: Only = None,
    tokens: Tokens = None,
    repeats: Repeats = 200,
    pool_blocks: PoolBlocks = 200_000,
    scattered: Scattered = False,
    seed: Seed = 0,
    json: JsonFile = None,
) -> None:
    """Measure, then write what was measured."""
    options = Options(repeats, pool_blocks, scattered, seed, frozenset(only or Operation))
    shapes = [Shape(groups, length) for groups in GROUPS for length in sorted(set(tokens or PROMPT_TOKENS))]
    measurements = [one for shape in _with_progress(shapes) for one in measure(shape, options)]
    if json is not None:
        json_format.dump([asdict(one) for one in measurements], json, indent=2)
        json.write("\n")
    if json is None or json.name != sys.stdout.name:
        for groups in GROUPS:
            Console().print(to_table(measurements, groups))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
