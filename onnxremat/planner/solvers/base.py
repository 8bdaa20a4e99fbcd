"""What every solver back end offers: one call, one vocabulary of outcomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf
from threading import Thread
from time import monotonic
from typing import Protocol

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
        seconds: wall clock.
        gap: absolute difference of objective and bound that counts as optimal.
        threads: solver threads.
        seed: random seed.
        warm: a feasible point, shape (columns,), or None.
        stop: polled during the run; True ends it.
        progress: called with (objective, bound) when the solver reports them.
        target: the run may end as soon as the bound reaches this objective value.
    """

    seconds: float = 60.0
    gap: float = 1e-6
    threads: int = 1
    seed: int = 0
    warm: Floats | None = None
    stop: Callable[[], bool] | None = None
    progress: Callable[[float, float], None] | None = None
    target: float = inf


@dataclass(frozen=True)
class Result:
    """Outcome of one solver run.

    Attributes:
        outcome: see :class:`Outcome`.
        objective: of ``point``, ``inf`` without one.
        bound: proven lower bound of the objective (``inf`` when infeasible).
        point: best solution found, shape (columns,), or None.
        seconds: wall time.
        message: why a run was refused or ended, for a user to read.
    """

    outcome: Outcome
    objective: float
    bound: float
    point: Floats | None
    seconds: float
    message: str = ""


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
