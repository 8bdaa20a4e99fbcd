"""The public functions, one per command.

optimize   in.onnx + budget -> a model that keeps it, in one session or over devices
prepare    in.onnx -> the graph that is planned, with costs
plan       prepared model + budget -> plan
apply      in.onnx + plan -> model
verify     original + result -> same outputs, planned order, measured peak
sweep      in.onnx -> memory-time curve
compare    in.onnx + budgets -> every planner side by side
max_batch  in.onnx + budget -> the largest batch that fits
load       result -> a ready onnxruntime session
load_devices   result for several devices -> ready to run
load_pipeline  the same for throughput -> ready to take one sample after the other
from_torch, export, check_export   PyTorch module -> a model, a file that can be trained, and
           whether it can
to_torch   what a Trainer learned -> the module it came from
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from onnxremat import plain_json
from onnxremat.device.files import read_machine
from onnxremat.device.machine import Machine
from onnxremat.errors import UsageError
from onnxremat.execute.deployment import read_deployment
from onnxremat.execute.executor import Executor
from onnxremat.execute.pipelined import Pipeline
from onnxremat.exporting.check import check_export
from onnxremat.exporting.weights import to_torch
from onnxremat.exporting.write import export, from_torch
from onnxremat.grad import Settings as Training
from onnxremat.grad import differentiate as add_backward
from onnxremat.grad import training_of
from onnxremat.graph.atomic import check_writable
from onnxremat.graph.onnx_io import files_of, missing_file, read_model, write_model
from onnxremat.ort.functions import inline_functions
from onnxremat.ort.infer import bind
from onnxremat.pipeline.closed_loop import Candidate
from onnxremat.pipeline.devices.settings_over_devices import settings_over_devices
from onnxremat.pipeline.in_session import InOneSession, store_all_timeline
from onnxremat.pipeline.optimize import Request
from onnxremat.pipeline.optimize import optimize as finish_request
from onnxremat.pipeline.original.source import Source, read_source
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.planned import prepare_for
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.result import Result, Timed, finish
from onnxremat.pipeline.session_run import SessionRun
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.study_problem import read_subject
from onnxremat.pipeline.time_left import left_of, limited
from onnxremat.pipeline.verify import Verification, verify
from onnxremat.pipeline.ways import plan_within_budget
from onnxremat.pipeline.within_budget import applied
from onnxremat.planner.options import Method, PlanOptions
from onnxremat.report.device_tables import device_table
from onnxremat.report.tables import as_text, before_after
from onnxremat.rewrite.emit import metadata, unpack
from onnxremat.schedule.plan import Plan
from onnxremat.session.load import load
from onnxremat.studies.curve import Curve, curve
from onnxremat.studies.max_batch import LARGEST, Batches, MaxBatch
from onnxremat.studies.max_batch import max_batch as largest_batch
from onnxremat.studies.planners import STANDARD, Comparison, compare_planners, line_of
from onnxremat.studies.points import SweepPoint
from onnxremat.units import one_budget, parse_budget

__all__ = [
    "Comparison",
    "Curve",
    "MaxBatch",
    "Method",
    "OptimizeResult",
    "PlanOptions",
    "Settings",
    "SweepPoint",
    "Training",
    "Verification",
    "apply",
    "check_export",
    "compare",
    "differentiate",
    "export",
    "from_torch",
    "load",
    "load_devices",
    "load_pipeline",
    "max_batch",
    "optimize",
    "optimize_devices",
    "plan",
    "prepare",
    "read_plan",
    "sweep",
    "to_torch",
    "verify",
]

Say = Callable[[str], None]


@dataclass(frozen=True)
class OptimizeResult(Result):
    """A model within its budget: ``save(path)`` it, read its ``plan``, print its ``report()``,
    write the ``page(path)`` that explains it."""

    def table(self) -> RenderableType:
        """Before and after, or what each device holds, as a rich table."""
        facts = self.facts()
        return device_table(facts) if "devices" in facts else before_after(facts)

    def report(self) -> str:
        """The same as text."""
        return as_text(self.table())

    def __repr__(self) -> str:
        return self.report()  # what a notebook shows: the fields are a model's every op

    def draw(self, timeline: Path | None = None, trace: Path | None = None) -> None:
        """Write the memory timeline (``.png``, ``.svg``) and the Chrome/Perfetto trace.

        Raises:
            UsageError: unknown suffix, the folder is not writable, or several devices.
        """
        from onnxremat.report.chrome_trace import write_trace
        from onnxremat.report.plots.timeline import View, draw_timeline

        made, run = self.candidate.artifact, self.candidate.measured
        if not isinstance(made, InOneSession):
            raise no_drawings()
        profile = run.tuned.profile if isinstance(run, SessionRun) else None
        if timeline:
            view = View(
                made.graph, made.timeline, profile, self.candidate.limit,
                store_all_timeline(self.prepared), self.prepared.name,
                whole=self.candidate.budget,
            )  # fmt: skip
            draw_timeline(view, timeline)
        if trace:
            write_trace(made.graph, made.timeline, trace, measured=profile)

    def page(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML file that explains the plan; see ``onnxremat report``.

        Raises:
            UsageError: another suffix than ``.html``, or the folder is not writable.
        """
        from onnxremat.pipeline.planned import Written
        from onnxremat.report.pages.carried import of_written
        from onnxremat.report.pages.devices_page import devices_page
        from onnxremat.report.pages.page import page
        from onnxremat.report.pages.spread import Spread

        made = self.candidate.artifact
        if isinstance(made, InOneSession):
            model = self.model
            written = Written(model, metadata(model), made.folder or Path())
            made_page = page(of_written(written, self.prepared.name))
        else:
            made_page = devices_page(Spread(self.prepared.name, self.facts(), self.deployment))
        made_page.write(Path(path))


def optimize(
    source: Source,
    *,
    budget: str | int = "",
    devices: Machine | str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    options: PlanOptions | None = None,
    pins: Sequence[tuple[str, str]] = (),
    objective: str = "auto",
    in_flight: int | None = None,
    replicas: int | None = None,
    contiguous: bool | None = None,
    max_overhead: float | None = None,
    bench_seconds: float | None = None,
    write_model: str | os.PathLike[str] | None = None,
    read_solution: str | os.PathLike[str] | None = None,
    say: Say | None = None,
) -> OptimizeResult:
    """Make a model keep a memory budget at the least extra time, in one session or over devices.

    Args:
        source: a file or a model in memory: an ``onnx.ModelProto``, a ``torch.onnx.ONNXProgram``,
            or what :func:`from_torch` makes of a module.
        budget: ``2GiB``, bytes, ``60%`` (of this machine's memory), ``0.6x`` (of the unoptimised
            peak), ``min``; with ``devices`` ``cpu=1GiB,cuda:0=6GiB``, one for every device, or ""
            for the memories that the machine file gives.
        devices: a machine file, the name of a shipped one, or a :class:`Machine`; None for one
            session on the processor.
        settings: shapes, target, threads, and whether to measure.
        options: how to search.
        pins: with ``devices``: (pattern of op names or types, device).
        objective: with ``devices``: ``time`` of all runs and copies, ``makespan`` side by side,
            ``throughput`` of samples one after the other (see :func:`load_pipeline`), or ``auto``.
        in_flight: for the throughput: samples inside at most; None for as many as are of use and
            fit.
        replicas: for the throughput: devices at most that take the samples of one stage in turn; 1
            for a device per stage, None for as many as are of use and fit.
        contiguous: for the throughput: True for a chain of stages, False for a placement of any
            shape (devices have several stages, in one fixed cyclic order), None for the quicker.
        max_overhead: instead of a budget: the least memory that is found within this share of time
            more (0.1 for a tenth) than storing everything takes.
        bench_seconds: time to spend on timing the result, 0 for none; None for a few seconds, or
            what the time limit leaves.
        write_model: write the formulation (of ``options``, else ``cuts``) as ``.mps`` or ``.lp``
            before it is solved.
        read_solution: with ``devices``: a solution of that formulation, solved elsewhere, instead
            of solving it.
        say: told what is being done.

    Raises:
        UsageError, ModelError: wrong input, or options that do not go together.
        InfeasibleError, NoPlanError, OverBudgetError: the budget cannot be kept.
        VerificationError: the result computes something else (never seen; never written).
        MissingComponentError: a device's provider is not here.
    """
    machine = devices if devices is None or isinstance(devices, Machine) else read_machine(devices)
    settings = settings or Settings()
    if machine is not None:
        machine, settings = settings_over_devices(machine, settings)
    options = options or PlanOptions()
    request = Request(
        budget, machine, options, pins, objective, bench_seconds,
        Path(write_model) if write_model else None, Path(read_solution) if read_solution else None,
        in_flight=in_flight, replicas=replicas, contiguous=contiguous, max_overhead=max_overhead,
    )  # fmt: skip
    settings = settings.asked(options, one_budget(budget) if budget and not machine else None)
    log = Phases.of(say)
    with limited(options, log):
        prepared = prepare(source, settings, log)
        request = replace(request, options=left_of(options, log))
        return finish_request(prepared, request, log, OptimizeResult)


def differentiate(
    source: Source,
    target: str | os.PathLike[str],
    *,
    settings: Training | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Write one training step of a model, in standard ONNX operators; returns what it holds:
    under ``weights`` what became of each initializer, and why; under ``warnings`` what may not be
    as the user thinks.

    Raises:
        UsageError, ModelError: wrong input or settings, or the output would overwrite the input.
        UnsupportedError: an operator without a gradient rule.
    """
    if isinstance(source, str | os.PathLike):
        check_paths(source, target)
    model, folder, _ = read_source(source)
    bound = bind(inline_functions(model), shapes, dims)
    step = add_backward(bound, folder=folder, settings=settings or Training())
    write_model(step, target, folder, files_of(model, folder))
    about = training_of(step)
    return {
        "nodes": len(step.graph.node),
        "outputs": [value.name for value in step.graph.output][:1],
        "unsaid_prediction": about.unsaid,
        **about.facts(),
    }


def check_paths(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Raises:
    UsageError: the output would overwrite the input, or cannot be written.
    """
    out = Path(target)
    if out.exists() and Path(source).exists() and out.samefile(source):
        raise UsageError(
            f"the output is the input: {out}", hint="choose another name for the output"
        )
    check_writable(out)


def plan(
    source: Source,
    *,
    budget: str | int,
    settings: Settings | None = None,
    options: PlanOptions | None = None,
    say: Say | None = None,
) -> Candidate:
    """Decide only; the candidate's plan can be kept (``plan.dumps()``) and applied later.

    Raises:
        As :func:`optimize`.
    """
    limit, log = one_budget(budget), Phases.of(say)
    options = options or PlanOptions()
    options.method.heeded()
    with limited(options, log):
        prepared = prepare(source, (settings or Settings()).asked(options, limit), log)
        return plan_within_budget(prepared, limit, left_of(options, log), log)


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """A plan from a ``plan.json`` or from a model that onnxremat wrote.

    Raises:
        UsageError: neither.
    """
    file = Path(path)
    if not file.is_file():
        raise missing_file(file, ".json", make="onnxremat plan IN -o plan.json makes one")
    if file.suffix != ".json":
        facts = metadata(read_model(file))
        if "plan" not in facts:
            raise UsageError(f"{file} carries no plan", hint="onnxremat optimize writes one")
        return unpack(facts["plan"])
    try:
        return Plan.from_json(plain_json.loads(file.read_text()))
    except ValueError as error:
        raise UsageError(f"{file} is not a plan", why=str(error)) from error
    except UsageError as error:  # a plan does not know its file
        error.where = error.where or str(file)
        raise


def apply(
    source: Source,
    planned: Plan,
    *,
    settings: Settings | None = None,
    bench_seconds: float = 0.0,
    say: Say | None = None,
) -> OptimizeResult:
    """Carry out a plan made earlier.

    Raises:
        UsageError: the plan belongs to another model, or is one for several devices.
        VerificationError: outputs or order differ.
    """
    log = Phases.of(say)
    prepared = prepare_for(planned, source, settings or Settings(), log)
    candidate = applied(prepared, planned, log)
    return finish(OptimizeResult, candidate, Timed(bench_seconds), log)


def sweep(
    source: Source,
    *,
    budgets: Sequence[str | int] | None = None,
    points: int = 8,
    settings: Settings | None = None,
    options: PlanOptions | None = None,
    jobs: int = 1,
    say: Say | None = None,
) -> Curve:
    """The memory-time curve: the best plan and its bound at several budgets, and estimates with
    regions in parts.

    Args:
        source: a model, or the path of a planner study's graph file (``.json``).
        budgets: in any form; without them ``points`` budgets from the unoptimised peak down to
            the smallest one.
        jobs: budgets planned at the same time, in processes of their own.
    """
    limits = [parse_budget(budget) for budget in budgets] if budgets else None
    options = options or PlanOptions()
    subject = read_subject(source, _of_any_budget(settings).asked(options), say)
    return curve(subject, limits, points, options, jobs, say)


def compare(
    source: Source,
    *,
    budgets: Sequence[str | int],
    planners: Sequence[str] = STANDARD,
    settings: Settings | None = None,
    options: PlanOptions | None = None,
    jobs: int = 1,
    say: Say | None = None,
) -> Comparison:
    """Our planner and the published ones side by side at each budget, on the planner's numbers.

    Args:
        source: a model, or the path of a planner study's graph file (``.json``).
        planners: names of planners and formulations to set beside ours.
        jobs: planners running at the same time.

    Raises:
        UsageError: wrong input, or an unknown planner.
    """
    limits = [one_budget(budget) for budget in budgets]
    options = options or PlanOptions()
    line_of(planners, options)  # said before a model is measured
    subject = read_subject(source, _of_any_budget(settings).asked(options), say)
    return compare_planners(subject, limits, options, planners=planners, jobs=jobs, say=say)


def max_batch(
    source: Source,
    *,
    budget: str | int,
    dimension: str = "",
    max_overhead: float = float("inf"),
    most: int = LARGEST,
    file_batch: int = 1,
    settings: Settings | None = None,
    options: PlanOptions | None = None,
    say: Say | None = None,
) -> MaxBatch:
    """The largest batch for which a plan keeps the budget, by predicted peaks.

    Args:
        source: a model with a symbolic batch dimension, or the path of a graph file, all of whose
            sizes and costs are scaled.
        budget: bytes, or a share of this machine's memory.
        dimension: symbolic dimension to grow; the only open one when empty.
        max_overhead: most extra time of a plan, as a share of the store-all time at its batch.
        most: no larger batch is tried.
        file_batch: batch that a graph file's sizes are for.
        options: ``time_limit`` holds for each batch tried.

    Raises:
        UsageError: wrong input, a budget that is no number of bytes, or no dimension to grow.
        InfeasibleError, NoPlanError: not even batch 1 fits.
    """
    options, limit = options or PlanOptions(time_limit=10), one_budget(budget)
    settings = _of_any_budget(settings).asked(options)
    batches = Batches.of(source, settings, dimension, file_batch)
    return largest_batch(batches, limit, options, max_overhead=max_overhead, most=most, say=say)


def _of_any_budget(settings: Settings | None) -> Settings:
    """For several budgets, small ones among them."""
    return replace(settings or Settings(), held_once=True)


def optimize_devices(
    source: Source, *, machine: Machine | str | os.PathLike[str], **wanted: Any
) -> OptimizeResult:
    """:func:`optimize` with ``devices``, under its former name."""
    return optimize(source, devices=machine, **wanted)


def load_devices(
    path: str | os.PathLike[str],
    *,
    state: Mapping[str, Any] | None = None,
    overlap: bool | None = None,
) -> Executor:
    """Ready to run a model planned for several devices: ``load_devices(p).run({name: array})``.

    Args:
        state: array per input that a training step updates; read and overwritten.
        overlap: run devices side by side; where it can be, by default.

    Raises:
        UsageError: the file carries no plan over several devices.
        MissingComponentError: a device's provider is not here.
    """
    return read_deployment(path, mapped=True).executor(state, overlap)


def load_pipeline(path: str | os.PathLike[str], *, in_flight: int | None = None) -> Pipeline:
    """Ready to take one sample after the other, devices working on different ones::

        with onnxremat.load_pipeline("out.onnx") as pipeline:
            for outputs in pipeline.map(samples):  # each {name: array}
                ...

    Args:
        in_flight: samples inside at most; what the file was planned for when None.

    Raises:
        UsageError: the file carries no plan over several devices, was not planned for throughput
            and ``in_flight`` is None, or holds a training step.
        UnsupportedError: a sample would come back to a device that takes them in turn with others.
        MissingComponentError: a device's provider is not here.
    """
    made = read_deployment(path, mapped=True)
    if not made.in_flight and in_flight is None:
        raise UsageError(
            f"{path} was not planned for samples in flight",
            hint="optimize IN OUT --devices M --objective throughput; or give in_flight",
        )
    return made.pipeline(in_flight)


def no_drawings() -> UsageError:
    """A timeline or trace was asked for of a model over several devices."""
    return UsageError(
        "--plot and --trace draw one session",
        why="a plan over several devices has one timeline per device",
        hint="leave them out; onnxremat report OUT --matrices shows the bytes of each device",
    )
