"""A chain of stages along the listed order within memory: which stretch is whose.

A placement graph knows of memory only what an op takes for good. Here a stretch holds its weights,
what its session needs at its worst op, and the values of samples that wait before it; the least
largest load over all cuts (of at most :data:`PLACES` places) is found by a dynamic program over
(devices used, place). A stretch may be on several devices that are alike, which take samples in
turn: each has its load over their number, and holds its share of the samples. One on a device alone
that is over its bytes may recompute: it takes its plain load at least, and what the planner needs
(:mod:`onnxremat.pipeline.devices.stage_remakes`) is asked for the stretches that the best cut has,
until that has none that are not known. What it answers is deployed and judged by the simulator, as
other plans are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations, product
from math import inf
from typing import TypeAlias

import numpy as np

from onnxremat.execute.cyclic import QUEUE
from onnxremat.ort.providers import CPU
from onnxremat.pipeline.devices.device_plan import DeviceModel
from onnxremat.pipeline.devices.placement_bridge import Bridge
from onnxremat.pipeline.devices.stage_remakes import Remade, Remakes
from onnxremat.placement.from_problem import UNIT
from onnxremat.planner.problem import Floats, Ints

PLACES = 120  # where the order may be cut
MOST = 4  # devices all orders of which are tried

Stage: TypeAlias = tuple[tuple[str, ...], int, int]  # devices, first node, node behind the last


@dataclass(frozen=True)
class Cut:
    """A chain along the listed order.

    Attributes:
        value: largest load, in the unit of placement graphs.
        where: stage per node of the placement graph.
        names: first device of each stage.
        replicas: of stages on several devices, the further ones by the first.
        runs: of stages that recompute, the nodes as they run, by stage.
    """

    value: float
    where: list[int]
    names: tuple[str, ...]
    replicas: Mapping[str, tuple[str, ...]]
    runs: Mapping[int, tuple[int, ...]]


def along_order(
    model: DeviceModel,
    made: Bridge,
    limits: Mapping[str, int],
    in_flight: int,
    replicas: int | None = 1,
    remakes: Remakes | None = None,
) -> Cut | None:
    """The cut of least load whose stretches fit their devices with so many samples in flight, as
    far as can be told before it is deployed; None where there is none.

    Args:
        replicas: most devices of one stretch, None for all.
        remakes: what recomputation takes; None for none.
    """
    order = _Order(model, made, len(made.devices) if replicas is None else replicas)
    best: Cut | None = None
    within = _Within(order, limits, in_flight, remakes)
    for names in _chains(made, limits):
        found = order.best(names, within, best.value if best else inf)
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
        self.need = self._needs()
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

    def _needs(self) -> Ints:
        """Per op the bytes of what it makes and its workspace: less no plan can do with."""
        rows = self.problem.writes.lists()[self.host :]
        made = np.asarray([int(self.size[row].sum()) for row in rows], np.int64)
        taken = np.where(self.takes >= 0, self.size[self.takes], 0)
        return np.asarray(self.work + np.maximum(0, made - taken))

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

    def room(self, i: int, j: int, in_flight: int, limit: int) -> int:
        """Bytes for what a device with the stretch from i to before j makes, at its worst op,
        beside weights, what it reads, and samples that wait."""
        problem, host = self.problem, self.host
        weights = {w for row in problem.uses.lists()[host + i : host + j] for w in row}
        base = int(problem.weight[:, sorted(weights)].sum(axis=1).max())  # the same on all
        names = {name for row in self.given[host + i : host + j] for name in row}
        inputs = sum(self.inputs[name].bytes for name in names)
        comes = self.crossing[i][1] if i else 0
        outputs = int(self.size[self.problem.keep & (self.made >= i) & (self.made < j)].sum())
        waits = [*[inputs + comes] * (QUEUE + 1), *[outputs] * in_flight, *[inputs] * in_flight]
        waits.sort(reverse=True)
        beside = base + sum(waits[: in_flight - 1])
        # Where the working sample holds less than one that waits, that one counts in its place.
        return limit - beside - inputs - comes if beside + waits[in_flight - 1] <= limit else -1

    def worst(self, i: int, j: int) -> int:
        """What a session of the stretch makes and holds at its worst op."""
        inside = np.flatnonzero((self.made >= i) & (self.made < j))
        change = np.zeros(j - i + 1, np.int64)
        end = np.where(self.last[inside] < j, self.last[inside] + 1, j)
        np.add.at(change, self.made[inside] - i, self.size[inside])
        np.add.at(change, end - i, -self.size[inside])
        held = np.cumsum(change)[:-1] + self.work[i:j]
        takes = self.takes[i:j]
        taken = (takes >= 0) & (self.made[takes] >= i)
        held = held - np.where(taken, self.size[takes], 0)
        return int(held.max(initial=0))

    def best(self, names: Sequence[str], within: _Within, below: float) -> Cut | None:
        """The cut of least load over these devices in this order, all of them with a stretch."""
        while True:
            value, stages = self._stages(names, within, below)
            unknown = [stage for stage in stages if within.unknown(*stage)]
            for stage in unknown:
                within.remade(*stage)
            if not unknown:
                break
        if not stages:
            return None
        where, runs = [0] * self.graph.count, {}
        for number, (row, i, j) in enumerate(stages):
            where[i:j] = [number] * (j - i)
            made = within.remade(row, i, j)
            if made is not None:
                runs[number] = made.runs
        rows = [row for row, _, _ in stages]
        further = {row[0]: row[1:] for row in rows if len(row) > 1}
        return Cut(value, where, tuple(row[0] for row in rows), further, runs)

    def _stages(
        self, names: Sequence[str], within: _Within, below: float
    ) -> tuple[float, list[Stage]]:
        """The least largest load that is less than ``below`` by what is known, and its stages; none
        where there is none."""
        places = self.places
        value: Floats = np.full((len(names) + 1, len(places)), inf)
        value[0, 0] = 0.0
        came = np.zeros((*value.shape, 2), np.int64)  # devices of the stretch, its first place
        for number, name in enumerate(names):
            for a in np.flatnonzero(value[number] < below).tolist():
                for count, b in product(
                    range(1, self._together(names[number:]) + 1), range(a + 1, len(places))
                ):
                    i, j = places[a], places[b]
                    before, least = float(value[number, a]), self.load(name, i, j) / count
                    enough = min(below, float(value[number + count, b]))
                    if max(before, least) < enough:
                        row = tuple(names[number : number + count])
                        load = max(before, least + within.more(row, i, j))
                        if load < enough:
                            value[number + count, b] = load
                            came[number + count, b] = count, a
        if not value[-1, -1] < below:
            return inf, []
        stages: list[Stage] = []
        number, b = len(names), len(places) - 1
        while number:
            count, a = came[number, b].tolist()
            stages.append((tuple(names[number - count : number]), places[a], places[b]))
            number, b = number - count, a
        return float(value[-1, -1]), stages[::-1]

    def _together(self, names: Sequence[str]) -> int:
        """How many of the first devices can have a stretch together: processors that are alike."""
        if self.machine.device(names[0]).provider != CPU:
            return 1
        kinds = [self.names.index(n) < self.graph.accelerators for n in names[: self.replicas]]
        return next((n for n, kind in enumerate(kinds) if kind != kinds[0]), len(kinds))


@dataclass
class _Within:
    """Stretches on devices with limits, with so many samples in flight."""

    order: _Order
    limits: Mapping[str, int]
    in_flight: int
    remakes: Remakes | None
    _rooms: dict[tuple[int, int, int, int], tuple[int, bool]] = field(default_factory=dict)

    def more(self, names: tuple[str, ...], i: int, j: int) -> float:
        """What the load is above the plain one, ``inf`` where the stretch does not fit; 0, too,
        where that is not known yet."""
        room, fits = self._room(names, i, j)
        if fits:
            return 0.0
        if len(names) > 1 or self.remakes is None or room < int(self.order.need[i:j].max()):
            return inf
        device = self.order.problem.names.index(names[0])
        if not self.remakes.known(device, i, j, room):
            return 0.0
        made, first = self.remakes.within(device, i, j, room), self.order.host + i
        if made is None:
            return inf
        once = float(self.order.problem.cost[device, first : first + j - i].sum())
        return max(0.0, made.seconds - once) / UNIT

    def unknown(self, names: tuple[str, ...], i: int, j: int) -> bool:
        """Over the limit, and not asked for yet."""
        room, fits = self._room(names, i, j)
        device = self.order.problem.names.index(names[0])
        return not (fits or self.remakes is None or self.remakes.known(device, i, j, room))

    def remade(self, names: tuple[str, ...], i: int, j: int) -> Remade | None:
        """How a stretch runs that is over its limit, None where it is not or cannot; planned where
        that is not known."""
        room, fits = self._room(names, i, j)
        if fits or self.remakes is None:
            return None
        return self.remakes.within(self.order.problem.names.index(names[0]), i, j, room)

    def _room(self, names: tuple[str, ...], i: int, j: int) -> tuple[int, bool]:
        """Bytes for what a stretch makes, and whether it needs no more without recomputation."""
        limit = min((self.limits[name] for name in names if name in self.limits), default=None)
        if limit is None:
            return 0, True
        key = i, j, -(-self.in_flight // len(names)), limit
        if key not in self._rooms:
            room = self.order.room(*key)
            self._rooms[key] = room, self.order.worst(i, j) <= room
        return self._rooms[key]
