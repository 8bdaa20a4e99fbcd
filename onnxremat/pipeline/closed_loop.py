"""Plan, rewrite, measure; and again with the excess taken off while the budget is missed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnxremat.errors import InfeasibleError, NoPlanError, OverBudgetError
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.offline import lasting_tensors
from onnxremat.ort.profile import profile
from onnxremat.ort.session import Options
from onnxremat.pipeline.prepare import Prepared
from onnxremat.pipeline.refusal import given_up, refusal, unexplained
from onnxremat.planner import smallest_budget
from onnxremat.planner.methods import plan_by
from onnxremat.planner.options import AUTO, ROOM, PlanOptions
from onnxremat.planner.reduce import Reduced, reduce
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import seconds
from onnxremat.planner.solution import Certificate, Solution, Status
from onnxremat.rewrite.emit import Rewritten, rewrite
from onnxremat.schedule.expand import settled
from onnxremat.schedule.plan import Plan, Provenance, graph_hash
from onnxremat.schedule.simulate import Timeline
from onnxremat.schedule.updates import updates_last
from onnxremat.session.measure import Measurement, measure, predict
from onnxremat.units import Budget, format_bytes

ROUNDS = 6
REPAIR_GAP = 0.02  # of a round after planning has ended
MOST_ROOM = 5.0  # seconds of the time that the first round leaves, at most
SLOW = 20.0  # seconds of a run from which the default order is predicted, not tried


@dataclass(frozen=True)
class Outcome:
    """A plan that keeps its budget, carried out.

    Attributes:
        budget: bytes.
        predicted: the simulator's timeline under the options the plan is made for.
        measured: the run under these options, None without measuring.
        measured_default: the run under onnxruntime's default options.
        rounds: how often planning was repeated because the budget was missed.
        lower, why: no budget below ``lower`` bytes can work, where the smallest was asked for.
    """

    plan: Plan
    rewritten: Rewritten
    budget: int
    predicted: Timeline
    measured: Measurement | None
    measured_default: Measurement | None
    rounds: int
    lower: int = 0
    why: str = ""


@dataclass(frozen=True)
class Unfit:
    """No plan that keeps ``limit`` bytes was found.

    Attributes:
        solution: the planner's answer for the whole budget.
        excess: bytes that the last plan took too many when carried out; 0 where there was none.
    """

    reduced: Reduced
    limit: int
    solution: Solution
    excess: int = 0

    def error(self, prepared: Prepared) -> InfeasibleError | NoPlanError | OverBudgetError:
        """What is known without looking for a budget that works."""
        if not self.excess:
            fixed = prepared.settings.fixed_order
            return unexplained(prepared.name, self.limit, self.solution, fixed)
        return OverBudgetError(
            f"no plan keeps within {format_bytes(self.limit)} when carried out",
            why=f"the last one needs {format_bytes(self.limit + self.excess)}",
            hint=f"--budget {self.limit + self.excess}",
            excess=self.excess,
        )


def plan_within(
    prepared: Prepared,
    budget: Budget,
    options: PlanOptions,
    device_bytes: int,
    warm: Sequence[int] | None = None,
    *,
    explain: bool = True,
) -> Outcome:
    """Find a plan whose measured (or, without measuring, predicted) peak is within the budget.

    Args:
        warm: ops of the reduced problem in execution order, to start from.
        explain: look for the smallest budget that works before an error is raised.

    Raises:
        InfeasibleError: proven that no plan fits; carries the smallest budget that does.
        NoPlanError: none found in time, or stopped before planning began.
        OverBudgetError: measured peaks stay over the budget.
    """
    options = options.begun()
    limit = budget.resolve(device_bytes=device_bytes, peak_bytes=prepared.baseline_peak)
    if limit is None:
        return at_minimum(prepared, smallest(prepared, options.within(0.5)), options)
    made = attempt(prepared, limit, options, warm)
    if isinstance(made, Outcome):
        return made
    chosen = options.method != AUTO
    if not explain or (chosen and made.excess):
        raise made.error(prepared)
    if chosen and made.solution.status is not Status.INFEASIBLE:
        raise given_up(options.method.name, prepared.name, limit, made.solution)
    least = smallest(prepared, options.within(0.5))
    if least.outcome.budget <= limit and not chosen:
        return least.as_answer(made)
    raise refusal(
        prepared.name,
        limit,
        made.solution,
        fixed_order=prepared.settings.fixed_order,
        works=least.outcome.budget,
        lower=least.lower,
        why=least.why,
        notes=prepared.notes,
    )


@dataclass(frozen=True)
class Smallest:
    """The smallest plan found, carried out; and why less than ``lower`` bytes cannot work."""

    outcome: Outcome
    sequence: list[int]
    lower: int
    why: str

    def as_answer(self, unfit: Unfit) -> Outcome:
        """The outcome as the plan for a budget for which no other was found in time."""
        proof = unfit.solution.certificate
        return _restated(
            self.outcome,
            unfit.limit,
            bound=min(proof.bound, self.outcome.plan.provenance.seconds),
            bound_kind=proof.kind,
            any_order=proof.any_order,
        )


def smallest(prepared: Prepared, options: PlanOptions) -> Smallest:
    """What the smallest plan that is found in time takes when carried out."""
    _require_time(options)
    reduced = reduce(prepared.graph, prepared.costs, prepared.weights)
    found, sequence, lower, why = smallest_budget(
        reduced.problem,
        replace(
            options.lasting(max(options.least, options.left)),
            fixed_order=prepared.settings.fixed_order,
        ),
    )
    store_all = seconds(reduced.problem, reduced.problem.store_all())
    solution = Solution(
        status=Status.FEASIBLE,
        schedule=Schedule.of(reduced.problem, sequence),
        time=seconds(reduced.problem, sequence),
        peaks=(found,),
        certificate=Certificate(store_all, "store-all", True),
        planner="smallest-budget",
    )
    made = carry_out(prepared, _as_plan(prepared, reduced, solution, solution, found))
    limit = max(made.predicted.peak, made.measured.peak if made.measured else 0)
    return Smallest(_restated(made, limit), list(sequence), lower, named(reduced, why))


def named(reduced: Reduced, why: str) -> str:
    """The planner's reason with the names of ops instead of their numbers."""

    def name(found: re.Match[str]) -> str:
        op = reduced.graph.ops[reduced.index[int(found.group(1))]]
        return f"{op.name} ({op.op_type})"

    return re.sub(r"\bop (\d+)", name, why)


def at_minimum(prepared: Prepared, least: Smallest, options: PlanOptions) -> Outcome:
    """The smallest budget, at the least time.

    Raises:
        As :func:`plan_within`, where a method was asked for.
    """
    made = attempt(prepared, least.outcome.budget, options, least.sequence, rounds=2)
    if isinstance(made, Unfit):
        if options.method != AUTO:
            raise made.error(prepared)
        made = least.outcome  # nothing quicker fits
    note = f"no budget below {format_bytes(least.lower)} ({least.lower} B) can work: {least.why}"
    notes = (*made.plan.provenance.notes, note)
    return replace(_restated(made, made.budget, notes=notes), lower=least.lower, why=least.why)


def _restated(outcome: Outcome, budget: int, **facts: Any) -> Outcome:
    """The outcome with other facts about its plan, in the plan that the model carries too."""
    plan = outcome.plan.with_provenance(budget=budget, **facts)
    rewritten = Rewritten(outcome.rewritten.graph, plan)
    return replace(outcome, budget=budget, plan=plan, rewritten=rewritten)


def with_notes(outcome: Outcome, *notes: str) -> Outcome:
    """The outcome with more to say about its plan."""
    kept = (*outcome.plan.provenance.notes, *notes)
    return _restated(outcome, outcome.budget, notes=kept)


def _require_time(options: PlanOptions) -> None:
    if options.stopped:
        raise NoPlanError("stopped before planning began")


def attempt(
    prepared: Prepared,
    limit: int,
    options: PlanOptions,
    warm: Sequence[int] | None = None,
    *,
    rounds: int = ROUNDS,
) -> Outcome | Unfit:
    """Plan and carry out, with the excess taken off, until ``limit`` bytes are kept.

    Raises:
        NoPlanError: stopped before planning began.
    """
    _require_time(options)
    options = options.begun()
    reduced = reduce(prepared.graph, prepared.costs, prepared.weights)
    aim, first, excess, late = limit, None, 0, 0
    for round_ in range(rounds):
        over = options.stopped or options.left <= 0
        late += round_ > 0 and over  # the plan at hand only has to be made to fit
        asked = replace(
            options.lasting(_round_seconds(options, round_, late, first)),
            gap=max(options.gap, REPAIR_GAP) if late else options.gap,
            fixed_order=prepared.settings.fixed_order,
            stop=None if late else options.stop,
        )
        solution = plan_by(reduced.problem, aim, asked, warm)
        first = first or solution  # its bound is the one for the whole budget
        if solution.sequence is None:
            break
        plan = _as_plan(prepared, reduced, solution, first, limit)
        outcome, excess = _within(prepared, plan, limit, round_)
        if outcome is not None:
            return outcome
        # Gates and pins take a few bytes each: leave room for as many as this plan had.
        aim = min(aim, solution.peak) - excess - 256 * (round_ + 1)
        warm = solution.sequence
    assert first is not None
    return Unfit(reduced, limit, first, excess)


def _round_seconds(options: PlanOptions, round_: int, late: int, first: Solution | None) -> float:
    """Seconds of a round: the first leaves some for those that make its plan fit."""
    if late:
        return float(options.least * 0.5 ** (late - 1))
    if first is None:
        return max(options.least, options.left - min(MOST_ROOM, ROOM * options.left))
    return max(options.least, min(options.left, max(MOST_ROOM, first.plan_seconds / 8)))


def carry_solution(prepared: Prepared, reduced: Reduced, solution: Solution, limit: int) -> Outcome:
    """Carry out one given solution as it is.

    Raises:
        OverBudgetError: with its gates it takes more than ``limit`` bytes.
    """
    plan = _as_plan(prepared, reduced, solution, solution, limit)
    outcome, excess = _within(prepared, plan, limit, 0)
    if outcome is None:
        raise OverBudgetError(
            f"the plan takes {format_bytes(limit + excess)} when carried out",
            why=f"that is {excess} bytes over the budget of {limit} B",
            hint=f"solve for {limit - excess} bytes, or allow --budget {limit + excess}",
            excess=excess,
        )
    return outcome


def _within(prepared: Prepared, plan: Plan, limit: int, attempt: int) -> tuple[Outcome | None, int]:
    """The plan carried out, or how many bytes it misses the budget by.

    The cheap check comes first: prediction, then the runs of the model that will be written.
    """
    predicted = _predicted(prepared, rewrite(prepared.graph, plan))
    if predicted.peak > limit:
        return None, predicted.peak - limit
    outcome = replace(carry_out(prepared, plan), budget=limit, rounds=attempt)
    peak = max(outcome.predicted.peak, outcome.measured.peak if outcome.measured else 0)
    return (outcome, 0) if peak <= limit else (None, peak - limit)


def carry_out(prepared: Prepared, plan: Plan) -> Outcome:
    """Rewrite the model by a plan, suit the pins to onnxruntime's fusions, predict and measure.

    Raises:
        UsageError: the plan does not fit the graph.
    """
    rewritten = rewrite(prepared.graph, plan, _Asked(prepared))
    budget = plan.provenance.budget
    if prepared.feeds is None:
        return Outcome(plan, rewritten, budget, _predicted(prepared, rewritten), None, None, 0)
    found = _measured(prepared, rewritten, prepared.tuned)
    plain = _measured(prepared, rewritten, prepared.default)
    return Outcome(plan, rewritten, budget, found.predicted, found, plain, 0)


def _predicted(prepared: Prepared, rewritten: Rewritten) -> Timeline:
    return predict(
        rewritten.graph,
        prepared.tuned,
        scratch=prepared.costs.scratch,
        seconds=prepared.costs.seconds,
        weights=prepared.weights,
    )


def _measured(prepared: Prepared, rewritten: Rewritten, options: Options) -> Measurement:
    assert prepared.feeds is not None
    return measure(
        rewritten.graph,
        rewritten.model(),
        prepared.feeds,
        options,
        scratch=prepared.costs.scratch,
        seconds=prepared.costs.seconds,
        folder=prepared.folder,
    )


@dataclass(frozen=True)
class _Asked:
    """Answers from onnxruntime itself, on the model's inputs."""

    prepared: Prepared

    def lasting(self, graph: Graph) -> set[str]:
        """Tensors left after fusion."""
        return lasting_tensors(to_model(graph), self.prepared.folder)

    def executed(self, graph: Graph) -> list[str]:
        """Executed order; the listed one for models too slow to try out."""
        if self.prepared.feeds is None or self.prepared.costs.total > SLOW:
            return [op.name for op in graph.ops]
        ran = profile(
            to_model(graph), self.prepared.feeds, self.prepared.default,
            folder=self.prepared.folder,
        )  # fmt: skip
        return [kernel.name for kernel in ran.kernels]


def _as_plan(
    prepared: Prepared, reduced: Reduced, solution: Solution, first: Solution, limit: int
) -> Plan:
    assert solution.sequence is not None
    store_all = seconds(reduced.problem, reduced.problem.store_all())
    bound = max(first.certificate.bound, store_all)
    gap = max(0.0, solution.time - bound) / store_all if store_all else 0.0
    status = "optimal" if gap <= 1e-5 else "feasible"
    provenance = Provenance(
        planner=solution.planner,
        status=status,
        budget=limit,
        bound=min(bound, solution.time),
        bound_kind=first.certificate.kind,
        any_order=first.certificate.any_order,
        staged=first.certificate.staged,
        seconds=solution.time,
        store_all_seconds=store_all,
        plan_seconds=first.plan_seconds + (solution.plan_seconds if solution is not first else 0),
        graph_hash=graph_hash(prepared.graph),
        cost_source=prepared.costs.source,
        notes=(*prepared.notes, *solution.notes),
        settings=prepared.settings.to_json(),
    )
    names = reduced.lift(solution.sequence)
    names = settled(prepared.graph, updates_last(prepared.graph, names, prepared.in_place))
    return Plan.of(prepared.graph, names, provenance)
