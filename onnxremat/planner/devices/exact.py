"""One formulation over several devices, solved as it is written, from a warm start.

The answer's certificate is the stronger of two bounds: the model's own, which holds for what the
model can say (``Certificate.staged``, see :mod:`onnxremat.planner.formulations.xengine`), and the
one that came with the warm start, which holds for every schedule in base order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite

import numpy as np

from onnxremat.planner.clock import UNITS
from onnxremat.planner.devices.bounds import NO_LIMIT, misfit
from onnxremat.planner.devices.ladder import solve_devices
from onnxremat.planner.devices.layout import Layout
from onnxremat.planner.devices.problem import DeviceProblem, least_seconds
from onnxremat.planner.devices.record import DeviceRecord
from onnxremat.planner.devices.solution import DeviceSolution
from onnxremat.planner.exact import in_seconds, staged_proof
from onnxremat.planner.formulate import DeviceFormulated, formulate_devices
from onnxremat.planner.formulations.stages import SCALE
from onnxremat.planner.options import AUTO, PlanOptions
from onnxremat.planner.problem import Floats, Status
from onnxremat.planner.solvers import Limits, Outcome, Result, minimise

FIRST = 0.15  # share of the time for the warm start, but at least and at most
SHORTEST_FIRST, LONGEST_FIRST = 3.0, 10.0  # seconds, as far as half of the time goes


def solve_device_formulation(
    problem: DeviceProblem,
    budgets: Sequence[float],
    options: PlanOptions,
) -> DeviceSolution:
    """Solve the model of ``options.method`` for the sum of all runs and copies, as
    ``solve_devices`` does.

    Raises:
        UsageError: a formulation that is for one device, or the model is too large.
    """
    method, solver = options.method, options.solver
    limits = tuple(int(b) if isfinite(b) else NO_LIMIT for b in budgets)
    record = DeviceRecord(
        problem, limits, options.seconds, options.gap, False, options.progress, options.stop,
        fixed_order=True, clock=options.clock(),
    )  # fmt: skip
    found = misfit(Layout(problem), limits)
    if found is not None:
        record.notes.append(found.why)
        record.raise_bound(inf, "largest op", any_order=True)
        return record.solution()
    record.raise_bound(least_seconds(problem), "least run", any_order=True)
    made = formulate_devices(problem, limits, method.formulation, most_columns=method.most_columns)
    first, begun = None, None
    if method.warm_start:
        first = _first(record, options)
        if record.infeasible:
            return record.solution()
        begun = _point(made, record, first)
        if begun is not None and record.offer(made.schedule(begun), made.name) and record.closed:
            record.notes.append(
                f"the quick plan ({first.planner}) is a point of the {made.name} model and proven "
                "optimal: the solver had nothing left to do (--no-warm-start starts it cold)"
            )
            return record.solution()
    if solver == "auto" and made.model.quadratic:
        solver = "scip"
    told = in_seconds(record.progress, made.unit, made.name, record.bound)
    result, notes = minimise(
        made.model,
        Limits(
            seconds=max(0.1, record.left), gap=options.gap * SCALE,
            threads=options.solver_threads, seed=options.seed, warm=begun,
            stop=record.stop, progress=told, clock=record.clock,
        ),
        solver,
    )  # fmt: skip
    record.notes.extend(notes)
    _take(made, record, result, first)
    return _answer(made, record, result)


def _share(record: DeviceRecord) -> float:
    """Seconds for each part of the warm start."""
    wanted = min(LONGEST_FIRST, max(SHORTEST_FIRST, FIRST * record.limit))
    return min(wanted, 0.5 * record.limit)


def _first(record: DeviceRecord, options: PlanOptions) -> DeviceSolution:
    """The ladder's answer in base order; its bound is the record's from here on."""
    quick = replace(
        options.lasting(_share(record) / record.limit * options.time_limit),
        method=AUTO,
        objective="time",
        fixed_order=True,
    )
    found = solve_devices(record.problem, record.budgets, quick)
    record.clock.spend(UNITS * found.plan_seconds)
    proof = found.certificate
    record.raise_bound(proof.bound, proof.kind, any_order=proof.any_order)
    return found


def _point(made: DeviceFormulated, record: DeviceRecord, first: DeviceSolution) -> Floats | None:
    """The warm start as a point of the model: its binaries are fixed, a linear program fills in
    the rest."""
    if first.schedule is None or record.stopped():
        return None
    chosen, point, model = made.columns_of(first.schedule), None, made.model
    if chosen is not None:
        lower, upper = list(model.lower), list(model.upper)
        for column in np.flatnonzero(model.integer).tolist():
            lower[column] = upper[column] = float(column in chosen)
        fixed = replace(
            model, lower=lower, upper=upper, integer=[False] * model.columns, quadratic_cost=[]
        )
        most = min(_share(record), record.left)
        point = minimise(
            fixed, Limits(seconds=most, gap=SCALE, stop=record.stop, clock=record.clock), "highs"
        )[0].point
    if point is None:
        record.notes.append(
            f"the quick plan ({first.planner}) is no point of the {made.name} model: the solver "
            "started cold"
        )
    return point


def _take(
    made: DeviceFormulated, record: DeviceRecord, result: Result, first: DeviceSolution | None
) -> None:
    """The schedule of the model's best point; without one, the quick plan it was started from."""
    if result.point is not None:
        record.offer(made.schedule(result.point), made.name)
    if record.best is not None:
        if first is not None and first.time < record.value - record.gap * record.total:
            record.notes.append(
                f"a quicker plan, which the {made.name} model cannot say, is known "
                f"({first.planner}): leave out --formulation"
            )
    elif result.outcome is Outcome.INFEASIBLE:
        record.notes.append(
            f"the {made.name} model has no solution: no staged schedule fits the budgets, though "
            "others may: leave out --formulation"
        )
    elif first is not None and first.schedule is not None:
        record.offer(first.schedule, first.planner)
        record.notes.append(f"{made.name} gave no plan in time: this one is {first.planner}'s")
    else:
        record.notes.append(f"{made.name} gave no plan in time")


def _answer(made: DeviceFormulated, record: DeviceRecord, result: Result) -> DeviceSolution:
    """The record's solution, with the model's bound where it is the stronger one."""
    found = record.solution()
    proof = staged_proof(result, made.unit, made.name, record.bound, found.time)
    if proof is None or found.schedule is None or found.planner != made.name:
        return found
    closed = found.time - proof.bound <= record.gap * record.total
    return replace(
        found, certificate=proof, status=Status.OPTIMAL if closed else Status.FEASIBLE,
        notes=(*found.notes, f"the bound of {made.name} holds for staged schedules: each op at "
               "most once per stage and device, in the order of the graph"),
    )  # fmt: skip
