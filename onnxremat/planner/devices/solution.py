"""What the device planner answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxremat.planner.devices.problem import Schedule
from onnxremat.planner.problem import Certificate, Status


@dataclass(frozen=True)
class DeviceSolution:
    """Answer of the planner for one set of budgets.

    Attributes:
        status: see :class:`~onnxremat.planner.problem.Status`, for the objective.
        objective: ``time`` (sum of all steps) or ``makespan``.
        schedule: None when none was found.
        time: seconds of all steps, one after the other (``inf`` without a schedule).
        makespan: seconds with devices and links working side by side.
        peaks: bytes per device.
        certificate: proven lower bound of the objective; ``inf`` when proven infeasible.
        makespan_bound: proven lower bound of every makespan, whatever the objective: the largest
            of the critical path, each op on its best device, and the least load of the busiest
            device or link (see docs/planner.md).
        reference: seconds that gaps are a share of: all ops once on the best single device that
            can run them all.
        planner: name of the method that found the schedule.
        plan_seconds: wall time spent.
        trace: (wall seconds, best objective, bound) whenever either moved.
        notes: what a user should know, one sentence each.
    """

    status: Status
    objective: str
    schedule: Schedule | None
    time: float
    makespan: float
    peaks: tuple[int, ...]
    certificate: Certificate
    makespan_bound: float
    reference: float
    planner: str
    plan_seconds: float
    trace: tuple[tuple[float, float, float], ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def value(self) -> float:
        """The objective of the schedule, in seconds."""
        return self.makespan if self.objective == "makespan" else self.time

    @property
    def gap(self) -> float:
        """(objective - bound) as a share of ``reference``; ``inf`` when nothing was found."""
        if self.schedule is None:
            return float("inf")
        return max(0.0, self.value - self.certificate.bound) / max(1e-300, self.reference)
