"""The public functions, one per command.

optimize   in.onnx + budget -> a model that keeps it
prepare    in.onnx -> the graph that is planned, with costs
plan       prepared model + budget -> plan
apply      in.onnx + plan -> model
verify     original + result -> same outputs, planned order, measured peak
sweep      in.onnx -> memory-time curve
load       result -> a ready onnxruntime session
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from onnxremat.device.host import memory_bytes
from onnxremat.errors import UsageError, VerificationError
from onnxremat.graph.onnx_io import check_writable, read_model, write_model
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import run_session
from onnxremat.ort.session import open_session, session_options
from onnxremat.rewrite.emit import Rewritten, metadata, rewrite, unpack
from onnxremat.rewrite.pins import is_added
from onnxremat.run.bench import Contender, Timing, bench
from onnxremat.run.closed_loop import Outcome, PlanOptions, plan_within
from onnxremat.run.compare import Difference, compare
from onnxremat.run.load import load, options_of, write_options
from onnxremat.run.measure import Measurement, measure, predict
from onnxremat.run.prepare import Prepared, Settings, inputs_bytes, prepare
from onnxremat.schedule.plan import Plan, graph_hash
from onnxremat.schedule.simulate import Timeline, simulate
from onnxremat.units import Budget, parse_budget, parse_budgets

__all__ = [
    "OptimizeResult", "PlanOptions", "Settings", "SweepPoint", "Verification", "apply", "load",
    "optimize", "plan", "prepare", "read_plan", "sweep", "verify",
]  # fmt: skip

Say = Callable[[str], None]
Source = str | os.PathLike[str] | onnx.ModelProto


@dataclass(frozen=True)
class OptimizeResult:
    """A model within its budget, with everything that is known about it.

    Attributes:
        prepared: the model as planned.
        outcome: plan, rewritten graph, prediction and measurement.
        against_original: outputs against the original under default options.
        against_store_all: outputs against the same graph without recomputation: bit-equal, or
            the result is refused.
        timings: store-all, result, original; paired; empty when not timed.
    """

    prepared: Prepared
    outcome: Outcome
    against_original: Difference | None
    against_store_all: Difference | None
    timings: tuple[Timing, ...]

    @property
    def plan(self) -> Plan:
        """The plan that was carried out."""
        return self.outcome.plan

    @property
    def model(self) -> onnx.ModelProto:
        """The ONNX model, its plan and options in the metadata."""
        options = json.dumps(self.prepared.tuned.to_json() | {"threads": 0})
        return self.outcome.rewritten.model({"options": options, "facts": json.dumps(self.facts())})

    def facts(self) -> dict[str, Any]:
        """All figures as plain data; overheads, bound and gap are fractions of the store-all
        time, sizes are bytes, times seconds. What was not measured is None."""
        made, found = self.outcome, self.outcome.measured
        plain, facts = self.outcome.measured_default, self.plan.provenance
        added = [op for op in made.rewritten.graph.ops if is_added(op.name)]
        timing = {t.name: t for t in self.timings}
        return {
            "model": self.prepared.name,
            "status": facts.status,
            "budget_bytes": made.budget,
            "baseline_peak_bytes": self.prepared.baseline_peak,
            "store_all_peak_bytes": self.prepared.store_all_peak,
            "peak_predicted_bytes": made.predicted.peak,
            "peak_measured_bytes": found.peak if found else None,
            "peak_default_options_bytes": plain.peak if plain else None,
            "arena_bytes": found.arena_bytes if found else None,
            "arena_default_options_bytes": plain.arena_bytes if plain else None,
            "weight_bytes": made.predicted.weight_bytes,
            "input_bytes": inputs_bytes(self.prepared.graph),
            "overhead_planned": facts.overhead,
            "overhead_measured": timing["result"].ratio - 1 if "result" in timing else None,
            "overhead_spread": timing["result"].spread if "result" in timing else None,
            "original_time_ratio": timing["original"].ratio if "original" in timing else None,
            "step_seconds": timing["result"].seconds if "result" in timing else None,
            "bound": facts.bound_overhead,
            "bound_kind": facts.bound_kind,
            "bound_any_order": facts.any_order,
            "gap": facts.gap,
            "planner": facts.planner,
            "plan_seconds": facts.plan_seconds,
            "rounds": made.rounds + 1,
            "ops": len(self.prepared.graph.ops),
            "recomputed_ops": self.plan.recomputations,
            "added_ops": len(added),
            "order_kept": found.order_kept if found else None,
            "order_kept_default_options": plain.order_kept if plain else None,
            "bit_equal": self.against_store_all.bit_equal if self.against_store_all else None,
            "difference_to_original": self.against_original.worst
            if self.against_original
            else None,
            "target": self.prepared.settings.target,
            "cost_source": self.prepared.costs.source,
            "notes": list(facts.notes),
        }

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Check and write the model, its external weights where it has any, and the session
        options (``<path>.options.json``); returns the files written.

        Raises:
            UsageError: the folder is not writable.
        """
        target = Path(path)
        written = write_model(self.model, target, self.prepared.folder)
        return [*written, write_options(target, self.prepared.tuned, self.facts())]

    def report(self) -> str:
        """The before/after table as text."""
        from onnxremat.report.tables import as_text, before_after

        return as_text(before_after(self.facts()))


def optimize(
    source: Source,
    *,
    budget: str | int,
    settings: Settings | None = None,
    options: PlanOptions | None = None,
    bench_seconds: float = 6.0,
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
    outcome = plan_within(prepared, limit, options, memory_bytes())
    return _finish(prepared, outcome, bench_seconds, say, options)


def _finish(
    prepared: Prepared, outcome: Outcome, bench_seconds: float, say: Say, options: PlanOptions
) -> OptimizeResult:
    """Verify outputs and order, and time the result."""
    if outcome.measured is None or prepared.baseline is None or prepared.feeds is None:
        return OptimizeResult(prepared, outcome, None, None, ())
    say("verifying")
    store_all = rewrite(prepared.graph, Plan.of(prepared.graph, _base(prepared)))
    session = open_session(store_all.model(), session_options(prepared.tuned), prepared.folder)
    names = [value.name for value in session.get_outputs()]
    reference = dict(zip(names, run_session(session, prepared.feeds), strict=True))
    del session
    same = compare(outcome.measured.outputs, reference)
    close = compare(outcome.measured.outputs, prepared.baseline.outputs)
    if not (same.bit_equal or same.ok):
        raise VerificationError(
            "the planned model computes something else",
            where=f"output {same.output}",
            why=f"it differs by {same.worst:.2g} from the same graph without recomputation",
            hint="please report this model; nothing was written",
        )
    if not outcome.measured.order_kept:
        raise VerificationError(
            "onnxruntime ran the planned model in another order",
            hint="please report this model and the onnxruntime version; nothing was written",
        )
    timings: list[Timing] = []
    if bench_seconds > 0:
        say("timing")
        timings = _bench(prepared, store_all, outcome, bench_seconds, options)
    return OptimizeResult(prepared, outcome, close, same, tuple(timings))


def _base(prepared: Prepared) -> list[str]:
    return [op.name for op in prepared.graph.ops]


def _bench(
    prepared: Prepared,
    store_all: Rewritten,
    outcome: Outcome,
    bench_seconds: float,
    options: PlanOptions,
) -> list[Timing]:
    assert prepared.feeds is not None
    folder = prepared.folder
    contenders = [
        Contender("store-all", store_all.model(), prepared.tuned, folder),
        Contender("result", outcome.rewritten.model(), prepared.tuned, folder),
        Contender("original", prepared.original, prepared.default, folder),
    ]
    return bench(contenders, prepared.feeds, seconds=bench_seconds, stop=options.stop)


def one_budget(text: str | int) -> Budget:
    """The budget of the only device there is.

    Raises:
        UsageError: not a budget, or for a device that is not there.
    """
    budgets = parse_budgets(text)
    for device in ("", "cpu", "cpu:0"):
        if device in budgets and len(budgets) == 1:
            return budgets[device]
    raise UsageError(
        f"budget '{text}' names devices this version does not plan for",
        hint="give one budget, for the CPU: --budget 2GiB",
    )


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
    return plan_within(prepared, limit, options or PlanOptions(), memory_bytes())


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
    kept = planned.provenance.settings
    wanted = settings or Settings()
    prepared = prepare(
        source,
        replace(
            wanted,
            shapes=wanted.shapes or kept.get("shapes", {}),
            dims=wanted.dims or kept.get("dims", {}),
            target=kept.get("target", wanted.target),
        ),
        say,
    )
    if graph_hash(prepared.graph) != planned.provenance.graph_hash:
        raise UsageError(
            "the plan belongs to another model",
            why="ops or sizes of the prepared graph differ (another file, shape or onnxruntime)",
            hint="plan again with: onnxremat plan",
        )
    rewritten = rewrite(prepared.graph, planned)
    predicted = predict(
        rewritten.graph, prepared.tuned, scratch=prepared.costs.scratch,
        seconds=prepared.costs.seconds, weights=prepared.weights,
    )  # fmt: skip
    found = plain = None
    if prepared.feeds is not None:
        model = rewritten.model()
        common = {
            "scratch": prepared.costs.scratch, "seconds": prepared.costs.seconds,
            "folder": prepared.folder,
        }  # fmt: skip
        found = measure(rewritten.graph, model, prepared.feeds, prepared.tuned, **common)
        plain = measure(rewritten.graph, model, prepared.feeds, prepared.default, **common)
    budget = planned.provenance.budget
    outcome = Outcome(planned, rewritten, budget, predicted, found, plain, 0)
    return _finish(prepared, outcome, bench_seconds, say, PlanOptions())


@dataclass(frozen=True)
class Check:
    """One thing verified."""

    name: str
    ok: bool
    text: str


@dataclass(frozen=True)
class Verification:
    """What :func:`verify` found.

    Attributes:
        checks: in the order they were made.
        tuned: the run under the options of the plan.
        default: the run under onnxruntime's default options.
        facts: what the model says about itself.
    """

    checks: tuple[Check, ...]
    tuned: Measurement
    default: Measurement
    facts: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Every check passed."""
        return all(check.ok for check in self.checks)


def verify(
    original: Source,
    result: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    seeds: int = 2,
    budget: str | int | None = None,
) -> Verification:
    """Run original and result in stock onnxruntime and compare: outputs on seeded inputs,
    executed against planned order, predicted against measured peak, peak against budget.

    Args:
        original: the model before.
        result: a file that onnxremat wrote.
        seeds: how many sets of inputs.
        budget: instead of the one the plan was made for.

    Raises:
        UsageError, ModelError: files that cannot be compared.
    """
    made = read_model(result)
    options, facts = options_of(made, str(result)), metadata(made)
    planned = unpack(facts["plan"])
    numbers = json.loads(facts.get("facts", "{}"))
    graph = build_graph(made, Path(result).parent)
    wanted = settings or Settings()
    kept = planned.provenance.settings
    wanted = replace(
        wanted,
        shapes=wanted.shapes or kept.get("shapes", {}),
        dims=wanted.dims or kept.get("dims", {}),
    )
    options = replace(options, threads=wanted.threads)
    checks = [_planned_order(graph, planned)]
    outputs, tuned, plain = _compare_runs(original, Path(result), graph, wanted, options, seeds)
    checks += [outputs, _order("executed order", tuned)]
    checks.append(_order("executed order, default options", plain))
    predicted = numbers.get("peak_predicted_bytes", tuned.predicted.peak)
    error = predicted / tuned.peak - 1
    checks.append(
        Check("predicted peak", abs(error) <= 0.02, f"{predicted} B, {error:+.2%} of measured")
    )
    limit = planned.provenance.budget
    if budget is not None:
        resolved = one_budget(budget).resolve(
            device_bytes=memory_bytes(), peak_bytes=numbers.get("baseline_peak_bytes", 0)
        )
        limit = resolved or limit
    if limit:
        text = f"{tuned.peak} B of {limit} B ({tuned.peak / limit:.1%})"
        checks.append(Check("measured peak within budget", tuned.peak <= limit, text))
    return Verification(tuple(checks), tuned, plain, numbers)


def _planned_order(graph: Any, planned: Plan) -> Check:
    listed = [op.origin or op.name for op in graph.ops if not is_added(op.name)]
    same = listed == list(planned.sequence)
    return Check("model follows its plan", same, f"{len(listed)} ops")


def _order(name: str, found: Measurement) -> Check:
    text = f"{len(found.profile.kernels)} kernels as planned" if found.order_kept else "differs"
    if found.missing:
        text += f" ({len(found.missing)} ops fused by onnxruntime at load)"
    return Check(name, found.order_kept, text)


def _compare_runs(
    original: Source, result: Path, graph: Any, wanted: Settings, options: Any, seeds: int
) -> tuple[Check, Measurement, Measurement]:
    """Outputs of both models on several inputs, and the measured runs of the result."""
    from onnxremat.run.reference import reference_outputs

    worst: Difference | None = None
    exact = True
    tuned = plain = None
    for seed in range(max(1, seeds)):
        feeds, expected = reference_outputs(original, replace(wanted, seed=wanted.seed + seed))
        tuned = measure(graph, result, feeds, options)
        plain = measure(graph, result, feeds, _default(options))
        for found in (tuned, plain):
            one = compare(found.outputs, expected)
            exact &= one.bit_equal
            if worst is None or not one.ok or one.worst > worst.worst:
                worst = one
    assert worst is not None
    assert tuned is not None
    assert plain is not None
    text = (
        "bit-equal"
        if exact
        else (
            f"within {worst.worst:.1e} of the largest value (allowed {worst.tolerance:.0e}: onnxruntime "
            "fuses and re-orders float arithmetic when it optimises a graph)"
        )
    )
    if not worst.ok:
        text = f"output '{worst.output}' differs by {worst.worst:.2g}"
    return Check(f"same outputs on {max(1, seeds)} inputs", worst.ok, text), tuned, plain


def _default(options: Any) -> Any:
    from onnxremat.ort.session import DEFAULT

    return replace(DEFAULT, threads=options.threads)


@dataclass(frozen=True)
class SweepPoint:
    """One point of the memory-time curve; overhead and bound are fractions of the store-all
    time, sizes are bytes. ``overhead`` is None where no plan was found."""

    budget: int
    peak: int | None
    overhead: float | None
    bound: float | None
    status: str
    plan_seconds: float


def sweep(
    source: Source,
    *,
    budgets: Sequence[str | int] | None = None,
    points: int = 8,
    settings: Settings | None = None,
    options: PlanOptions | None = None,
    say: Say | None = None,
) -> tuple[Prepared, list[SweepPoint]]:
    """The memory-time curve: the best plan and its bound at several budgets.

    Args:
        budgets: in any form; without them ``points`` budgets from the unoptimised peak down to
            the smallest one.
    """
    from onnxremat.run.curve import curve

    prepared = prepare(source, settings or Settings(), say)
    limits = None
    if budgets:
        limits = [parse_budget(b) for b in budgets]
    rows = curve(prepared, limits, points, options or PlanOptions(), memory_bytes(), say)
    return prepared, [SweepPoint(**row) for row in rows]


def store_all_timeline(prepared: Prepared) -> Timeline:
    """What the prepared graph needs without recomputation."""
    return simulate(
        prepared.graph, scratch=prepared.costs.scratch, seconds=prepared.costs.seconds,
        weight_bytes=prepared.weights,
    )  # fmt: skip
