"""All commands, as one typer application."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxremat import __version__
from onnxremat.cli import (
    apply,
    bench,
    compare,
    devices,
    differentiate,
    doctor,
    export_partitions,
    inspect,
    max_batch,
    optimize,
    place,
    plan,
    profile,
    report,
    run,
    set_batch,
    simulate,
    sweep,
    train,
    verify,
)

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
    place,
    apply,
    verify,
    run,
    bench,
    inspect,
    report,
    sweep,
    compare,
    max_batch,
    set_batch,
    simulate,
    devices,
    export_partitions,
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
