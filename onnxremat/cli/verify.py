"""onnxremat verify ORIGINAL RESULT"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxremat.cli import args
from onnxremat.cli.asked import first_given
from onnxremat.cli.console import Voice
from onnxremat.errors import UsageError


def command(
    context: typer.Context,
    original: args.Model,
    result: Annotated[Path, typer.Argument(metavar="OUT", help="Model that onnxremat wrote.")],
    budget: Annotated[
        str | None, typer.Option("--budget", "-b", help="Instead of the plan's own.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Sets of inputs to compare on.")] = 2,
    shape: args.Shape = None,
    dim: args.Dim = None,
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    data: args.Data = None,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Run both models: same outputs, planned order, predicted and measured peak, budget; over
    several devices also placement, and the bytes of each."""
    from onnxremat import api
    from onnxremat.pipeline.artifact import require
    from onnxremat.pipeline.settings import Settings

    if data is not None and first_given(context, ("seeds",)):
        raise UsageError("--seeds and --data exclude each other", why="--data is one set of inputs")
    voice = Voice(as_json, quiet)
    settings = Settings(
        args.parse_shapes(shape), args.parse_dims(dim), threads=threads, seed=seed, data=data,
    )  # fmt: skip
    with voice.working():
        voice.say("verifying")
        found = api.verify(original, result, settings=settings, seeds=seeds, budget=budget)
    args.tell_checks(voice, found.checks)
    for line in found.words:
        voice.note(line)
    if as_json:
        voice.result(found.figures())
    require(found.checks, f"{result} does not pass")
