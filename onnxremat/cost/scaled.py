"""Costs measured at one size, carried over to the same graph at another size."""

from __future__ import annotations

from onnxremat.cost.analytic import analytic_costs
from onnxremat.cost.table import CostTable
from onnxremat.graph.ir import Graph, Op, Role


def scaled_costs(measured: CostTable, at: Graph, graph: Graph) -> CostTable:
    """What ``graph`` costs, from what ``at`` was measured to cost.

    Seconds of an op scale as the roofline says; scratch bytes as the values it reads and writes do.
    An op that ``at`` does not have costs the roofline times the ratio of all measured to all
    estimated seconds.
    """
    then, now = analytic_costs(at), analytic_costs(graph)
    level = measured.total / then.total if then.total else 1.0
    before = {op.name: _moved(at, op) for op in at.ops}
    seconds, scratch = {}, {}
    for op in graph.ops:
        name = op.name
        if name not in measured.seconds or name not in before:
            seconds[name], scratch[name] = level * now.seconds[name], now.scratch[name]
            continue
        seconds[name] = measured.seconds[name] * now.seconds[name] / then.seconds[name]
        growth = _moved(graph, op) / before[name] if before[name] else 1.0
        scratch[name] = int(measured.scratch.get(name, 0) * growth)
    source = f"{measured.source}, scaled"
    return CostTable(seconds, scratch, source, measured.dispatch, kernels=measured.kernels)


def _moved(graph: Graph, op: Op) -> int:
    """Bytes of the values an op reads and writes, weights left out."""
    tensors = [graph.tensors[name] for name in (*op.reads, *op.writes) if name in graph.tensors]
    return sum(tensor.bytes for tensor in tensors if tensor.role is not Role.WEIGHT)
