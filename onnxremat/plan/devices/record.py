"""The best schedule and the best bounds so far, with the clock and the caller's hooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from threading import RLock
from time import monotonic

import numpy as np

from onnxremat.plan.devices.makespan import makespan
from onnxremat.plan.devices.problem import (
    DeviceProblem,
    InvalidScheduleError,
    Schedule,
    first_runs,
    peaks,
    seconds,
)
from onnxremat.plan.devices.solution import DeviceSolution
from onnxremat.plan.problem import Certificate, Status

Progress = Callable[[float, float, str], None]
Stop = Callable[[], bool]

WORTH = 5e-3  # share of the reference time that a moved first run must gain
SLACK = 1e-9  # relative rounding of sums of seconds


@dataclass
class Bound:
    """A proven lower bound in seconds and the argument behind it."""

    seconds: float
    kind: str

    def lift(self, seconds: float, kind: str) -> bool:
        """Take a larger bound; False when it is not larger."""
        seconds = seconds * (1 - SLACK) if seconds < inf else seconds
        if seconds <= self.seconds:
            return False
        self.seconds, self.kind = seconds, kind
        return True


@dataclass
class DeviceRecord:
    """State of one planning run. All schedules are in the caller's op numbers.

    Attributes:
        problem, budgets: what is being solved.
        limit: seconds of wall clock.
        gap: share of the reference time at which found and bound count as equal.
        parallel: the objective is the makespan.
        progress, stop: the caller's hooks.
        fixed_order: first runs must keep the base order.
        order: order of first runs for which ``ordered`` bounds hold.
        free, ordered: bounds of the sum of all steps for every order, and for ``order``.
        span: bound of the makespan, for every order.
    """

    problem: DeviceProblem
    budgets: tuple[int, ...]
    limit: float
    gap: float
    parallel: bool = False
    progress: Progress | None = None
    stop: Stop | None = None
    fixed_order: bool = False
    schedule: Schedule | None = None
    time: float = inf
    span_time: float = inf
    planner: str = "none"
    order: tuple[int, ...] = ()
    trace: list[tuple[float, float, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    begin: float = field(default_factory=monotonic)
    lock: RLock = field(default_factory=RLock)  # the search may run beside the solver

    def __post_init__(self) -> None:
        self.total = self.problem.reference
        self.free, self.ordered, self.span = (Bound(0.0, "none") for _ in range(3))
        self.order = self.order or tuple(range(self.problem.ops))

    @property
    def elapsed(self) -> float:
        """Wall seconds since the start."""
        return monotonic() - self.begin

    @property
    def left(self) -> float:
        """Wall seconds that remain."""
        return self.limit - self.elapsed

    def stopped(self) -> bool:
        """True when time is up or the caller asked to stop."""
        return self.left <= 0 or (self.stop is not None and self.stop())

    @property
    def value(self) -> float:
        """Objective of the best schedule, in seconds."""
        return self.span_time if self.parallel else self.time

    @property
    def bound(self) -> float:
        """Bound of the objective that applies to the best schedule."""
        return self._certificate().seconds

    @property
    def time_bound(self) -> float:
        """Bound of the sum of all steps that applies to the best schedule."""
        both = self._in_order(self.schedule)
        return max(self.free.seconds, self.ordered.seconds) if both else self.free.seconds

    def _certificate(self) -> Bound:
        if self.parallel:
            return self.span
        use = self._in_order(self.schedule) and self.ordered.seconds > self.free.seconds * (
            1 + SLACK
        )
        return self.ordered if use else self.free

    @property
    def infeasible(self) -> bool:
        """True when it is proven that no schedule fits."""
        return inf in (self.free.seconds, self.span.seconds) or (
            self.fixed_order and self.ordered.seconds == inf
        )

    @property
    def closed(self) -> bool:
        """True when the best schedule is optimal within the gap, or the budgets infeasible."""
        return self.infeasible or self.value - self.bound <= self.gap * self.total

    def offer(self, schedule: Schedule, planner: str) -> bool:
        """Take a schedule if it is valid, within budget and better; it is judged here."""
        try:
            took = seconds(self.problem, schedule)
            if not self.parallel and took >= self.time * (1 - 1e-12):
                return False
            if (peaks(self.problem, schedule) > np.asarray(self.budgets)).any():
                return False
            span = makespan(self.problem, schedule, self.budgets)
        except InvalidScheduleError:
            return False
        if self.fixed_order and tuple(first_runs(schedule)) != self.order:
            return False
        with self.lock:
            value, other = (span, took) if self.parallel else (took, span)
            if (value, other) >= (self.value, self.time if self.parallel else self.span_time):
                return False
            if not self._worth_its_order(schedule, took):
                return False
            self.schedule, self.time, self.span_time = schedule, took, span
            self.planner = planner
            self._moved(planner)
        return True

    def raise_bound(
        self, bound: float, kind: str, *, any_order: bool, parallel: bool = False
    ) -> None:
        """Take a proven bound in seconds; ``inf`` proves the budgets infeasible.

        Args:
            parallel: it bounds the makespan (in every order), not the sum of all steps.
        """
        with self.lock:
            which = self.span if parallel else self.free if any_order else self.ordered
            if which.lift(bound, kind):
                self._moved(kind)

    def solution(self) -> DeviceSolution:
        """What to hand to the caller."""
        certificate = self._certificate()
        if self.infeasible:
            certificate = next(b for b in (self.free, self.ordered, self.span) if b.seconds == inf)
        if self.schedule is None:
            status = Status.INFEASIBLE if self.infeasible else Status.UNKNOWN
            top: tuple[int, ...] = ()
            bound = certificate.seconds
        else:
            status = Status.OPTIMAL if self.closed else Status.FEASIBLE
            top = tuple(peaks(self.problem, self.schedule).tolist())
            bound = min(certificate.seconds, self.value)
        return DeviceSolution(
            status=status,
            objective="makespan" if self.parallel else "time",
            schedule=self.schedule,
            time=self.time,
            makespan=self.span_time,
            peaks=top,
            certificate=Certificate(bound, certificate.kind, certificate is not self.ordered),
            makespan_bound=min(self.span.seconds, self.span_time),
            reference=self.total,
            planner=self.planner,
            plan_seconds=self.elapsed,
            trace=tuple(self.trace),
            notes=tuple(self.notes),
        )

    def _in_order(self, schedule: Schedule | None) -> bool:
        """True when first runs follow ``order``.

        Without a schedule, the bound of one order says nothing about the others.
        """
        if schedule is None:
            return self.fixed_order
        return self._follows(schedule.steps)

    def _follows(self, steps: Sequence[tuple[int, int, int]]) -> bool:
        return tuple(dict.fromkeys(s[0] for s in steps if s[2] < 0)) == self.order

    def _worth_its_order(self, schedule: Schedule, took: float) -> bool:
        """Whether leaving the order that the bound is proven for gains enough."""
        if self.parallel or self.schedule is None or self.ordered.seconds <= self.free.seconds:
            return True
        if not self._in_order(self.schedule):
            return True
        if took < self.ordered.seconds or took < self.time - WORTH * self.total:
            return True
        return self._in_order(schedule)

    def _moved(self, stage: str) -> None:
        self.trace.append((self.elapsed, self.value, self.bound))
        if self.progress is not None:
            self.progress(self.value, self.bound, stage)
