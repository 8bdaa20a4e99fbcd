"""How long a stage takes within fewer bytes: the planner of one device recomputes inside it.

A stretch of the listed order is a problem of its own. What it reads from stages before lies there
all the time, which is the caller's to count; what later stages read is held to the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from onnxremat.pipeline.devices.device_plan import DeviceModel
from onnxremat.planner.methods import plan_by
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.problem import OneDevice, Problem, Rows

WORK = 400  # units of work for a stretch
MOST = 40  # stretches that are planned


@dataclass(frozen=True)
class Remade:
    """A stretch within its bytes: seconds, and nodes of the placement graph as they run."""

    seconds: float
    runs: tuple[int, ...]


@dataclass
class Remakes:
    """Plans of stretches, made once.

    Attributes:
        seed: of the planner.
        fixed_order: first runs keep their order.
    """

    model: DeviceModel
    seed: int = 0
    fixed_order: bool = False
    _known: dict[tuple[int, int, int, int], Remade | None] = field(default_factory=dict)

    def known(self, device: int, i: int, j: int, room: int) -> bool:
        """Whether ``within`` has an answer at hand, or is to give none."""
        return (self._alike(device), i, j, room) in self._known or len(self._known) >= MOST

    def within(self, device: int, i: int, j: int, room: int) -> Remade | None:
        """The quickest plan found for nodes i to before j with so many bytes for what they make;
        None where none was found, or enough stretches have been planned."""
        key = self._alike(device), i, j, room
        if key not in self._known:
            if len(self._known) >= MOST:
                return None
            self._known[key] = self._planned(*key)
        return self._known[key]

    def _alike(self, device: int) -> int:
        """The first device that ops and values take the same on."""
        p = self.model.problem
        rows = (p.cost, p.work, p.size)
        return next(
            d for d in range(device + 1) if all(np.array_equal(row[d], row[device]) for row in rows)
        )

    def _planned(self, device: int, i: int, j: int, room: int) -> Remade | None:
        options = PlanOptions(work=WORK, seed=self.seed, threads=1, fixed_order=self.fixed_order)
        found = plan_by(stretch(self.model.problem, device, i, j), room, options)
        if found.schedule is None or found.peaks[0] > room:
            return None
        return Remade(found.time, tuple(i + step.item for step in found.schedule.steps))


def stretch(problem: Problem, device: int, i: int, j: int) -> Problem:
    """Ops from i to before j, host inputs not counted, on one device, with the values they make."""
    first, last = problem.host_inputs + i, problem.host_inputs + j
    producer = problem.producer
    inside = np.flatnonzero((producer >= first) & (producer < last))
    number = {int(v): n for n, v in enumerate(inside)}
    later = {v for row in problem.reads.lists()[last:] for v in row}
    keep = problem.keep[inside] | np.asarray([int(v) in later for v in inside], np.bool_)

    def own(rows: Rows) -> Rows:
        return Rows.of(
            [[number[v] for v in row if v in number] for row in rows.lists()[first:last]]
        )

    return OneDevice(
        cost=problem.cost[device, first:last],
        work=problem.work[device, first:last],
        reads=own(problem.reads),
        writes=own(problem.writes),
        size=problem.size[device, inside],
        keep=keep,
        inplace=own(problem.inplace),
        recompute=problem.recompute[first:last],
    ).problem()
