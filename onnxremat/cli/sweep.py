"""onnxremat sweep IN: the memory-time curve."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from onnxremat import api
from onnxremat.cli import args
from onnxremat.cli.console import Voice
from onnxremat.graph.onnx_io import atomic, check_writable

NAME = "sweep"


def command(
    source: args.Model,
    budgets: Annotated[
        list[str] | None, typer.Option("--budget", "-b", help="Budget (repeatable).")
    ] = None,
    points: Annotated[int, typer.Option(min=2, help="How many, without --budget.")] = 8,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the curve as JSON.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write the curve (.png or .svg).")
    ] = None,
    shape: args.Shape = None,
    dim: args.Dim = None,
    target: args.Target = "portable",
    time_limit: args.TimeLimit = 20.0,
    gap: args.Gap = 5e-4,
    solver: args.Solver = "auto",
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    fixed_order: args.FixedOrder = False,
    data: args.Data = None,
    measure: args.Measure = True,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Plan at several budgets: overhead and bound against memory."""
    import json

    from onnxremat.report.tables import sweep_table

    voice = Voice(as_json, quiet)
    for path in (output, plot):
        if path:
            check_writable(path)
    settings = args.make_settings(
        shape, dim, target, threads, seed, data, measure, False, fixed_order
    )
    with voice.working() as interrupt:
        options = args.make_plan_options(time_limit, gap, solver, seed, voice.planning, interrupt)
        prepared, rows = api.sweep(
            source, budgets=budgets, points=points, settings=settings, options=options,
            say=voice.say,
        )  # fmt: skip
    facts = {
        "model": prepared.name,
        "baseline_peak_bytes": prepared.baseline_peak,
        "store_all_peak_bytes": prepared.store_all_peak,
        "points": [asdict(row) for row in rows],
    }
    voice.table(sweep_table(rows, prepared.baseline_peak))
    if output:
        with atomic(output) as temporary:
            temporary.write_text(json.dumps(facts, indent=1) + "\n")
    if plot:
        from onnxremat.report.curve import draw_curve

        draw_curve(rows, plot, title=prepared.name, store_all_peak=prepared.baseline_peak)
    if as_json:
        voice.result(facts)
