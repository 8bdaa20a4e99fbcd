"""What every solver back end offers: one call, one vocabulary of outcomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf
from threading import Thread
from time import monotonic
from typing import Protocol

from onnxremat.planner.clock import ROWS, UNITS, WALL, Clock
from onnxremat.planner.model import Model
from onnxremat.planner.problem import Floats


class Outcome(Enum):
    """How a solver run ended."""

    OPTIMAL = "optimal"  # point and bound agree within the gap
    FEASIBLE = "feasible"  # a point, stopped by a limit
    INFEASIBLE = "infeasible"  # proven
    UNKNOWN = "unknown"  # stopped by a limit with no point
    REFUSED = "refused"  # licence or size limit, or the solver failed


@dataclass(frozen=True)
class Limits:
    """When to stop, and what to start from.

    Attributes:
        seconds: on ``clock``; where that counts work, of work.
        gap: absolute difference of objective and bound that counts as optimal.
        threads: solver threads.
        seed: random seed.
        warm: a feasible point, shape (columns,), or None.
        stop: polled during the run; True ends it.
        progress: called with (objective, bound) when the solver reports them.
        target: the run may end as soon as the bound reaches this objective value.
        clock: of the planner.
    """

    seconds: float = 60.0
    gap: float = 1e-6
    threads: int = 1
    seed: int = 0
    warm: Floats | None = None
    stop: Callable[[], bool] | None = None
    progress: Callable[[float, float], None] | None = None
    target: float = inf
    clock: Clock = WALL

    @property
    def wall(self) -> float:
        """Seconds of the wall that a solver may take."""
        return FOREVER if self.clock.counted else max(0.01, self.seconds)


@dataclass(frozen=True)
class Result:
    """Outcome of one solver run.

    Attributes:
        outcome: see :class:`Outcome`.
        objective: of ``point``, ``inf`` without one.
        bound: proven lower bound of the objective (``inf`` when infeasible).
        point: best solution found, shape (columns,), or None.
        seconds: it took, on the clock of its limits.
        message: why a run was refused or ended, for a user to read.
    """

    outcome: Outcome
    objective: float
    bound: float
    point: Floats | None
    seconds: float
    message: str = ""


class Meter:
    """The work of one run of a solver, where it is counted: a share for each look up."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self.clock, self.begin = limits.clock, limits.clock.now()
        self.end = self.begin + limits.seconds
        self.each = max(1.0, model.rows / ROWS)
        self.clock.spend(self.each)  # reading and simplifying the model

    @property
    def seconds(self) -> float:
        """Taken so far."""
        return self.clock.now() - self.begin

    def spent(self) -> bool:
        """Called at each look up; True when the work is done that was granted."""
        self.clock.spend(self.each)
        return self.clock.counted and self.clock.now() > self.end

    def count(self, seconds: float) -> None:
        """Work by another measure."""
        self.clock.spend(UNITS * seconds)


class Solver(Protocol):
    """A back end. ``name`` is what users type."""

    name: str

    def unavailable(self) -> str | None:
        """Why this solver cannot be used at all, or None when it can."""

    def unfit(self, model: Model) -> str | None:
        """Why this solver cannot take this model (licence size limits), or None when it can."""

    def solve(self, model: Model, limits: Limits) -> Result:
        """Minimise the model."""


ABANDONED = "abandoned solver"  # name of a thread that is left behind
PATIENCE = 1.5  # seconds that a stopped solver has to answer with what it found
FOREVER = 1e7  # seconds, for a solver whose work is counted
LOOK = 0.05  # seconds between looks at ``stop``


def run_apart(run: Callable[[], None], limits: Limits, ask: Callable[[], None]) -> bool:
    """Run a solver in a thread while the caller's stays free for signals.

    Solvers poll nothing during presolve and long relaxations. One that does not end soon after it
    was stopped is left behind, to end at its own time limit; False then.

    Args:
        run: blocks until the solver ends, without the interpreter lock.
        ask: asks the running solver to end, from this thread.
    """
    failed: list[BaseException] = []

    def work() -> None:
        try:
            run()
        except BaseException as error:  # raised below, in the caller's thread
            failed.append(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    since: float | None = None
    while thread.is_alive():
        thread.join(LOOK)
        if limits.stop is None or not limits.stop():
            continue
        if since is None:
            since = monotonic()
            ask()
        elif monotonic() - since > PATIENCE and thread.is_alive():
            thread.name = ABANDONED
            return False
    if failed:
        raise failed[0]
    return True


def refused(message: str) -> Result:
    """The result of a run that could not take place."""
    return Result(Outcome.REFUSED, inf, -inf, None, 0.0, message)
