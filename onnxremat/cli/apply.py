"""onnxremat apply IN plan.json OUT: carry out a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice


def command(
    source: args.Model,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="plan.json, or a planned model.")],
    target_file: Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")],
    shape: args.Shape = None,
    dim: args.Dim = None,
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    data: args.Data = None,
    measure: args.Measure = True,
    bench_seconds: Annotated[
        float, typer.Option(min=0.0, help="Seconds for timing the result, 0 for none.")
    ] = 0.0,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Rewrite a model by a plan made earlier."""
    from onnxremat import api
    from onnxremat.pipeline.settings import Settings
    from onnxremat.report.tables import before_after

    voice = Voice(as_json, quiet)
    api.check_paths(source, target_file)
    planned = api.read_plan(plan)
    settings = Settings(
        args.parse_shapes(shape), args.parse_dims(dim), threads=threads, seed=seed, data=data,
        measure=measure,
    )  # fmt: skip
    with voice.working():
        result = api.apply(
            source, planned, settings=settings, bench_seconds=bench_seconds, say=voice.say
        )
        written = result.save(target_file)
    voice.table(before_after(result.facts()))
    voice.note("wrote " + ", ".join(str(path) for path in written))
    if as_json:
        voice.result(result.facts())
