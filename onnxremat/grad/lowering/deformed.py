"""Deformable convolution (Dai et al. 2017; with a mask, Zhu et al. 2019) as samples of the image
and a product."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from onnxremat.grad.lowering.writer import Writer

HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)  # places between pixels are float32 then
RENAMED = 20  # opset from which GridSample calls its modes as Resize does, and takes float64


def deform_conv(w: Writer) -> None:
    """y = filters times columns: for each element k of a filter and each place p of the result the
    image at p * stride - pad + k * dilation + offset, between pixels, by the mask.

    Raises:
        UnsupportedError: in float64 at an opset whose samples onnxruntime has in float32 alone.
    """
    newer = w.graph.opsets.get("", 0) >= RENAMED
    if not newer and w.real == TensorProto.DOUBLE:
        raise w.unsupported(f"it is in float64, which takes opset {RENAMED} or later")
    image, filters, moves = (w.shape(w.input(k)) for k in range(3))
    batch, channels = image[:2]
    groups, bundles = w.attribute("group", 1), w.attribute("offset_group", 1)
    rows, columns = moves[2:]
    kernel, places = math.prod(filters[2:]), rows * columns
    grid = _grid(w, (batch * bundles, kernel, rows, columns))
    apart = w("Reshape", w.input(0), w.constant([batch * bundles, -1, *image[2:]]))
    narrow = w.real in HALF
    apart = w.cast(apart, TensorProto.FLOAT) if narrow else apart
    mode = "linear" if newer else "bilinear"
    taken = w("GridSample", apart, grid, mode=mode, padding_mode="zeros", align_corners=0)
    taken = w.cast(taken, w.real) if narrow else taken
    if w.input(4):
        each = w("Reshape", taken, w.constant([batch * bundles, -1, kernel, places]))
        mask = w("Reshape", w.input(4), w.constant([batch * bundles, 1, kernel, places]))
        taken = w("Mul", each, mask)
    inner = channels // groups * kernel
    taken = w("Reshape", taken, w.constant([batch, groups, inner, places]))
    flat = w("Reshape", w.input(1), w.constant([groups, filters[0] // groups, inner]))
    shape = w.constant([batch, filters[0], rows, columns])
    last = not w.input(3)
    made = w("Reshape", w("MatMul", flat, taken), shape, to=w.output(0) if last else "")
    if not last:
        bias = w("Reshape", w.input(3), w.constant([1, filters[0], 1, 1]))
        w("Add", made, bias, to=w.output(0))


def _grid(w: Writer, shape: tuple[int, int, int, int]) -> str:
    """Where the image is looked at, x before y, both from -1 to 1: [images, kernel * rows, columns,
    2] of offsets [batch, bundles * kernel * 2, rows, columns], y before x."""
    images, kernel, rows, columns = shape
    sizes = np.array(w.shape(w.input(0))[:1:-1], np.float64)  # width and height
    kind = TensorProto.FLOAT if w.real in HALF else w.real
    moves = w.input(2) if kind == w.real else w.cast(w.input(2), kind)
    moves = w("Reshape", moves, w.constant([images, kernel, 2, rows, columns]))
    moves = w("Gather", moves, w.constant([1, 0]), axis=2)
    moves = w("Transpose", moves, perm=[0, 1, 3, 4, 2])
    rest = (2.0 * _places(w, kernel, rows, columns) + 1.0) / sizes - 1.0
    grid = w("Add", w("Mul", moves, w.constant(2.0 / sizes, kind)), w.constant(rest, kind))
    return w("Reshape", grid, w.constant([images, kernel * rows, columns, 2]))


def _places(w: Writer, kernel: int, rows: int, columns: int) -> np.ndarray:
    """Pixels without offsets, [kernel, rows, columns, 2], x before y."""
    sides = w.shape(w.input(1))[2:]
    strides, dilations = (w.attribute(name, [1, 1]) for name in ("strides", "dilations"))
    pads = w.attribute("pads", [0] * 4)
    found = [
        np.arange(count)[None, :] * stride + np.arange(side)[:, None] * dilation - pad
        for count, side, stride, dilation, pad in zip(
            (rows, columns), sides, strides, dilations, pads[:2], strict=True
        )
    ]
    y = found[0][:, None, :, None]
    x = found[1][None, :, None, :]
    both = np.stack(np.broadcast_arrays(x, y), axis=-1)
    return both.reshape(kernel, rows, columns, 2).astype(np.float64)
