"""Latency of one sample where devices are called: the judge of pieces.

A *piece* is a set of nodes that one accelerator runs in one call. A call waits for all its inputs
from other devices and pieces, then takes the piece's load (compute, every tensor that comes in and
every tensor that goes out, once each), and all its outputs are there only at its end. Every node on
a CPU has a core of its own, and starts when its inputs are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from onnxremat.errors import UnsupportedError
from onnxremat.graph.topological import first_come
from onnxremat.placement.graph import PlacementGraph
from onnxremat.placement.splits import Split


@dataclass(frozen=True)
class Call:
    """One piece: when its accelerator starts it and ends it.

    Attributes:
        accelerator: which runs it.
    """

    accelerator: int
    nodes: tuple[int, ...]
    load: float
    start: float
    finish: float


@dataclass(frozen=True)
class Timing:
    """Latency, ``inf`` where pieces wait for each other in a circle, and the calls."""

    latency: float
    calls: tuple[Call, ...]


def forward_only(graph: PlacementGraph) -> None:
    """Latency is that of an inference.

    Raises:
        UnsupportedError: the graph has backward nodes.
    """
    if graph.training:
        raise UnsupportedError(
            "latency is not defined for a graph with a backward pass",
            why="isBackwardNode is set for some nodes",
            hint="--objective throughput or two-maxima, or the graph of the inference",
        )


def time_calls(
    graph: PlacementGraph, pieces: Sequence[tuple[int, Sequence[int]]], *, in_order: bool
) -> Timing:
    """When every piece runs.

    Args:
        pieces: (accelerator, nodes); nodes in none are on CPUs.
        in_order: pieces of one accelerator run one after the other, as listed; else they may run
            at the same time.
    """
    home = {v: p for p, (_, nodes) in enumerate(pieces) for v in nodes}
    # Units: the pieces, then the nodes on CPUs; what each waits for.
    units = {v: len(pieces) + i for i, v in enumerate(set(range(graph.count)) - set(home))}
    of = [home[v] if v in home else units[v] for v in range(graph.count)]
    waits: list[set[int]] = [set() for _ in range(len(pieces) + len(units))]
    for u, readers in enumerate(graph.readers):
        for v in readers:
            if of[u] != of[v]:
                waits[of[v]].add(of[u])
    if in_order:
        last: dict[int, int] = {}
        for p, (accelerator, _) in enumerate(pieces):
            if accelerator in last:
                waits[p].add(last[accelerator])
            last[accelerator] = p
    takes = [piece_load(graph, nodes) for _, nodes in pieces]
    takes += [float(graph.cpu[v]) for v in sorted(units, key=lambda v: units[v])]
    finish = _finish(waits, takes)
    calls = tuple(
        Call(a, tuple(nodes), takes[p], finish[p] - takes[p], finish[p])
        for p, (a, nodes) in enumerate(pieces)
        if nodes
    )
    busy = [finish[u] for u in range(len(waits)) if u >= len(pieces) or pieces[u][1]]
    return Timing(max(busy, default=0.0), calls)


def _finish(waits: Sequence[set[int]], takes: Sequence[float]) -> list[float]:
    """Ends of all units, ``inf`` for those in a circle or behind one."""
    readers: list[list[int]] = [[] for _ in waits]
    for unit, row in enumerate(waits):
        for other in row:
            readers[other].append(unit)
    left = [len(row) for row in waits]
    finish = [inf] * len(waits)
    ready = [unit for unit, count in enumerate(left) if not count]
    for unit in ready:
        finish[unit] = max((finish[other] for other in waits[unit]), default=0.0) + takes[unit]
        for reader in readers[unit]:
            left[reader] -= 1
            if not left[reader]:
                ready.append(reader)
    return finish


def piece_load(graph: PlacementGraph, nodes: Sequence[int]) -> float:
    """Compute of a piece, and every output that crosses its border, in either direction."""
    inside = set(nodes)
    load = sum(float(graph.acc[v]) for v in inside)
    load += sum(
        float(graph.out[v]) for v in inside if any(w not in inside for w in graph.readers[v])
    )
    outside = {u for v in inside for u in graph.inputs[v]} - inside
    return load + sum(float(graph.out[u]) for u in outside)


def contiguous_pieces(graph: PlacementGraph, nodes: Sequence[int]) -> list[list[int]]:
    """A set of nodes broken up by how often a path has left and re-entered it (the rule of the
    released ``-computeLatency``); pieces in the order they can run."""
    inside = set(nodes)
    entered = [0] * graph.count
    pieces: dict[int, list[int]] = {}
    for v in first_come(graph.inputs, graph.readers):
        for u in graph.inputs[v]:
            left = u in inside and v not in inside
            entered[v] = max(entered[v], entered[u] + left)
        if v in inside:
            pieces.setdefault(entered[v], []).append(v)
    return [pieces[i] for i in sorted(pieces)]


def compute_latency(graph: PlacementGraph, split: Split) -> Timing:
    """The released ``-computeLatency``: pieces of one accelerator may run at the same time.

    Raises:
        UnsupportedError: the graph has backward nodes.
    """
    forward_only(graph)
    pieces = [
        (a, piece)
        for a, nodes in enumerate(split.accelerators)
        for piece in contiguous_pieces(graph, nodes)
    ]
    return time_calls(graph, pieces, in_order=False)
