"""The slope of Gelu on blocks, in fewer passes over memory.

dx = dy (F(x) + x f(x)), where F is the normal distribution and f its density, is written as nine
elementwise ops (rules/activation.py). onnxruntime's blocked convolution of each channel by itself
is a product with a number, plus a number, plus another tensor in one pass; so with e the error
function of x / sqrt 2, twice the slope, 1 + e + 2 x f(x), takes one after x / exp(x x / 2), and
the two fewer. The half that is left goes into the weights that dy is made with: a power of two
changes no digit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx
from onnx import numpy_helper

from onnxremat.grad.host.block_choice import Rows, attribute
from onnxremat.graph.ir import Op


@dataclass(frozen=True)
class Slope:
    """The ops of one slope that become others, by name.

    Attributes:
        exponent: c - x x / 2, left out.
        density: x times the exponential: becomes a quotient.
        half: (1 + e) / 2, left out.
        total: of the two: becomes a convolution.
        product: dy times it; ``dy`` its other factor.
        factor: 2 exp(c), of the quotient.
    """

    exponent: str
    density: str
    half: str
    total: str
    product: str
    dy: str
    factor: float

    @property
    def ops(self) -> tuple[str, ...]:
        """Those that become others."""
        return self.exponent, self.density, self.half, self.total, self.product


def slopes(rows: Rows, names: Collection[str]) -> list[Slope]:
    """All whose ops work on blocks, which are named."""
    known = {each.name: each for each in rows.t.initializers}
    found = (_slope(rows, names, known, op) for op in rows.ops if op.op_type == "Mul")
    return [slope for slope in found if slope is not None]


def _slope(
    rows: Rows, names: Collection[str], known: Mapping[str, onnx.TensorProto], op: Op
) -> Slope | None:
    def made(name: str, kind: str) -> Op | None:
        """The op on blocks that makes what nothing but one op reads."""
        maker, readers = rows.maker.get(name), rows.readers.get(name, [])
        fine = maker is not None and maker.op_type == kind and maker.name in names
        return maker if fine and len(readers) == 1 and name not in rows.outputs else None

    if op.name not in names or len(op.reads) != 2:
        return None
    for dy, slope in (op.inputs, op.inputs[::-1]):
        total = made(slope, "Add")
        if total is None:
            continue
        half, density = made(total.inputs[0], "HardSigmoid"), made(total.inputs[1], "Mul")
        if half is None or density is None:
            continue
        bell, error = made(density.inputs[1], "Exp"), made(half.inputs[0], "Erf")
        exponent = made(bell.inputs[0], "Sub") if bell else None
        square = made(exponent.inputs[1], "Mul") if exponent else None
        if error is None or exponent is None or square is None:
            continue
        if exponent.inputs[0] not in known or {*square.inputs} != {*error.inputs}:
            continue
        if (attribute(half, "alpha", 0.2), attribute(half, "beta", 0.5)) != (0.5, 0.5):
            continue
        top = float(numpy_helper.to_array(known[exponent.inputs[0]]).reshape(-1)[0])
        return Slope(
            exponent.name, density.name, half.name, total.name, op.name, dy, 2 * math.exp(top)
        )
    return None
