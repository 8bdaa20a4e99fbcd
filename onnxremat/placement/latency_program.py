"""The released integer program of latency (``lip.py``) as a model, to be written for any solver.

Binary x[v, s] per node and slot, q slots per accelerator, and c[v] for a core of the node's own. A
slot starts when all its inputs from outside are there, and its results are there when it ends:
compute, every tensor that comes in and every one that goes out, once each. Slots of an accelerator
follow each other. A colour is on CPUs, or on one accelerator, in any of its slots. What
holds only for nodes in a slot is let go by a constant that no latency of use exceeds: all nodes on
CPUs, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxremat.placement.calls import forward_only
from onnxremat.placement.graph import PlacementGraph
from onnxremat.placement.released import name_of, stays_together
from onnxremat.planner.model import Model


@dataclass(frozen=True)
class _Columns:
    """Columns of the program.

    Attributes:
        slot, cpu: per node: of each slot, of a core of its own.
        ready: per node, when its result is there.
        start, finish: per slot.
        far: a time that no latency of use exceeds.
    """

    slot: list[list[int]]
    cpu: list[int]
    ready: list[int]
    start: list[int]
    finish: list[int]
    far: float


def latency_program(graph: PlacementGraph, calls: int) -> Model:
    """The program of ``lip.py q``; columns are named after ids.

    Args:
        calls: slots of each accelerator (q).

    Raises:
        UnsupportedError: the graph has backward nodes.
    """
    forward_only(graph)
    model, slots = Model(f"latency_{calls}"), range(graph.accelerators * calls)
    end = model.column(cost=1.0, label="latency")
    names = [f"{name_of(graph, s // calls)}_{s % calls}" for s in slots]
    most = 1.0 if graph.cpus else 0.0
    columns = _Columns(
        [[model.binary(label=f"x_{i}_{name}") for name in names] for i in graph.ids],
        [model.column(0.0, most, integer=True, label=f"x_{i}_cpu") for i in graph.ids],
        [model.column(label=f"ready_{i}") for i in graph.ids],
        [model.column(label=f"start_{name}") for name in names],
        [model.column(label=f"finish_{name}") for name in names],
        _far(graph, calls),
    )
    for v, row in enumerate(columns.slot):
        model.row([*((c, 1.0) for c in row), (columns.cpu[v], 1.0)], 1.0, 1.0)
        model.row([(end, 1.0), (columns.ready[v], -1.0)], lower=0.0)
        if not graph.supported[v]:
            model.row([(c, 1.0) for c in row], upper=0.0)
    _accelerators(model, graph, columns, calls)
    _on_cpus(model, graph, columns)
    for s in slots:
        _slot(model, graph, columns, s, names[s])
        if (s + 1) % calls:
            model.row([(columns.start[s + 1], 1.0), (columns.finish[s], -1.0)], lower=0.0)
        stays_together(model, graph, [row[s] for row in columns.slot], names[s])
    return model


def _far(graph: PlacementGraph, calls: int) -> float:
    """All nodes one after the other: on CPUs, or, where there are none, on accelerators, every
    tensor moved twice for each slot."""
    if graph.cpus:
        return float(graph.cpu.sum())
    return float(graph.acc.sum() + 2 * graph.accelerators * calls * graph.out.sum())


def _accelerators(model: Model, graph: PlacementGraph, columns: _Columns, calls: int) -> None:
    """Memory of each, for the whole time, and colours on one of them."""
    for a in range(graph.accelerators):
        own = slice(a * calls, (a + 1) * calls)
        sizes = [
            (c, float(graph.size[v]))
            for v, row in enumerate(columns.slot)
            for c in row[own]
            if graph.size[v]
        ]
        model.row(sizes, upper=graph.memory)
        for first, *rest in graph.members.lists():
            for v in rest:
                terms = [(c, 1.0) for c in columns.slot[v][own]]
                model.row([*terms, *((c, -1.0) for c in columns.slot[first][own])], 0.0, 0.0)


def _on_cpus(model: Model, graph: PlacementGraph, columns: _Columns) -> None:
    """A node is ready after its inputs, and on a CPU its time later."""
    for v, inputs in enumerate(graph.inputs):
        own = (columns.ready[v], 1.0), (columns.cpu[v], -float(graph.cpu[v]))
        model.row(own, lower=0.0)
        for u in inputs:
            model.row([*own, (columns.ready[u], -1.0)], lower=0.0)


def _slot(model: Model, graph: PlacementGraph, columns: _Columns, s: int, name: str) -> None:
    """Start and end of a slot."""
    here, start, far = [row[s] for row in columns.slot], columns.start[s], columns.far
    takes = [(c, float(graph.acc[v])) for v, c in enumerate(here) if graph.acc[v]]
    for u, readers in enumerate(graph.readers):
        if not readers:
            continue
        taken = model.column(label=f"in_{graph.ids[u]}_{name}")
        sent = model.column(label=f"out_{graph.ids[u]}_{name}")
        for v in readers:
            model.row([(taken, 1.0), (here[v], -1.0), (here[u], 1.0)], lower=0.0)
            model.row([(sent, 1.0), (here[u], -1.0), (here[v], 1.0)], lower=0.0)
        model.row([(start, 1.0), (columns.ready[u], -1.0), (taken, -far)], lower=-far)
        if graph.out[u]:
            takes += [(taken, float(graph.out[u])), (sent, float(graph.out[u]))]
    end = columns.finish[s]
    model.row([(end, 1.0), (start, -1.0), *((c, -a) for c, a in takes)], lower=0.0)
    for v, column in enumerate(here):
        model.row([(columns.ready[v], 1.0), (end, -1.0), (column, -far)], lower=-far)
