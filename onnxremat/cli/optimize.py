"""onnxremat optimize IN OUT --budget 2GiB"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxremat.cli import args, training
from onnxremat.cli.asked import asked
from onnxremat.cli.console import Voice
from onnxremat.device.host import processors
from onnxremat.errors import OnnxrematError, UsageError
from onnxremat.planner.options import Method, PlanOptions
from onnxremat.report.suffix import check_suffix

if TYPE_CHECKING:
    from onnxremat import api
    from onnxremat.device.machine import Machine
    from onnxremat.pipeline.phases import Phases


Precision = Annotated[
    str,
    typer.Option(
        help="fp32; with --train fp16 or bf16: mixed, with parameters in float32; with a device of "
        "OpenVINO bf16: products in bfloat16, of any model."
    ),
]


def command(
    context: typer.Context,
    source: args.Model,
    target_file: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="File to write.", show_default=False)
    ] = None,
    budget: args.Budget = "0.6x",
    max_overhead: args.MaxOverhead = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Same as OUT.")] = None,
    planner: args.Planner = "auto",
    formulation: args.Formulation = "",
    write_model: Annotated[
        Path | None,
        typer.Option(
            "--write-model",
            help="Write the formulation (.mps or .lp) of the whole, then go on.",
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
    devices: args.Devices = None,
    pin: args.Pin = None,
    objective: args.Objective = "auto",
    in_flight: args.InFlight = None,
    replicas: args.Replicas = None,
    contiguous: args.Contiguous = None,
    train: Annotated[
        bool, typer.Option("--train", help="Make a training step of the model first.")
    ] = False,
    loss: training.Loss = "cross-entropy",
    prediction: training.Prediction = None,
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
    precision: Precision = "fp32",
    shape: args.Shape = None,
    dim: args.Dim = None,
    target: args.Target = "auto",
    time_limit: args.TimeLimit = 60.0,
    work: args.Work = None,
    gap: args.Gap = 5e-4,
    solver: args.Solver = "auto",
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    fixed_order: args.FixedOrder = False,
    dw_policy: args.DwPolicyName = None,
    split_batch: args.SplitBatch = "auto",
    not_counted: args.NotCounted = "",
    fission: args.Fission = "auto",
    data: args.Data = None,
    measure: args.Measure = True,
    fresh: args.Fresh = False,
    bench_seconds: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Seconds for timing the result, 0 for none; else 6, or what --time-limit leaves.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Do everything but write the model.")
    ] = False,
    plot: args.Plot = None,
    trace: args.Trace = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", help="Write the page that explains the plan (.html)."),
    ] = None,
    as_json: args.Json = False,
    verbose: args.Verbose = 0,
    quiet: args.Quiet = False,
) -> None:
    """Make a model keep a memory budget: IN.onnx OUT.onnx --budget 2GiB."""
    from onnxremat import api
    from onnxremat.device.files import read_machine
    from onnxremat.grad import Settings as Training
    from onnxremat.graph.atomic import check_writable
    from onnxremat.pipeline.model_files import model_words
    from onnxremat.pipeline.phases import WRITE, Phases
    from onnxremat.pipeline.settings import Settings
    from onnxremat.planner.export import SUFFIXES

    voice = Voice(as_json, quiet)
    narrow = devices is not None and precision == "bf16"  # any model, not only a step made here
    training.check_train(context, train, but=("precision",) if narrow else ())
    out = _one_output(target_file, output)
    told = context.get_parameter_source("budget")
    given = told is not None and told.name != "DEFAULT"
    if not given and (devices is not None or max_overhead is not None):
        budget = ""  # the memories of the machine file, or what the time allows
    method = Method(planner, formulation, warm_start, max_columns)
    method.heeded(written=write_model is not None)
    _check_output(source, out, dry_run)
    if write_model:
        check_suffix(write_model, SUFFIXES)
        check_writable(write_model)
    if devices is not None and (plot or trace):
        raise api.no_drawings()
    args.check_drawings(plot, trace)
    if report:
        check_suffix(report, (".html",))
        check_writable(report)
    made = None
    if train:
        made = Training(
            loss=loss, prediction=prediction, loss_output=loss_output,
            optimizer=training.optimizer_of(optimizer), trainable=trainable or None,
            freeze=freeze or (), parameters=parameters, tie=tie, strict=strict,
            batch_norm=batch_norm, clip_norm=clip_norm, clip_value=clip_value,
            accumulate=accumulate, precision=precision,
        )  # fmt: skip
    settings = Settings(
        args.parse_shapes(shape), args.parse_dims(dim), target, threads, seed, data, measure, fresh,
        fixed_order, made, args.parse_split(split_batch), args.parse_fission(fission),
        not_counted=args.parse_parts(not_counted),
        dw_policy=args.parse_dw_policy(dw_policy, devices),
    )  # fmt: skip
    machine = read_machine(devices) if devices is not None else None
    if machine is not None and narrow and not train:
        machine = machine.in_bfloat16()
    log = Phases(voice.say, ended=voice.ended if verbose else None)
    with voice.working() as interrupt, _phases_told(voice, log if verbose else None):
        log.ending = interrupt.ending
        options = PlanOptions(
            time_limit=time_limit, work=work, gap=gap, solver=solver, seed=seed, method=method,
            threads=threads or processors(), progress=voice.planning, stop=interrupt,
        )  # fmt: skip
        result = api.optimize(
            source, budget=budget, devices=machine, settings=settings, options=options,
            pins=args.parse_pins(pin), objective=objective, in_flight=in_flight,
            replicas=replicas, contiguous=contiguous,
            max_overhead=args.parse_overhead(max_overhead), bench_seconds=bench_seconds,
            write_model=write_model, read_solution=read_solution, say=log,
        )  # fmt: skip
        result = replace(result, command=asked(context))
        written: list[Path] = []
        if out and not dry_run:
            with log.phase(WRITE, "writing"):
                written = result.save(out)
    _tell(voice, result, log if verbose else None)
    if plot or trace:
        result.draw(plot, trace)
    if report:
        result.page(report)
        written = [*written, report]
    if written:
        voice.note("wrote " + ", ".join(str(path) for path in written))
    if write_model:
        voice.note(model_words(result.written, write_model))
    if as_json:
        voice.result(result.facts())


def _one_output(first: Path | None, second: Path | None) -> Path | None:
    if first and second:
        raise UsageError("two output files given", hint="give OUT or --output, not both")
    return first or second


def _check_output(source: Path, out: Path | None, dry_run: bool) -> None:
    from onnxremat import api

    if out is None:
        if not dry_run:
            raise UsageError("no output file given", hint="onnxremat optimize IN.onnx OUT.onnx")
        return
    api.check_paths(source, out)


@contextmanager
def _phases_told(voice: Voice, log: Phases | None) -> Iterator[None]:
    """Where the time of a refusal went, for those who ask."""
    try:
        yield
    except OnnxrematError:
        if log is not None:
            from onnxremat.report.tables import phases_table

            voice.aside(phases_table(log.seconds))
        raise


def _tell(voice: Voice, result: api.OptimizeResult, log: Phases | None) -> None:
    """The table, what was verified over devices, notes; what is recomputed and the phases where
    more was asked for."""
    from onnxremat.pipeline.devices.over_devices import OverDevices

    voice.table(result.table())
    if isinstance(result.candidate.artifact, OverDevices):
        args.tell_checks(voice, result.checks)
        if result.verified is None:
            _tell_absent(voice, result.absent, result.deployment.machine)
    for note in result.plan.provenance.notes:
        voice.note(note)
    if log is not None:
        from onnxremat.report.tables import phases_table, recomputed

        voice.table(recomputed(result.plan, result.prepared.graph, result.candidate.artifact.times))
        voice.table(phases_table(log.seconds))


def _tell_absent(voice: Voice, absent: Mapping[str, str], machine: Machine) -> None:
    """Why nothing was run, and what the estimates of devices that are not here stand on."""
    if not absent:
        voice.note("not run (--no-measure): costs are analytic, figures are predictions")
        return
    for name, why in absent.items():
        voice.note(f"device '{name}' is not here: {why}")
        device = machine.device(name)
        if device.computes and not (device.flops and device.bandwidth):
            voice.note(
                f"the file gives no speeds of '{name}': it is planned as a usual processor; "
                "give flops and bandwidth in a machine file (docs/devices.md)"
            )
    voice.note(
        "not run and not verified here: costs of devices that are not here are analytic, figures "
        "are predictions; run onnxremat verify on the machine that has them"
    )
