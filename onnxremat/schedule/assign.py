"""Plans over devices from an assignment of ops: who runs what, and moves where that needs them."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from onnxremat.device.machine import Machine
from onnxremat.errors import UsageError
from onnxremat.graph.ir import Graph
from onnxremat.graph.traits import is_alias
from onnxremat.schedule.devices import freed
from onnxremat.schedule.plan import Compute, Plan, Provenance, Step, Transfer

Costs = Mapping[str, Mapping[str, float]]  # device -> op -> seconds; absent: it cannot run there


def split(graph: Graph, devices: Sequence[str], seconds: Mapping[str, float]) -> dict[str, str]:
    """The listed order cut into as many stretches as there are devices, of about equal time."""
    total = sum(seconds.get(op.name, 0.0) for op in graph.ops) or 1.0
    found, passed = {}, 0.0
    for op in graph.ops:
        found[op.name] = devices[min(len(devices) - 1, int(passed / total * len(devices)))]
        passed += seconds.get(op.name, 0.0)
    return found


def round_robin(graph: Graph, devices: Sequence[str], stretch: int = 1) -> dict[str, str]:
    """Devices in turn, each for ``stretch`` ops of the listed order."""
    return {op.name: devices[index // stretch % len(devices)] for index, op in enumerate(graph.ops)}


def by_pattern(graph: Graph, pins: Sequence[tuple[str, str]], default: str) -> dict[str, str]:
    """The device of the first pattern that an op's name (or type) matches.

    Args:
        pins: (pattern, device), patterns with ``*`` and ``?``.

    Raises:
        UsageError: a pattern that matches no op.
    """
    found, used = {}, set()
    for op in graph.ops:
        device = default
        for pattern, wanted in pins:
            if fnmatchcase(op.name, pattern) or fnmatchcase(op.op_type, pattern):
                device = wanted
                used.add(pattern)
                break
        found[op.name] = device
    for pattern, _ in pins:
        if pattern not in used:
            raise UsageError(
                f"pattern '{pattern}' matches no op", hint="onnxremat profile IN lists the ops"
            )
    return found


def earliest_finish(graph: Graph, machine: Machine, costs: Costs) -> Plan:
    """Each op, most urgent first, on the device where it finishes first, moves included.

    Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for
    heterogeneous computing", 2002 (HEFT, without insertion into gaps). Views stay with their
    value. The plan's seconds are those with devices and links side by side; memory is not looked
    at.

    Raises:
        UsageError: an op that no device runs, or a link that is missing.
    """
    names = [d.name for d in machine.devices if d.computes]
    urgency = _urgency(graph, machine, costs, names)
    before = graph.predecessors()
    free = dict.fromkeys(names, 0.0)
    done: dict[int, tuple[str, float, float]] = {}  # op -> device, start, end
    for index in sorted(range(len(graph.ops)), key=lambda i: (-urgency[i], i)):
        op = graph.ops[index]
        choices = []
        for name in _able(op.name, names, costs):
            ready = free[name]
            for p in before[index]:
                where, _, end = done[p]
                ready = max(ready, end + _travel(graph, machine, p, index, where, name))
            choices.append((ready + costs[name][op.name], name, ready))
        finish, chosen, start = min(choices)
        if is_alias(op) and before[index]:
            home = done[before[index][0]][0]
            staying = (choice for choice in choices if choice[1] == home)
            finish, chosen, start = next(staying, (finish, chosen, start))
        free[chosen] = finish
        done[index] = (chosen, start, finish)
    order = sorted(done, key=lambda i: (done[i][1], -urgency[i], i))
    device_of = {graph.ops[i].name: where for i, (where, _, _) in done.items()}
    makespan = max((end for _, _, end in done.values()), default=0.0)
    total = sum(costs[device][op] for op, device in device_of.items())
    provenance = Provenance("earliest-finish", seconds=makespan, store_all_seconds=total)
    return _plan(graph, _topological(order, before), device_of, machine, provenance)


def _topological(order: Sequence[int], before: Sequence[Sequence[int]]) -> list[int]:
    """The order with ops that cost nothing behind what they read (equal start times)."""
    done: set[int] = set()
    found: list[int] = []

    def emit(index: int) -> None:
        if index not in done:
            done.add(index)
            for p in before[index]:
                emit(p)
            found.append(index)

    for index in order:
        emit(index)
    return found


def _able(op: str, names: Sequence[str], costs: Costs) -> list[str]:
    found = [name for name in names if op in costs.get(name, {})]
    if not found:
        raise UsageError(f"no device of the machine runs op '{op}'")
    return found


def _travel(
    graph: Graph, machine: Machine, first: int, second: int, source: str, target: str
) -> float:
    if source == target:
        return 0.0
    link = machine.link(source, target)
    wanted = set(graph.ops[second].reads)
    sizes = [graph.tensors[name].bytes for name in graph.ops[first].writes if name in wanted]
    return sum(link.seconds(size) for size in sizes)


def _urgency(graph: Graph, machine: Machine, costs: Costs, names: Sequence[str]) -> list[float]:
    """Seconds from the start of each op to the end of the model, on average over devices."""
    before = graph.predecessors()
    pairs = [(a, b) for a in names for b in names if a != b and machine.linked(a, b)]
    rank = [0.0] * len(graph.ops)
    after = [0.0] * len(graph.ops)
    for index in reversed(range(len(graph.ops))):
        op = graph.ops[index]
        rows = [costs[name][op.name] for name in _able(op.name, names, costs)]
        rank[index] = sum(rows) / len(rows) + after[index]
        for p in before[index]:
            moves = [_travel(graph, machine, p, index, a, b) for a, b in pairs]
            share = sum(moves) / len(moves) if moves else 0.0
            after[p] = max(after[p], rank[index] + share)
    return rank


def assigned(
    graph: Graph,
    device_of: Mapping[str, str],
    machine: Machine,
    costs: Costs | None = None,
    provenance: Provenance | None = None,
) -> Plan:
    """A plan that runs every op once on its device, in the order in which ops can start when
    devices and links work side by side; a value is moved as soon as it is made.

    Args:
        device_of: op name to device name.
        costs: seconds per device and op; without them all ops count alike.

    Raises:
        UsageError: an op without a device, an unknown device, or a missing link.
    """
    for op in graph.ops:
        if op.name not in device_of:
            raise UsageError(f"op '{op.name}' has no device")
        machine.device(device_of[op.name])
    order = _start_order(graph, device_of, machine, costs or {})
    return _plan(graph, order, device_of, machine, provenance or Provenance("assignment"))


def _plan(
    graph: Graph,
    order: Sequence[int],
    device_of: Mapping[str, str],
    machine: Machine,
    provenance: Provenance,
) -> Plan:
    steps: list[Step] = []
    for index in order:
        op = graph.ops[index]
        home = device_of[op.name]
        steps.append(Compute(op.name, 0, home))
        for tensor in op.writes:
            users = [device_of[graph.ops[i].name] for i in graph.readers.get(tensor, ())]
            for target in dict.fromkeys(users):
                if target != home:
                    machine.link(home, target)
                    steps.append(Transfer(tensor, home, target))
    return Plan(tuple(freed(graph, steps)), provenance)


def _start_order(
    graph: Graph, device_of: Mapping[str, str], machine: Machine, costs: Costs
) -> list[int]:
    """Ops by start time; on each device the one that has been ready longest, listed first."""
    before = graph.predecessors()
    after: list[list[int]] = [[] for _ in before]
    waiting = [len(row) for row in before]
    for index, row in enumerate(before):
        for p in row:
            after[p].append(index)
    ready: dict[str, list[tuple[float, int]]] = {d: [] for d in machine.names}
    arrival = [0.0] * len(before)
    for index, count in enumerate(waiting):
        if not count:
            heapq.heappush(ready[device_of[graph.ops[index].name]], (0.0, index))
    free = dict.fromkeys(machine.names, 0.0)
    order = []
    while any(ready.values()):
        begin, device = min((max(free[d], heap[0][0]), d) for d, heap in ready.items() if heap)
        # Of the ops that could start by then, the one listed first.
        chosen = min((i for i in ready[device] if i[0] <= begin), key=lambda item: item[1])
        ready[device].remove(chosen)
        heapq.heapify(ready[device])
        index = chosen[1]
        order.append(index)
        name = graph.ops[index].name
        free[device] = begin + costs.get(device, {}).get(name, 1e-5)
        for reader in after[index]:
            target = device_of[graph.ops[reader].name]
            travel = _travel(graph, machine, index, reader, device, target)
            arrival[reader] = max(arrival[reader], free[device] + travel)
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready[target], (arrival[reader], reader))
    return order
