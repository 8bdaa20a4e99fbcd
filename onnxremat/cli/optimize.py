"""onnxremat optimize IN OUT --budget 2GiB"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from onnxremat import api
from onnxremat.cli import args, several, training
from onnxremat.cli.console import Voice
from onnxremat.errors import UsageError
from onnxremat.graph.onnx_io import check_writable
from onnxremat.planner.export import SUFFIXES
from onnxremat.planner.options import Method
from onnxremat.report.suffix import check_suffix
from onnxremat.units import one_budget

NAME = "optimize"


def command(
    context: typer.Context,
    source: args.Model,
    target_file: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="File to write.", show_default=False)
    ] = None,
    budget: args.Budget = "0.6x",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Same as OUT.")] = None,
    planner: args.Planner = "auto",
    formulation: args.Formulation = "",
    write_model: Annotated[
        Path | None,
        typer.Option(
            "--write-model",
            help="Write the formulation (.mps or .lp), then go on and solve it.",
        ),
    ] = None,
    read_solution: Annotated[
        Path | None,
        typer.Option(
            "--read-solution",
            help="With --devices: the plan of a solution (.sol) of the formulation, checked.",
        ),
    ] = None,
    max_columns: args.MaxColumns = args.LARGEST,
    warm_start: args.WarmStart = True,
    devices: several.Devices = None,
    pin: several.Pin = None,
    objective: several.Objective = "auto",
    train: Annotated[
        bool, typer.Option("--train", help="Make a training step of the model first.")
    ] = False,
    loss: training.Loss = "cross-entropy",
    loss_output: training.LossOutput = None,
    optimizer: training.Optimizer = "sgd",
    trainable: training.Trainable = None,
    freeze: training.Freeze = None,
    parameters: training.Parameters = None,
    tie: training.Tie = True,
    strict: training.Strict = False,
    batch_norm: training.BatchNorm = "train",
    clip_norm: training.ClipNorm = None,
    clip_value: training.ClipValue = None,
    accumulate: training.Accumulate = 1,
    precision: training.Precision = "fp32",
    initializers: training.Initializers = False,
    shape: args.Shape = None,
    dim: args.Dim = None,
    target: args.Target = "portable",
    time_limit: args.TimeLimit = 60.0,
    gap: args.Gap = 5e-4,
    solver: args.Solver = "auto",
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    fixed_order: args.FixedOrder = False,
    split_batch: args.SplitBatch = "auto",
    data: args.Data = None,
    measure: args.Measure = True,
    fresh: args.Fresh = False,
    bench_seconds: Annotated[
        float, typer.Option(min=0.0, help="Seconds for timing the result, 0 for none.")
    ] = 6.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Do everything but write the model.")
    ] = False,
    plot: args.Plot = None,
    trace: args.Trace = None,
    as_json: args.Json = False,
    verbose: args.Verbose = 0,
    quiet: args.Quiet = False,
) -> None:
    """Make a model keep a memory budget: IN.onnx OUT.onnx --budget 2GiB."""
    voice = Voice(as_json, quiet)
    out = _one_output(target_file, output)
    limit = one_budget(budget) if devices is None else None
    method = Method(planner, formulation, warm_start, max_columns)
    _check_output(source, out, dry_run)
    if write_model:
        check_suffix(write_model, SUFFIXES)
        check_writable(write_model)
    if read_solution:
        _check_solution(read_solution, devices)
    args.check_drawings(plot, trace)
    settings = args.make_settings(
        shape, dim, target, threads, seed, data, measure, fresh, fixed_order
    )
    settings = replace(settings, split_batch=args.parse_split(split_batch))
    if train:
        made = training.make_training(
            loss, loss_output, optimizer, trainable, freeze, batch_norm, clip_norm, clip_value,
            accumulate, initializers, precision, parameters, tie, strict,
        )  # fmt: skip
        settings = replace(settings, train=made)
    with voice.working() as interrupt:
        options = args.make_plan_options(
            time_limit, gap, solver, seed, voice.planning, interrupt, method, threads
        )
        if limit is None:
            assert devices is not None
            given = context.get_parameter_source("budget")
            several.optimize(
                voice, source, None if dry_run else out, devices,
                budget if given and given.name != "DEFAULT" else "", settings, options, pin,
                objective, bench_seconds, write_model, read_solution,
            )  # fmt: skip
            return
        result = api.optimize(
            source, budget=limit.text, settings=settings, options=options,
            bench_seconds=bench_seconds, write_model=write_model, say=voice.say,
        )  # fmt: skip
        if out and not dry_run:
            voice.say("writing")
            written = result.save(out)
    _tell(voice, result, verbose)
    if plot or trace:
        result.draw(plot, trace)
    if out and not dry_run:
        voice.note("wrote " + ", ".join(str(path) for path in written))
    if write_model:
        voice.note(f"wrote {write_model}")
    if as_json:
        voice.result(result.facts())


def _check_solution(path: Path, devices: str | None) -> None:
    if devices is None:
        raise UsageError(
            "--read-solution goes with --devices here",
            hint="for one device: onnxremat plan IN --read-solution F.sol -o plan.json, then apply",
        )
    if not path.is_file():
        raise UsageError(f"no such file: {path}")


def _one_output(first: Path | None, second: Path | None) -> Path | None:
    if first and second:
        raise UsageError("two output files given", hint="give OUT or --output, not both")
    return first or second


def _check_output(source: Path, out: Path | None, dry_run: bool) -> None:
    if out is None:
        if not dry_run:
            raise UsageError("no output file given", hint="onnxremat optimize IN.onnx OUT.onnx")
        return
    api.check_paths(source, out)


def _tell(voice: Voice, result: api.OptimizeResult, verbose: int) -> None:
    from onnxremat.report.tables import before_after

    voice.table(before_after(result.facts()))
    for note in result.plan.provenance.notes:
        voice.note(note)
    if verbose:
        from onnxremat.report.tables import recomputed

        voice.table(recomputed(result.plan, result.prepared.graph, result.prepared.costs))
