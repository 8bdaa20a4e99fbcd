"""What planners answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf

from onnxremat.planner.schedule import Schedule


class Status(Enum):
    """What is known about a solution (the words solvers use)."""

    OPTIMAL = "optimal"  # found = bound within the gap asked for
    FEASIBLE = "feasible"  # within budget, bound below it
    INFEASIBLE = "infeasible"  # proven: no schedule fits the budgets
    UNKNOWN = "unknown"  # nothing found, nothing proven


@dataclass(frozen=True)
class Certificate:
    """A proven lower bound on the objective of every schedule within the budgets.

    Attributes:
        bound: seconds; ``inf`` when the budgets are proven infeasible.
        kind: which argument gave it (``store-all``, ``single-cut``, ``lazy-cuts``, ...).
        any_order: True when it holds for every order of the ops, not only for the order of first
            runs that the schedule beside it has.
        staged: True when it holds only for schedules that run each op at most once per stage (and
            device), in base order (the class that Checkmate's model and its kin search).
    """

    bound: float
    kind: str
    any_order: bool
    staged: bool = False


@dataclass(frozen=True)
class Solution:
    """Answer of a planner for one budget per device.

    Attributes:
        status: see :class:`Status`, for the objective.
        schedule: None when none was found.
        time: seconds of all steps, one after the other (``inf`` without a schedule).
        peaks: bytes per device; empty without a schedule.
        certificate: the proven bound of the objective.
        planner: name of the method that found the schedule.
        plan_seconds: spent, on the clock of the options.
        reference: seconds that gaps are a share of: all ops once on the best single device that
            can run them all.
        objective: ``time`` (sum of all steps) or ``makespan``.
        makespan: seconds with devices and links working side by side.
        makespan_bound: proven lower bound of every makespan, whatever the objective: the largest
            of the critical path, each op on its best device, and the least load of the busiest
            device or link (see docs/planner.md).
        trace: (seconds, best objective, bound) whenever either moved.
        notes: what a user should know (fall-backs, limits hit), one sentence each.
    """

    status: Status
    schedule: Schedule | None
    time: float
    peaks: tuple[int, ...]
    certificate: Certificate
    planner: str
    plan_seconds: float = 0.0
    reference: float = 0.0
    objective: str = "time"
    makespan: float = inf
    makespan_bound: float = 0.0
    trace: tuple[tuple[float, float, float], ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def sequence(self) -> tuple[int, ...] | None:
        """Ops in execution order, repeats are recomputations: the schedule of one device."""
        return None if self.schedule is None else self.schedule.sequence

    @property
    def peak(self) -> int:
        """Bytes on the first device: on one device, the peak."""
        return self.peaks[0] if self.peaks else 0

    @property
    def value(self) -> float:
        """The objective of the schedule, in seconds."""
        return self.makespan if self.objective == "makespan" else self.time

    @property
    def gap(self) -> float:
        """(objective - bound) as a share of ``reference``; ``inf`` when nothing was found."""
        if self.schedule is None:
            return inf
        return max(0.0, self.value - self.certificate.bound) / max(1e-300, self.reference)

    def proves_of(self, other: Schedule | None) -> bool:
        """Whether the certificate says something of another schedule: a proof for one order of
        first runs says nothing of those in another."""
        own = self.schedule
        same = own is not None and other is not None and own.first_runs == other.first_runs
        return self.certificate.any_order or same

    def proof_of(self, other: Schedule | None, otherwise: Certificate) -> Certificate:
        """The certificate, of another schedule; ``otherwise`` where it says nothing of that."""
        return self.certificate if self.proves_of(other) else otherwise


def unsolved(status: Status, certificate: Certificate, notes: tuple[str, ...] = ()) -> Solution:
    """An answer without a schedule."""
    return Solution(status, None, inf, (), certificate, "none", notes=notes)
