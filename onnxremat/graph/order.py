"""Orders: the two in which onnxruntime runs a graph, and dead-code removal."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from onnxremat.graph.ir import Graph

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


def as_left(before: Sequence[Sequence[int]], begin: Sequence[int]) -> list[int]:
    """Nodes as a depth-first walk against the edges leaves them, each after all before it. Of those
    to begin with, and of those before a node, the last listed is walked first."""
    stack = [(node, False) for node in begin]
    seen = [False] * len(before)
    order = []
    while stack:
        node, leaving = stack.pop()
        if leaving:
            order.append(node)
        elif not seen[node]:
            seen[node] = True
            stack.append((node, True))
            stack += [(one, False) for one in before[node] if not seen[one]]
    return order


def priority_order(graph: Graph) -> list[int]:
    """The order of ``ExecutionOrder.PRIORITY_BASED``: as listed, but Shape and Size as soon as
    their input is there."""
    rank = [0 if op.op_type in EAGER else 1 for op in graph.ops]
    if all(rank):
        return list(range(len(rank)))
    before = graph.predecessors()
    after: list[list[int]] = [[] for _ in before]
    waiting = [len(row) for row in before]
    for op, row in enumerate(before):
        for p in row:
            after[p].append(op)
    heap = [(rank[op], op) for op in range(len(before)) if not waiting[op]]
    heapq.heapify(heap)
    order = []
    while heap:
        _, op = heapq.heappop(heap)
        order.append(op)
        for reader in after[op]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(heap, (rank[reader], reader))
    return order


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
    before = graph.predecessors()
    done: set[int] = set()
    order: list[int] = []

    def emit(root: int) -> None:
        stack = [(root, False)]
        while stack:
            op, ready = stack.pop()
            if op in done:
                continue
            if ready:
                done.add(op)
                order.append(op)
                continue
            stack.append((op, True))
            stack += [(p, False) for p in reversed(before[op]) if p not in done]

    for name in listed:
        if name in graph.producer:
            emit(graph.producer[name])
    for op in range(len(before)):
        emit(op)
    return reordered(graph, order)
