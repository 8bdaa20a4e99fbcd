"""The best schedule and the best bounds so far, with the clock and the caller's hooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isnan, nan
from threading import RLock
from time import process_time
from typing import Any

import numpy as np

from onnxremat.planner.clock import WALL, Clock
from onnxremat.planner.makespan import timing_of
from onnxremat.planner.options import PlanOptions, Progress, Stop
from onnxremat.planner.problem import Bytes, Problem
from onnxremat.planner.schedule import InvalidScheduleError, Schedule
from onnxremat.planner.semantics import bytes_of, ledger, peaks, seconds
from onnxremat.planner.solution import Certificate, Solution, Status

NO_LIMIT = 1 << 62  # bytes of a device without a limit
SLACK = 1e-9  # relative rounding of sums of seconds
SAME = 1e-12  # relative difference of sums of seconds that is none


@dataclass(frozen=True)
class Tuning:
    """What an answer has to gain.

    Attributes:
        worth: share of the reference time that schedules in another order must gain where the order
            that is left has a bound: it is lost with it.
        slight: share of it that no other order gains for which none is looked at (README's U-Net
            step: planned in 3 s, 22 without; the same plan).
        patience: times the limit, on a busy machine, until nothing found is nothing found.
    """

    worth: float = 5e-3
    slight: float = 1.5e-3
    patience: float = 4.0


TUNING = Tuning()


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


@dataclass(frozen=True)
class Found:
    """A schedule within budget: seconds of all steps, makespan, and the method that found it."""

    schedule: Schedule
    time: float
    span: float
    planner: str


@dataclass
class Incumbent:
    """State of one planning run. All schedules are in the caller's op numbers.

    Two schedules are kept: the best with first runs in ``order``, to which ``ordered`` bounds
    apply, and the best with another order.

    Attributes:
        problem, budgets: what is being solved, in bytes per device.
        limit: seconds, on ``clock``.
        gap: share of the reference time at which found and bound count as equal.
        parallel: the objective is the makespan.
        progress, stop: the caller's hooks.
        fixed_order: first runs must keep the base order.
        order: order of first runs for which ``ordered`` bounds hold.
        tied: bounds are proven of that alone, while others may be taken (``other_orders``).
        kept, moved: the best schedule in that order, and in any other.
        free, ordered: bounds of the sum of all steps for every order, and for ``order``.
        span: bound of the makespan, for every order.
        begin, used: seconds on ``clock`` and of the processor at the start.
    """

    problem: Problem
    budgets: tuple[int, ...]
    limit: float
    gap: float
    parallel: bool = False
    progress: Progress | None = None
    stop: Stop | None = None
    fixed_order: bool = False
    order: tuple[int, ...] = ()
    tied: bool = False
    kept: Found | None = None
    moved: Found | None = None
    trace: list[tuple[float, float, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    clock: Clock = WALL
    begin: float = field(default=nan)
    used: float = field(default_factory=process_time)
    lock: RLock = field(default_factory=RLock)  # the search may run beside the solver

    @classmethod
    def of(
        cls, problem: Problem, budgets: int | Sequence[float], options: PlanOptions
    ) -> Incumbent:
        """Nothing found yet.

        Raises:
            ValueError: not one budget per device.
        """
        return cls(
            problem, limits_of(problem, budgets), options.seconds, options.gap,
            options.objective == "makespan", options.progress, options.stop, options.fixed_order,
            clock=options.clock(),
        )  # fmt: skip

    def __post_init__(self) -> None:
        self.begin = self.clock.now() if isnan(self.begin) else self.begin
        self.total = self.problem.reference
        kind = "store-all" if self.problem.devices == 1 else "least run"
        least = self.problem.least_seconds
        self.free, self.ordered = Bound(least, kind), Bound(least, kind)
        computing = int(np.isfinite(self.problem.cost).any(axis=1).sum())
        links = int(np.isfinite(self.problem.copy).any(axis=2).sum())
        self.streams = max(1, computing + links)  # that can be busy at the same time
        self.span = Bound(least * (1 - SLACK) / self.streams, f"{kind} over {self.streams} streams")
        self.order = self.order or tuple(range(self.problem.ops))

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.clock.now() - self.begin

    @property
    def spent(self) -> float:
        """Seconds since the start that count. Nothing is refused because others kept the machine
        busy: until a schedule is found, those do that the processor worked."""
        spent = self.elapsed
        if self.best is None and not self.clock.counted:
            spent = min(spent, max(spent / TUNING.patience, process_time() - self.used))
        return spent

    @property
    def left(self) -> float:
        """Seconds that remain."""
        return self.limit - self.spent

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What is done in the block is no part of planning."""
        begin, used = self.clock.now(), process_time()
        yield
        self.begin += self.clock.now() - begin
        self.used += process_time() - used

    def stopped(self) -> bool:
        """True when time is up or the caller asked to stop."""
        return self.left <= 0 or (self.stop is not None and self.stop())

    def over(self) -> bool:
        """True when there is nothing left to do in this order, or no time."""
        return self.closed or self.beaten or self.stopped()

    @property
    def elsewhere(self) -> bool:
        """The best schedule has another order than the one that bounds are proven of."""
        with self.lock:  # or a better one in that order comes in between
            return self.tied and self.best is not self.kept

    @property
    def beaten(self) -> bool:
        """Nothing in that order can be as quick as what was found in another."""
        moved = self.moved
        return self.tied and moved is not None and moved.time < self.ordered.seconds

    @property
    def best(self) -> Found | None:
        """The schedule to hand out.

        Leaving the order that a bound is proven for loses that bound. It is worth that when it
        beats what the order allows, gains clearly, or leaves the smaller gap.
        """
        with self.lock:
            kept, moved = self.kept, self.moved
            if kept is None or moved is None:
                return kept or moved
            if self.parallel or kept.time <= moved.time:
                return kept if self._rank(kept) <= self._rank(moved) else moved
            gains = kept.time - moved.time
            proven = max(0.0, self.ordered.seconds - self.free.seconds)
            beats = moved.time < self.ordered.seconds
            return moved if beats or gains > min(proven, TUNING.worth * self.total) else kept

    @property
    def value(self) -> float:
        """Objective of the best schedule, in seconds (``inf`` without one)."""
        best = self.best
        return inf if best is None else self._rank(best)[0]

    @property
    def certificate(self) -> Bound:
        """Bound of the objective that applies to the best schedule.

        Without a schedule, the bound of one order says nothing about the others; where that of
        every order is as near as is asked, it says more.
        """
        if self.parallel:
            return self.span
        best = self.best
        applies = self.fixed_order if best is None else best is self.kept
        stronger = self.ordered.seconds > self.free.seconds * (1 + SLACK)
        near = best is not None and best.time - self.free.seconds <= self.gap * self.total
        return self.ordered if applies and stronger and not near else self.free

    @property
    def bound(self) -> float:
        """Seconds of :attr:`certificate`."""
        return self.certificate.seconds

    @property
    def open_gap(self) -> float:
        """Seconds between the best schedule and the bound (``inf`` without a schedule)."""
        return self.value - self.bound

    @property
    def little_left(self) -> bool:
        """No order, by what is proven of all, gains enough to be looked at."""
        most = max(self.gap, TUNING.slight) * self.total
        return self.value - self.free.seconds <= most

    @property
    def target(self) -> float:
        """A bound at which the run is finished, given the best schedule."""
        return self.value - self.gap * self.total

    @property
    def infeasible(self) -> bool:
        """True when it is proven that no schedule fits."""
        return inf in (self.free.seconds, self.span.seconds) or (
            self.fixed_order and self.ordered.seconds == inf
        )

    @property
    def closed(self) -> bool:
        """True when the best schedule is optimal within the gap, or the budgets infeasible."""
        return self.infeasible or self.open_gap <= self.gap * self.total

    def offer(self, schedule: Schedule | Sequence[int], planner: str) -> bool:
        """Take a schedule if it is valid, within budget and better; it is judged here."""
        if not isinstance(schedule, Schedule):
            schedule = Schedule.of(self.problem, schedule)
        in_order = schedule.first_runs == self.order
        if self.fixed_order and not in_order:
            return False
        try:
            took = seconds(self.problem, schedule)
            known = self.kept if in_order else self.moved
            if known is not None and not self.parallel and took >= known.time * (1 - SAME):
                return False
            top, span = self._judged(schedule, took)
        except InvalidScheduleError:
            return False
        if (top > np.asarray(self.budgets)).any():
            return False
        found = Found(schedule, took, span, planner)
        with self.lock:
            known, before = self.kept if in_order else self.moved, self.best
            if known is not None and self._rank(found) >= self._rank(known):
                return False
            if in_order:
                self.kept = found
            else:
                self.moved = found
            if self.best is not before:
                self.tell(planner)
        return True

    def _judged(self, schedule: Schedule, took: float) -> tuple[Bytes, float]:
        """(peaks, makespan) of a schedule; on one device nothing goes on side by side."""
        if self.problem.devices == 1:
            return peaks(self.problem, schedule), took
        book = ledger(self.problem, schedule)
        top = bytes_of(self.problem, schedule, book).max(axis=1, initial=0)
        return top, timing_of(self.problem, schedule, self.budgets, book).makespan

    def follow(self, order: Sequence[int]) -> None:
        """Let ``ordered`` bounds mean another order from here on."""
        with self.lock:
            if tuple(order) == self.order:
                return
            known = [found for found in (self.kept, self.moved) if found is not None]
            self.order, self.kept, self.moved, self.tied = tuple(order), None, None, False
            self.ordered = Bound(self.problem.least_seconds, self.free.kind)
            for found in sorted(known, key=self._rank):
                if found.schedule.first_runs == self.order:
                    self.kept = self.kept or found
                else:
                    self.moved = self.moved or found

    def part(self, *, any_order: bool = False, **differs: Any) -> Incumbent:
        """A run of its own within this one, on the same clock: nothing is found yet, and nobody is
        told. What one of them proves of the sum of all steps counts in the other.

        Args:
            any_order: what is proven of one order alone does not count there.
            differs: attributes that are not those of this one.
        """
        part = replace(self, progress=None, kept=None, moved=None, trace=[], **differs)
        part.free = self.free
        if any_order:
            part.tied = False
        else:
            part.ordered = self.ordered
        return part

    def raise_bound(
        self, bound: float, kind: str, *, any_order: bool, parallel: bool = False
    ) -> None:
        """Take a proven bound in seconds; ``inf`` proves the budgets infeasible.

        Args:
            parallel: it bounds the makespan (in every order), not the sum of all steps.
        """
        with self.lock:
            which = self.span if parallel else self.free if any_order else self.ordered
            lifted = which.lift(bound, kind)
            if any_order and not parallel:  # the sum is at most what all streams take together
                shared = f"{kind} over {self.streams} streams"
                lifted = self.span.lift(bound / self.streams, shared) or lifted
            if lifted:
                self.tell(kind)

    def solution(self) -> Solution:
        """What to hand to the caller."""
        best, proof = self.best, self.certificate
        if self.infeasible:
            proof = next(b for b in (self.free, self.ordered, self.span) if b.seconds == inf)
        bound, top, status = proof.seconds, [], Status.UNKNOWN
        if best is not None:
            status = Status.OPTIMAL if self.closed else Status.FEASIBLE
            top, bound = peaks(self.problem, best.schedule).tolist(), min(bound, self.value)
        elif self.infeasible:
            status = Status.INFEASIBLE
        return Solution(
            status=status,
            schedule=None if best is None else best.schedule,
            time=inf if best is None else best.time,
            peaks=tuple(top),
            certificate=Certificate(bound, proof.kind, proof is not self.ordered),
            planner="none" if best is None else best.planner,
            plan_seconds=self.elapsed,
            reference=self.total,
            objective="makespan" if self.parallel else "time",
            makespan=inf if best is None else best.span,
            makespan_bound=self.span.seconds if best is None else min(self.span.seconds, best.span),
            trace=tuple(self.trace),
            notes=(*self.notes, *self._anywhere(proof)),
        )

    def _anywhere(self, proof: Bound) -> list[str]:
        """What is known of every order, where the proof is of one alone."""
        more = self.free.seconds / self.total - 1.0 if self.total else 0.0
        if proof is not self.ordered or not 1e-6 < more < inf:
            return []
        return [f"no plan in any order takes less than {100 * more:+.2f}% ({self.free.kind})"]

    def _rank(self, found: Found) -> tuple[float, float]:
        """Objective first, the other number to break ties."""
        return (found.span, found.time) if self.parallel else (found.time, found.span)

    def tell(self, stage: str) -> None:
        """Note where planning is, and tell the caller."""
        self.trace.append((self.elapsed, self.value, self.bound))
        if self.progress is not None:
            self.progress(self.value, self.bound, stage)


def limits_of(problem: Problem, budgets: int | Sequence[float]) -> tuple[int, ...]:
    """Whole bytes per device, at most :data:`NO_LIMIT`, with which compiled code can reckon; a
    number alone is the budget of an only device.

    Raises:
        ValueError: not one budget per device.
    """
    given = [budgets] if isinstance(budgets, int | np.integer) else list(budgets)
    if len(given) != problem.devices:
        raise ValueError(f"{len(given)} budgets for {problem.devices} devices")
    return tuple(min(int(b), NO_LIMIT) if isfinite(b) else NO_LIMIT for b in given)
