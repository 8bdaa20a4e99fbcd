"""Softmax rows that are NaN and that the forward pass hides.

Where a mask hides a whole row of attention, softmax gives NaN there. PyTorch puts 0 in its place,
in the forward pass and in the backward one; what it exports does so with ``Where`` behind the
Softmax, by ``IsNaN`` or by which rows are hidden. Differentiated op by op, such a row gives
0 x NaN. Its rule reads the result of the Where instead: the same numbers in all other rows, and in
these a 0 that no cotangent comes to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np

from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Op

BY_AXIS = 13  # opset from which Softmax is along one axis


def shown_as(
    ops: Sequence[Op], tape: Tape, constant_of: Callable[[str], np.ndarray | None], opset: int
) -> dict[str, str]:
    """Results of Softmax to those of the Where behind them that hides rows of theirs."""
    made = {op.outputs[0]: op for op in ops if op.outputs}
    readers: dict[str, int] = {}
    for op in ops:
        for name in set(op.reads):
            readers[name] = readers.get(name, 0) + 1
    found: dict[str, str] = {}
    for op in ops if opset >= BY_AXIS else ():
        if op.op_type != "Where" or op.domain not in ("", "ai.onnx"):
            continue
        condition, *branches = op.inputs
        for name, other in (branches, branches[::-1]):
            source, value = made.get(name), constant_of(other)
            if source is None or source.op_type != "Softmax" or value is None:
                continue
            if value.size != 1 or not isfinite(float(value.item())):
                continue
            nan = made.get(condition)
            by_nan = nan is not None and nan.op_type == "IsNaN" and nan.inputs[0] == name
            if by_nan or (readers[name] == 1 and _by_row(source, condition, tape)):
                found[name] = op.outputs[0]
    return found


def _by_row(softmax: Op, condition: str, tape: Tape) -> bool:
    """Whether a condition holds for all elements along the axis of a softmax or for none."""
    axis = next((a.i for a in softmax.node.attribute if a.name == "axis"), -1)
    behind = tape.rank(softmax.outputs[0]) - axis if axis >= 0 else -axis
    shape = tape.shape(condition)
    return len(shape) < behind or shape[len(shape) - behind] == 1
