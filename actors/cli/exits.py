"""How commands end when something is wrong: one line on standard error, and a status."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from kvtroupe.coordinator.errors import KVTroupeError, RequestError

FAILED = 1
BAD_REQUEST = 2
INTERRUPTED = 130  # 128 and the number of the signal, as shells have it
BROKEN_PIPE = 141  # likewise


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn errors of kvtroupe, and Ctrl-C, into a line and an exit status."""
    try:
        yield
    except RequestError as error:
        raise _exit(error, BAD_REQUEST) from error
    except KVTroupeError as error:
        raise _exit(error, FAILED) from error
    except BrokenPipeError as error:  # whoever read the output has seen enough
        _forget_output()
        raise typer.Exit(BROKEN_PIPE) from error
    except OSError as error:
        _forget_output()
        typer.echo(f"Error: the output cannot be written: {error.strerror or error}", err=True)
        raise typer.Exit(BAD_REQUEST) from error
    except MemoryError as error:
        typer.echo("Error: out of memory; give fewer or smaller blocks, or a trace of shorter prompts", err=True)
        raise typer.Exit(BAD_REQUEST) from error
    except KeyboardInterrupt as error:
        typer.echo("Interrupted.", err=True)
        raise typer.Exit(INTERRUPTED) from error


def _forget_output() -> None:
    """Let nothing that is still buffered be written to a standard output that takes nothing, not even at the end."""
    if sys.stdout is None:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _exit(error: KVTroupeError, status: int) -> typer.Exit:
    typer.echo(f"Error: {error}", err=True)
    return typer.Exit(status)
