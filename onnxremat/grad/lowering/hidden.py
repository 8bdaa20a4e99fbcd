"""Softmax rows that are NaN and that the forward pass hides.

Where a mask hides a whole row of attention, softmax gives NaN there. PyTorch puts 0 in its place,
in the forward pass and in the backward one; what it exports does so with ``Where`` behind the
Softmax, by ``IsNaN`` or by which rows are hidden. Differentiated op by op, such a row gives
0 x NaN. Its rule reads the result of the Where instead: the same numbers in all other rows, and in
these a 0 that no cotangent comes to. Where a cast to another type lies between, the rows are hidden
once more, in the type of the softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import NamedTuple

import numpy as np

from onnxremat.grad.tape import FLOATS, Tape
from onnxremat.graph.ir import Graph, Op

BY_AXIS = 13  # opset from which Softmax is along one axis


class Hiding(NamedTuple):
    """The Where that hides rows of a softmax: its result, its condition, and whether the condition
    says which rows are shown."""

    made: str
    condition: str
    shows: bool


def hiding(
    graph: Graph, tape: Tape, constant_of: Callable[[str], np.ndarray | None]
) -> dict[str, Hiding]:
    """Results of Softmax to what hides rows of theirs."""

    def maker(name: str) -> Op | None:
        index = graph.producer.get(name)
        return None if index is None else graph.ops[index]

    found: dict[str, Hiding] = {}
    for op in graph.ops if graph.opsets.get("", 1) >= BY_AXIS else ():
        if op.op_type != "Where" or not op.standard:
            continue
        condition, *branches = op.inputs
        for shows, (name, other) in ((True, branches), (False, branches[::-1])):
            source, value, alone = maker(name), constant_of(other), _alone(graph, name)
            while source is not None and _passes(source, tape):
                alone &= _alone(graph, source.inputs[0])
                source = maker(source.inputs[0])
            if source is None or source.op_type != "Softmax" or value is None:
                continue
            if value.size != 1 or not isfinite(float(value.item())):
                continue
            if tape.shape(op.outputs[0]) != tape.shape(source.outputs[0]):
                continue
            nan = maker(condition)
            by_nan = nan is not None and nan.op_type == "IsNaN" and nan.inputs[0] == name
            if by_nan or (alone and _by_row(source, condition, tape)):
                found[source.outputs[0]] = Hiding(op.outputs[0], condition, shows)
    return found


def shown(result: str, hides: Hiding, tape: Tape) -> str:
    """The result of a softmax as it is shown, in its own type."""
    if tape.dtype(hides.made) == tape.dtype(result):
        return hides.made
    pair = (result, 0.0) if hides.shows else (0.0, result)
    return tape.where(hides.condition, *pair)


def _alone(graph: Graph, name: str) -> bool:
    """Whether one op alone reads the numbers of a tensor; what a CastLike is like gives a type."""
    readers = (graph.ops[index] for index in graph.readers[name])
    return sum(op.op_type != "CastLike" or op.inputs[0] == name for op in readers) == 1


def _passes(op: Op, tape: Tape) -> bool:
    """Whether an op's result is its input, perhaps in another floating-point type: ONNX's function
    of Attention casts to the type that its softmax is asked for in, and back."""
    if op.op_type == "Cast":
        return tape.dtype(op.inputs[0]) in FLOATS and tape.dtype(op.outputs[0]) in FLOATS
    return op.op_type == "Identity"


def _by_row(softmax: Op, condition: str, tape: Tape) -> bool:
    """Whether a condition holds for all elements along the axis of a softmax or for none."""
    axis = next((a.i for a in softmax.node.attribute if a.name == "axis"), -1)
    behind = tape.rank(softmax.outputs[0]) - axis if axis >= 0 else -axis
    shape = tape.shape(condition)
    return len(shape) < behind or shape[len(shape) - behind] == 1
