"""onnxremat run MODEL: one run, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice, size
from onnxremat.units import format_bytes, format_seconds


def command(
    source: args.Model,
    save: Annotated[Path | None, typer.Option("--save", help="Write the outputs (.npz).")] = None,
    runs: Annotated[int, typer.Option(min=1, help="How often.")] = 3,
    default_options: Annotated[
        bool, typer.Option("--default-options", help="As a session opened without any options.")
    ] = False,
    shape: args.Shape = None,
    dim: args.Dim = None,
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    data: args.Data = None,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Run a model in stock onnxruntime and print its time and true peak."""
    from onnxremat.pipeline.run_once import run_once
    from onnxremat.pipeline.settings import Settings

    voice = Voice(as_json, quiet)
    settings = Settings(
        args.parse_shapes(shape), args.parse_dims(dim), "none", threads, seed, data
    )  # fmt: skip
    with voice.working():
        voice.say("running")
        facts = run_once(source, settings, runs, default_options, save)
    voice.note(
        f"takes {format_bytes(facts['process_bytes'], up=True)}: "
        f"{size(facts['peak_measured_bytes'])} of weights and values (weights "
        f"{size(facts['weight_bytes'])}), {size(facts['beside_bytes'])} beside them"
    )
    voice.note(
        f"arena holds {size(facts['arena_bytes'])}, {facts['kernels']} kernels, "
        f"{format_seconds(facts['seconds'])} in kernels"
    )
    if save:
        voice.note(f"wrote {save}")
        for name in facts["not_saved"]:
            voice.note(f"output '{name}' is no array, and is not in it")
    if as_json:
        voice.result(facts)
