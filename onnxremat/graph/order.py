"""Orders: the two in which onnxruntime runs a graph, and dead-code removal."""

from __future__ import annotations

from collections.abc import Sequence

from onnxremat.graph.ir import Graph
from onnxremat.graph.topological import as_left, least_first

EAGER = ("Shape", "Size")  # run as soon as they can, whatever the order


def default_order(graph: Graph) -> list[int]:
    """The order of ``ExecutionOrder.DEFAULT``: a reverse depth-first walk.

    onnxruntime (``graph_viewer.cc``) starts from all leaves, keeps a stack, and pushes inputs by
    ascending node index: so the leaf, and below it the producer, with the highest index is done
    first. Node index is the position in the file.
    """
    before = graph.predecessors()
    has_reader = [False] * len(before)
    for row in before:
        for op in row:
            has_reader[op] = True
    return as_left(before, [op for op in range(len(before)) if not has_reader[op]])


def priority_order(graph: Graph) -> list[int]:
    """The order of ``ExecutionOrder.PRIORITY_BASED``: as listed, but Shape and Size as soon as
    their input is there."""
    rank = [0 if op.op_type in EAGER else 1 for op in graph.ops]
    if all(rank):
        return list(range(len(rank)))
    return least_first(graph.predecessors(), rank)


def reordered(graph: Graph, order: Sequence[int]) -> Graph:
    """The graph with its ops listed in another topological order."""
    if list(order) == list(range(len(graph.ops))):
        return graph
    return graph.with_ops([graph.ops[index] for index in order])


def without_dead_ops(graph: Graph) -> Graph:
    """The graph without ops that no output depends on."""
    needed: set[str] = set(graph.outputs)
    kept = []
    for op in reversed(graph.ops):
        if any(name in needed for name in op.writes):
            kept.append(op)
            needed.update(op.reads)
    if len(kept) == len(graph.ops):
        return graph
    written = {name for op in kept for name in op.writes} | set(graph.inputs)
    weights = {t.name for t in graph.model.graph.initializer}
    tensors = {n: t for n, t in graph.tensors.items() if n in written or n in weights}
    return graph.with_ops(reversed(kept), tensors)


def file_order(graph: Graph, listed: Sequence[str]) -> Graph:
    """The graph in the order of another listing of (mostly) the same tensors.

    Ops that write none of the listed tensors (fused or inserted ones) run as late as possible.

    Args:
        listed: tensor names in the order they should be made.
    """
    before = [row[::-1] for row in graph.predecessors()]
    first = [graph.producer[name] for name in listed if name in graph.producer]
    return reordered(graph, as_left(before, [*first, *range(len(before))][::-1]))
