"""onnxremat compare IN --budget B: every planner side by side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from onnxremat.cli import args
from onnxremat.cli.asked import first_given
from onnxremat.cli.console import Voice
from onnxremat.device.host import processors
from onnxremat.errors import OnnxrematError, StoppedError, UsageError
from onnxremat.planner.options import Method, PlanOptions

# Options that methods of placement have nothing for.
OF_PLANS = (
    "budgets", "planners", "jobs", "max_columns", "shape", "dim", "target", "work", "gap", "solver",
    "threads", "fixed_order", "data", "measure", "not_counted",
)  # fmt: skip


def command(
    context: typer.Context,
    source: args.ModelOrGraph,
    budgets: Annotated[
        list[str] | None,
        typer.Option("--budget", "-b", help="Budget (repeatable); 0.6x without any."),
    ] = None,
    planners: Annotated[
        list[str] | None,
        typer.Option(
            "--planner",
            help="A planner or formulation to set beside ours (repeatable); all published rules "
            "without any.",
        ),
    ] = None,
    jobs: args.Jobs = 1,
    max_columns: args.MaxColumns = args.LARGEST,
    shape: args.Shape = None,
    dim: args.Dim = None,
    target: args.Target = "auto",
    time_limit: args.TimeLimit = 20.0,
    work: args.Work = None,
    gap: args.Gap = 5e-5,
    solver: args.Solver = "auto",
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    fixed_order: args.FixedOrder = False,
    data: args.Data = None,
    measure: args.Measure = True,
    not_counted: args.NotCounted = "",
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Plan a model or a graph file with every planner: overhead, peak, time, bound.

    Nothing is rewritten: these are the planner's numbers. --time-limit holds for each planner. A
    published rule that beats ours by more than the gap is reported as a defect, exit code 1. Where
    no planner has a plan the exit code is 3 (proven: there is none) or 4.
    Of a graph for placement (docs/placement.md), the methods of placing it are compared, with
    --time-limit and --seed alone.
    """
    from onnxremat.placement.graph_files import is_placement_graph

    if is_placement_graph(source):
        if option := first_given(context, OF_PLANS):
            raise UsageError(
                f"{option} is for planners, and {source} is a graph for placement",
                hint="leave it out",
            )
        _placements(source, time_limit, seed, Voice(as_json, quiet))
        return
    from onnxremat import api
    from onnxremat.pipeline.settings import Settings
    from onnxremat.report.standings import standings_table
    from onnxremat.studies.planners import STANDARD

    voice = Voice(as_json, quiet)
    settings = Settings(
        args.parse_shapes(shape), args.parse_dims(dim), target, threads, seed, data, measure,
        fixed_order=fixed_order, not_counted=args.parse_parts(not_counted),
    )  # fmt: skip
    with voice.working() as interrupt:
        options = PlanOptions(
            time_limit=time_limit, work=work, gap=gap, solver=solver, seed=seed,
            method=Method(most_columns=max_columns), threads=threads or processors(),
            progress=voice.planning, stop=interrupt,
        )  # fmt: skip
        found = api.compare(
            source, budgets=budgets or ["0.6x"], planners=planners or STANDARD, settings=settings,
            options=options, jobs=jobs, say=voice.say,
        )  # fmt: skip
        if not found.standings:
            raise StoppedError("interrupted before any planner answered")
        voice.table(standings_table(found.standings, found.subject.baseline_peak))
        args.tell_beside(voice, found.subject)
    if as_json:
        voice.result(
            {
                "model": found.subject.name,
                "baseline_peak_bytes": found.subject.baseline_peak,
                "baseline_process_bytes": found.subject.baseline_process,
                "beside_bytes": found.subject.beside,
                "store_all_seconds": found.subject.store_all_seconds,
                "standings": [asdict(standing) for standing in found.standings],
                "defects": found.defects,
            }
        )
    if not interrupt.asked:
        found.require_a_plan()
    if found.defects and not interrupt.asked:
        raise OnnxrematError(
            "a published rule beats our planner, which is a defect",
            why="; ".join(found.defects),
            hint="a longer --time-limit; and please report this graph",
        )


def _placements(source: Path, time_limit: float, seed: int, voice: Voice) -> None:
    """Methods of placement side by side."""
    from onnxremat.placement.answer import Work
    from onnxremat.placement.graph_files import read_graph
    from onnxremat.report.placements import methods_table
    from onnxremat.studies.placements import compare_placements

    graph = read_graph(source)
    with voice.working() as interrupt:
        work = Work(time_limit, seed=seed, stop=interrupt)
        found = compare_placements(graph, work, voice.say)
        if not found:
            raise StoppedError("interrupted before any method answered")
        voice.table(methods_table(found))
    if voice.as_json:
        voice.result({"graph": source.name, "methods": [asdict(row) for row in found]})
