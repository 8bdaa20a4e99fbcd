"""The best sequence and the best bound so far, with the clock and the caller's hooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isnan, nan
from threading import RLock

from onnxremat.planner.clock import WALL, Clock
from onnxremat.planner.options import Progress, Stop
from onnxremat.planner.problem import (
    Certificate,
    Problem,
    Solution,
    Status,
    occupancy,
    seconds,
)

WORTH = 5e-3  # share of the store-all time that a moved first run must gain
SLACK = 1e-9  # relative rounding of sums of seconds


@dataclass
class Record:
    """State of one planning run. All sequences are in the caller's op numbers.

    Attributes:
        problem, budget: what is being solved.
        limit: seconds, on ``clock``.
        gap: share of the store-all time at which found and bound count as equal.
        progress, stop: the caller's hooks.
    """

    problem: Problem
    budget: int
    limit: float
    gap: float
    progress: Progress | None = None
    stop: Stop | None = None
    fixed_order: bool = False  # first runs must keep the base order
    sequence: tuple[int, ...] | None = None
    time: float = inf
    peak: int = 0
    planner: str = "none"
    free_bound: float = 0.0  # holds for every order
    free_kind: str = "store-all"
    order_bound: float = 0.0  # holds for the order of first runs ``order``
    order_kind: str = "store-all"
    order: tuple[int, ...] = ()
    trace: list[tuple[float, float, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    clock: Clock = WALL
    begin: float = field(default=nan)
    lock: RLock = field(default_factory=RLock)  # the search may run beside the solver

    def __post_init__(self) -> None:
        self.begin = self.clock.now() if isnan(self.begin) else self.begin
        self.total = float(self.problem.cost.sum())
        self.free_bound = self.order_bound = self.total

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.clock.now() - self.begin

    @property
    def left(self) -> float:
        """Seconds that remain."""
        return self.limit - self.elapsed

    def stopped(self) -> bool:
        """True when time is up or the caller asked to stop."""
        return self.left <= 0 or (self.stop is not None and self.stop())

    @property
    def bound(self) -> float:
        """Bound that applies to the best sequence."""
        return max(self.free_bound, self.order_bound) if self._in_order() else self.free_bound

    @property
    def closed(self) -> bool:
        """True when the best sequence is optimal within the gap, or the budget infeasible."""
        return self.bound == inf or self.time - self.bound <= self.gap * self.total

    @property
    def target(self) -> float:
        """A bound at which the run is finished, given the best sequence."""
        return self.time - self.gap * self.total if self.sequence is not None else inf

    def offer(self, sequence: Sequence[int], planner: str) -> bool:
        """Take a sequence if it is valid, within budget and faster than the best so far."""
        took = seconds(self.problem, sequence)
        if took >= self.time * (1 - 1e-12):
            return False
        try:
            use = occupancy(self.problem, sequence)
        except ValueError:
            return False
        peak = int(use.max(initial=self.problem.fixed))
        if peak > self.budget or not _allowed(self.problem, sequence):
            return False
        with self.lock:
            if took >= self.time or not self._worth_its_order(sequence, took):
                return False
            self.sequence, self.time, self.peak = tuple(int(op) for op in sequence), took, peak
            self.planner = planner
            self._moved(planner)
        return True

    def raise_bound(self, bound: float, kind: str, *, any_order: bool) -> None:
        """Take a proven bound (seconds); ``inf`` proves the budget infeasible."""
        bound = bound * (1 - SLACK) if bound < inf else bound
        with self.lock:
            if any_order and bound > self.free_bound:
                self.free_bound, self.free_kind = bound, kind
                self._moved(kind)
            elif not any_order and bound > self.order_bound:
                self.order_bound, self.order_kind = bound, kind
                self._moved(kind)

    def solution(self) -> Solution:
        """What to hand to the caller."""
        free = self.free_bound >= self.order_bound * (1 - SLACK) or not self._in_order()
        bound, kind = self.bound, self.free_kind if free else self.order_kind
        if self.sequence is None:
            status = Status.INFEASIBLE if bound == inf else Status.UNKNOWN
        else:
            status = Status.OPTIMAL if self.closed else Status.FEASIBLE
        return Solution(
            status=status,
            sequence=self.sequence,
            time=self.time,
            peak=self.peak,
            certificate=Certificate(min(bound, self.time) if self.sequence else bound, kind, free),
            planner=self.planner,
            plan_seconds=self.elapsed,
            trace=tuple(self.trace),
            notes=tuple(self.notes),
        )

    def _in_order(self) -> bool:
        """True when first runs of the best sequence follow ``order``.

        Without a sequence, the bound of one order says nothing about the others.
        """
        if self.sequence is None:
            return self.fixed_order
        return tuple(dict.fromkeys(self.sequence)) == self.order

    def _worth_its_order(self, sequence: Sequence[int], took: float) -> bool:
        """Whether leaving the order that the bound is proven for gains enough.

        A sequence that moved first runs loses the certificate of the order; it must beat what is
        possible in that order, or be clearly faster than what was found.
        """
        if self.sequence is None or self.order_bound <= self.free_bound:
            return True
        if tuple(dict.fromkeys(self.sequence)) != self.order:
            return True
        if took < self.order_bound or took < self.time - WORTH * self.total:
            return True
        return tuple(dict.fromkeys(int(op) for op in sequence)) == self.order

    def _moved(self, stage: str) -> None:
        self.trace.append((self.elapsed, self.time, self.bound))
        if self.progress is not None:
            self.progress(self.time, self.bound, stage)


def _allowed(problem: Problem, sequence: Sequence[int]) -> bool:
    """True when every op that runs twice may."""
    seen: set[int] = set()
    for op in sequence:
        if op in seen and not problem.recompute[op]:
            return False
        seen.add(op)
    return True
