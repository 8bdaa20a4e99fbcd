"""The planner over several devices: a ladder of methods, each adding a schedule, a bound, or both.

1. what fits nowhere; the least load and the critical path; for the makespan list scheduling, which
   has a plan for thousands of ops in milliseconds;
2. the best placement with copies, memory being no matter (a MILP without cuts);
3. lazy cuts one at a time, each repaired by moving copies, by solving with smaller budgets and by
   greedy insertion of remakes and copies;
4. greedy plans on each single device; annealing between rounds and with what time is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

from onnxremat.planner import search
from onnxremat.planner.devices.bounds import NO_LIMIT, makespan_bound, misfit, quick_makespan_bound
from onnxremat.planner.devices.layout import Layout
from onnxremat.planner.devices.problem import DeviceProblem, Schedule, least_seconds
from onnxremat.planner.devices.record import PACE, DeviceRecord
from onnxremat.planner.devices.solution import DeviceSolution
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.order import best_order
from onnxremat.planner.problem import peak
from onnxremat.planner.solvers import Limits

BETTER = 0.98  # share of the base order's peak at which another order is worth a try


def solve_devices(
    problem: DeviceProblem,
    budgets: Sequence[float],
    options: PlanOptions | None = None,
    warm: Schedule | None = None,
) -> DeviceSolution:
    """The fastest schedule within a budget per device, with a proven lower bound of its time.

    Args:
        budgets: bytes per device, everything :func:`~onnxremat.planner.devices.occupancy` counts
            included; ``inf`` for a device without a limit.
        options: limits and hooks; the gap is a share of the reference time.
        warm: a schedule to start from; ignored when it is invalid or over budget.

    Raises:
        ValueError: not one budget per device.
    """
    options = options or PlanOptions()
    if len(budgets) != problem.devices:
        raise ValueError(f"{len(budgets)} budgets for {problem.devices} devices")
    limits = tuple(int(b) if isfinite(b) else NO_LIMIT for b in budgets)
    record = DeviceRecord(
        problem, limits, options.seconds, options.gap,
        options.objective == "makespan", options.progress, options.stop, options.fixed_order,
        clock=options.clock(),
    )  # fmt: skip
    layout = Layout(problem)
    if not _trivial(record, layout, options.solver):
        if warm is not None:
            record.offer(warm, "warm start")
        _climb(record, layout, options)
    return record.solution()


def _trivial(record: DeviceRecord, layout: Layout, solver: str) -> bool:
    """Bounds that need no search; True when they settle the question."""
    found = misfit(layout, record.budgets)
    if found is not None:
        record.notes.append(found.why)
        record.raise_bound(inf, "largest op", any_order=True)
        return True
    record.raise_bound(least_seconds(record.problem), "least run", any_order=True)
    least, why = quick_makespan_bound(record.problem)
    record.raise_bound(least, why, any_order=True, parallel=True)
    if not record.parallel:
        _bound_makespan(record, layout, solver)
    return record.closed


def _bound_makespan(record: DeviceRecord, layout: Layout, solver: str) -> None:
    """The bound of every makespan that takes a linear program, where that can be solved in time."""
    if record.problem.ops < PACE * record.limit and not (record.closed or record.stopped()):
        seconds = max(0.05, min(0.1 * record.limit, record.left))
        least, why = makespan_bound(
            layout, Limits(seconds=seconds, stop=record.stop, clock=record.clock), solver
        )
        record.raise_bound(least, why, any_order=True, parallel=True)


def _climb(record: DeviceRecord, layout: Layout, options: PlanOptions) -> None:
    """Lazy cuts and annealing in the base order, or in one with less peak where that is better."""
    begin = record.clock.now()
    search.warm_up(2)
    record.begin += record.clock.now() - begin  # compiling is no part of planning
    from onnxremat.planner.devices.climb import DeviceClimb

    best = DeviceClimb.of(record, record.problem.skeleton.store_all(), options)
    if record.parallel:
        best.listed()
        _bound_makespan(record, layout, options.solver)
    orders = [] if record.parallel and record.best is not None else _orders(record, layout)
    climbs = [best, *(DeviceClimb.of(record, order, options) for order in orders)]
    if len(climbs) > 1:
        for climb in climbs:
            climb.greedy(quick=True)
        if record.parallel:
            climbs[1].listed()
        best = max(climbs, key=lambda climb: climb.merit)
    record.follow(best.named)
    if not record.closed:
        best.run()


def _orders(record: DeviceRecord, layout: Layout) -> list[list[int]]:
    """An order with a clearly smaller peak than the base order, where there is one."""
    skeleton = record.problem.skeleton
    base = skeleton.store_all()
    if record.fixed_order:
        return []
    seconds = min(2.0, 0.05 * record.limit, max(0.0, record.left))
    found = best_order(
        layout.wiring, seconds, enough=min(record.budgets), stop=record.stopped,
        clock=record.clock,
    )  # fmt: skip

    if found.order == base or peak(skeleton, found.order) > BETTER * peak(skeleton, base):
        return []
    return [found.order]


def warm_up() -> float:
    """Compile the search, or load it from the cache; returns the seconds it took.

    Planning does it too, and does not count it; other clocks do.
    """
    return search.warm_up(2)
