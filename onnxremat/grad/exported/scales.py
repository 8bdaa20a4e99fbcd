"""A number times a number times a tensor: one number.

onnxruntime (1.31, MatMulScaleFusion) takes the numbers by which factors of a matrix product are
scaled into the product. Where one product reads ``y = c x`` and another ``z = d y``, it takes ``y``
away though the second still reads it, and refuses its own graph ("Node input 'y' is not a graph
input"). A loss on two heads, one of them scaled, gives such a step. So ``z`` is made of ``x``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from onnx import numpy_helper

from onnxremat.grad.assembly import makers_and_readers
from onnxremat.grad.constants import Constants
from onnxremat.grad.tape import FLOATS, Tape
from onnxremat.graph.ir import Op
from onnxremat.graph.traits import MOVING

_PRODUCTS = frozenset({"MatMul", "FusedMatMul"})
_SCALES = frozenset({"Mul", "Div"})


def with_single_scales(
    t: Tape, ops: Sequence[Op], constants: Constants, overwritten: Collection[str]
) -> list[Op]:
    """Ops in which no product reads a tensor times a number, and another the result times a
    further one.

    Args:
        overwritten: parameters and state, which nothing is to read later than it did.
    """
    scales = _Scales(t, ops, constants, overwritten)
    return [scales.single(op) for op in ops]


class _Scales:
    def __init__(
        self, t: Tape, ops: Sequence[Op], constants: Constants, overwritten: Collection[str]
    ) -> None:
        self.t, self.constants, self.overwritten = t, constants, overwritten
        self.numbers = {
            tensor.name: numpy_helper.to_array(tensor)
            for tensor in t.initializers
            if t.size(tensor.name) == 1
        }
        self.made, self.readers = makers_and_readers(ops)

    def single(self, op: Op) -> Op:
        """The op, made of what its input was scaled from where that is needed."""
        scale = self._scale(op)
        first = self.made.get(scale[0]) if scale else None
        inner = self._scale(first) if first else None
        if scale is None or first is None or inner is None:
            return op
        if not (self._in_product(scale[0]) and self._in_product(op.outputs[0])):
            return op
        (_, number), (source, before) = scale, inner
        value = number * before if op.op_type == first.op_type else number / before
        if self.t.rank(source) < self.t.rank(op.outputs[0]) or not np.isfinite(value).all():
            return op
        if self._origin(source) in self.overwritten:
            return op
        return replace(op, inputs=(source, self.t.constant(value, self.t.dtype(source))))

    def _scale(self, op: Op) -> tuple[str, np.ndarray] | None:
        """What is scaled, and the number; None where the op does something else."""
        if op.op_type not in _SCALES or not op.standard:
            return None
        pairs = [op.inputs, op.inputs[::-1]][: 1 + (op.op_type == "Mul")]
        for name, number in pairs:
            if self.t.dtype(name) in FLOATS and self.t.size(number) == 1:
                value = self.numbers.get(number)
                value = self.constants(number) if value is None else value
                if value is not None:
                    return name, value
        return None

    def _origin(self, name: str) -> str:
        """What a tensor shows, or shows the elements of."""
        while name in self.made and self.made[name].op_type in MOVING:
            name = self.made[name].inputs[0]
        return name

    def _in_product(self, name: str) -> bool:
        """A matrix product reads a tensor, or its transpose."""
        return any(
            op.op_type in _PRODUCTS
            or (op.op_type == "Transpose" and self._in_product(op.outputs[0]))
            for op in self.readers.get(name, ())
        )
