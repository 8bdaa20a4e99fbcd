"""Gurobi through ``gurobipy``: used when its licence, or the limits of its free wheel, allow."""

from __future__ import annotations

import signal
import threading
from functools import cache
from importlib.util import find_spec
from math import inf
from typing import Any

import numpy as np

from onnxremat.planner.model import Model
from onnxremat.planner.solvers.base import Limits, Meter, Outcome, Result, refused

FREE_COLUMNS = FREE_ROWS = 2000  # measured limits of the wheel's built-in licence
FREE_COLUMNS_QUADRATIC = 200


class Gurobi:
    """Back end on Gurobi."""

    name = "gurobi"

    def unavailable(self) -> str | None:
        """Why Gurobi cannot be used, or None."""
        if find_spec("gurobipy") is None:
            return "Gurobi is not installed (pip install 'onnxremat[gurobi]')"
        return _environment()[1]

    def unfit(self, model: Model) -> str | None:
        """Why the licence at hand does not take this model, or None."""
        if self.unavailable() is None and _unlimited():
            return None
        most = FREE_COLUMNS_QUADRATIC if model.quadratic else FREE_COLUMNS
        if model.columns > most or model.rows > FREE_ROWS:
            return (
                f"Gurobi's built-in licence takes {most} columns and {FREE_ROWS} rows; "
                f"this model has {model.columns} and {model.rows}"
            )
        return None

    def solve(self, model: Model, limits: Limits) -> Result:
        """Minimise a linear or quadratic model."""
        reason = self.unavailable() or self.unfit(model)
        if reason:
            return refused(reason)
        try:
            return _run(model, limits)
        except Exception as error:  # a failing solver must not end the planner
            return refused(f"Gurobi failed: {error}")


@cache
def _environment() -> tuple[Any, str | None]:
    """(environment, None), or (None, why there is none)."""
    import gurobipy

    try:
        environment = gurobipy.Env(empty=True)
        environment.setParam("OutputFlag", 0)
        environment.start()
    except gurobipy.GurobiError as error:
        return None, f"Gurobi has no usable licence: {error}"
    return environment, None


@cache
def _unlimited() -> bool:
    """True when a full licence is active: a model beyond the free limits is accepted."""
    import gurobipy

    environment, reason = _environment()
    if reason:
        return False
    with gurobipy.Model(env=environment) as probe:
        columns = probe.addVars(FREE_COLUMNS + 1, vtype="B")
        probe.addConstr(columns[0] <= 0)
        probe.Params.TimeLimit = 1
        try:
            probe.optimize()
        except gurobipy.GurobiError:
            return False
    return True


def _run(model: Model, limits: Limits) -> Result:
    import gurobipy

    meter = Meter(model, limits)
    environment, _ = _environment()
    with gurobipy.Model(model.name, env=environment) as gurobi:
        columns = _load(gurobi, model, gurobipy)
        if limits.warm is not None:
            for column, value in zip(columns, limits.warm.tolist(), strict=True):
                column.Start = value
        gurobi.Params.TimeLimit = limits.wall
        if limits.clock.counted:
            gurobi.Params.WorkLimit = max(0.01, limits.seconds)
        gurobi.Params.MIPGapAbs, gurobi.Params.MIPGap = limits.gap, 1e-9
        gurobi.Params.Threads, gurobi.Params.Seed = limits.threads, limits.seed % (1 << 31)
        gurobi.optimize(_watch(limits, gurobipy))
        meter.count(float(gurobi.Work))  # its own deterministic measure, about a second each
        seconds = meter.seconds
        if gurobi.Status in (gurobipy.GRB.INFEASIBLE, gurobipy.GRB.INF_OR_UNBD):
            return Result(Outcome.INFEASIBLE, inf, inf, None, seconds)
        found = gurobi.SolCount > 0
        point = np.asarray(gurobi.getAttr("X", columns)) if found else None
        objective = float(gurobi.ObjVal) if found else inf
        optimal = gurobi.Status == gurobipy.GRB.OPTIMAL
        bound = objective if optimal else -inf
        if gurobi.IsMIP:
            bound = float(gurobi.ObjBound) if gurobi.ObjBound > -1e99 else -inf
        if optimal:
            return Result(Outcome.OPTIMAL, objective, bound, point, seconds)
        outcome = Outcome.FEASIBLE if found else Outcome.UNKNOWN
        return Result(outcome, objective, bound, point, seconds)


def _load(gurobi: Any, model: Model, gurobipy: Any) -> list[Any]:
    """Columns, rows and objective; returns the columns."""
    columns = [
        gurobi.addVar(lb=lower, ub=upper, vtype="I" if integer else "C")
        for lower, upper, integer in zip(model.lower, model.upper, model.integer, strict=True)
    ]
    start, index, value = (array.tolist() for array in model.matrix())
    for row in range(model.rows):
        a, b = start[row], start[row + 1]
        left = gurobipy.LinExpr(value[a:b], [columns[j] for j in index[a:b]])
        add = gurobi.addLConstr
        lower, upper = model.row_lower[row], model.row_upper[row]
        if lower == upper:
            add(left, "=", upper)
            continue
        if upper < inf:
            add(left, "<", upper)
        if lower > -inf:
            add(left, ">", lower)
    objective: Any = gurobipy.LinExpr(model.cost, columns) + model.offset
    for i, j, q in model.quadratic_cost:
        objective = objective + q * columns[i] * columns[j]
    gurobi.setObjective(objective)
    return columns


def _watch(limits: Limits, gurobipy: Any) -> Any:
    stop, target, progress = limits.stop, limits.target, limits.progress
    code = gurobipy.GRB.Callback
    begun = False

    def watch(gurobi: Any, where: int) -> None:
        nonlocal begun
        if not begun:
            begun = True
            _keep_interrupts()
        if where == code.MIP:
            bound = gurobi.cbGet(code.MIP_OBJBND)
            if bound >= target:
                gurobi.terminate()
            if progress is not None:
                progress(gurobi.cbGet(code.MIP_OBJBST), bound)
        elif where == code.POLLING and stop is not None and stop():
            gurobi.terminate()

    return watch


def _keep_interrupts() -> None:
    """Take Ctrl-C back: Gurobi sets a handler of its own that ends this solve alone, prints to
    stdout and tells nobody."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
