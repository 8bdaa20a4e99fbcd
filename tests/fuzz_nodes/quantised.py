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
