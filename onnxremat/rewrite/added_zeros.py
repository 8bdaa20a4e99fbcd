"""Results that are another value plus zeros: they are that value.

Models of sequences with a decoder (BART, Marian, Pegasus) add a bias to their logits that nobody
has trained. A sum that is a result of the model takes over nobody's buffer, so that the logits,
often the largest value there is, are in memory twice.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto

from onnxremat.graph.equal_weights import weight_values
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.order import without_dead_ops

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE})


def without_added_zeros(graph: Graph, folder: Path | None) -> Graph:
    """The graph in which results are made by the op before such a sum. A zero may have the other
    sign then.

    Args:
        folder: where its external weights are.
    """
    made = {op.outputs[0]: op for op in graph.ops if _is_sum(op, graph)}
    if not made:
        return graph
    zeros = _zeros(graph, folder, {name for op in made.values() for name in op.inputs})
    kept = {}
    for result, op in made.items():
        rest = [name for name in op.inputs if name not in zeros]
        if len(rest) == 1 and _is_only_for(rest[0], op, graph):
            kept[rest[0]] = result
    if not kept:
        return graph
    gone = {made[result].name for result in kept.values()}
    ops = [op.renamed(op.name, kept) for op in graph.ops if op.name not in gone]
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name not in kept}
    return without_dead_ops(graph.with_ops(ops, tensors))


def _is_sum(op: Op, graph: Graph) -> bool:
    """A sum that is a result and nothing else."""
    y = op.outputs[0]
    return (
        op.op_type == "Add" and op.standard and y in graph.outputs and not graph.readers.get(y)
        and graph.tensors[y].dtype in FLOATS
    )  # fmt: skip


def _is_only_for(name: str, op: Op, graph: Graph) -> bool:
    """An op makes this value of the same shape, and this sum alone reads it."""
    readers = [graph.ops[index].name for index in graph.readers.get(name, ())]
    shape = graph.tensors[name].shape
    same = shape is not None and shape == graph.tensors[op.outputs[0]].shape
    return same and name in graph.producer and name not in graph.outputs and readers == [op.name]


def _zeros(graph: Graph, folder: Path | None, names: set[str]) -> set[str]:
    """Those of some weights that are nothing but zeros."""
    values = weight_values(graph, folder, 1)
    return {tensor.name for tensor, data in values if tensor.name in names and not np.any(data)}
