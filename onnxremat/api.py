"""The public functions, one per command.

optimize   in.onnx + budget -> a model that keeps it
prepare    in.onnx -> the graph that is planned, with costs
plan       prepared model + budget -> plan
apply      in.onnx + plan -> model
verify     original + result -> same outputs, planned order, measured peak
sweep      in.onnx -> memory-time curve
compare    in.onnx + budgets -> every planner side by side
max_batch  in.onnx + budget -> the largest batch that fits
load       result -> a ready onnxruntime session
optimize_devices, load_devices   the same over several devices
export, check_export   PyTorch module -> a file that can be trained, and whether it can
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxremat.device.files import read_machine
from onnxremat.device.host import memory_bytes
from onnxremat.device.machine import Machine
from onnxremat.errors import UsageError
from onnxremat.execute.deployment import read_deployment
from onnxremat.execute.executor import Executor
from onnxremat.exporting.check import check_export
from onnxremat.exporting.write import export
from onnxremat.grad import Settings as Training
from onnxremat.grad import differentiate as add_backward
from onnxremat.grad import training_of
from onnxremat.graph.onnx_io import check_writable, inline_functions, read_model, write_model
from onnxremat.ort.infer import bind
from onnxremat.pipeline.batch_split import plan_best
from onnxremat.pipeline.closed_loop import Outcome, carry_out, plan_within
from onnxremat.pipeline.model_files import write_prepared
from onnxremat.pipeline.optimize_devices import DeviceResult
from onnxremat.pipeline.optimize_devices import optimize_devices as plan_devices
from onnxremat.pipeline.planned import prepare_for
from onnxremat.pipeline.prepare import Prepared, Settings, Source, prepare, read_source
from onnxremat.pipeline.result import Finished, finish
from onnxremat.pipeline.study_problem import is_graph_file, read_subject
from onnxremat.pipeline.verify import Verification, verify
from onnxremat.planner.options import Method, PlanOptions
from onnxremat.report.tables import as_text, before_after
from onnxremat.rewrite.emit import metadata, unpack
from onnxremat.schedule.plan import Plan
from onnxremat.schedule.simulate import Timeline, simulate
from onnxremat.session.load import load
from onnxremat.studies.curve import Curve, SweepPoint, curve
from onnxremat.studies.max_batch import LARGEST, Batches, MaxBatch, open_dimension
from onnxremat.studies.max_batch import max_batch as largest_batch
from onnxremat.studies.planners import STANDARD, Comparison, compare_planners
from onnxremat.units import one_budget, parse_budget

__all__ = [
    "Comparison",
    "Curve",
    "DeviceResult",
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
    "load",
    "load_devices",
    "max_batch",
    "optimize",
    "optimize_devices",
    "plan",
    "prepare",
    "read_plan",
    "sweep",
    "verify",
]

Say = Callable[[str], None]


@dataclass(frozen=True)
class OptimizeResult(Finished):
    """A model within its budget: ``save(path)`` it, read its ``plan``, print its ``report()``."""

    def report(self) -> str:
        """The before/after table as text."""
        return as_text(before_after(self.facts()))

    def draw(self, timeline: Path | None = None, trace: Path | None = None) -> None:
        """Write the memory timeline (``.png``, ``.svg``) and the Chrome/Perfetto trace.

        Raises:
            UsageError: unknown suffix, or the folder is not writable.
        """
        from onnxremat.report.chrome_trace import write_trace
        from onnxremat.report.timeline import draw_timeline

        made = self.outcome
        profile = made.measured.profile if made.measured else None
        graph = made.rewritten.graph
        if timeline:
            draw_timeline(
                graph, made.predicted, timeline, measured=profile, budget=made.budget,
                store_all=store_all_timeline(self.prepared), title=self.prepared.name,
            )  # fmt: skip
        if trace:
            write_trace(graph, made.predicted, trace, measured=profile)


def optimize(
    source: Source,
    *,
    budget: str | int,
    settings: Settings | None = None,
    options: PlanOptions | None = None,
    bench_seconds: float = 6.0,
    write_model: str | os.PathLike[str] | None = None,
    say: Say | None = None,
) -> OptimizeResult:
    """Make a model keep a memory budget at the least extra time.

    Args:
        source: a file or a model in memory.
        budget: ``2GiB``, bytes, ``60%`` (of this machine's memory), ``0.6x`` (of the unoptimised
            peak), ``min``.
        settings: shapes, target, threads, and whether to measure.
        options: how to search.
        bench_seconds: time to spend on timing the result, 0 for none.
        write_model: write the formulation (of ``options``, else ``cuts``) as ``.mps`` or ``.lp``
            before it is solved.
        say: told what is being done.

    Raises:
        UsageError, ModelError: wrong input.
        InfeasibleError, NoPlanError, OverBudgetError: the budget cannot be kept.
        VerificationError: the result computes something else (never seen; never written).
    """
    say = say or (lambda _: None)
    limit = one_budget(budget)
    options = options or PlanOptions()
    prepared = prepare(source, settings or Settings(), say)
    say("planning")
    if write_model is None:
        prepared, outcome = plan_best(prepared, limit, options, memory_bytes(), say)
    else:  # that model is one of the whole batch
        write_prepared(prepared, limit, options.method, Path(write_model), say)
        outcome = plan_within(prepared, limit, options, memory_bytes())
    return OptimizeResult(**vars(finish(prepared, outcome, bench_seconds, say, options.stop)))


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
        UsageError, ModelError: wrong input or settings.
        UnsupportedError: an operator without a gradient rule.
    """
    model, folder, _ = read_source(source)
    bound = bind(inline_functions(model), shapes, dims)
    step = add_backward(bound, folder=folder, settings=settings or Training())
    write_model(step, target, folder)
    about = training_of(step)
    return {
        "nodes": len(step.graph.node),
        "parameters": len(about.parameters or about.gradients),
        "states": len(about.states),
        "loss": about.loss,
        "target": about.target,
        "learning_rate": about.rate,
        "optimizer": about.optimizer,
        "outputs": [value.name for value in step.graph.output][:1],
        "weights": [asdict(weight) for weight in about.weights],
        "warnings": list(about.warnings),
        "restored": [entry.to_dict() for entry in about.restored],
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
) -> Outcome:
    """Decide only; the outcome's plan can be kept (``plan.dumps()``) and applied later.

    Raises:
        As :func:`optimize`.
    """
    limit = one_budget(budget)
    prepared = prepare(source, settings or Settings(), say)
    return plan_best(prepared, limit, options or PlanOptions(), memory_bytes(), say)[1]


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """A plan from a ``plan.json`` or from a model that onnxremat wrote.

    Raises:
        UsageError: neither.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"no such file: {file}")
    if file.suffix != ".json":
        facts = metadata(read_model(file))
        if "plan" not in facts:
            raise UsageError(f"{file} carries no plan", hint="onnxremat optimize writes one")
        return unpack(facts["plan"])
    try:
        return Plan.from_json(json.loads(file.read_text()))
    except (ValueError, UnicodeDecodeError, AttributeError) as error:
        raise UsageError(f"{file} is not a plan", why=str(error)) from error


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
        UsageError: the plan belongs to another model.
        VerificationError: outputs or order differ.
    """
    say = say or (lambda _: None)
    prepared = prepare_for(planned, source, settings or Settings(), say)
    outcome = carry_out(prepared, planned)
    return OptimizeResult(**vars(finish(prepared, outcome, bench_seconds, say)))


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
    """The memory-time curve: the best plan and its bound at several budgets.

    Args:
        source: a model, or the path of a planner study's graph file (``.json``).
        budgets: in any form; without them ``points`` budgets from the unoptimised peak down to
            the smallest one.
        jobs: budgets planned at the same time, in processes of their own.
    """
    limits = [parse_budget(budget) for budget in budgets] if budgets else None
    subject = read_subject(source, settings or Settings(), say)
    return curve(subject, limits, points, options or PlanOptions(), jobs, say)


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
    subject = read_subject(source, settings or Settings(), say)
    return compare_planners(
        subject, limits, options or PlanOptions(), planners=planners, jobs=jobs, say=say
    )


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
    settings, limit = settings or Settings(), one_budget(budget)
    if not is_graph_file(source):
        dimension = open_dimension(source, settings, dimension)
    batches = Batches(source, settings, dimension, file_batch)
    return largest_batch(
        batches, limit, options or PlanOptions(time_limit=10), max_overhead=max_overhead, most=most,
        say=say,
    )  # fmt: skip


def optimize_devices(
    source: Source,
    *,
    machine: Machine | str | os.PathLike[str],
    budget: str | int = "",
    settings: Settings | None = None,
    options: PlanOptions | None = None,
    pins: Sequence[tuple[str, str]] = (),
    objective: str = "auto",
    bench_seconds: float = 6.0,
    write_model: str | os.PathLike[str] | None = None,
    read_solution: str | os.PathLike[str] | None = None,
    say: Say | None = None,
) -> DeviceResult:
    """Make a model run on several devices, each within its budget.

    Args:
        machine: a machine file, the name of a shipped one, or a :class:`Machine`.
        budget: ``cpu=1GiB,cuda:0=6GiB``; a plain one for every device; "" for their memories.
        pins: (pattern of op names or types, device).
        objective: ``time`` of all runs and copies, ``makespan`` side by side, or ``auto``.
        write_model: write the formulation of ``options`` (XEngine's) as ``.mps`` or ``.lp`` before
            it is solved.
        read_solution: a solution of that formulation, solved elsewhere, instead of solving it.

    Raises:
        As :func:`optimize`; and MissingComponentError: a device's provider is not here.
    """
    target = machine if isinstance(machine, Machine) else read_machine(machine)
    budgets = target.budgets(budget) if budget else {}
    prepared = prepare(source, settings or Settings(), say)
    return plan_devices(
        prepared, target, budgets, options or PlanOptions(), pins=pins, objective=objective,
        bench_seconds=bench_seconds, write_model=Path(write_model) if write_model else None,
        read_solution=Path(read_solution) if read_solution else None, say=say,
    )  # fmt: skip


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
    return read_deployment(path).executor(state, overlap)


def store_all_timeline(prepared: Prepared) -> Timeline:
    """What the prepared graph needs without recomputation."""
    return simulate(
        prepared.graph, scratch=prepared.costs.scratch, seconds=prepared.costs.seconds,
        weight_bytes=prepared.weights,
    )  # fmt: skip
