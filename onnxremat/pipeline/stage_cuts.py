"""A chain of stages along the listed order within memory: which stretch is whose.

A placement graph knows of memory only what an op takes for good. Here a stretch holds its weights,
what its session needs at its worst op, and the values of samples that wait before it; the least
largest load over all cuts (of at most :data:`PLACES` places) is found by a dynamic program over
(devices used, place). A stretch may be on several devices that are alike, which take samples in
turn: each has its load over their number, and holds its share of the samples. What it answers is
deployed and judged by the simulator, as other plans are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from math import inf

import numpy as np

from onnxremat.execute.pipelined import QUEUE
from onnxremat.ort.providers import CPU
from onnxremat.pipeline.device_plan import DeviceModel
from onnxremat.pipeline.placement_bridge import Bridge
from onnxremat.planner.problem import Floats, Ints

PLACES = 120  # where the order may be cut
MOST = 4  # devices all orders of which are tried


@dataclass(frozen=True)
class Cut:
    """A chain along the listed order.

    Attributes:
        value: largest load, in the unit of placement graphs.
        where: stage per node of the placement graph.
        names: first device of each stage.
        replicas: of stages on several devices, the further ones by the first.
    """

    value: float
    where: list[int]
    names: tuple[str, ...]
    replicas: Mapping[str, tuple[str, ...]]


def along_order(
    model: DeviceModel,
    made: Bridge,
    limits: Mapping[str, int],
    in_flight: int,
    replicas: int | None = 1,
) -> Cut | None:
    """The cut of least load whose stretches fit their devices with so many samples in flight, as
    far as can be told before it is deployed; None where there is none.

    Args:
        replicas: most devices of one stretch, None for all.
    """
    order = _Order(model, made, len(made.devices) if replicas is None else replicas)
    best: Cut | None = None
    for names in _chains(made, limits):
        found = order.best(names, limits, in_flight, best.value if best else inf)
        best = found or best
    return best


def _chains(made: Bridge, limits: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Orders of devices, once each where devices are alike in limits too."""
    names, count = made.devices, made.graph.accelerators
    alike = {name: (at < count, limits.get(name)) for at, name in enumerate(names)}
    rows: list[tuple[str, ...]] = [names]
    if len(names) <= MOST:
        rows = [row for size in range(len(names), 0, -1) for row in permutations(names, size)]
    return list({tuple(alike[name] for name in row): row for row in reversed(rows)}.values())


def _given(model: DeviceModel) -> list[list[str]]:
    """Inputs of the model that each op of the problem reads, or shows to itself by views."""
    graph, made = model.graph, model.graph.producer
    of_name = {op.name: op for op in graph.ops}

    def shown(name: str) -> str:
        while made.get(name) in model.reduced.view:
            name = graph.ops[made[name]].inputs[0]
        return name

    return [
        [root for root in map(shown, of_name[name].reads) if root in graph.inputs]
        if name in of_name
        else []
        for name in model.names.ops
    ]


class _Order:
    """The listed order as sums over its stretches."""

    def __init__(self, model: DeviceModel, made: Bridge, replicas: int) -> None:
        self.problem, self.host = model.problem, model.problem.host_inputs
        self.graph, self.names = made.graph, made.devices
        self.replicas, self.machine = replicas, model.machine
        self.inputs = model.graph.tensors
        problem, n = self.problem, made.graph.count
        at = problem.producer - self.host
        last = at.copy()
        for op, row in enumerate(problem.reads.lists()):
            for value in row:
                last[value] = max(last[value], op - self.host)
        last[problem.keep] = n  # kept to the end
        self.size = problem.size.max(axis=0)
        self.made, self.last = at, last
        self.work = problem.work[:, self.host :].max(axis=0)
        self.takes = self._takeovers()
        self.given = _given(model)
        step = max(1, -(-n // PLACES))
        self.places = sorted({*range(0, n, step), n})

    def _takeovers(self) -> Ints:
        """Per op the value whose buffer its result takes over when that was made in its stretch,
        -1 for none."""
        found = np.full(self.graph.count, -1, np.int32)
        for op, row in enumerate(self.problem.inplace.lists()):
            dying = [v for v in row if self.last[v] == op - self.host]
            if op >= self.host and dying:
                found[op - self.host] = dying[0]
        return found

    @cached_property
    def crossing(self) -> dict[int, tuple[float, int]]:
        """Per place: time and bytes of the values that go over it."""
        found = {}
        for place in self.places:
            over = (self.made >= 0) & (self.made < place) & (self.last >= place)
            tails = {int(v) for v in self.made[over & (self.last < self.graph.count)]}
            found[place] = float(self.graph.out[sorted(tails)].sum()), int(self.size[over].sum())
        return found

    def load(self, name: str, i: int, j: int) -> float:
        """Of a device with the stretch from i to before j."""
        cpu = self.names.index(name) >= self.graph.accelerators
        if not cpu and not self.graph.supported[i:j].all():
            return inf
        compute = float((self.graph.cpu if cpu else self.graph.acc)[i:j].sum())
        return compute + self.crossing[i][0] + self.crossing[j][0]

    def bytes(self, i: int, j: int, in_flight: int) -> int:
        """Of a device with the stretch from i to before j."""
        problem, host = self.problem, self.host
        weights = {w for row in problem.uses.lists()[host + i : host + j] for w in row}
        base = int(problem.weight[sorted(weights)].sum())
        names = {name for row in self.given[host + i : host + j] for name in row}
        inputs = sum(self.inputs[name].bytes for name in names)
        come = self.worst(i, j) + inputs
        waits = inputs + (self.crossing[i][1] if i else 0)
        outputs = int(self.size[self.problem.keep & (self.made >= i) & (self.made < j)].sum())
        rows = [come, *[waits] * (QUEUE + 1), *[outputs] * in_flight, *[inputs] * in_flight]
        return base + sum(sorted(rows, reverse=True)[:in_flight])

    def worst(self, i: int, j: int) -> int:
        """What a session of the stretch holds at its worst op, weights aside."""
        inside = np.flatnonzero((self.made >= i) & (self.made < j))
        change = np.zeros(j - i + 1, np.int64)
        end = np.where(self.last[inside] < j, self.last[inside] + 1, j)
        np.add.at(change, self.made[inside] - i, self.size[inside])
        np.add.at(change, end - i, -self.size[inside])
        held = np.cumsum(change)[:-1] + self.work[i:j]
        takes = self.takes[i:j]
        taken = (takes >= 0) & (self.made[takes] >= i)
        held = held - np.where(taken, self.size[takes], 0)
        return int(held.max(initial=0)) + (self.crossing[i][1] if i else 0)

    def best(
        self, names: Sequence[str], limits: Mapping[str, int], in_flight: int, below: float
    ) -> Cut | None:
        """The cut of least load over these devices in this order, all of them with a stretch."""
        places, fits = self.places, self._fits(limits, in_flight)
        value: Floats = np.full((len(names) + 1, len(places)), inf)
        value[0, 0] = 0.0
        came = np.zeros((*value.shape, 2), np.int64)  # devices of the stretch, its first place
        for number, name in enumerate(names):
            for a in np.flatnonzero(value[number] < below).tolist():
                for count, b in product(
                    range(1, self._together(names[number:]) + 1), range(a + 1, len(places))
                ):
                    i, j = places[a], places[b]
                    load = max(float(value[number, a]), self.load(name, i, j) / count)
                    better = load < min(below, float(value[number + count, b]))
                    if better and fits(names[number : number + count], i, j):
                        value[number + count, b], came[number + count, b] = load, (count, a)
        if not value[-1, -1] < below:
            return None
        stages: list[tuple[tuple[str, ...], int, int]] = []
        number, b = len(names), len(places) - 1
        while number:
            count, a = came[number, b].tolist()
            stages.append((tuple(names[number - count : number]), places[a], places[b]))
            number, b = number - count, a
        where = [0] * self.graph.count
        for stage, (_, i, j) in enumerate(reversed(stages)):
            where[i:j] = [stage] * (j - i)
        rows = [row for row, _, _ in reversed(stages)]
        further = {row[0]: row[1:] for row in rows if len(row) > 1}
        return Cut(float(value[-1, -1]), where, tuple(row[0] for row in rows), further)

    def _together(self, names: Sequence[str]) -> int:
        """How many of the first devices can have a stretch together: processors that are alike."""
        if self.machine.device(names[0]).provider != CPU:
            return 1
        kinds = [self.names.index(n) < self.graph.accelerators for n in names[: self.replicas]]
        return next((n for n, kind in enumerate(kinds) if kind != kinds[0]), len(kinds))

    def _fits(
        self, limits: Mapping[str, int], in_flight: int
    ) -> Callable[[Sequence[str], int, int], bool]:
        known: dict[tuple[int, int, int], int] = {}

        def fits(names: Sequence[str], i: int, j: int) -> bool:
            limit = min((limits[name] for name in names if name in limits), default=None)
            if limit is None:
                return True
            key = i, j, -(-in_flight // len(names))
            if key not in known:
                known[key] = self.bytes(*key)
            return known[key] <= limit

        return fits
