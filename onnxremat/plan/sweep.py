"""The memory-time curve: one answer per budget, from the store-all peak down to the minimum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from onnxremat.plan.ladder import solve
from onnxremat.plan.minimum import smallest_budget
from onnxremat.plan.problem import Problem, Solution, peak


@dataclass(frozen=True)
class Point:
    """One budget in bytes and the planner's answer."""

    budget: int
    solution: Solution


def budgets_between(low: int, high: int, count: int) -> list[int]:
    """``count`` budgets from ``high`` down to ``low``, evenly spread."""
    if count < 2 or high <= low:
        return [high]
    return [high - (high - low) * k // (count - 1) for k in range(count)]


def sweep(
    problem: Problem,
    budgets: Iterable[int] | None = None,
    *,
    count: int = 10,
    time_limit: float = 60,
    gap: float = 1e-4,
    fixed_order: bool = False,
    processes: int = 1,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Point]:
    """Plan for each budget and yield the points in the order of falling budgets.

    Args:
        budgets: bytes; without them ``count`` budgets between the store-all peak and the smallest
            budget a sequence is found for.
        time_limit: seconds per budget.
        processes: budgets planned at the same time; one process starts each budget from the answer
            for the budget below it, which fits too.
        stop: polled between budgets (and within, with one process).
    """
    if budgets is None:
        low, _, _, _ = smallest_budget(
            problem, time_limit=time_limit, fixed_order=fixed_order, stop=stop
        )
        budgets = budgets_between(low, peak(problem, problem.store_all()), count)
    chosen = sorted(set(budgets), reverse=True)
    plan = partial(solve, problem, time_limit=time_limit, gap=gap, fixed_order=fixed_order)
    if processes > 1:
        with ProcessPoolExecutor(processes) as pool:
            for budget, solution in zip(chosen, pool.map(plan, chosen), strict=True):
                yield Point(budget, solution)
        return
    # a smaller budget's sequence fits every larger one, so the curve is planned upwards
    points: list[Point] = []
    warm: tuple[int, ...] | None = None
    for budget in reversed(chosen):
        if stop is not None and stop():
            break
        solution = plan(budget, warm=warm, stop=stop)
        warm = solution.sequence or warm
        points.append(Point(budget, solution))
    yield from reversed(points)
