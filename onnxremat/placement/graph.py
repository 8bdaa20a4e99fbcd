"""A placement graph: nodes with times, bytes and colours, edges with costs, alike devices.

Device numbers run over the accelerators first, then the CPUs: ``d < accelerators`` is an
accelerator. A *placement* is one device number per node.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from onnxremat.errors import ModelError
from onnxremat.graph.topological import first_come
from onnxremat.planner.problem import Floats, Rows

Index = NDArray[np.int64]
Flags = NDArray[np.bool_]

SAME = 1e-6  # relative: costs of one node that are nearer than this are one cost


@dataclass(frozen=True, eq=False)
class PlacementGraph:
    """n nodes, numbered in the order of their file, and m edges.

    Attributes:
        accelerators, cpus: how many devices of each kind.
        memory: bytes of one accelerator, in ``unit`` of a byte; CPUs have no limit.
        unit: sizes and memory are whole multiples of 1 / unit bytes, so that sums are exact.
        ids: of the nodes in the file, shape (n,).
        names: of the nodes, "" where the file has none.
        acc, cpu: time on one accelerator and on one CPU, in the unit of the file, shape (n,).
        size: memory it takes on an accelerator for good, in ``unit``, whole, shape (n,).
        backward: nodes of the backward pass, shape (n,).
        supported: may run on an accelerator, shape (n,).
        colour: nodes of one number share a device; numbered 0, 1, ..., shape (n,).
        coloured: whether the file gave the node a colour, shape (n,).
        labels: colour of the file for each number, a name for nodes without one.
        layer: of ``contract-layers``, -1 for none, shape (n,).
        tail, head: edges, the head reads the output of the tail, shape (m,).
        out: time to move a node's output between an accelerator and the host, shape (n,).
    """

    accelerators: int
    cpus: int
    memory: float
    unit: int
    ids: Index
    names: tuple[str, ...]
    acc: Floats
    cpu: Floats
    size: Floats
    backward: Flags
    supported: Flags
    colour: Index
    coloured: Flags
    labels: tuple[str, ...]
    layer: Index
    tail: Index
    head: Index
    out: Floats

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.ids)

    @property
    def devices(self) -> int:
        """Number of devices, accelerators first."""
        return self.accelerators + self.cpus

    @property
    def training(self) -> bool:
        """Whether there are nodes of a backward pass."""
        return bool(self.backward.any())

    @cached_property
    def readers(self) -> list[list[int]]:
        """Heads of the edges of each node, without repeats, ascending."""
        found: list[set[int]] = [set() for _ in range(self.count)]
        for u, v in zip(self.tail.tolist(), self.head.tolist(), strict=True):
            found[u].add(v)
        return [sorted(row) for row in found]

    @cached_property
    def inputs(self) -> list[list[int]]:
        """Tails of the edges into each node, without repeats, ascending."""
        found: list[list[int]] = [[] for _ in range(self.count)]
        for u, row in enumerate(self.readers):
            for v in row:
                found[v].append(u)
        return found

    @cached_property
    def members(self) -> Rows:
        """Nodes of each colour."""
        return grouped(self.colour, len(self.labels))

    def colour_class(self, node: int) -> int | None:
        """The colour of a node as its file says it, None without one."""
        return int(self.labels[self.colour[node]].split()[-1]) if self.coloured[node] else None

    def shown(self, node: int) -> str:
        """A node for people."""
        name = f" ({self.names[node]})" if self.names[node] else ""
        return f"node {self.ids[node]}{name}"

    def with_limits(
        self,
        accelerators: int | None = None,
        cpus: int | None = None,
        memory: int | None = None,
    ) -> PlacementGraph:
        """Other devices; ``memory`` in bytes of one accelerator."""
        return replace(
            self,
            accelerators=self.accelerators if accelerators is None else accelerators,
            cpus=self.cpus if cpus is None else cpus,
            memory=self.memory if memory is None else float(memory * self.unit),
        )

    def uncoloured(self) -> PlacementGraph:
        """Every node a class of its own."""
        labels = tuple(self.shown(v) for v in range(self.count))
        alone = np.zeros(self.count, np.bool_)
        return replace(self, colour=np.arange(self.count), coloured=alone, labels=labels)


def grouped(number: Index, count: int) -> Rows:
    """Which elements have each number, shape (count,)."""
    rows: list[list[int]] = [[] for _ in range(count)]
    for element, group in enumerate(number.tolist()):
        rows[group].append(element)
    return Rows.of(rows)


def check(graph: PlacementGraph, where: str) -> None:
    """Refuse what no placement of it could mean anything for.

    Args:
        where: the file, for messages.

    Raises:
        ModelError: a circle, an edge from a backward to a forward node, or no device.
    """
    if graph.devices < 1:
        raise ModelError(
            "there is no device to place on", where=where,
            hint="give maxFPGAs or maxCPUs, or --accelerators or --cpus, a number above 0",
        )  # fmt: skip
    back = np.flatnonzero(graph.backward[graph.tail] & ~graph.backward[graph.head])
    if back.size:
        u, v = int(graph.tail[back[0]]), int(graph.head[back[0]])
        raise ModelError(
            f"an edge leads from the backward {graph.shown(u)} to the forward {graph.shown(v)}",
            where=where,
            why="a forward pass cannot wait for its backward pass",
            hint="correct isBackwardNode of one of the two, or drop the edge",
        )
    order = first_come(graph.inputs, graph.readers)
    if len(order) < graph.count:
        left = sorted(set(range(graph.count)) - set(order))
        raise ModelError(
            "the graph has a circle", where=where,
            why="among " + ", ".join(graph.shown(v) for v in _circle(graph, left)[:8]),
            hint="drop an edge of it",
        )  # fmt: skip


def _circle(graph: PlacementGraph, left: list[int]) -> list[int]:
    """One circle among nodes that each have an input among them."""
    inside = set(left)
    seen: dict[int, int] = {}
    v = left[0]
    while v not in seen:
        seen[v] = len(seen)
        v = next(u for u in graph.inputs[v] if u in inside)
    return [u for u, rank in seen.items() if rank >= seen[v]][::-1]


def repeated(values: list[int]) -> int | None:
    """A value that occurs twice, None where all differ."""
    return next((value for value, times in Counter(values).items() if times > 1), None)
