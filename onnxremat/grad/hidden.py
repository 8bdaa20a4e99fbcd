"""Softmax rows that are NaN and that the forward pass hides.

Where a mask hides a whole row of attention, softmax gives NaN there. PyTorch puts 0 in its place,
in the forward pass and in the backward one; what it exports does so with ``Where`` behind the
Softmax, by ``IsNaN`` or by which rows are hidden. Differentiated op by op, such a row gives
0 x NaN. Its rule reads the result of the Where instead: the same numbers in all other rows, and in
these a 0 that no cotangent comes to.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

import numpy as np

from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Graph, Op

BY_AXIS = 13  # opset from which Softmax is along one axis


def shown_as(
    graph: Graph, tape: Tape, constant_of: Callable[[str], np.ndarray | None]
) -> dict[str, str]:
    """Results of Softmax to those of the Where behind them that hides rows of theirs."""

    def maker(name: str) -> Op | None:
        index = graph.producer.get(name)
        return None if index is None else graph.ops[index]

    found: dict[str, str] = {}
    for op in graph.ops if graph.opsets.get("", 1) >= BY_AXIS else ():
        if op.op_type != "Where" or not op.standard:
            continue
        condition, *branches = op.inputs
        for name, other in (branches, branches[::-1]):
            source, value, alone = maker(name), constant_of(other), len(graph.readers[name]) == 1
            while source is not None and _same(source, tape):
                alone &= len(graph.readers[source.inputs[0]]) == 1
                source = maker(source.inputs[0])
            if source is None or source.op_type != "Softmax" or value is None:
                continue
            if value.size != 1 or not isfinite(float(value.item())):
                continue
            nan = maker(condition)
            by_nan = nan is not None and nan.op_type == "IsNaN" and nan.inputs[0] == name
            if by_nan or (alone and _by_row(source, condition, tape)):
                found[source.outputs[0]] = op.outputs[0]
    return found


def _same(op: Op, tape: Tape) -> bool:
    """Whether an op's result is its input, as ONNX's function of Attention casts to a type that
    is there."""
    return op.op_type in ("Cast", "Identity") and tape.dtype(op.inputs[0]) == tape.dtype(
        op.writes[0]
    )


def _by_row(softmax: Op, condition: str, tape: Tape) -> bool:
    """Whether a condition holds for all elements along the axis of a softmax or for none."""
    axis = next((a.i for a in softmax.node.attribute if a.name == "axis"), -1)
    behind = tape.rank(softmax.outputs[0]) - axis if axis >= 0 else -axis
    shape = tape.shape(condition)
    return len(shape) < behind or shape[len(shape) - behind] == 1
