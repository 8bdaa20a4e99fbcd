"""Numbers rounded to whole ones and scaled back at once, as training that prepares for quantisation
does (PyTorch's FakeQuantize): QuantizeLinear and, of its result, DequantizeLinear.

Of such a pair the gradient passes where the number is within the range of whole numbers, and is 0
outside (the straight-through estimator: Bengio et al., arXiv:1308.3432; Jacob et al.,
arXiv:1712.05877). Of a QuantizeLinear whose result goes elsewhere no gradient is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.registry import NEWEST, Cotangents, Rule
from onnxremat.grad.tape import FLOATS, Tape
from onnxremat.graph.ir import Op, Tensor

# The range of whole numbers, by the type of the zero point.
RANGES = {
    T.INT8: (-128, 127), T.UINT8: (0, 255), T.INT16: (-(1 << 15), (1 << 15) - 1),
    T.UINT16: (0, (1 << 16) - 1), T.INT4: (-8, 7), T.UINT4: (0, 15),
}  # fmt: skip


def straight(ops: Sequence[Op], tensors: Mapping[str, Tensor]) -> Sequence[Op]:
    """The ops as gradients pass them: a DequantizeLinear behind a QuantizeLinear with the same
    scales and zeros reads what that reads."""
    makers = {op.outputs[0]: op for op in ops if op.op_type == "QuantizeLinear" and op.standard}
    if not makers:
        return ops
    return [_through(op, makers, tensors) for op in ops]


def _through(op: Op, makers: Mapping[str, Op], tensors: Mapping[str, Tensor]) -> Op:
    made = makers.get(op.inputs[0]) if op.op_type == "DequantizeLinear" and op.standard else None
    if made is None or len(op.inputs) != 3 or made.inputs[1:] != op.inputs[1:]:
        return op
    zeros = tensors.get(op.inputs[2])
    if zeros is None or zeros.dtype not in RANGES or _setting(op, 0) or _setting(made, 0):
        return op
    if zeros.shape and _setting(op, 1, "axis") != _setting(made, 1, "axis"):
        return op
    return replace(op, inputs=(made.inputs[0], *op.inputs[1:]))


def _setting(op: Op, default: int, name: str = "block_size") -> int:
    return next((a.i for a in op.node.attribute if a.name == name), default)


def is_pair(op: Op, tape: Tape) -> bool:
    """Whether :func:`straight` made an op of two."""
    return op.op_type == "DequantizeLinear" and tape.dtype(op.inputs[0]) in FLOATS


def _cotangents(call: Call) -> Cotangents:
    """y = (q - z) s, q = round(x / s) + z, no smaller and no larger than its type has them. dx = dy
    where round(x / s) + z is in that range, else 0.

    Raises:
        UnsupportedError: trained scales.
    """
    t, x = call.tape, call.x
    if call.need(1):
        raise call.unsupported("its scales are trained")
    scale, zero = (_along(call, position) for position in (1, 2))
    lowest, highest = RANGES[t.dtype(call.op.inputs[2])]
    zero = t.cast(zero, t.dtype(x))
    whole = t.op("Round", t.div(x, scale), shape=t.shape(x))
    inside = t.op(
        "And",
        t.compare("GreaterOrEqual", whole, t.sub(float(lowest), zero)),
        t.compare("LessOrEqual", whole, t.sub(float(highest), zero)),
    )
    return [t.mask(inside, call.dy), None, None]


def _along(call: Call, position: int) -> str:
    """A scale or zero point as it is broadcast against x."""
    t, name = call.tape, call.op.inputs[position]
    if t.size(name) == 1:
        return t.reshape(name, ())
    rank = t.rank(call.x)
    axis = int(call.attribute("axis", 1)) % rank
    return t.reshape(name, [t.size(name) if k == axis else 1 for k in range(rank)])


PAIR = Rule(
    "DequantizeLinear", "", 1, NEWEST, "", frozenset({"x0", "x1", "x2"}), _cotangents,
    flat=frozenset({"x2"}),
)  # fmt: skip
