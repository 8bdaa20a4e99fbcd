"""What a planner is asked for: one object, handed whole to every planner."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from onnxremat.device.host import check_threads, processors
from onnxremat.errors import UsageError
from onnxremat.limits import at_least
from onnxremat.planner.clock import UNITS, WALL, Clock, WorkClock

Progress = Callable[[float, float, str], None]
Stop = Callable[[], bool]

RUNGS = ("cuts", "search", "order")  # of the ladder, each alone
PUBLISHED = (
    "store-all", "recompute-all", "chen-sqrt", "chen-greedy", "articulation", "every-block",
    "revolve", "dtr", "farthest", "lp-rounding", "knapsack",
)  # fmt: skip
PLANNERS = ("auto", *RUNGS, *PUBLISHED)
DEVICE_FORMULATIONS = ("xengine-miqp", "xengine-linear")
FORMULATIONS = ("cuts", "checkmate", "retention", *DEVICE_FORMULATIONS)
SOLVER_NAMES = ("auto", "highs", "gurobi", "scip")
OBJECTIVES = ("time", "makespan")
MOST_COLUMNS = 400_000  # about a gigabyte while the model is built and handed to a solver

LATE = 5.0  # seconds beyond the limit in which what planning has begun may end
REPAIR, ROOM = 4.0, 0.2  # most seconds, and share of the limit, of what has to be done when late


def _one_of(kind: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise UsageError(f"unknown {kind} '{name}'", hint="one of " + ", ".join(names))


@dataclass(frozen=True)
class Method:
    """How to plan.

    Attributes:
        planner: one of :data:`PLANNERS`.
        formulation: one of :data:`FORMULATIONS`, solved as it is written; empty for none.
        warm_start: give a formulation's solver the ladder's sequence to start from.
        most_columns: formulations with larger models are refused.

    Raises:
        UsageError: unknown name, both a planner and a formulation, or no warm start of none.
    """

    planner: str = "auto"
    formulation: str = ""
    warm_start: bool = True
    most_columns: int = MOST_COLUMNS

    def __post_init__(self) -> None:
        _one_of("planner", self.planner, PLANNERS)
        if self.formulation:
            _one_of("formulation", self.formulation, FORMULATIONS)
        if self.formulation and self.planner != "auto":
            raise UsageError(
                f"--planner {self.planner} and --formulation {self.formulation} exclude each other",
                hint="a formulation is a planner of its own",
            )
        if not self.warm_start:
            self._of_formulation("--no-warm-start")

    def heeded(self, *, written: bool = False) -> Method:
        """The same, where something heeds its limit of columns.

        Args:
            written: the model of a formulation is written or read, if only that of cuts.

        Raises:
            UsageError: nothing does.
        """
        if self.most_columns != MOST_COLUMNS and not written:
            self._of_formulation("--max-columns")
        return self

    def _of_formulation(self, option: str) -> None:
        if not self.formulation:
            raise UsageError(
                f"{option} goes with --formulation",
                why="without it there is no model of one for a solver",
                hint="--formulation " + ", ".join(FORMULATIONS[:-1]) + f" or {FORMULATIONS[-1]}",
            )

    @property
    def name(self) -> str:
        """What the user chose."""
        return self.formulation or self.planner

    @property
    def ladder(self) -> bool:
        """Nobody asked for a planner or formulation of their own."""
        return not self.formulation and self.planner == "auto"

    @property
    def published(self) -> bool:
        """A published rule: it runs to its end, keeps the base order and proves nothing."""
        return self.planner in PUBLISHED

    @property
    def rung(self) -> str:
        """The rung of the ladder that is to work alone, empty for all of them."""
        name = self.formulation or self.planner
        return name if name in RUNGS else ""


AUTO = Method()


@dataclass(frozen=True)
class PlanOptions:
    """How to search for a plan.

    Attributes:
        time_limit: seconds for planning, repetitions included. Beyond it only a plan at hand is
            made to fit, in a fifth of it per attempt, each half as long as the one before.
        work: units of work (see :mod:`onnxremat.planner.clock`; about a millisecond each) for
            each call of a planner, instead of seconds: same seed and work, same plan, on any
            machine and however busy. No clock is looked at then, and one thread works.
        gap: good enough, as a share of the store-all time.
        solver: one of :data:`SOLVER_NAMES`; others stand in with a note.
        seed: of the search and the solvers.
        threads: of the planner; with two or more the search runs beside the solver.
        method: planner or formulation, the ladder by default.
        objective: what several devices minimise: ``time``, the sum of all runs and copies, or
            ``makespan``, with devices and links working side by side.
        fixed_order: first runs keep the order of the ops.
        progress: told (best seconds, bound seconds, stage) when either moves.
        stop: asked now and then; True ends planning with the best so far.
        until: when planning has to end, on the clock ``now``; set when it begins.

    Raises:
        UsageError: unknown solver or objective, far too many threads, or no work at all.
    """

    time_limit: float = 60.0
    work: int | None = None
    gap: float = 5e-4
    solver: str = "auto"
    seed: int = 0
    threads: int = field(default_factory=processors)
    method: Method = AUTO
    objective: str = "time"
    fixed_order: bool = False
    progress: Progress | None = None
    stop: Stop | None = None
    until: float = inf
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        _one_of("solver", self.solver, SOLVER_NAMES)
        _one_of("objective", self.objective, OBJECTIVES)
        check_threads(self.threads)
        at_least(self.time_limit, 0, "time_limit")
        at_least(self.gap, 0, "gap")
        if self.work is not None and self.work < 1:
            raise UsageError(f"a limit of {self.work} units of work", hint="1 or more")

    @property
    def stopped(self) -> bool:
        """Asked now: end planning with the best so far."""
        return self.stop is not None and self.stop()

    def begun(self) -> PlanOptions:
        """The same with the time limit running, from now on unless it is already."""
        if self.until < inf or self.work is not None:  # work is no matter of when
            return self
        return replace(self, until=self.now() + self.time_limit)

    def within(self, share: float) -> PlanOptions:
        """The same with a share of the time that is left, or of the work."""
        if self.work is not None:
            return self.lasting(share * self.time_limit)
        return replace(self, until=self.now() + share * self.left)

    def lasting(self, seconds: float) -> PlanOptions:
        """The same for a part of the planning that may take so many seconds, or that share of
        the work; none where they are less than none."""
        seconds = max(0.0, seconds)
        if self.work is None:
            return replace(self, time_limit=seconds)
        share = min(1.0, seconds / max(1e-9, self.time_limit))
        return replace(self, time_limit=seconds, work=max(1, round(share * self.work)))

    def clock(self) -> Clock:
        """What :attr:`seconds` are counted by."""
        return WALL if self.work is None else WorkClock()

    @property
    def seconds(self) -> float:
        """Limit of one call of a planner, on :meth:`clock`."""
        return self.time_limit if self.work is None else self.work / UNITS

    @property
    def beside(self) -> bool:
        """The search runs in a thread of its own beside the solver."""
        return self.threads > 1 and self.work is None

    @property
    def solver_threads(self) -> int:
        """Threads of a solver that works alone."""
        return self.threads if self.work is None else 1

    def quiet(self) -> PlanOptions:
        """The same without the caller's hooks, for another process."""
        return replace(self, progress=None, stop=None)

    @property
    def left(self) -> float:
        """Seconds of planning that are left; all of them where work is counted instead."""
        if self.work is not None:
            return self.time_limit
        return max(0.0, min(self.time_limit, self.until - self.now()))

    def affords(self, seconds: float) -> bool:
        """Whether work of so many seconds ends in time, or not much later; any does where work is
        counted instead."""
        return self.work is not None or self.now() + seconds <= self.until + LATE

    @property
    def least(self) -> float:
        """Seconds for what has to be done even when the time is over."""
        return min(REPAIR, ROOM * self.time_limit)
