"""Whole numbers that stand for others, by a scale and a zero point."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz_nodes.draw import MS, Array, Draw, Node, draws


def _bytes(d: Draw, *shape: int) -> Array:
    return d.indices(0, 256, shape).astype(np.uint8)


def _scale(d: Draw, *shape: int) -> Array:
    return d.between(0.01, 0.1, *shape).astype(np.float32)


def _of_axis(d: Draw, shape: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The shape of scales, one for all or for each place of an axis, and how that is said."""
    if d.chance(0.5):
        return (), {}
    axis = d.whole(0, len(shape) - 1)
    return (shape[axis],), {"axis": d.spelled(axis, len(shape))}


@draws("QuantizeLinear DequantizeLinear")
def one(d: Draw, op: str) -> Node:
    shape = d.shape(high=4)
    scales, attributes = _of_axis(d, shape)
    x = d.normal(*shape).astype(np.float32) if op == "QuantizeLinear" else _bytes(d, *shape)
    zeros = _bytes(d, *scales) if d.chance(0.7) else None
    return Node(op, [x, _scale(d, *scales), zeros], attributes, d.of((13, 19)), fixed=[1, 2])


@draws("QLinearAdd QLinearMul", MS)
def two(d: Draw, op: str) -> Node:
    shape = d.shape(high=3)
    inputs: list[Array] = []
    for _ in range(2):
        inputs += [_bytes(d, *d.broadcastable(shape)), _scale(d), _bytes(d)]
    return Node(op, [*inputs, _scale(d), _bytes(d)], {}, 18, domain=MS, fixed=[1, 2, 4, 5, 6, 7])


@draws("QLinearWhere", MS)
def chosen(d: Draw, op: str) -> Node:
    shape = d.shape(high=3)
    inputs: list[Array] = [d.truths(*d.broadcastable(shape))]
    for _ in range(2):
        inputs += [_bytes(d, *d.broadcastable(shape)), _scale(d), _bytes(d)]
    return Node(op, [*inputs, _scale(d), _bytes(d)], {}, 18, domain=MS, fixed=[2, 3, 5, 6, 7, 8])


@draws("QLinearLeakyRelu QLinearSigmoid QLinearSoftmax", MS)
def of_one(d: Draw, op: str) -> Node:
    shape = d.shape(high=5)
    inputs = [_bytes(d, *shape), _scale(d), _bytes(d), _scale(d), _bytes(d)]
    attributes: dict[str, Any] = {"alpha": 0.2} if op == "QLinearLeakyRelu" else {}
    if op == "QLinearSoftmax":
        attributes["axis"] = d.spelled(d.whole(0, len(shape) - 1), len(shape))
        attributes["opset"] = d.of((11, 12, 13, 17))
        inputs[3:] = [np.float32(1 / 256), np.uint8(0)]
    return Node(op, inputs, attributes, 18, domain=MS, fixed=[1, 2, 3, 4])


@draws("QLinearConcat", MS)
def joined(d: Draw, op: str) -> Node:
    shape = d.shape(high=4)
    axis = d.whole(0, len(shape) - 1)
    inputs: list[Array] = [_scale(d), _bytes(d)]
    for _ in range(d.whole(1, 3)):
        own = (*shape[:axis], d.whole(1, 5), *shape[axis + 1 :])
        inputs += [_bytes(d, *own), _scale(d), _bytes(d)]
    fixed = [k for k in range(len(inputs)) if k < 2 or k % 3 != 2]
    attributes = {"axis": d.spelled(axis, len(shape))}
    return Node(op, inputs, attributes, 18, domain=MS, fixed=fixed)


@draws("QLinearGlobalAveragePool QLinearAveragePool NhwcMaxPool", MS)
def pooled(d: Draw, op: str) -> Node:
    image, channels = (d.whole(1, 2), *d.wholes(3, 9, 2)), d.whole(1, 3)
    attributes: dict[str, Any] = {}
    last = op == "NhwcMaxPool" or d.chance(0.5)
    if last and op != "NhwcMaxPool":
        attributes["channels_last"] = 1
    if "Global" not in op:
        attributes["kernel_shape"] = [d.whole(2, 3), d.whole(2, 3)]
        attributes |= d.some(strides=d.wholes(1, 3, 2), pads=d.wholes(0, 1, 4))
        attributes |= d.some(count_include_pad=1) if op != "NhwcMaxPool" else {}
    shape = (*image, channels) if last else (image[0], channels, *image[1:])
    inputs = [_bytes(d, *shape)]
    if op != "NhwcMaxPool":
        inputs += [_scale(d), _bytes(d), _scale(d), _bytes(d)]
    return Node(op, inputs, attributes, 18, domain=MS, fixed=[1, 2, 3, 4])


@draws("QLinearMatMul")
def product(d: Draw, op: str) -> Node:
    return _product(d, op, "")


@draws("MatMulIntegerToFloat DynamicQuantizeMatMul QGemm", MS)
def product_of_its_own(d: Draw, op: str) -> Node:
    return _product(d, op, MS)


def _product(d: Draw, op: str, domain: str) -> Node:
    rows, inner, columns = d.wholes(1, 4, 3)
    lead = d.shape(high=3, least=0, most=2) if op != "QGemm" else ()
    a = _bytes(d, *lead, rows, inner)
    b = d.indices(-9, 9, (inner, columns)).astype(np.int8)
    of_each = (columns,) if d.chance(0.5) else ()
    scales, zeros = _scale(d, *of_each), d.indices(-3, 3, of_each).astype(np.int8)
    attributes: dict[str, Any] = {}
    if op == "DynamicQuantizeMatMul":
        bias = d.normal(columns).astype(np.float32) if d.chance(0.5) else None
        x = d.normal(*lead, rows, inner).astype(np.float32)
        inputs = [x, b, scales, zeros, bias]
    elif op == "MatMulIntegerToFloat":
        bias = d.normal(columns).astype(np.float32) if d.chance(0.5) else None
        inputs = [a, b, _scale(d), scales, _bytes(d), zeros, bias]
    else:
        if op == "QGemm":
            attributes = d.some(transA=1, transB=1)
            a = np.ascontiguousarray(a.T) if "transA" in attributes else a
            b = np.ascontiguousarray(b.T) if "transB" in attributes else b
        inputs = [a, _scale(d), _bytes(d), b, scales, zeros]
        if op == "QGemm":
            bias = d.indices(-99, 99, (columns,)).astype(np.int32)
            inputs.append(bias if d.chance(0.6) else None)
        inputs += [_scale(d), _bytes(d)]
    return Node(op, inputs, attributes, 18, domain=domain, fixed=[*range(1, 9)])


@draws("GatherBlockQuantized", MS)
def looked_up(d: Draw, op: str) -> Node:
    rows, blocks = d.whole(1, 5), d.whole(1, 2)
    table = d.indices(0, 256, (rows, blocks * 8)).astype(np.uint8)
    scales = _scale(d, rows, blocks)
    attributes = {"bits": 4, "block_size": 16, "quantize_axis": 1, "gather_axis": 0}
    inputs = [table, d.indices(0, rows, d.shape(high=3, most=2)), scales]
    return Node(op, inputs, attributes, 18, domain=MS, fixed=[0, 2])


@draws("QLinearConv")
def convolution(d: Draw, op: str) -> Node:
    return _convolution(d, op, "", last=False)


@draws("QLinearConv", MS)
def convolution_of_rows(d: Draw, op: str) -> Node:
    return _convolution(d, op, MS, last=True)


def _convolution(d: Draw, op: str, domain: str, *, last: bool) -> Node:
    batch, channels, made, rows, columns = (*d.wholes(1, 3, 3), *d.wholes(4, 9, 2))
    kernel = d.wholes(1, 3, 2)
    attributes = {"kernel_shape": kernel} | d.some(
        strides=d.wholes(1, 2, 2), pads=d.wholes(0, 1, 4), dilations=[1, d.whole(1, 2)]
    )
    shape = (batch, channels, rows, columns)
    if last:
        attributes["channels_last"] = 1
        shape = (batch, rows, columns, channels)
    of_each = (made,) if d.chance(0.5) else ()
    inputs = [
        _bytes(d, *shape), _scale(d), _bytes(d),
        _bytes(d, made, channels, *kernel), _scale(d, *of_each), np.full(of_each, 128, np.uint8),
        _scale(d), _bytes(d),
        d.indices(-99, 99, (made,)).astype(np.int32) if d.chance(0.5) else None,
    ]  # fmt: skip
    return Node(op, inputs, attributes, 18, domain=domain, fixed=[*range(1, 9)])
