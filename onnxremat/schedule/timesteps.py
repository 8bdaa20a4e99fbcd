"""A plan as XEngine's matrices: what is computed, stored and copied on each device per timestep.

Timestep t ends with the t-th first run of an op, as in Schuler et al., ACM TACO 2022: R[d, t, op]
says that op runs on device d in timestep t, S[d, t, value] that the value is on d when it begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnxremat.graph.ir import Graph
from onnxremat.schedule.plan import Compute, Free, Plan, Transfer

Cell = tuple[str, int, str]  # device, timestep, op or value


@dataclass(frozen=True)
class Timesteps:
    """A plan, timestep by timestep.

    Attributes:
        devices: in order of first use, or as given.
        ops: in order of first runs: ``ops[t]`` ends timestep t.
        home: device of the first run of each op.
        values: in order of their making; all that any op makes or a copy brings.
        computed: how often an op runs on a device in a timestep, where it does.
        stored: values on a device when a timestep begins, made or brought there before.
        copies: (timestep, value, source, target) in order.
        at: timestep of each step of the plan.
    """

    devices: tuple[str, ...]
    ops: tuple[str, ...]
    home: tuple[str, ...]
    values: tuple[str, ...]
    computed: Mapping[Cell, int]
    stored: frozenset[Cell]
    copies: tuple[tuple[int, str, str, str], ...]
    at: tuple[int, ...]


def timesteps(graph: Graph, plan: Plan, devices: Sequence[str] = ()) -> Timesteps:
    """The matrices of a plan of a graph.

    Args:
        graph: the one the plan belongs to.
        devices: names in the order wanted; those that the plan uses when empty.
    """
    walk = _Walk(graph)
    for step in plan.steps:
        walk.take(step)
    return walk.finish(devices)


class _Walk:
    def __init__(self, graph: Graph) -> None:
        self.writes = {op.name: op.writes for op in graph.ops}
        self.kept = set(graph.outputs)
        self.runs: Counter[str] = Counter()
        self.home: dict[str, str] = {}
        self.values: dict[str, None] = {}
        self.devices: dict[str, None] = {}
        self.there: dict[tuple[str, str], int] = {}  # (device, value) -> the copy that is there
        self.computed: Counter[Cell] = Counter()
        self.stored: set[Cell] = set()
        self.copies: list[tuple[int, str, str, str]] = []
        self.at: list[int] = []
        self.fresh = True  # a timestep begins with the next run or copy

    def take(self, step: Compute | Free | Transfer) -> None:
        if isinstance(step, Free):
            self.at.append(self.at[-1] if self.at else 0)
            if self.there.get((step.device, step.tensor)) == step.copy:
                del self.there[step.device, step.tensor]
            return
        now = len(self.home)
        self.at.append(now)
        if self.fresh:
            self.stored |= {(device, now, value) for device, value in self.there}
            self.fresh = False
        if isinstance(step, Transfer):
            self.devices.update({step.source: None, step.target: None})
            self.copies.append((now, step.tensor, step.source, step.target))
            self.values[step.tensor] = None
            self.there[step.target, step.tensor] = self.there.get((step.source, step.tensor), 0)
        else:
            self._run(step, now)

    def _run(self, step: Compute, now: int) -> None:
        self.devices[step.device] = None
        self.computed[step.device, now, step.op] += 1
        for value in self.writes[step.op]:
            self.values[value] = None
            if not (value in self.kept and (step.device, value) in self.there):
                self.there[step.device, value] = self.runs[step.op]
        self.runs[step.op] += 1
        if step.op not in self.home:
            self.home[step.op] = step.device
            self.fresh = True

    def finish(self, devices: Sequence[str]) -> Timesteps:
        last = max(0, len(self.home) - 1)  # copies behind the last first run belong to it
        return Timesteps(
            tuple(devices) or tuple(self.devices),
            tuple(self.home),
            tuple(self.home.values()),
            tuple(self.values),
            _capped(self.computed, last),
            frozenset(cell for cell in self.stored if cell[1] <= last),
            tuple((min(t, last), value, a, b) for t, value, a, b in self.copies),
            tuple(min(t, last) for t in self.at),
        )


def _capped(computed: Mapping[Cell, int], last: int) -> dict[Cell, int]:
    found: Counter[Cell] = Counter()
    for (device, t, op), count in computed.items():
        found[device, min(t, last), op] += count
    return dict(found)
