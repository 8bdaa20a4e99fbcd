"""SCIP through ``pyscipopt``: open source, linear and quadratic models."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from math import inf, isfinite
from typing import Any

import numpy as np

from onnxremat.planner.model import Model
from onnxremat.planner.solvers.base import Limits, Meter, Outcome, Result, refused, run_apart


class Scip:
    """Back end on SCIP."""

    name = "scip"

    def unavailable(self) -> str | None:
        """Why SCIP cannot be used, or None."""
        if find_spec("pyscipopt") is None:
            return "SCIP is not installed (pip install 'onnxremat[scip]')"
        return None

    def unfit(self, model: Model) -> str | None:
        """SCIP takes every model."""
        return None

    def solve(self, model: Model, limits: Limits) -> Result:
        """Minimise a linear or quadratic model."""
        reason = self.unavailable()
        if reason:
            return refused(reason)
        try:
            return _run(model, limits)
        except Exception as error:  # a failing solver must not end the planner
            return refused(f"SCIP failed: {error}")


def _run(model: Model, limits: Limits) -> Result:
    import pyscipopt

    meter = Meter(model, limits)
    scip = pyscipopt.Model(model.name)
    scip.hideOutput()
    columns, epigraph = _load(scip, model, pyscipopt)
    left = limits.wall if limits.clock.counted else limits.seconds - meter.seconds
    scip.setParam("limits/time", float(max(0.01, left)))
    scip.setParam("limits/absgap", limits.gap)
    scip.setParam("randomization/randomseedshift", limits.seed % (1 << 31))
    scip.setParam("misc/catchctrlc", False)
    if limits.warm is not None:
        start = scip.createSol()
        for column, value in zip(columns, limits.warm.tolist(), strict=True):
            scip.setSolVal(start, column, value)
        if epigraph is not None:
            rest = replace(model, offset=0.0, cost=[0.0] * model.columns)
            scip.setSolVal(start, epigraph, rest.objective(limits.warm))
        scip.addSol(start)
    _watch(scip, limits, meter)
    if not run_apart(scip.optimizeNogil, limits, scip.interruptSolve):
        return Result(Outcome.UNKNOWN, inf, -inf, None, meter.seconds, "stopped")
    seconds = meter.seconds
    status = scip.getStatus()
    if status == "infeasible":
        return Result(Outcome.INFEASIBLE, inf, inf, None, seconds)
    point, objective = None, inf
    if scip.getNSols() > 0:
        best = scip.getBestSol()
        point = np.asarray([scip.getSolVal(best, column) for column in columns])
        objective = model.objective(point)
    bound = float(scip.getDualbound())
    bound = bound if isfinite(bound) and abs(bound) < 1e19 else -inf
    if status in ("optimal", "gaplimit"):
        return Result(Outcome.OPTIMAL, objective, bound, point, seconds)
    outcome = Outcome.FEASIBLE if point is not None else Outcome.UNKNOWN
    return Result(outcome, objective, bound, point, seconds, status)


def _load(scip: Any, model: Model, pyscipopt: Any) -> tuple[list[Any], Any]:
    """Columns, and the one above the products of the objective (None without them)."""
    columns = [
        scip.addVar(
            vtype=("B" if lower == 0 and upper == 1 else "I") if integer else "C",
            lb=lower,
            ub=None if upper == inf else upper,
            obj=cost,
        )
        for cost, lower, upper, integer in zip(
            model.cost, model.lower, model.upper, model.integer, strict=True
        )
    ]
    scip.addObjoffset(model.offset)
    start, index, value = (array.tolist() for array in model.matrix())
    quicksum = pyscipopt.quicksum
    for row in range(model.rows):
        a, b = start[row], start[row + 1]
        left = quicksum(v * columns[j] for j, v in zip(index[a:b], value[a:b], strict=True))
        lower, upper = model.row_lower[row], model.row_upper[row]
        if lower == upper:
            scip.addCons(left == lower)
            continue
        if lower > -inf:
            scip.addCons(left >= lower)
        if upper < inf:
            scip.addCons(left <= upper)
    if model.quadratic_cost:  # SCIP wants a linear objective: minimise an upper estimate
        epigraph = scip.addVar(vtype="C", lb=None, obj=1.0)
        products = quicksum(q * columns[i] * columns[j] for i, j, q in model.quadratic_cost)
        scip.addCons(epigraph >= products)
        return columns, epigraph
    return columns, None


def _watch(scip: Any, limits: Limits, meter: Meter) -> None:
    import pyscipopt

    stop, target, progress = limits.stop, limits.target, limits.progress
    if stop is None and target == inf and progress is None and not limits.clock.counted:
        return
    events = pyscipopt.SCIP_EVENTTYPE
    watched = (events.NODESOLVED, events.LPSOLVED, events.BESTSOLFOUND)

    class Watch(pyscipopt.Eventhdlr):
        def eventinit(self) -> None:
            for kind in watched:
                self.model.catchEvent(kind, self)

        def eventexec(self, event: Any) -> None:
            if (
                meter.spent()
                or (stop is not None and stop())
                or self.model.getDualbound() >= target
            ):
                self.model.interruptSolve()
            if progress is not None:
                progress(float(self.model.getPrimalbound()), float(self.model.getDualbound()))

    scip.includeEventhdlr(Watch(), "watch", "polls the caller")
