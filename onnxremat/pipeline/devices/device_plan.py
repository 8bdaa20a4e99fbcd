"""From a graph and a machine to the device planner's numbers, and from its answer to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import inf

import numpy as np

from onnxremat.cost.boundaries import arriving_seconds, crossing_seconds, leaving_seconds
from onnxremat.cost.table import CostTable
from onnxremat.device.machine import Machine
from onnxremat.errors import UsageError
from onnxremat.graph.ir import Graph, Op, Role
from onnxremat.limits import check
from onnxremat.pipeline.devices.kept_of_ops import kept_of_ops
from onnxremat.pipeline.devices.site import Site
from onnxremat.pipeline.devices.state_homes import state_homes
from onnxremat.planner.makespan import timing
from onnxremat.planner.on_devices import MOST, Devices, HostInput, on_devices
from onnxremat.planner.plan_steps import Names, to_plan
from onnxremat.planner.problem import Bytes, Floats, Problem, Rows
from onnxremat.planner.reduce import Reduced, reduce
from onnxremat.planner.schedule import InvalidScheduleError, Schedule
from onnxremat.planner.semantics import peaks
from onnxremat.schedule.plan import Compute, Free, Plan, Provenance, Step, Transfer


@dataclass(frozen=True)
class DeviceModel:
    """The planner's numbers for a graph on a machine, and what they are called.

    Attributes:
        reduced: the reduction of the graph: views (Reshape and the like) are contracted.
        problem: ops of ``reduced`` on every device, behind one op per graph input.
        names: of its ops and values.
    """

    graph: Graph
    machine: Machine
    reduced: Reduced
    problem: Problem
    names: Names

    def plan(self, schedule: Schedule, provenance: Provenance, limits: Sequence[int]) -> Plan:
        """The plan of a schedule: steps by the time they start, views put back.

        Args:
            limits: bytes per device, that sorting must not break.
        """
        schedule = by_start(self.problem, schedule, limits)
        plan = to_plan(self.problem, schedule, self.names, provenance)
        return replace(plan, steps=tuple(with_views(self.graph, self.reduced, plan.steps)))


def device_model(
    graph: Graph,
    site: Site,
    tables: Mapping[str, CostTable],
    pairs: Sequence[tuple[str, str]] = (),
    per_byte: Mapping[str, float] | None = None,
) -> DeviceModel:
    """Numbers for the device planner.

    Args:
        site: by its limits state is divided between devices that hold it.
        tables: costs per computing device; an op that is not in a table cannot run there.
        pairs: (input, output) tensors that share a buffer: the new value takes none of its own.
        per_byte: bytes that devices keep for each that an op writes there, where that was seen.

    Raises:
        UsageError: a pattern matches no op, an op can run on no device, or too many devices.
    """
    machine, pins = site.machine, site.pins
    check(
        len(machine.devices), MOST, "devices to plan for", where=f"machine '{machine.name}'",
        hint="a machine file with fewer", kind=UsageError,
    )  # fmt: skip
    # A device would have to be given the computed shapes of views that it shows.
    reduced = reduce(graph, next(iter(tables.values())), 0, computed=False)
    ops = [graph.ops[i] for i in reduced.index]
    root = _roots(graph, reduced)
    cost, work = _costs(reduced, machine, tables)
    _check_pins(graph, ops, machine, pins)
    allowed = _allowed(ops, machine, pins)
    able = _updating(ops, machine, pairs, allowed & np.isfinite(cost))
    homes = state_homes(graph, machine, pairs, site.limits, able)
    allowed &= _at_home(ops, machine, pairs, homes)
    for index, op in enumerate(ops):
        if not np.isfinite(np.where(allowed, cost, np.inf)[:, index]).any():
            raise UsageError(
                f"op '{op.name}' ({op.op_type}) can run on no device that it may run on",
                hint="change --pin, or add a device whose provider has this operator",
            )
    _check_links(ops, machine, np.where(allowed, cost, np.inf))
    weights = [n for n, t in graph.tensors.items() if t.role is Role.WEIGHT]
    place = {name: index for index, name in enumerate(weights)}
    reads = [[root.get(name, name) for name in op.reads] for op in ops]
    uses = [[place[name] for name in dict.fromkeys(row) if name in place] for row in reads]
    kept = kept_of_ops(graph, ops, site, per_byte or {})
    if kept.size:  # as weights that the ops of a device read: all of them one, and each its own
        uses = [[*row, len(weights), len(weights) + 1 + op] for op, row in enumerate(uses)]
    values = [name for op in ops for name in op.writes]
    updated = {new for _, new in pairs}
    size = [0 if name in updated else graph.tensors[name].bytes for name in values]
    inputs = {
        name: homes.get(name, "")
        for name in graph.inputs
        if any(name in row for row in reads) and (name in homes or not _reachable(machine))
    }
    problem = on_devices(replace(reduced.problem, size=np.asarray([size], np.int64)), Devices(cost,
        np.stack([_copy_seconds(machine, tables, graph.tensors[n].bytes) for n in values], axis=2),
        names=machine.names,
        work=work,
        allowed=allowed,
        uses=Rows.of(uses),
        weight=_weights(graph, weights, kept),
        fixed=np.asarray(
            [sum(graph.tensors[n].bytes for n, at in homes.items() if at == d)
             + site.counted.given.get(d, 0) for d in machine.names], np.int64),
        host_inputs=[
            _given(graph, machine, tables, name, home, reads) for name, home in inputs.items()
        ],
        copy_busy=_tolls(machine, tables, [graph.tensors[n].bytes for n in values])))  # fmt: skip
    names = Names([*inputs, *(op.name for op in ops)], [*values, *inputs])
    return DeviceModel(graph, machine, reduced, problem, names)


def _weights(graph: Graph, weights: Sequence[str], kept: Bytes) -> Bytes:
    """Bytes of weights, and of what is kept, on each device."""
    own = np.asarray([graph.tensors[name].bytes for name in weights], np.int64)
    return np.hstack([np.tile(own, (len(kept), 1)), kept])


def _costs(
    reduced: Reduced, machine: Machine, tables: Mapping[str, CostTable]
) -> tuple[Floats, Floats]:
    """Seconds and workspace per device and op; a view's seconds are those of what it shows."""
    ops = reduced.graph.ops
    place = {index: at for at, index in enumerate(reduced.index)}
    views = [(ops[view].name, place[at]) for view, at in reduced.view.items() if at is not None]
    cost = np.full((len(machine.devices), len(place)), np.inf)
    work = np.zeros((len(machine.devices), len(place)))
    for row, device in enumerate(machine.devices):
        table = tables.get(device.name)
        if table is not None:
            names = [ops[index].name for index in reduced.index]
            cost[row] = [table.seconds.get(name, np.inf) for name in names]
            work[row] = [table.scratch.get(name, 0) for name in names]
            for name, at in views:
                cost[row, at] += table.seconds.get(name, 0.0)
    return cost, work


def _check_links(ops: Sequence[Op], machine: Machine, cost: Floats) -> None:
    """What an op makes can come to where its readers run.

    Raises:
        UsageError: no links lead there.
    """
    able = {
        op.name: frozenset(np.flatnonzero(np.isfinite(cost[:, index])).tolist())
        for index, op in enumerate(ops)
    }
    made = {name: op.name for op in ops for name in op.writes}
    fine: dict[tuple[frozenset[int], frozenset[int]], bool] = {}
    for op in ops:
        for maker in (made[name] for name in op.reads if name in made):
            ends = able[maker], able[op.name]
            if ends not in fine:
                fine[ends] = bool(_reached(machine, ends[0]) & ends[1])
            if not fine[ends]:
                first, second = (
                    " or ".join(f"'{machine.names[d]}'" for d in sorted(end)) for end in ends
                )
                raise UsageError(
                    f"machine '{machine.name}' has no link from {first} to {second}",
                    where=f"op '{op.name}' reads what op '{maker}' makes",
                    hint="add a [[link]] to the machine file, or change --pin",
                )


def _reached(machine: Machine, start: frozenset[int]) -> frozenset[int]:
    """Devices that links lead to from some."""
    found, todo = set(start), list(start)
    while todo:
        source = machine.names[todo.pop()]
        for index, target in enumerate(machine.names):
            if index not in found and machine.linked(source, target):
                found.add(index)
                todo.append(index)
    return frozenset(found)


def _reachable(machine: Machine) -> bool:
    """Every device reads the caller's arrays where they lie: inputs need no step of a plan."""
    return all(device.in_host_memory for device in machine.devices if device.computes)


def _given(
    graph: Graph,
    machine: Machine,
    tables: Mapping[str, CostTable],
    name: str,
    home: str,
    reads: Sequence[Sequence[str]],
) -> HostInput:
    """A graph input that other devices get by a copy."""
    host = next(d.name for d in machine.devices if d.computes and d.in_host_memory)
    readers = tuple(index for index, row in enumerate(reads) if name in row)
    size = graph.tensors[name].bytes
    seconds = _copy_seconds(machine, tables, size)
    return HostInput(size, machine.names.index(home or host), readers, seconds)


def _updating(
    ops: Sequence[Op], machine: Machine, pairs: Sequence[tuple[str, str]], can: np.ndarray
) -> dict[str, list[str]]:
    """State input to the devices that can run the op that makes its new value; without those of
    ops that run nowhere, which are refused by themselves."""
    made = {name: index for index, op in enumerate(ops) for name in op.writes}
    rows = {old: can[:, made[new]] for old, new in pairs if new in made}
    return {
        old: [name for name, able in zip(machine.names, row, strict=True) if able]
        for old, row in rows.items()
        if row.any()
    }


def _at_home(
    ops: Sequence[Op],
    machine: Machine,
    pairs: Sequence[tuple[str, str]],
    homes: Mapping[str, str],
) -> np.ndarray:
    """State is updated where it lives."""
    home = {new: homes[old] for old, new in pairs if old in homes}
    allowed = np.ones((len(machine.devices), len(ops)), bool)
    for index, op in enumerate(ops):
        for name in op.writes:
            if name in home:
                allowed[:, index] = [device == home[name] for device in machine.names]
    return allowed


def _roots(graph: Graph, reduced: Reduced) -> dict[str, str]:
    """Result of a contracted view to the value, input or weight it shows."""
    root: dict[str, str] = {}
    for index in sorted(reduced.view):
        op = graph.ops[index]
        root[op.outputs[0]] = root.get(op.inputs[0], op.inputs[0])
    return root


def _check_pins(
    graph: Graph, ops: Sequence[Op], machine: Machine, pins: Sequence[tuple[str, str]]
) -> None:
    """Every pin decides something.

    Args:
        ops: that are planned: those of the graph but views.

    Raises:
        UsageError: one does not.
    """
    for pattern, device in pins:
        if not machine.device(device).computes:
            raise UsageError(f"--pin {pattern}={device}: '{device}' only stores values")
        if not any(_matches(op, pattern) for op in graph.ops):
            raise UsageError(
                f"--pin pattern '{pattern}' matches no op", hint="onnxremat profile IN lists them"
            )
        planned = [op for op in ops if _matches(op, pattern)]
        if not planned:
            raise UsageError(
                f"--pin pattern '{pattern}' matches nothing but views",
                why="they share the memory of what they show, and run where what they show is read",
                hint="pin the ops that read them",
            )
        if device not in {_pinned(op, pins) for op in planned}:
            raise UsageError(
                f"--pin {pattern}={device} decides nothing",
                why="an earlier --pin puts all that it matches elsewhere: the first that matches "
                "an op counts",
                hint="give it before the others",
            )


def _matches(op: Op, pattern: str) -> bool:
    return fnmatchcase(op.name, pattern) or fnmatchcase(op.op_type, pattern)


def _allowed(ops: Sequence[Op], machine: Machine, pins: Sequence[tuple[str, str]]) -> np.ndarray:
    allowed = np.ones((len(machine.devices), len(ops)), bool)
    for index, op in enumerate(ops):
        wanted = _pinned(op, pins)
        if wanted:
            allowed[:, index] = [name == wanted for name in machine.names]
    return allowed


def _pinned(op: Op, pins: Sequence[tuple[str, str]]) -> str:
    """The device that an op has to run on, "" for any."""
    return next((device for pattern, device in pins if _matches(op, pattern)), "")


def _copy_seconds(machine: Machine, tables: Mapping[str, CostTable], size: int) -> Floats:
    """Seconds from each device to each, ``inf`` without a link. Each move ends one session and
    begins another."""

    def one(source: str, target: str) -> float:
        if source == target or not machine.linked(source, target):
            return inf
        crossing = crossing_seconds(tables.get(source), tables.get(target), size)
        return machine.link(source, target).seconds(size) + crossing

    return np.asarray([[one(a, b) for b in machine.names] for a in machine.names])


def _tolls(machine: Machine, tables: Mapping[str, CostTable], sizes: Sequence[int]) -> Floats:
    """Seconds of a move that keep the device it leaves, and the one it comes to, from their ops:
    both end a session and begin another. Shape (2, D, m)."""
    found = np.zeros((2, len(machine.names), len(sizes)))
    for row, name in enumerate(machine.names):
        if name in tables:
            table = tables[name]
            found[0, row] = [leaving_seconds(table, size) for size in sizes]
            found[1, row] = [arriving_seconds(table, size) for size in sizes]
    return found


def by_start(problem: Problem, schedule: Schedule, limits: Sequence[int]) -> Schedule:
    """The steps in the order in which they start when devices and links work side by side; as
    they are where that order would not do, or would need more memory."""
    start = timing(problem, schedule, limits).start
    order = sorted(range(len(schedule.steps)), key=lambda step: (start[step], step))
    found = Schedule(tuple(schedule.steps[step] for step in order), schedule.placement)
    try:
        held = peaks(problem, found)
    except InvalidScheduleError:
        return schedule
    fits = all(peak <= limit for peak, limit in zip(held, limits, strict=True))
    return found if fits else schedule


def with_views(graph: Graph, reduced: Reduced, steps: Sequence[Step]) -> list[Step]:
    """The steps with contracted views run on every device right before they are read there, again
    for every new copy of what they show; those nobody reads run once, where their value is made."""
    return _Views(graph, reduced).put_back(steps)


class _Views:
    def __init__(self, graph: Graph, reduced: Reduced) -> None:
        self.graph = graph
        self.ops = {op.name: op for op in graph.ops}
        self.view = {graph.ops[i].outputs[0]: graph.ops[i] for i in reduced.view}
        self.root = _roots(graph, reduced)
        self.there: dict[str, dict[str, int]] = {}  # device -> value -> which arrival
        self.shown: dict[tuple[str, str], int] = {}  # (device, view) -> arrival it shows
        self.ran: set[str] = set()
        self.count = 0
        self.out: list[Step] = []
        read = {name for op in graph.ops for name in op.reads}
        self.unread = [name for name in self.view if name not in read]

    def put_back(self, steps: Sequence[Step]) -> list[Step]:
        for step in steps:
            if isinstance(step, Free):
                continue  # settled anew when the views are in
            if isinstance(step, Compute):
                for name in self.ops[step.op].reads:
                    if name in self.view:
                        self._show(step.device, name)
                self.out.append(step)
                self._arrive(step.device, self.ops[step.op].writes)
                self._show_unread(step.device, self.ops[step.op].writes)
            else:
                self.out.append(step)
                self._arrive(step.target, (step.tensor,))
        device = next(s.device for s in self.out if isinstance(s, Compute))
        for name in self.unread:
            if name not in self.ran:  # it shows an input or a weight
                self._show(device, name)
        return self.out

    def _arrive(self, device: str, names: Sequence[str]) -> None:
        for name in names:
            self.count += 1
            self.there.setdefault(device, {})[name] = self.count

    def _show(self, device: str, name: str) -> None:
        """Run a view on a device unless it shows the value as it is there now."""
        arrival = self.there.get(device, {}).get(self.root[name], 0)
        if self.shown.get((device, name)) == arrival:
            return
        op = self.view[name]
        if op.inputs[0] in self.view:
            self._show(device, op.inputs[0])
        self.out.append(Compute(op.name, 0, device))
        self.ran.add(name)
        self.shown[device, name] = arrival

    def _show_unread(self, device: str, made: Sequence[str]) -> None:
        for name in self.unread:
            if name not in self.ran and self.root[name] in made:
                self._show(device, name)


def transfers(plan: Plan) -> int:
    """How many moves a plan has."""
    return sum(isinstance(step, Transfer) for step in plan.steps)
