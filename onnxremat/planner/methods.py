"""Every way to plan behind one call: our ladder, its rungs alone, formulations, published rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnxremat.planner.baselines import BASELINES
from onnxremat.planner.exact import solve_formulation
from onnxremat.planner.ladder import solve
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.problem import Problem, Solution, Status


def plan_by(
    problem: Problem,
    budget: int,
    options: PlanOptions | None = None,
    warm: Sequence[int] | None = None,
) -> Solution:
    """Plan as ``options.method`` says; arguments as for ``solve``.

    Staged formulations and published rules keep the base order of first runs; published rules take
    no notice of limits.

    Raises:
        UsageError: a formulation whose model is too large.
    """
    options = options or PlanOptions()
    method = options.method
    if method.published:
        return BASELINES[method.planner](problem, budget)
    if method.formulation not in ("", "cuts"):
        return solve_formulation(problem, budget, options, warm)
    found = solve(problem, budget, options, warm)
    if method.rung == "order" and found.status is Status.UNKNOWN:
        note = "no order was found that fits the budget without recomputation"
        return replace(found, notes=(*found.notes, note))
    return found
