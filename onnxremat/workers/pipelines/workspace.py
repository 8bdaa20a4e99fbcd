"""What the memory pool comes to hold that all sessions of a rank share.

It adds a region of just the size asked for where nothing fits, and regions never join: a part that
asks for other sizes than the one before finds little room in what that left. So onnxruntime's pool
is imitated, over the parts of a rank in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from onnxremat.cost.analytic import scratch_bytes
from onnxremat.graph.ir import Graph
from onnxremat.graph.order import default_order
from onnxremat.memory.arena import UNIT, Arena

DEAD = 128 << 20  # bytes that onnxruntime leaves in a chunk at most
RUNS = 2  # of all parts: what the last leaves is not what the first found


def pool_bytes(graphs: Iterable[Graph]) -> int:
    """Bytes that the pool holds after the graphs have run, in the order of onnxruntime. Inputs and
    outputs are no part of it, workspace of kernels is estimated."""
    pool = Arena(DEAD)
    rows = [(graph, default_order(graph)) for graph in graphs]
    for graph, order in rows * RUNS:
        _run(pool, graph, order)
    return pool.held


def _run(pool: Arena, graph: Graph, order: Iterable[int]) -> None:
    bound = {*graph.inputs, *graph.outputs}
    left, where = Counter(name for op in graph.ops for name in op.reads), dict[str, int]()
    for at in order:
        op = graph.ops[at]
        for name in op.writes:
            if name not in bound and graph.tensors[name].bytes:
                where[name] = _found(pool, graph.tensors[name].bytes)
        if scratch := scratch_bytes(graph, op):
            pool.free(_found(pool, scratch))
        left.subtract(op.reads)
        for name in {*op.reads, *op.writes}:
            if name in where and not left[name]:
                pool.free(where.pop(name))


def _found(pool: Arena, size: int) -> int:
    at = pool.allocate(size)
    if at is None:
        pool.extend(-(-size // UNIT) * UNIT)
        at = pool.allocate(size)
    assert at is not None
    return at
