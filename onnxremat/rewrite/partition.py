"""A plan over devices to partitions: stretches of one device that each run as one session.

Where a stretch is cut, :mod:`onnxremat.rewrite.stretches` says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from onnxremat.device.machine import PROVIDERS, Device
from onnxremat.graph.ir import Graph
from onnxremat.graph.order import priority_order, reordered
from onnxremat.graph.subgraph import subgraph
from onnxremat.ort.blocks import add_guard
from onnxremat.rewrite.gates import add_gates
from onnxremat.rewrite.openvino import for_openvino
from onnxremat.rewrite.stretches import stretches
from onnxremat.schedule.devices import Followed, Moved, Ran

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
class Counted:
    """What budgets of devices count beside what lies on them.

    Attributes:
        given: bytes per device of inputs, parameters and state that the caller holds in the
            processor's memory: the share of each device.
        sessions: whether what onnxruntime keeps of sessions and nodes counts.
    """

    given: Mapping[str, int] = field(default_factory=dict)
    sessions: bool = False


@dataclass(frozen=True)
class Partitioned:
    """A model cut to partitions.

    Attributes:
        followed: the plan written out.
        actions: partitions and copies in an order in which they can be carried out one by one.
        pairs: (input, output) tensors that share a buffer.
        cuts: ops before which the caller had it cut as well.
        counted: by the budgets of its devices.
    """

    followed: Followed
    actions: tuple[Action, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    cuts: tuple[str, ...] = ()
    counted: Counted = field(default_factory=Counted)

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
    counted: Counted | None = None,
) -> Partitioned:
    """Cut a plan over devices to partitions.

    Args:
        pairs: (input, output) tensors that a trainer binds to one buffer.
        cuts: names of ops before which to cut as well.
        counted: by the budgets of its devices; nothing beside what lies on them when None.

    Raises:
        UnsupportedError: a value that is no tensor would cross between partitions.
    """
    moves = [event for event in followed.events if isinstance(event, Moved)]
    groups = stretches(followed, pairs, cuts)
    # A stretch that makes nothing anybody needs is left out.
    rows = [
        (device, group[0].step, graph)
        for (device, group), graph in zip(groups, _graphs(followed, groups, moves), strict=True)
        if graph.outputs
    ]
    actions: list[Action] = [Partition(index, *row) for index, row in enumerate(rows)]
    actions += [Copy(move.value, move.source, move.target, move.step) for move in moves]
    actions.sort(key=lambda action: action.begin)
    return Partitioned(
        followed, tuple(actions), tuple(pairs), tuple(sorted(cuts)), counted or Counted()
    )


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
    """The graph a partition's session gets: with gates where onnxruntime decides on duplicates,
    without where the provider compiles it. The session's options keep the order."""
    if device.provider == PROVIDERS["openvino"]:
        return for_openvino(part.graph)
    return part.graph if device.opaque else add_guard(add_gates(part.graph))
