"""Elementwise operators, and those that reduce."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.fuzz_nodes.draw import Array, Draw, Node, draws, wholes

FACTORS = (-1.5, -0.5, 0.0, 0.3, 1.0, 2.0)


@draws(
    "Abs Asin Asinh Atan Ceil Cos Cosh Erf Exp Floor HardSwish Identity IsInf IsNaN Mish Neg "
    "Reciprocal Relu Round Sigmoid Sign Sin Sinh Softplus Softsign Tan Tanh Acos Acosh Atanh Log "
    "Sqrt"
)
def plain(d: Draw, op: str) -> Node:
    shape = d.shape(least=0)
    x = d.away(0.3, *shape)
    if op in ("Asin", "Acos", "Atanh"):
        x = d.between(-0.8, 0.8, *shape)
    if op in ("Acosh", "Log", "Sqrt"):
        x = np.asarray(d.positive(*shape) + d.dtype(1.0))
    newest = {"HardSwish": (14, 22), "Mish": (18, 22), "IsInf": (10, 20), "IsNaN": (13, 20)}
    return Node(op, [x], {}, d.of(newest.get(op, (13, 22) if op != "Relu" else (13, 14))))


@draws("Affine Crop ImageScaler ParametricSoftplus Scale ScaledTanh")
def former(d: Draw, op: str) -> Node:
    """Of onnxruntime, in ONNX's domain."""
    x = d.normal(d.whole(1, 2), d.whole(1, 3), *d.wholes(3, 5, 2))
    if op == "Crop":
        sizes = {"scale": d.wholes(1, 2, 2)} if d.chance(0.4) else {}
        return Node(op, [x], {"border": d.wholes(0, 1, 4), **sizes}, 7)
    if op in ("ImageScaler", "Scale"):
        bias = {"bias": [d.of((0.5, -2.0)) for _ in range(x.shape[1])]}
        return Node(op, [x], {"scale": 0.3} | (bias if op == "ImageScaler" else {}), 7)
    return Node(op, [x], {"alpha": 0.7, "beta": d.of((-1.3, 0.6))}, 7)


@draws("Elu LeakyRelu ThresholdedRelu Celu Selu Shrink HardSigmoid Gelu Swish Clip PRelu")
def shaped(d: Draw, op: str) -> Node:
    x, opset, more = d.normal(*d.shape(least=0)), 18, list[Array | None]()
    names = {
        "Elu": "alpha", "LeakyRelu": "alpha", "ThresholdedRelu": "alpha", "Selu": "alpha gamma",
        "Shrink": "lambd bias", "HardSigmoid": "alpha beta", "Swish": "alpha", "Celu": "alpha",
    }.get(op, "")  # fmt: skip
    attributes = d.some(**{name: d.of(FACTORS) for name in names.split()})
    if op == "Celu":
        attributes = d.some(alpha=d.of((-1.0, 0.5, 2.0)))
    if op == "Gelu":
        opset, attributes = 20, d.some(approximate=d.word("none tanh"))
    if op == "Swish":
        opset = 24
    if op == "Clip":
        more = [d.normal() if d.chance(0.7) else None for _ in range(2)]
    if op == "PRelu":
        opset, more = 16, [d.normal(*d.broadcastable(x.shape))]
    return Node(op, [x, *more], attributes, opset)


@draws("Add Sub Mul Div Pow Mod Equal Greater GreaterOrEqual Less LessOrEqual")
def two(d: Draw, op: str) -> Node:
    shape = d.shape(high=3, least=0)
    a, b = d.normal(*d.broadcastable(shape)), d.normal(*d.broadcastable(shape))
    if op in ("Div", "Mod"):
        b = d.away(0.7, *b.shape)
    if op == "Pow":
        a = d.positive(*a.shape)
        if d.chance(0.3):
            a, b = d.away(0.2, *a.shape), d.of([wholes(3)[0], d.dtype(2.0)])
    return Node(op, [a, np.asarray(b)], {"fmod": 1} if op == "Mod" else {}, d.of((13, 16)))


@draws("And Or Xor BitwiseAnd BitwiseOr BitwiseXor BitShift Not BitwiseNot")
def of_bits(d: Draw, op: str) -> Node:
    shape = d.shape(high=3, least=0)
    inputs = [d.truths(*d.broadcastable(shape)) for _ in range(2)]
    if op.startswith("Bit"):
        kind = d.of((np.uint8, np.uint32)) if op == "BitShift" else d.of((np.int32, np.uint8))
        inputs = [each.astype(kind) * kind(d.whole(1, 3)) for each in inputs]
    attributes = {"direction": d.word("LEFT RIGHT")} if op == "BitShift" else {}
    return Node(op, inputs[: 1 if op.endswith("Not") else 2], attributes, 18)


@draws("Min Max Sum Mean")
def several(d: Draw, op: str) -> Node:
    shape = d.shape(high=3, least=0)
    inputs = [d.normal(*d.broadcastable(shape)) for _ in range(d.whole(1, 4))]
    if len(inputs) > 1 and d.chance(0.3):  # ties
        inputs[1] = np.array(inputs[0])
    return Node(op, inputs, {}, 13)


@draws("Where")
def where(d: Draw, op: str) -> Node:
    shape = d.shape(high=3, least=0)
    parts = [d.broadcastable(shape) for _ in range(3)]
    return Node(op, [d.truths(*parts[0]), d.normal(*parts[1]), d.normal(*parts[2])], {}, 16)


@draws("Cast CastLike")
def cast(d: Draw, op: str) -> Node:
    kind = d.of((np.float32, np.float64, np.float16))
    x = d.normal(*d.shape(least=0))
    if op == "CastLike":
        return Node(op, [x, np.ones(2, kind)], {}, d.of((15, 19)), fixed=[1])
    return Node(op, [x], {"to": helper.np_dtype_to_tensor_dtype(np.dtype(kind))}, d.of((13, 19)))


@draws("Dropout")
def dropout(d: Draw, op: str) -> Node:
    more: list[Array | None] = [np.array(0.4, np.float32)] if d.chance(0.5) else []
    return Node(op, [d.normal(*d.shape()), *more], d.some(seed=3), d.of((13, 22)), d.whole(1, 2))


@draws(
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare "
    "ReduceLogSum ReduceLogSumExp"
)
def reduction(d: Draw, op: str) -> Node:
    x = d.away(0.1, *d.shape(least=0))
    if op == "ReduceLogSum":
        x = d.positive(*x.shape)
    if d.chance(0.2):  # ties, and zeros in a product
        x = np.asarray(np.round(x), x.dtype)
    opset, attributes = d.of((11, 13, 18, 20)), d.some(keepdims=d.whole(0, 1))
    axes = [d.spelled(a, x.ndim) for a in d.axes(x.ndim, 0)] if x.ndim else []
    if opset >= 18 or (op == "ReduceSum" and opset >= 13):
        attributes |= d.some(noop_with_empty_axes=d.whole(0, 1))
        return Node(op, [x, wholes(*axes) if d.chance(0.8) else None], attributes, opset)
    return Node(op, [x], attributes | ({"axes": axes} if axes else {}), opset)


@draws("ArgMax ArgMin")
def place(d: Draw, op: str) -> Node:
    x = np.asarray(np.round(d.normal(*d.shape())), d.dtype)
    axis = d.spelled(d.whole(0, x.ndim - 1), x.ndim)
    keep = d.some(keepdims=d.whole(0, 1), select_last_index=d.whole(0, 1))
    return Node(op, [x], {"axis": axis, **keep}, 13)


@draws("CumSum")
def sums(d: Draw, op: str) -> Node:
    x = d.normal(*d.shape())
    axis = np.array(d.spelled(d.whole(0, x.ndim - 1), x.ndim), d.of((np.int32, np.int64)))
    return Node(op, [x, axis], d.some(exclusive=d.whole(0, 1), reverse=d.whole(0, 1)), 14)


@draws("TopK")
def top(d: Draw, op: str) -> Node:
    x = d.normal(*d.shape())
    axis = d.whole(0, x.ndim - 1)
    attributes = d.some(largest=d.whole(0, 1), sorted=d.whole(0, 1))
    many = wholes(d.whole(1, x.shape[axis]))
    return Node(op, [x, many], {"axis": d.spelled(axis, x.ndim), **attributes}, 11, 2)
