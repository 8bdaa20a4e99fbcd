"""Which inputs say what an If, a Loop or a Scan runs: another value of them, another graph."""

from __future__ import annotations

from onnxremat.graph.batch import decided_by
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.traits import has_bodies

DECIDING = {"If": 1, "Loop": 2}  # inputs that say which branch runs, and how often a body does
OF_SIZES = ("Shape", "Size")  # what they make follows from sizes, which are known


def chosen_by(graph: Graph, op: Op) -> list[str]:
    """Inputs of a graph that the branch an op runs, or how often it runs its body, follows from;
    those that a choice inside of its bodies may follow from as well."""
    if not has_bodies(op):
        return []
    values = set(op.inputs[: DECIDING.get(op.op_type, 0)])
    if decided_by(op, set(op.reads) - values):
        values.update(op.reads)
    for maker in reversed(graph.ops):
        known = maker.op_type in OF_SIZES and not graph.tensors[maker.reads[0]].seen
        if not known and values.intersection(maker.writes):
            values.update(maker.reads)
    return [name for name in graph.inputs if name in values]
