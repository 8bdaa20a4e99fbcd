"""onnxremat sweep IN: the memory-time curve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxremat.cli import args, max_batch
from onnxremat.cli.asked import first_given
from onnxremat.cli.console import Voice
from onnxremat.device.host import processors
from onnxremat.errors import StoppedError, UsageError
from onnxremat.planner.options import Method, PlanOptions
from onnxremat.report.suffix import check_suffix
from onnxremat.units import format_bytes

if TYPE_CHECKING:
    from onnxremat import api

TABLES = (".json", ".csv")
# Options of a curve, which the largest batch has none of.
CURVE = (
    "points", "jobs", "output", "plot", "planner", "formulation", "max_columns", "shape", "data",
    "fission",
)  # fmt: skip


def command(
    context: typer.Context,
    source: args.ModelOrGraph,
    budgets: Annotated[
        list[str] | None, typer.Option("--budget", "-b", help="Budget (repeatable).")
    ] = None,
    points: Annotated[int, typer.Option(min=2, help="How many, without --budget.")] = 8,
    jobs: args.Jobs = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the curve (.json or .csv).")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write the curve (.png or .svg).")
    ] = None,
    largest: Annotated[
        bool,
        typer.Option(
            "--max-batch", help="Grow the batch at one --budget instead, as max-batch does."
        ),
    ] = False,
    max_overhead: max_batch.MaxOverhead = "",
    planner: args.Planner = "auto",
    formulation: args.Formulation = "",
    max_columns: args.MaxColumns = args.LARGEST,
    shape: args.Shape = None,
    dim: args.Dim = None,
    target: args.Target = "auto",
    time_limit: args.TimeLimit = 20.0,
    work: args.Work = None,
    gap: args.Gap = 5e-4,
    solver: args.Solver = "auto",
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    fixed_order: args.FixedOrder = False,
    fission: args.Fission = "auto",
    data: args.Data = None,
    measure: args.Measure = True,
    not_counted: args.NotCounted = "",
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Plan at several budgets, of a model or a graph file: overhead and bound against memory.

    Without --budget from the unoptimised peak to the smallest budget that works. Ctrl-C keeps the
    points that are done. A second curve has regions of an inference in parts, by estimated costs,
    down to the least that was found; optimize carries them out, and recomputes in them.
    """
    from onnxremat import api
    from onnxremat.graph.atomic import check_writable
    from onnxremat.pipeline.settings import Settings

    if largest:
        if option := first_given(context, CURVE):
            raise UsageError(f"{option} is not for --max-batch", hint="leave one of both out")
        max_batch.command(
            context, source, _only(budgets), dim, max_overhead, target=target,
            time_limit=time_limit, work=work, gap=gap, solver=solver, seed=seed, threads=threads,
            fixed_order=fixed_order, measure=measure, not_counted=not_counted, as_json=as_json,
            quiet=quiet,
        )  # fmt: skip
        return
    if max_overhead:
        raise UsageError("--max-overhead is for --max-batch")
    if budgets and first_given(context, ("points",)):
        raise UsageError(
            "--budget and --points exclude each other",
            why="--points says how many there are without any --budget",
            hint="leave one of both out",
        )
    voice = Voice(as_json, quiet)
    for path, accepted in ((output, TABLES), (plot, args.PLOTS)):
        if path:
            check_suffix(path, accepted)
            check_writable(path)
    method = Method(planner, formulation, most_columns=max_columns).heeded()
    settings = Settings(
        args.parse_shapes(shape), args.parse_dims(dim), target, threads, seed, data, measure,
        fixed_order=fixed_order, fission=args.parse_fission(fission),
        not_counted=args.parse_parts(not_counted),
    )  # fmt: skip
    with voice.working() as interrupt:
        options = PlanOptions(
            time_limit=time_limit, work=work, gap=gap, solver=solver, seed=seed, method=method,
            threads=threads or processors(), progress=voice.planning, stop=interrupt,
        )  # fmt: skip
        curve = api.sweep(
            source, budgets=budgets, points=points, settings=settings, options=options, jobs=jobs,
            say=voice.say,
        )  # fmt: skip
        if not curve.points:
            raise StoppedError("interrupted before any budget was planned")
        _tell(voice, curve, output, plot)
    if as_json:
        voice.result(curve.facts())


def _only(budgets: list[str] | None) -> str:
    if budgets is None or len(budgets) != 1:
        raise UsageError("--max-batch wants one --budget", hint="--max-batch --budget 2GiB")
    return budgets[0]


def _tell(voice: Voice, curve: api.Curve, output: Path | None, plot: Path | None) -> None:
    from onnxremat.graph.atomic import atomic
    from onnxremat.report.tables import IN_PARTS, sweep_table

    voice.table(sweep_table(curve.points, curve.subject.baseline_peak))
    args.tell_beside(voice, curve.subject)
    if curve.infeasible_below:
        parts = "; in parts it may take less (optimize --budget min tries them)"
        said = "" if curve.whole else parts
        voice.note(
            f"no budget below {format_bytes(curve.infeasible_below)} ({curve.infeasible_below} B) "
            f"can work for the graph as a whole: {curve.why}{said}"
        )
    if curve.parts:
        voice.table(sweep_table(curve.parts, curve.subject.baseline_peak, IN_PARTS))
    elif curve.whole:
        voice.note(f"no curve with regions in parts: {curve.whole}")
    facts = curve.facts()
    if output:
        with atomic(output) as temporary:
            _write(facts, temporary, output.suffix.lower())
    if plot:
        from onnxremat.report.plots.curve import CurveView, draw_curve

        view = CurveView(
            curve.points, curve.subject.name, curve.subject.baseline_process,
            "what the original takes", infeasible_below=curve.infeasible_below, parts=curve.parts,
        )  # fmt: skip
        draw_curve(view, plot)
    for path in (output, plot):
        if path:
            voice.note(f"wrote {path}")


def _write(facts: dict[str, Any], path: Path, suffix: str) -> None:
    from onnxremat.report.rows import write_rows

    if suffix == ".csv":
        write_rows([*facts["points"], *facts["in_parts"]], path)
    else:
        path.write_text(json.dumps(facts, indent=1) + "\n")
