"""Plans for graph files of planner studies: no model, only sizes and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onnxremat.pipeline.kept_plans import KeptPlan, keep_at, kept_at, place_of
from onnxremat.pipeline.refusal import Least, given_up, refusal
from onnxremat.pipeline.study_problem import Subject
from onnxremat.planner import smallest_budget
from onnxremat.planner.methods import plan_by
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.problem import Problem
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import peak, seconds
from onnxremat.planner.solution import Certificate, Solution, Status
from onnxremat.units import Budget


def plan_graph(subject: Subject, budget: Budget, options: PlanOptions) -> dict[str, Any]:
    """Plan a graph file; a share of the budget means the store-all peak in the file's order.

    Raises:
        InfeasibleError, NoPlanError: no plan for the budget.
        UsageError: unknown solver, or a formulation whose model is too large.
    """
    options = options.begun()
    asked_for, warm = subject.limit(budget), None
    limit = asked_for.planned if asked_for else 0
    if asked_for is None:
        limit, warm, _, _ = _smallest(subject, options.within(0.5))
    asked = options.lasting(max(options.least, options.left))
    solution = plan_problem(subject, limit, asked, warm)
    if solution.sequence is None:
        if not options.method.ladder and solution.status is not Status.INFEASIBLE:
            raise given_up(options.method.name, subject.name, limit, solution)
        works, sequence, lower, why = _least(subject, options)
        if not options.method.ladder or works > limit:
            all_ways = solution.certificate.any_order or subject.fixed_order
            least = Least(works, lower, why)
            raise refusal(subject.name, limit, solution, least, all_ways=all_ways)
        solution = _solution(subject.problem, sequence, solution.certificate)
    return facts_of(subject, limit, solution)


def _least(subject: Subject, options: PlanOptions) -> tuple[int, list[int], int, str]:
    """As :func:`_smallest`, or what an earlier refusal has named where that is less."""
    problem = subject.problem
    rows = [problem.reads, problem.writes, problem.inplace]
    arrays = [problem.size, problem.work, problem.keep, problem.recompute, problem.fixed]
    about = [[row.lists() for row in rows], [each.tolist() for each in arrays]]
    path = place_of([*about, subject.fixed_order])
    found, sequence, lower, why = _smallest(subject, options)
    if options.work is None:
        keep_at(path, KeptPlan(found, {}, tuple(map(str, sequence))))
        kept = kept_at(path)
        ops = [int(op) for op in kept.ops if op.isdecimal()] if kept else []
        if kept and kept.budget < found and _runs(problem, ops, kept.budget):
            found, sequence = kept.budget, ops
    return found, sequence, lower, why


def _runs(problem: Problem, sequence: Sequence[int], budget: int) -> bool:
    """Whether a sequence is one of the problem, within a budget."""
    if set(sequence) != set(range(problem.ops)):
        return False
    try:
        return peak(problem, sequence) <= budget
    except ValueError:
        return False


def _solution(problem: Problem, sequence: Sequence[int], proof: Certificate) -> Solution:
    return Solution(
        status=Status.FEASIBLE,
        schedule=Schedule.of(problem, sequence),
        time=seconds(problem, sequence),
        peaks=(peak(problem, sequence),),
        certificate=proof,
        planner="smallest-budget",
        reference=seconds(problem, problem.store_all()),
        makespan=seconds(problem, sequence),
    )


def plan_problem(
    subject: Subject, limit: int, options: PlanOptions, warm: Sequence[int] | None = None
) -> Solution:
    """The planner's answer for ``limit`` bytes, started from the sequence ``warm``."""
    asked = replace(options, fixed_order=subject.fixed_order)
    return plan_by(subject.problem, limit, asked, warm)


def _smallest(subject: Subject, options: PlanOptions) -> tuple[int, list[int], int, str]:
    asked = replace(
        options.lasting(max(options.least, options.left)), fixed_order=subject.fixed_order
    )
    return smallest_budget(subject.problem, asked)


def facts_of(subject: Subject, limit: int, solution: Solution) -> dict[str, Any]:
    """What is said about a plan: sizes in bytes, overhead, bound and gap as shares of the
    store-all time."""
    assert solution.sequence is not None
    store_all = subject.store_all_seconds
    bound = min(max(solution.certificate.bound, store_all), solution.time)
    whole = store_all or 1.0
    return {
        "model": subject.name,
        "status": solution.status.value,
        "ops": subject.problem.ops,
        "budget_bytes": limit,
        "baseline_peak_bytes": subject.baseline_peak,
        "peak_predicted_bytes": solution.peak,
        "peak_measured_bytes": None,
        "overhead_planned": (solution.time - store_all) / whole,
        "overhead_measured": None,
        "bound": (bound - store_all) / whole,
        "bound_kind": solution.certificate.kind,
        "bound_any_order": solution.certificate.any_order,
        "bound_staged": solution.certificate.staged,
        "gap": (solution.time - bound) / whole,
        "plan_seconds": solution.plan_seconds,
        "recomputed_ops": len(solution.sequence) - subject.problem.ops,
        "planner": solution.planner,
        "fixed_order": subject.fixed_order,
        "sequence": list(solution.sequence),
        "notes": list(solution.notes),
    }
