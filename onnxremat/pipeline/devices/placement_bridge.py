"""Between ONNX graphs with costs and placement graphs, both ways: for ``place`` and for pipelines.

A placement graph knows two kinds of devices: accelerators, which pay for what crosses their border
and have a memory limit, and CPUs. Devices of one provider, options and number of threads are alike.
Where all are alike, all are accelerators; of two kinds the one of onnxruntime's own kernels are the
CPUs. Its nodes are the ops of the graph but views (Reshape and the like), which go with what they
show (:mod:`onnxremat.placement.from_problem`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from onnxremat.cost.boundaries import traffic_seconds
from onnxremat.cost.table import CostTable
from onnxremat.device.machine import PROVIDERS, Device, Machine
from onnxremat.errors import UnsupportedError
from onnxremat.pipeline.devices.device_plan import DeviceModel, with_views
from onnxremat.placement.from_problem import Kinds, Ops, graph_of
from onnxremat.placement.graph import PlacementGraph
from onnxremat.planner.problem import Floats, Problem
from onnxremat.schedule.plan import Compute, Plan, Provenance, Step, Transfer

MOST_ALIKE = 6  # devices of one kind, all orders of which are tried


@dataclass(frozen=True)
class Bridge:
    """A model on a machine as a placement graph.

    Attributes:
        model: the planner's numbers of it.
        graph: node i is op ``model.problem.host_inputs + i``.
        devices: names by the number that placements use: accelerators, then CPUs.
    """

    model: DeviceModel
    graph: PlacementGraph
    devices: tuple[str, ...]

    def orders(self, order: Sequence[int]) -> list[tuple[str, ...]]:
        """Devices, stage by stage, in all ways that the placement graph does not tell apart.

        Args:
            order: device numbers, stage by stage.
        """
        count = self.graph.accelerators
        kinds = [self.devices[:count], self.devices[count:]]
        rows: list[list[tuple[str, ...]]] = []
        for kind in kinds:
            many = len(kind) > MOST_ALIKE
            rows.append([kind] if many else list(permutations(kind)))
        found = [(*first, *second) for first in rows[0] for second in rows[1]]
        return list(dict.fromkeys(tuple(names[d] for d in order) for names in found))

    def plan(
        self,
        where: Sequence[int],
        order: Sequence[int],
        names: Sequence[str],
        runs: Mapping[int, Sequence[int]] | None = None,
    ) -> Plan:
        """The plan of stages one after the other, what a later stage on another device reads sent
        to it at the end of the stage that makes it.

        Args:
            where: device number per node, or that of its stage.
            order: these numbers, stage by stage.
            names: of the devices, stage by stage; one can have several.
            runs: of stages that recompute, the nodes as they run, by stage; others run theirs once.

        Raises:
            UnsupportedError: an op is on a device that it cannot run on.
            UsageError: the machine has no link that is needed.
        """
        problem, machine = self.model.problem, self.model.machine
        stage = {device: number for number, device in enumerate(order)}
        at = [0] * problem.host_inputs + [stage[int(device)] for device in where]
        for op in range(problem.host_inputs, problem.ops):
            if not np.isfinite(problem.cost[problem.names.index(names[at[op]]), op]):
                raise UnsupportedError(
                    f"op '{self.model.names.ops[op]}' does not run on '{names[at[op]]}'",
                    why="no other device has room for it",
                    hint="give the others more memory (--budget)",
                )
        steps: list[Step] = []
        for number, name in enumerate(names):
            ops = [op for op in range(problem.host_inputs, problem.ops) if at[op] == number]
            before = Counter[int]()
            again = [problem.host_inputs + node for node in (runs or {}).get(number, ())]
            for op in again or ops:
                steps.append(Compute(self.model.names.ops[op], before[op], name))
                before[op] += 1
            for value, readers in _readers(problem, ops).items():
                reading = [names[later] for later in sorted({at[op] for op in readers})]
                for target in dict.fromkeys(other for other in reading if other != name):
                    machine.link(name, target)
                    steps.append(Transfer(self.model.names.values[value], name, target))
        steps = with_views(self.model.graph, self.model.reduced, steps)
        return Plan(tuple(steps), Provenance())


def bridge(
    model: DeviceModel,
    tables: Mapping[str, CostTable],
    limits: Mapping[str, int],
    forward: Set[str] | None = None,
    *,
    lumped: bool = False,
) -> Bridge:
    """The placement graph of a model on a machine.

    Args:
        tables: costs per computing device.
        limits: bytes per device that has a limit; the largest of the accelerators holds for all.
        forward: names of the ops of the forward pass; all when None.
        lumped: see :func:`~onnxremat.placement.from_problem.graph_of`.

    Raises:
        UnsupportedError: more than two kinds of devices, or devices of one kind that are not alike.
    """
    problem, host = model.problem, model.problem.host_inputs
    accelerators, cpus = kinds(model.machine)
    at = problem.names.index
    names = tuple(str(name) for name in model.names.ops[host:])
    ahead = [forward is None or name in forward for name in names]
    known = [limits[name] for name in accelerators if name in limits]
    memory = max(known) if len(known) == len(accelerators) else None
    graph = graph_of(
        problem, Kinds(tuple(map(at, accelerators)), tuple(map(at, cpus))),
        Ops(names, ahead, _moving(model, tables)[host:]), memory, lumped=lumped,
    )  # fmt: skip
    return Bridge(model, graph, (*accelerators, *cpus))


def kinds(machine: Machine) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the accelerators and of the CPUs of a machine.

    Raises:
        UnsupportedError: more than two kinds of devices.
    """
    found: dict[object, list[str]] = {}
    for device in machine.devices:
        if device.computes:
            found.setdefault(_kind(device), []).append(device.name)
    rows = [tuple(row) for row in found.values()]
    if len(rows) == 1:
        return rows[0], ()
    plain = [row for row in rows if machine.device(row[0]).provider == PROVIDERS["cpu"]]
    if len(rows) > 2 or len(plain) != 1:
        raise UnsupportedError(
            f"machine '{machine.name}' has devices of {len(rows)} kinds, placements know two: "
            "accelerators, all alike, and CPUs, all alike",
            why="; ".join(", ".join(row) for row in rows),
            hint="a machine file with one kind, or with one kind beside cpu devices",
        )
    return next(row for row in rows if row is not plain[0]), plain[0]


def _kind(device: Device) -> object:
    return device.provider, device.threads, tuple(sorted(device.options.items()))


def _readers(problem: Problem, ops: Sequence[int]) -> dict[int, list[int]]:
    """Ops that read each value that one of some ops makes."""
    found: dict[int, list[int]] = {v: [] for op in ops for v in problem.writes.lists()[op]}
    for op, row in enumerate(problem.reads.lists()):
        for value in row:
            if value in found:
                found[value].append(op)
    return found


def _moving(model: DeviceModel, tables: Mapping[str, CostTable]) -> Floats:
    """Seconds that a device loses at least by an output of each op that goes to another device or
    comes from it: its bytes are read from memory. Over links that copy, what the link takes."""
    problem, machine = model.problem, model.machine
    size = problem.size.max(axis=0).tolist()
    seconds = np.asarray(
        [min(traffic_seconds(table, read=count) for table in tables.values()) for count in size]
    )
    for link in machine.links:
        if not link.shared:
            pair = problem.names.index(link.source), problem.names.index(link.target)
            seconds = np.maximum(seconds, problem.copy[pair])
    read = {value for row in problem.reads.lists() for value in row}
    return np.asarray([sum(float(seconds[v]) for v in row if v in read)
                       for row in problem.writes.lists()])  # fmt: skip
