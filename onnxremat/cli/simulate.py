"""onnxremat simulate --stages 4 --micro-batches 8: the schedule of a pipeline, in figures; of a
training step on a cluster: simulate step.onnx --cluster FILE --data-parallel 16 --pipeline 4."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxremat.cli import args
from onnxremat.cli.asked import asked, first_given
from onnxremat.cli.console import Voice
from onnxremat.errors import UsageError
from onnxremat.report.suffix import check_suffix

if TYPE_CHECKING:
    from onnxremat.report.pages.ranks_page import Shown
    from onnxremat.workers.pipeline import Pipeline
    from onnxremat.workers.pipelines.projection import Grid
    from onnxremat.workers.pipelines.replay import Replay

STAGES = 1 << 16  # at most
ON_CLUSTERS = ("data_parallel", "pipeline")  # options of a step on a cluster
# Of a pipeline without.
TIMES = ("stages", "forward", "backward", "weight", "communication", "ranks")


def command(
    context: typer.Context,
    micro_batches: Annotated[
        int, typer.Option(min=1, help="Micro-batches of a training step.", show_default=False)
    ],
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="STEP",
            help="A training step, made for one micro-batch, to be simulated on a cluster; else "
            "times are given.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        str,
        typer.Option(help="Cluster file, or the name of a shipped one.", show_default=False),
    ] = "",
    data_parallel: Annotated[
        int, typer.Option(min=1, help="Pipelines side by side, with STEP.")
    ] = 1,
    pipeline: Annotated[int, typer.Option(min=1, help="Stages of each, with STEP.")] = 1,
    stages: Annotated[
        int | None,
        typer.Option(
            min=1, max=STAGES, help="Stages of the model; one process each.", show_default=False
        ),
    ] = None,
    forward: Annotated[
        str, typer.Option(help="Seconds of a forward pass (F); a list for unequal stages.")
    ] = "1",
    backward: Annotated[
        str, typer.Option(help="Seconds of the gradient by the stage's input (B), or a list.")
    ] = "1",
    weight: Annotated[
        str, typer.Option(help="Seconds of the gradients by its weights (W), or a list.")
    ] = "1",
    communication: Annotated[
        str, typer.Option(help="Seconds from a stage to the next, or a list: one per boundary.")
    ] = "0",
    in_flight: Annotated[
        int | None,
        typer.Option(
            min=1, help="Most micro-batches that a stage keeps alive.", show_default=False
        ),
    ] = None,
    schedule: Annotated[
        str,
        typer.Option(
            help="1f1b, fast-forward, zb-h1, zb-2p, gpipe; interleaved and zb-v: two stages per "
            "process; auto: the best that is found."
        ),
    ] = "auto",
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes, for auto and schedules of several stages each.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Draw it (.png or .svg), or write a page that explains it (.html).",
        ),
    ] = None,
    trace: args.Trace = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write a row per action: when it runs, and where.")
    ] = None,
    seed: args.Seed = 0,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Simulate a pipeline: how long its schedule takes, what is proven, what is alive.

    With a training step and a cluster file: what a step takes there, memory per rank, and how much
    of it is waiting; each number is marked measured or modelled. Files show one of the pipelines.

    Without them times are in any unit; communication runs beside computing. A micro-batch is alive
    in a stage from the start of its F to the end of its W.
    """
    from onnxremat.graph.atomic import check_writable
    from onnxremat.report.pages.ranks_page import Shown
    from onnxremat.report.pipelines import pipeline_chart, pipeline_facts
    from onnxremat.workers.pipeline import Pipeline
    from onnxremat.workers.pipelines.projection import Grid

    voice = Voice(as_json, quiet)
    page = output is not None and output.suffix.lower() == ".html"
    args.check_drawings(None if page else output, trace)
    if page and output is not None:
        check_writable(output)
    if csv is not None:
        check_suffix(csv, (".csv",))
        check_writable(csv)
    if source is not None or cluster:
        source = _on_cluster(context, source, cluster)
        grid = Grid(data_parallel, pipeline, micro_batches, schedule, in_flight)
        shown = _projected(source, cluster, grid, seed, voice)
    else:
        _only_with(context, ON_CLUSTERS, "a STEP on a cluster", "STEP --cluster FILE, or --stages")
        if stages is None:
            raise UsageError("how many stages?", hint="--stages N, or a STEP and --cluster FILE")
        times = Pipeline(
            _seconds("--forward", forward, stages),
            _seconds("--backward", backward, stages),
            _seconds("--weight", weight, stages),
            micro_batches,
            _seconds("--communication", communication, stages - 1),
            in_flight,
        )
        replay, bound = _solved(times, schedule, ranks, seed)
        if as_json:
            voice.result(pipeline_facts(replay, bound, schedule))
        else:
            voice.table(pipeline_chart(replay, bound, voice.out.width))
        shown = Shown(replay, bound)
    for path in _write(replace(shown, command=asked(context)), output, trace, csv):
        voice.note(f"wrote {path}")


def _on_cluster(context: typer.Context, source: Path | None, cluster: str) -> Path:
    """The step.

    Raises:
        UsageError: it or the cluster is missing, or an option is given that does not count there.
    """
    from onnxremat.workers.pipelines.cluster import shipped

    if source is None:
        raise UsageError("--cluster is for a STEP", hint="simulate STEP --cluster FILE")
    if not cluster:
        hint = f"--cluster FILE, or the name of a shipped one: {', '.join(shipped())}"
        raise UsageError(f"on which cluster is {source} to train?", hint=hint)
    _only_with(context, TIMES, "pipelines whose times are given", "leave it out, or the STEP")
    return source


def _only_with(context: typer.Context, names: Collection[str], what: str, hint: str) -> None:
    """Raises:
    UsageError: one of these options is given, where it would not count.
    """
    if option := first_given(context, names):
        raise UsageError(f"{option} is for {what}", hint=hint)


def _projected(source: Path, cluster: str, grid: Grid, seed: int, voice: Voice) -> Shown:
    """Say what a step takes on a cluster; one of its pipelines."""
    from onnxremat.graph.onnx_io import read_model
    from onnxremat.report.pages.ranks_page import Shown
    from onnxremat.report.projections import (
        projection_facts,
        projection_statements,
        projection_table,
    )
    from onnxremat.workers.pipelines.bound import lower_bound
    from onnxremat.workers.pipelines.cluster import read_cluster
    from onnxremat.workers.pipelines.projection import project

    there = read_cluster(cluster)
    found = project(read_model(source), source.parent, there, grid, seed)
    if voice.as_json:
        voice.result(projection_facts(found))
    else:
        for part in projection_table(found):
            voice.table(part)
    replay = found.replay
    bound = min(lower_bound(replay.pipeline, replay.order.rank), replay.makespan)
    return Shown(replay, bound, "", found.peaks, tuple(projection_statements(found)))


def _solved(
    pipeline: Pipeline, schedule: str, ranks: int | None, seed: int
) -> tuple[Replay, float]:
    """The schedule asked for, carried out, and the least that any takes."""
    from onnxremat.workers.pipelines.bound import lower_bound
    from onnxremat.workers.pipelines.replay import carry_out
    from onnxremat.workers.pipelines.schedules import named
    from onnxremat.workers.pipelines.search import best_order

    if schedule == "auto":
        found = best_order(pipeline, ranks, seed=seed)
        replay, bound = found.replay, found.bound
    else:
        order = named(pipeline, schedule, ranks)
        replay, bound = carry_out(pipeline, order), lower_bound(pipeline, order.rank)
    return replay, min(bound, replay.makespan)  # sums in another order may round up


def _write(
    shown: Shown, output: Path | None, trace: Path | None, csv: Path | None
) -> Iterator[Path]:
    """Every file asked for; yields their names."""
    from onnxremat.report.pipelines import write_pipeline_rows, write_pipeline_trace

    replay = shown.replay
    pipeline = replay.pipeline
    title = f"{replay.order.name}, {pipeline.stages} stages, {pipeline.micro_batches} micro-batches"
    if output is not None:
        if output.suffix.lower() == ".html":
            from onnxremat.report.pages.ranks_page import ranks_page

            ranks_page(shown).write(output)
        else:
            from onnxremat.report.plots.pipeline_drawing import draw_pipeline

            draw_pipeline(replay, output, title=title)
        yield output
    if trace is not None:
        write_pipeline_trace(replay, trace, title=title)
        yield trace
    if csv is not None:
        write_pipeline_rows(replay, csv)
        yield csv


def _seconds(option: str, text: str, count: int) -> tuple[float, ...]:
    """One number for all, or one each.

    Raises:
        UsageError: something else.
    """
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) == 1:
        return found * count
    if len(found) != count:
        raise UsageError(
            f"{option} '{text}' is not understood",
            why=f"{len(found)} numbers for {count}" if found else "not numbers",
            hint=f"one number for all, or {count} with commas between them",
        )
    return found
