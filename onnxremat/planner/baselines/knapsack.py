"""What to save at one point: a knapsack over the values that cross it, and its LP rounded.

``knapsack`` solves the single-cut model at the turning point (the saved-values problem of compiler
partitioners: minimise recomputation under a limit on saved bytes) and lowers the limit until the
replayed sequence fits. ``lp_rounding`` rounds the LP relaxation of the same model, as Jain et al.,
MLSys 2020, section 5 do for the full one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from onnxremat.planner.baselines.checkpoints import turning_point
from onnxremat.planner.baselines.verdict import fastest_within
from onnxremat.planner.formulations.cut_model import ALWAYS
from onnxremat.planner.formulations.cuts import build
from onnxremat.planner.formulations.extract import late_remakes, late_schedule
from onnxremat.planner.formulations.spans import fixed_spans
from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.semantics import peak
from onnxremat.planner.solution import Solution
from onnxremat.planner.solvers import Limits, minimise

SECONDS = 10.0  # per solve
SHARES = 20  # limits tried between the budget and half of it


def knapsack(problem: Problem, budget: int) -> Solution:
    """Best values to save at the turning point, for the largest limit that fits."""
    return fastest_within(problem, budget, "knapsack", _saved(problem, budget))


def lp_rounding(problem: Problem, budget: int) -> Solution:
    """Round the LP relaxation at several thresholds and limits."""
    return fastest_within(problem, budget, "lp-rounding", _rounded(problem, budget))


def _saved(problem: Problem, budget: int) -> Iterator[list[int] | None]:
    lists = ProblemLists(problem)
    spans = fixed_spans(problem.ops, [turning_point(lists)])
    for k in range(SHARES):
        made = build(lists, spans, [budget * (2 * SHARES - k) // (2 * SHARES)])
        result, _ = minimise(made.model, Limits(seconds=SECONDS, gap=0.05))
        if result.point is None:
            return
        schedule = late_schedule(made, result.point)
        yield None if schedule is None else list(schedule.sequence)
        if schedule is not None and peak(problem, schedule) <= budget:
            return


def _rounded(problem: Problem, budget: int) -> Iterator[list[int] | None]:
    lists = ProblemLists(problem)
    spans = fixed_spans(problem.ops, [turning_point(lists)])
    for k in range(0, SHARES, 2):
        made = build(lists, spans, [budget * (2 * SHARES - k) // (2 * SHARES)])
        relaxed = replace(made.model, integer=[False] * made.model.columns)
        result, _ = minimise(relaxed, Limits(seconds=SECONDS))
        if result.point is None:
            return
        for threshold in (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95):
            held = [
                {
                    u
                    for u, j in enumerate(row)
                    if j == ALWAYS or (j >= 0 and result.point[j] > threshold)
                }
                for (row,) in made.carry
            ]
            yield late_remakes(lists, made.first_runs(result.point), held)
