"""HiGHS through ``highspy``: open source, the default for the cut models."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from math import inf
from typing import Any

import numpy as np

from onnxremat.planner.clock import PIVOTS, UNITS
from onnxremat.planner.model import Model
from onnxremat.planner.problem import Floats
from onnxremat.planner.solvers.base import Limits, Meter, Outcome, Result, refused, run_apart

INTERIOR = 100  # iterations of the simplex method that one of the interior point method takes
REFUSES = "HiGHS does not take this model (numbers of 1e15 and more, as a rule)"
PATIENT = 4.0  # seconds of the simplex method before the interior point method takes over


class Highs:
    """Back end on HiGHS."""

    name = "highs"

    def unavailable(self) -> str | None:
        """Why HiGHS cannot be used, or None."""
        if find_spec("highspy") is None:
            return "HiGHS is not installed (pip install highspy)"
        return None

    def unfit(self, model: Model) -> str | None:
        """HiGHS takes no products of columns."""
        return "HiGHS takes no quadratic terms of binaries" if model.quadratic else None

    def solve(self, model: Model, limits: Limits) -> Result:
        """Minimise a linear model; see :class:`~onnxremat.planner.solvers.base.Solver`."""
        reason = self.unavailable() or self.unfit(model)
        if reason:
            return refused(reason)
        try:
            return _run(model, limits)
        except Exception as error:  # a failing solver must not end the planner
            return refused(f"HiGHS failed: {error}")


def _run(model: Model, limits: Limits) -> Result:
    import highspy

    meter = Meter(model, limits)
    highs = silent()
    if highs.passModel(_linear_program(model, highspy)) == highspy.HighsStatus.kError:
        return refused(REFUSES)  # and it would solve an empty one
    _set_options(highs, limits)
    if limits.warm is not None:
        start = highspy.HighsSolution()
        start.col_value = limits.warm.tolist()
        highs.setSolution(start)
    _watch(highs, limits, meter)
    ended: list[Any] = []
    if not run_apart(lambda: ended.append(_started(highs, highspy)), limits, lambda: None):
        return Result(Outcome.UNKNOWN, inf, -inf, None, meter.seconds, "stopped")
    if ended == [highspy.HighsStatus.kError]:
        return refused("HiGHS failed: it could not run this model")
    info = highs.getInfo()
    found = info.primal_solution_status == 2 and np.isfinite(info.objective_function_value)
    status = highs.getModelStatus()
    seconds = meter.seconds
    empty = status == highspy.HighsModelStatus.kModelEmpty  # of columns: rows are not looked at
    if status == highspy.HighsModelStatus.kInfeasible or (empty and model.violation(np.zeros(0))):
        return Result(Outcome.INFEASIBLE, inf, inf, None, seconds)
    if empty:
        return Result(Outcome.OPTIMAL, model.offset, model.offset, np.zeros(0), seconds)
    point = np.asarray(highs.getSolution().col_value) if found else None
    objective = float(info.objective_function_value) if found else inf
    optimal = status == highspy.HighsModelStatus.kOptimal
    bound = objective if optimal else -inf
    if any(model.integer):
        bound = float(info.mip_dual_bound)
    outcome = Outcome.OPTIMAL if optimal else Outcome.FEASIBLE if found else Outcome.UNKNOWN
    return Result(outcome, objective, bound, point, seconds)


def silent() -> Any:
    """A HiGHS that prints nothing: in 1.16 it says its version while callbacks are enabled, which
    is before anybody can set an option."""
    import highspy

    class Silent(highspy.Highs):
        def enableCallbacks(self) -> Any:  # noqa: N802 - its name there
            self.setOptionValue("output_flag", False)
            return super().enableCallbacks()

    made = Silent()
    made.setOptionValue("output_flag", False)
    return made


def _started(highs: Any, highspy: Any) -> Any:
    """Run; with its threads renewed when they are not as many as now wanted."""
    status = highs.run()
    if status == highspy.HighsStatus.kError:
        highspy.Highs.resetGlobalScheduler(True)
        status = highs.run()
    return status


def _linear_program(model: Model, highspy: Any) -> Any:
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = model.columns, model.rows
    program.offset_ = model.offset
    program.col_cost_ = np.asarray(model.cost, float)
    program.col_lower_ = np.asarray(model.lower, float)
    program.col_upper_ = np.asarray(model.upper, float)
    program.row_lower_ = np.asarray(model.row_lower, float)
    program.row_upper_ = np.asarray(model.row_upper, float)
    start, index, value = model.matrix()
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_, program.a_matrix_.index_ = start, index
    program.a_matrix_.value_ = value
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    program.integrality_ = [kinds[flag] for flag in model.integer]
    return program


def _set_options(highs: Any, limits: Limits) -> None:
    highs.setOptionValue("time_limit", float(limits.wall))
    highs.setOptionValue("threads", limits.threads)
    highs.setOptionValue("random_seed", limits.seed % (1 << 31))
    highs.setOptionValue("mip_abs_gap", limits.gap)
    highs.setOptionValue("mip_rel_gap", 1e-9)


def _watch(highs: Any, limits: Limits, meter: Meter) -> None:
    """Poll ``stop`` and the target bound, and report progress, from HiGHS's callbacks."""
    stop, target, progress = limits.stop, limits.target, limits.progress
    if stop is None and target == inf and progress is None and not limits.clock.counted:
        return

    def interrupt(event: Any) -> None:
        if (
            meter.spent()
            or (stop is not None and stop())
            or event.data_out.mip_dual_bound >= target
        ):
            event.data_in.user_interrupt = True
        moved(event)

    def moved(event: Any) -> None:
        if progress is not None:
            out = event.data_out
            progress(float(out.mip_primal_bound), float(out.mip_dual_bound))

    highs.cbMipInterrupt.subscribe(interrupt)
    if progress is not None:
        highs.cbMipImprovingSolution.subscribe(moved)


class Relaxation:
    """The continuous relaxation of a model, solved anew as rows are appended to the model.

    Attributes:
        bound: proven lower bound of the objective, from the prices of the last solve.
        point: the last solution, shape (columns,).
        prices: of its rows, shape (rows,); negative for upper limits.
    """

    def __init__(self, model: Model, seed: int = 0) -> None:
        import highspy

        self.model, self.rows = model, model.rows
        self.bound, self.point = -inf, np.zeros(model.columns)
        self.prices = np.zeros(model.rows)
        self._highs = silent()
        self._highs.setOptionValue("threads", 1)
        self._highs.setOptionValue("random_seed", seed % (1 << 31))
        program = _linear_program(model, highspy)
        program.integrality_ = []
        refuses = self._highs.passModel(program) == highspy.HighsStatus.kError
        self._interior = False
        self._abandoned = refuses  # or a thread that was left behind still runs it

    def solve(self, limits: Limits) -> bool:
        """Solve with the rows the model has by now; False when that did not end in time.

        The simplex method goes on from the last solution; where it crawls, the interior point
        method takes over for good.
        """
        clock = limits.clock
        end = clock.now() + limits.seconds
        if not self._abandoned:
            self._append()
        if self._abandoned:
            return False
        if not self._interior and not self._run(min(limits.seconds, PATIENT), limits):
            if self._abandoned:
                return False
            self._interior = True
            self._highs.setOptionValue("solver", "ipm")
            self._highs.setOptionValue("run_crossover", "off")
        if self._interior and not self._run(end - clock.now(), limits):
            return False
        solution = self._highs.getSolution()
        self.point = np.clip(np.asarray(solution.col_value), 0.0, None)
        self.prices = np.asarray(solution.row_dual)
        self.bound = self.model.bound_at(self.prices)
        return True

    def limit(self, lower: Floats, upper: Floats) -> None:
        """Other limits of the first columns, until they are changed again; the model keeps its own,
        and ``bound`` is for these."""
        self._highs.changeColsBounds(
            len(lower), np.arange(len(lower), dtype=np.int32), lower, upper
        )

    def _append(self) -> None:
        import highspy

        model = self.model
        start, index, value = model.matrix()
        first = start[self.rows]
        status = self._highs.addRows(
            model.rows - self.rows,
            np.asarray(model.row_lower[self.rows :]),
            np.asarray(model.row_upper[self.rows :]),
            len(index) - first,
            start[self.rows : -1] - first,
            index[first:],
            value[first:],
        )
        self._abandoned = status == highspy.HighsStatus.kError
        self.rows = model.rows

    def _run(self, seconds: float, limits: Limits) -> bool:
        import highspy

        highs, ended = self._highs, list[Any]()
        limits = replace(limits, seconds=seconds)
        highs.setOptionValue("time_limit", highs.getRunTime() + limits.wall)
        pivot = max(1.0, self.rows) / PIVOTS  # units of an iteration
        if limits.clock.counted:
            most = max(1, int(UNITS * max(0.0, seconds) / pivot))
            highs.setOptionValue("simplex_iteration_limit", most)
            highs.setOptionValue("ipm_iteration_limit", max(1, most // INTERIOR))
        if not run_apart(lambda: ended.append(_started(highs, highspy)), limits, lambda: None):
            self._abandoned = True
            return False
        info = highs.getInfo()
        done = max(0, info.simplex_iteration_count) + INTERIOR * max(0, info.ipm_iteration_count)
        limits.clock.spend(pivot * (1 + done))
        return bool(highs.getModelStatus() == highspy.HighsModelStatus.kOptimal)
