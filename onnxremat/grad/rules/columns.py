"""Columns of windows put back into an image."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp


@vjp("Col2Im", since=18)
def col2im(call: Call) -> Cotangents:
    """y = columns of windows added up where the windows lie. dx = dy taken there, by a Gather with
    fixed indices.

    Raises:
        UnsupportedError: sizes computed at run time.
    """
    t, rank = call.tape, len(call.out_shape) - 2
    sizes = [int(size) for size in call.value(1)]
    block = [int(size) for size in call.value(2)]
    pads = call.attribute("pads", [0] * 2 * rank)
    strides, dilations = (call.attribute(n, [1] * rank) for n in ("strides", "dilations"))
    around = [n + p + q for n, p, q in zip(sizes, pads[:rank], pads[rank:], strict=True)]
    places = np.zeros((1, 1), np.int64)  # of [element of the window, window]
    for n, b, s, d in zip(around, block, strides, dilations, strict=True):
        windows = (n - d * (b - 1) - 1) // s + 1
        along = np.arange(b)[:, None] * d + np.arange(windows) * s
        places = places[:, None, :, None] * n + along[None, :, None, :]
        places = places.reshape(places.shape[0] * b, -1)
    dy = t.pad(call.dy, [0, 0, *pads[:rank]], [0, 0, *pads[rank:]])
    images, channels = call.out_shape[:2]
    rows = t.reshape(dy, (images, channels, math.prod(around)))
    shape = (images, channels, *places.shape)
    taken = t.op("Gather", rows, t.constant(places, T.INT64), shape=shape, axis=2)
    return call.only(t.reshape(taken, call.shape()))
