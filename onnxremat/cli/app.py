"""The command line. Exit codes: see ``onnxremat.errors``; 0 done, 130 interrupted."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer

from onnxremat import __version__
from onnxremat.cli import (
    apply,
    bench,
    devices,
    differentiate,
    doctor,
    inspect,
    optimize,
    plan,
    profile,
    run,
    sweep,
    train,
    verify,
)
from onnxremat.errors import OnnxrematError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Run any ONNX model within a memory budget, on stock onnxruntime.",
)
for module in (
    optimize,
    differentiate,
    train,
    profile,
    plan,
    apply,
    verify,
    run,
    bench,
    inspect,
    sweep,
    devices,
    doctor,
):
    app.command(module.NAME)(module.command)


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"onnxremat {__version__}")
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Version.")
    ] = False,
) -> None:
    """Run any ONNX model within a memory budget, on stock onnxruntime."""


def main() -> None:
    """Entry point: errors become one message and their exit code."""
    try:
        app()
    except OnnxrematError as error:
        _report(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was written\n")
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError:
        sys.stderr.write("error: out of memory on this machine\n")
        sys.exit(1)
    except OSError as error:  # a full disk, a path no file system takes
        sys.stderr.write(f"error: {error.strerror or error}: {error.filename or ''}\n")
        sys.exit(1)


def _report(error: OnnxrematError) -> None:
    sys.stderr.write(f"error: {error}\n")
    if "-vv" in sys.argv or os.environ.get("ONNXREMAT_DEBUG"):
        traceback.print_exc()
