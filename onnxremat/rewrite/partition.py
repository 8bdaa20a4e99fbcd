"""A plan over devices to partitions: stretches of one device that each run as one session.

A device's stretch goes on until a value has to get in or out. It is cut

1. before an op that reads what arrives from another device after the stretch began (the ops before
   it need not wait), or that updates in place what another device reads until then;
2. where a value leaves that another device reads before the stretch would end (it need not wait);
3. where the caller asks: inputs of a partition stay until it is done, so a cut gives memory back.

Rule 1 makes every dependency go from a partition that begins earlier in the plan to one that begins
later: the partitions never wait for each other in a circle, and their order by first step is an
order in which they can run one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import onnx

from onnxremat.device.machine import PROVIDERS, Device
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.order import priority_order, reordered
from onnxremat.graph.subgraph import subgraph
from onnxremat.rewrite.gates import add_gates
from onnxremat.rewrite.openvino import for_openvino
from onnxremat.rewrite.pins import add_pins
from onnxremat.schedule.devices import Followed, Moved, Ran

# Node metadata: where a node runs; the last is onnxruntime's own.
NODE_KEYS = ("onnxremat.device", "onnxremat.partition", "layer_ann")
Key = tuple[str, str, int]  # (value, device that holds it, how often it came there before)


@dataclass(frozen=True)
class Partition:
    """Ops that run as one session on one device.

    Attributes:
        index: position in the order of first steps.
        begin: plan step of its first op.
        graph: the ops as a model of their own: inputs are the graph's and what other partitions
            make, outputs what others need and what the graph returns.
    """

    index: int
    device: str
    begin: int
    graph: Graph = field(repr=False)

    @property
    def name(self) -> str:
        """For files and messages."""
        return f"part{self.index:03d}-{self.device}"


@dataclass(frozen=True)
class Copy:
    """A value brought from one device to another."""

    value: str
    source: str
    target: str
    begin: int


Action = Partition | Copy


@dataclass(frozen=True)
class Partitioned:
    """A model cut to partitions.

    Attributes:
        followed: the plan written out.
        actions: partitions and copies in an order in which they can be carried out one by one.
        pairs: (input, output) tensors that share a buffer.
        cuts: ops before which the caller had it cut as well.
    """

    followed: Followed
    actions: tuple[Action, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    cuts: tuple[str, ...] = ()

    @property
    def graph(self) -> Graph:
        """All ops in plan order."""
        return self.followed.graph

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """In order of their first steps."""
        return tuple(action for action in self.actions if isinstance(action, Partition))

    @cached_property
    def copies(self) -> tuple[Copy, ...]:
        """In plan order."""
        return tuple(action for action in self.actions if isinstance(action, Copy))

    @cached_property
    def uses(self) -> tuple[tuple[tuple[Key, ...], tuple[Key, ...]], ...]:
        """Values each action reads and makes. Graph inputs count only where the plan moved them:
        elsewhere they are the caller's."""
        made = self.graph.producer
        times: dict[tuple[str, str], int] = {}
        rows = []
        for action in self.actions:
            if isinstance(action, Copy):
                asked, came = [(action.value, action.source)], [(action.value, action.target)]
            else:
                asked = [(name, action.device) for name in action.graph.inputs]
                came = [(name, action.device) for name in action.graph.outputs]
            reads = tuple((*at, times[at]) for at in asked if at in times)
            lost = [at for at in asked if at[0] in made and at not in times]
            assert not lost, lost
            for at in came:
                times[at] = times.get(at, -1) + 1
            rows.append((reads, tuple((*at, times[at]) for at in came)))
        return tuple(rows)

    @cached_property
    def in_place(self) -> frozenset[Key]:
        """Values that are written into the buffer of the value they replace."""
        updated = {new for _, new in self.pairs}
        return frozenset(
            key
            for action, (_, writes) in zip(self.actions, self.uses, strict=True)
            for key in writes
            if isinstance(action, Partition) and key[0] in updated
        )

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """Actions that must be done before each action may start, its own stream aside."""
        maker: dict[Key, int] = {}
        rows = []
        updates = {new: old for old, new in self.pairs}
        readers: dict[str, list[int]] = {}
        for index, action in enumerate(self.actions):
            reads, writes = self.uses[index]
            found = {maker[key] for key in reads}
            names = action.graph.inputs if isinstance(action, Partition) else (action.value,)
            if isinstance(action, Partition):
                for new in action.graph.outputs:
                    if new in updates:
                        found |= set(readers.get(updates[new], ()))
            for name in names:
                readers.setdefault(name, []).append(index)
            maker.update(dict.fromkeys(writes, index))
            rows.append(tuple(sorted(found - {index})))
        return tuple(rows)

    @cached_property
    def dies(self) -> tuple[tuple[Key, ...], ...]:
        """Values that nobody uses after each action; graph outputs stay where they end."""
        final = set(self.followed.final.items())
        last: dict[Key, int] = {}
        latest: dict[tuple[str, str], Key] = {}
        for index, (reads, writes) in enumerate(self.uses):
            last.update(dict.fromkeys((*reads, *writes), index))
            latest.update({key[:2]: key for key in writes})
        stay = {latest[at] for at in final}
        rows: list[list[Key]] = [[] for _ in self.actions]
        for key, index in last.items():
            if key not in stay:
                rows[index].append(key)
        return tuple(tuple(row) for row in rows)


def partition(
    followed: Followed,
    *,
    pairs: Sequence[tuple[str, str]] = (),
    cuts: Collection[str] = (),
) -> Partitioned:
    """Cut a plan over devices to partitions.

    Args:
        pairs: (input, output) tensors that a trainer binds to one buffer.
        cuts: names of ops before which to cut as well.

    Raises:
        UnsupportedError: a value that is no tensor would cross between partitions.
    """
    runs: dict[str, list[Ran]] = {}
    for event in followed.events:
        if isinstance(event, Ran):
            runs.setdefault(event.device, []).append(event)
    moves = [event for event in followed.events if isinstance(event, Moved)]
    uses = _uses(followed)
    groups: list[tuple[str, list[Ran]]] = []
    for device, row in runs.items():
        waits = _waits(followed, device, pairs, uses)
        scan = _Scan(device, row, moves, uses, waits, set(cuts))
        groups += [(device, group) for group in scan.groups()]
    groups.sort(key=lambda item: item[1][0].step)
    # A stretch that makes nothing anybody needs is left out.
    rows = [
        (device, group[0].step, graph)
        for (device, group), graph in zip(groups, _graphs(followed, groups, moves), strict=True)
        if graph.outputs
    ]
    actions: list[Action] = [Partition(index, *row) for index, row in enumerate(rows)]
    actions += [Copy(move.value, move.source, move.target, move.step) for move in moves]
    actions.sort(key=lambda action: action.begin)
    return Partitioned(followed, tuple(actions), tuple(pairs), tuple(sorted(cuts)))


class _Scan:
    """Where the ops of one device are cut."""

    def __init__(
        self,
        device: str,
        row: list[Ran],
        moves: list[Moved],
        uses: Mapping[tuple[str, str], Sequence[int]],
        waits: Mapping[str, int],
        cuts: set[str],
    ) -> None:
        self.row, self.cuts = row, cuts
        self.arrivals: dict[str, list[int]] = {}
        for move in moves:
            if move.target == device:
                self.arrivals.setdefault(move.value, []).append(move.step)
        self.sends = [
            (move.step, _next(uses.get((move.value, move.target), []), move.step))
            for move in moves
            if move.source == device
        ]
        self.waits = waits

    def groups(self) -> list[list[Ran]]:
        found = []
        start = 0
        while start < len(self.row):
            end = self._end(start)
            found.append(self.row[start:end])
            start = end
        return found

    def _end(self, start: int) -> int:
        """Index after the last op of the stretch that begins at ``start``."""
        begin = self.row[start].step
        sends = [send for send in self.sends if send[0] > begin]
        for index in range(start + 1, len(self.row)):
            ran = self.row[index]
            late = [self._arrived(name, ran.step) for name in ran.op.reads]
            late.append(self.waits.get(ran.op.name, -1))
            if max(late) > begin or ran.op.name in self.cuts:
                return self._sent(start, index, sends)
            if any(leaves < ran.step and needed < ran.step for leaves, needed in sends):
                return self._sent(start, index, sends)
        return self._sent(start, len(self.row), sends)

    def _arrived(self, value: str, step: int) -> int:
        """Step at which a value last came to the device before ``step``, -1 when it never did."""
        steps = self.arrivals.get(value, [])
        index = bisect_right(steps, step)
        return steps[index - 1] if index else -1

    def _sent(self, start: int, end: int, sends: list[tuple[int, int]]) -> int:
        """The stretch ends earlier where a value leaves that is needed before its end."""
        last = self.row[end - 1].step
        for leaves, needed in sends:
            if leaves < last and needed < last:
                cut = next(i for i in range(start, end) if self.row[i].step > leaves)
                end = min(end, max(cut, start + 1))
        return end


def _uses(followed: Followed) -> dict[tuple[str, str], list[int]]:
    """(value, device) to the plan steps that use it there, ascending."""
    found: dict[tuple[str, str], list[int]] = {}
    for event in followed.events:
        if isinstance(event, Moved):
            found.setdefault((event.value, event.source), []).append(event.step)
            continue
        for name in event.op.reads:
            found.setdefault((name, event.device), []).append(event.step)
    return found


def _next(steps: Sequence[int], step: int) -> int:
    """The first of some ascending steps behind ``step``; far away when there is none."""
    index = bisect_right(steps, step)
    return steps[index] if index < len(steps) else 1 << 60


def _waits(
    followed: Followed,
    device: str,
    pairs: Sequence[tuple[str, str]],
    uses: Mapping[tuple[str, str], Sequence[int]],
) -> dict[str, int]:
    """Ops that update in place, with the last step at which the old value is moved or another
    device uses it."""
    olds = {old for old, _ in pairs}
    last: dict[str, int] = {}
    for (value, at), steps in uses.items():
        if value in olds and at != device:
            last[value] = max(last.get(value, -1), steps[-1])
    for event in followed.events:
        if isinstance(event, Moved) and event.value in olds:
            last[event.value] = max(last.get(event.value, -1), event.step)
    graph = followed.graph
    made = graph.producer
    return {graph.ops[made[new]].name: last.get(old, -1) for old, new in pairs if new in made}


def _graphs(
    followed: Followed, groups: Sequence[tuple[str, list[Ran]]], moves: Sequence[Moved]
) -> list[Graph]:
    """The model of every group."""
    graph = followed.graph
    outputs = set(graph.outputs)
    leaving = {(move.value, move.source) for move in moves}
    needed: dict[tuple[str, str], set[int]] = {}
    for index, (device, group) in enumerate(groups):
        for ran in group:
            for name in ran.op.reads:
                needed.setdefault((name, device), set()).add(index)
    found = []
    for index, (device, group) in enumerate(groups):
        ops = [ran.op for ran in group]
        made = {name for op in ops for name in op.writes}
        goes = {
            name
            for name in made
            if name in outputs
            or (name, device) in leaving
            or needed.get((name, device), set()) - {index}
        }
        part = subgraph(graph, ops, goes)
        # Sessions run Shape and Size ops as soon as they can.
        found.append(reordered(part, priority_order(part)))
    return found


def part_graph(part: Partition, device: Device) -> Graph:
    """The graph a partition's session gets: with gates and pins where onnxruntime decides on
    order and duplicates, without where the provider compiles it."""
    if device.provider == PROVIDERS["openvino"]:
        return for_openvino(part.graph)
    return part.graph if device.opaque else add_pins(add_gates(part.graph))


def summary(parts: Partitioned) -> dict[str, Any]:
    """Partitions, boundaries and copies in order, as plain data."""
    rows: list[dict[str, Any]] = []
    for action in parts.actions:
        if isinstance(action, Copy):
            rows.append({"copy": action.value, "source": action.source, "target": action.target})
            continue
        rows.append(
            {
                "partition": action.name, "device": action.device,
                "nodes": len(action.graph.ops), "inputs": list(action.graph.inputs),
                "outputs": list(action.graph.outputs),
            }
        )  # fmt: skip
    return {"actions": rows, "outputs": dict(parts.followed.final)}


def annotated(parts: Partitioned) -> onnx.ModelProto:
    """The whole as one model that any runtime runs: duplicates, gates and pins in it, device and
    partition in the metadata of every node, the device under ``layer_ann`` too, onnxruntime's own
    key (its session option ``session.layer_assignment_settings`` reads it)."""
    graph = add_pins(add_gates(parts.graph))
    where = {
        op.name: (part.device, part.index) for part in parts.partitions for op in part.graph.ops
    }
    model = to_model(graph)
    for node in model.graph.node:
        kept = [(e.key, e.value) for e in node.metadata_props if e.key not in NODE_KEYS]
        del node.metadata_props[:]
        device, index = where.get(node.name, ("", -1))
        added = [*zip(NODE_KEYS, (device, str(index), device), strict=True)] if device else []
        for key, value in (*kept, *added):
            node.metadata_props.add(key=key, value=value)
    return model
