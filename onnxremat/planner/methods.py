"""Every way to plan behind one call: our ladder, its rungs alone, formulations, published rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnxremat.errors import UsageError
from onnxremat.planner.baselines import BASELINES
from onnxremat.planner.exact import solve_formulation
from onnxremat.planner.incumbent import limits_of
from onnxremat.planner.ladder import solve
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.problem import Problem
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.solution import Solution, Status


def plan_by(
    problem: Problem,
    budgets: int | Sequence[float],
    options: PlanOptions | None = None,
    warm: Schedule | Sequence[int] | None = None,
) -> Solution:
    """Plan as ``options.method`` says; arguments as for ``solve``.

    Staged formulations and published rules keep the base order of first runs; published rules take
    no notice of limits.

    Raises:
        UsageError: a method that is not for several devices, or a model that is too large.
        ValueError: not one budget per device.
    """
    options = options or PlanOptions()
    method = options.method
    if problem.devices > 1 and (method.published or method.planner == "order"):
        raise UsageError(
            f"--planner {method.planner} plans for one device",
            why="published rules and orders without recomputation know one memory",
            hint="leave it out: the planner of several devices takes any model",
        )
    if method.published:
        rule = BASELINES[method.planner if problem.ops else "store-all"]
        return rule(problem, limits_of(problem, budgets)[0])
    if method.formulation and (method.formulation != "cuts" or problem.devices > 1):
        return solve_formulation(problem, budgets, options, warm)
    found = solve(problem, budgets, options, warm)
    if method.rung == "order" and found.status is Status.UNKNOWN:
        note = "no order was found that fits the budget without recomputation"
        return replace(found, notes=(*found.notes, note))
    return found
