"""What a model itself reduces at index tuples, right and the same in every run.

Nets on graphs add messages up at their nodes; PyTorch's exporters write ``index_add`` and
``index_put`` as a ScatterND with a reduction. onnxruntime's CPU kernel of it (1.31) divides the
updates among threads, which add to one place at the same time where indices repeat: sums are lost,
other ones in each run. It is done element by element in one thread instead, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onnxremat.grad.constants import Constants
from onnxremat.grad.rules.scattering import reduced_at
from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.traits import is_racing

OLDEST = 18  # the first opset whose ScatterElements takes the largest, or smallest


def with_single_reductions(t: Tape, ops: Sequence[Op], constants: Constants) -> list[Op]:
    """Ops without a ScatterND that reduces, but where the indices are known and none repeats.

    Args:
        t: knows the tensors; what it has emitted before stays there.
        constants: values of the model that are known.
    """
    made: list[Op] = []
    for op in ops:
        single = is_racing(op) and _may_repeat(constants, op) and _can_be(t, op)
        made += _single(t, op) if single else [op]
    return made


def single_reductions(graph: Graph) -> Graph:
    """The same of a graph by itself; the same object where there is nothing to do."""
    constants = Constants(graph)
    if not any(is_racing(op) and _may_repeat(constants, op) for op in graph.ops):
        return graph
    taken = [op.name for op in graph.ops] + list(graph.inputs)
    t = Tape(graph.tensors, graph.opsets[""], taken)
    ops = with_single_reductions(t, graph.ops, constants)
    return graph.with_ops(ops, t.tensors).with_weights(t.initializers)


def _can_be(t: Tape, op: Op) -> bool:
    """Its sizes are known, and the opset has a ScatterElements that reduces so (16 adds and
    multiplies)."""
    if any(t.tensors[name].shape is None for name in op.inputs):
        return False
    return t.opset >= OLDEST or _how(op) in ("add", "mul")


def _how(op: Op) -> str:
    (how,) = (a.s.decode() for a in op.node.attribute if a.name == "reduction")
    return how


def _may_repeat(constants: Constants, op: Op) -> bool:
    known = constants(op.inputs[1])
    if known is None:
        return True
    if (known < 0).any():
        return True  # counted from the end: not worth a look
    tuples = known.reshape(-1, known.shape[-1])
    return len(np.unique(tuples, axis=0)) < len(tuples)


def _single(t: Tape, op: Op) -> list[Op]:
    """Ops that make the output of a ScatterND in one thread."""
    start = len(t.ops)
    with t.scope(f"{op.name}/single", "forward"):
        data, indices, updates = op.inputs
        reduced_at(t, data, indices, updates, _how(op))
    made, t.ops[start:] = t.ops[start:], []
    return [*made[:-1], replace(made[-1], outputs=op.outputs)]
