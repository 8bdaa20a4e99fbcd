"""Lazy cuts on several devices: solve the relaxation, read it as a schedule, cut where that breaks.

As :mod:`onnxremat.planner.lazy`, with devices: the first round has no cut at all (the best
placement with copies when memory is no matter), copies are moved to where they break budgets
least, and a cut is added at the stage where some device is most over its budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from onnxremat.planner.devices.cuts import DeviceCuts, build
from onnxremat.planner.devices.extract import late_schedule
from onnxremat.planner.devices.layout import Layout
from onnxremat.planner.devices.problem import Schedule, occupancy
from onnxremat.planner.devices.project import project
from onnxremat.planner.devices.record import DeviceRecord
from onnxremat.planner.devices.retime import retimed
from onnxremat.planner.formulations.cuts import Spans, fixed_spans, free_spans
from onnxremat.planner.problem import Floats
from onnxremat.planner.solvers import Limits, Outcome, Result, confirm_infeasible, minimise

INCOMPARABLE = 0.02  # share of ops that one cut may leave free before the order is fixed
SLOW = 0.5  # seconds of a solve from which the next cut is chosen among several
FAR = 3e-3  # share of the reference time above which the gap calls for that
TRIALS = 10.0  # seconds that must be left for it
CANDIDATES = 4  # cuts compared then
LOADS = 0.2  # share of the time left for one model of loads: the search gains more
SHRINKS = 2  # re-solves with smaller budgets per round


@dataclass
class LazyDeviceCuts:
    """The loop for one order: ops of ``layout`` are numbered in that order.

    Attributes:
        offer: takes a schedule in this numbering, with the name of the method.
        repair: turns a schedule over budget into one within, or None.
        best: the best schedule so far in this numbering, or None; with first runs in base order
            when it is asked for that.
        free: try to keep the bound valid for every order.
        parallel: minimise the load of the busiest device or link instead of the sum.
    """

    layout: Layout
    record: DeviceRecord
    offer: Callable[[Schedule, str], None]
    repair: Callable[[Schedule], Schedule | None]
    best: Callable[[bool], Schedule | None]
    solver: str = "auto"
    threads: int = 1
    seed: int = 0
    free: bool = True
    parallel: bool = False
    cuts: list[int] = field(default_factory=list)
    slow: bool = False  # the last solve took long: choose cuts with care
    slack: float = 0.15  # share of the open gap within which a round is solved
    last: Schedule | None = None  # schedule of the last round, perhaps over budget

    def round(self) -> bool:
        """Solve once and add a cut; False when there is nothing more to gain."""
        record = self.record
        spans = self._spans()
        made = build(self.layout, spans, record.budgets, makespan=self.parallel)
        result = self._minimise(made, record.left * (LOADS if self.parallel else 1.0))
        far = record.value - record.bound > FAR * record.total
        self.slow = result.seconds > SLOW and far and record.left > TRIALS
        self._raise(made, result)
        if result.outcome is Outcome.INFEASIBLE or result.point is None:
            return False
        schedule = self._extract(made, result.point)
        if schedule is None or self._over():
            return False
        excess = self._excess(schedule)
        if float(excess.max(initial=0.0)) <= 0:  # only the solver's gap is left
            self.slack *= 0.2
            return result.outcome is Outcome.OPTIMAL and self.slack > 1e-4
        self._shrink(spans, schedule)
        if not self._over():
            self._fit(schedule)
        return not self._over() and self._add_cut(excess)

    def _over(self) -> bool:
        return self.record.closed or self.record.stopped()

    def _spans(self) -> Spans:
        ops = self.layout.problem.ops
        if self.free:
            spans = free_spans(self.layout.wiring, self.cuts)
            if spans is not None:
                loose = sum(a < b for a, b in zip(spans.earliest, spans.latest, strict=True))
                if loose <= INCOMPARABLE * ops * len(self.cuts):
                    return spans
            self.free = False
        return fixed_spans(ops, self.cuts)

    def _minimise(self, made: DeviceCuts, seconds: float) -> Result:
        record = self.record
        limits = Limits(
            seconds=max(0.05, 0.9 * min(seconds, record.left)),
            gap=self._tolerance() / made.unit,
            threads=self.threads,
            seed=self.seed,
            warm=self._warm(made),
            stop=record.stop,
            clock=record.clock,
            target=(record.value - record.gap * record.total) / made.unit,
        )
        result, notes = minimise(made.model, limits, self.solver)
        record.notes.extend(note for note in notes if note not in record.notes)
        return result

    def _tolerance(self) -> float:
        """Seconds within which a round is solved: tight only when that can close the gap."""
        record = self.record
        open_gap = record.value - record.bound if record.best is not None else 0.0
        return max(0.3 * record.gap * record.total, min(self.slack * open_gap, 1e-4 * record.total))

    def _warm(self, made: DeviceCuts) -> Floats | None:
        """The best schedule whose first runs respect the spans, as a point of the model."""
        schedule = self.best(not made.spans.any_order)
        if schedule is None:
            return None
        point = project(made, schedule)
        return point if made.model.violation(point) < 1e-6 else None

    def _raise(self, made: DeviceCuts, result: Result) -> None:
        count = len(made.spans.cuts)
        kind = ("placement", "single-cut")[count] if count < 2 else f"lazy-cuts({count})"
        any_order = made.spans.any_order
        if result.outcome is Outcome.INFEASIBLE:
            limits = Limits(
                seconds=max(1.0, self.record.left), stop=self.record.stop, clock=self.record.clock
            )
            if confirm_infeasible(made.model, limits):
                self.record.raise_bound(inf, kind, any_order=any_order)
        elif result.bound > -inf and (not self.parallel or any_order or self.record.fixed_order):
            bound = made.seconds(result.bound)
            self.record.raise_bound(bound, kind, any_order=any_order, parallel=self.parallel)

    def _extract(self, made: DeviceCuts, point: Floats) -> Schedule | None:
        schedule = late_schedule(made, point)
        if schedule is not None:
            schedule = retimed(self.layout.problem, schedule, self.record.budgets)
            self.last = schedule
            self.offer(schedule, "lazy-cuts")
        return schedule

    def _shrink(self, spans: Spans, schedule: Schedule) -> None:
        """Solve again with the excess taken off the budgets."""
        record = self.record
        budgets = np.asarray(record.budgets, np.int64)
        for _ in range(SHRINKS):
            top = occupancy(self.layout.problem, schedule).max(axis=1, initial=0)
            excess = np.maximum(top - np.asarray(record.budgets), 0)
            if not excess.any():
                return
            budgets = budgets - excess
            if (budgets <= 0).any() or self._over():
                return
            made = build(self.layout, spans, budgets.tolist(), makespan=self.parallel)
            result = self._minimise(made, min(0.2 * record.left, 10.0))
            found = None if result.point is None else self._extract(made, result.point)
            if found is None:
                return
            schedule = found

    def _fit(self, schedule: Schedule) -> None:
        repaired = self.repair(schedule)
        if repaired is not None:
            self.offer(repaired, "lazy-cuts+search")

    def _excess(self, schedule: Schedule) -> Floats:
        """Largest share over budget per stage, shape (ops,).

        The stage of a step is the op whose first run comes next (or is this step).
        """
        budgets = np.asarray(self.record.budgets, np.float64)[:, None]
        use = occupancy(self.layout.problem, schedule)
        over = ((use - budgets) / np.maximum(1.0, budgets)).max(axis=0)
        return stage_excess(self.layout.problem.ops, schedule, over)

    def _add_cut(self, excess: Floats) -> bool:
        """Cut at the stage with the largest excess, or the one before it."""
        options: list[int] = []
        left = excess.copy()
        apart = max(1, len(excess) // 100)
        while len(options) < (CANDIDATES if self.slow else 1) and float(left.max()) > 0:
            stage = int(left.argmax())
            left[max(0, stage - apart) : stage + apart + 1] = 0
            cut = next((c for c in (stage, stage - 1) if c >= 0 and c not in self.cuts), None)
            options += [] if cut is None else [cut]
        if not options:
            return False
        self.cuts = self._best_of(options)
        return True

    def _best_of(self, options: Sequence[int]) -> list[int]:
        """The cuts with one of ``options`` added, or put in place of the latest one.

        Where solves are slow, each choice is tried briefly and the one with the best bound taken.
        """
        if len(options) == 1 and not self.slow:
            return [*self.cuts, options[0]]
        choices = [[*self.cuts, cut] for cut in options]
        if len(self.cuts) > 1:
            choices += [[*self.cuts[:-1], cut] for cut in options]
        seconds = min(4.0, 0.1 * self.record.left / len(choices))
        return max(choices, key=lambda cuts: self._promise(cuts, seconds))

    def _promise(self, cuts: list[int], seconds: float) -> float:
        """Bound that a short solve with these cuts gives (better ties: fewer columns)."""
        if self._over():
            return -inf
        kept, self.cuts = self.cuts, cuts
        made = build(self.layout, self._spans(), self.record.budgets, makespan=self.parallel)
        result = self._minimise(made, seconds)
        self.cuts = kept
        self._raise(made, result)
        if result.point is not None:
            self._extract(made, result.point)
        return result.bound - 1e-6 * made.model.columns


def stage_excess(ops: int, schedule: Schedule, over: Floats) -> Floats:
    """Largest entry of ``over`` (one per step) per stage, at least 0, shape (ops,).

    Steps after the last first run count for the last op in base order.
    """
    seen: set[int] = set()
    first = []
    for move in schedule.steps:
        first.append(move.runs and move.item not in seen)
        if move.runs:
            seen.add(move.item)
    excess = np.zeros(ops)
    stage = ops - 1
    for step in range(len(first) - 1, -1, -1):
        if first[step]:
            stage = schedule.steps[step].item
        excess[stage] = max(excess[stage], over[step])
    return excess
