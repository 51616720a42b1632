"""Entry point of the `kvtroupe` command.

Plain help and plain errors: an error is one line that can be searched for, not a box that breaks it.
"""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from kvtroupe.actors.cli.replay import EXIT_STATUS, replay

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - what the command line gives an option's callback
    if wanted:
        typer.echo(f"kvtroupe {metadata.version('kvtroupe')}")
        raise typer.Exit


@app.callback()
def main(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Coordinate the KV cache of served language models across window groups and memory tiers."""


app.command(epilog=EXIT_STATUS)(replay)
