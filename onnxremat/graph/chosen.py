"""Which inputs say what an If, a Loop or a Scan runs: another value of them, another graph."""

from __future__ import annotations

from onnxremat.graph.batch import DECIDING, decided_by
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.traits import SIZES, has_bodies


def chosen_by(graph: Graph, op: Op) -> list[str]:
    """Inputs of a graph that the branch an op runs, or how often it runs its body, follows from;
    those that a choice inside of its bodies may follow from as well."""
    values = choosing(graph, op)
    return [name for name in graph.inputs if name in values]


def choosing(graph: Graph, op: Op) -> set[str]:
    """The same of all tensors of the graph, weights included; none for an op without bodies."""
    if not has_bodies(op):
        return set()
    values = set(op.inputs[: DECIDING.get(op.op_type, 0)])
    if decided_by(op, set(op.reads) - values):
        values.update(op.reads)
    for maker in reversed(graph.ops):
        # What follows from sizes is known, but for those that a run has shown.
        known = maker.op_type in SIZES and not graph.tensors[maker.reads[0]].seen
        if not known and values.intersection(maker.writes):
            values.update(maker.reads)
    return values
