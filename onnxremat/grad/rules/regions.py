"""Regions of images brought to one size: RoiAlign."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp


@vjp("RoiAlign", since=16, reads="x1 x2", flat="x1")
def roi_align(call: Call) -> Cotangents:
    """y[r, c] = A_r x[image of r, c] B_r^T: points of a box are interpolated linearly along either
    axis, so that averages of points are two matrices per box, A_r [rows, H] and B_r [columns, W].

    dx[n] = the sum over boxes r of image n of A_r^T dy[r] B_r, one product over boxes and rows per
    image (boxes of other images have shares of 0), so that nothing is added up at indices. Boxes
    have no gradient, as in torchvision.

    Raises:
        UnsupportedError: the largest point instead of the average, or a number of points that
            depends on the box.
    """
    t, (images, channels, high, wide) = call.tape, call.shape()
    if call.attribute("mode", "avg") != "avg":
        raise call.unsupported("'mode' is max: no framework trains through it")
    if call.attribute("sampling_ratio", 0) <= 0:
        raise call.unsupported("'sampling_ratio' is 0: the number of points depends on the boxes")
    boxes, _, rows, columns = call.out_shape
    down = _shares(call, 1, rows, high)  # [R, rows, H]
    across = _shares(call, 0, columns, wide)  # [R, columns, W]
    part = t.matmul(call.dy, t.reshape(across, (boxes, 1, columns, wide)))  # [R, C, rows, W]
    part = t.reshape(t.transpose(part, (0, 2, 1, 3)), (boxes * rows, channels * wide))
    if images > 1:
        number = t.constant(np.arange(images).reshape(-1, 1), t.dtype(call.op.inputs[2]))
        own = t.compare("Equal", number, t.reshape(call.op.inputs[2], (1, boxes)))
        down = t.mask(t.reshape(own, (images, boxes, 1, 1)), down)
    down = t.reshape(down, (images, boxes * rows, high))
    made = t.matmul(t.transpose(down, (0, 2, 1)), part)  # [N, H, C * W]
    made = t.reshape(made, (images, high, channels, wide))
    return call.only(t.transpose(made, (0, 2, 1, 3)))


def _shares(call: Call, axis: int, count: int, length: int) -> str:
    """Per box and element of the result along an axis (0 is x) the shares of the image's
    elements [R, count, length]: averages of hats around the points."""
    t, boxes = call.tape, call.out_shape[0]
    points = int(call.attribute("sampling_ratio", 0))
    half = call.attribute("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    kind = T.DOUBLE if t.dtype(call.x) == T.DOUBLE else T.FLOAT
    corners = t.cast(call.op.inputs[1], kind)
    scale = float(call.attribute("spatial_scale", 1.0))
    low, end = (t.mul(t.slice(corners, [1], [k], [k + 1]), scale) for k in (axis, axis + 2))
    size = t.sub(end, low)
    if half:
        low = t.sub(low, 0.5)
    else:
        size = t.op("Max", size, 1.0)
    steps = (np.arange(count * points) + 0.5) / (count * points)
    at = t.add(low, t.mul(size, t.constant(steps.reshape(1, -1), kind)))  # [R, count * points]
    inside = t.op(
        "And", t.compare("GreaterOrEqual", at, -1.0), t.compare("LessOrEqual", at, float(length))
    )
    at = t.op("Clip", at, t.like(0.0, at), t.like(length - 1.0, at), shape=t.shape(at))
    shape = (boxes, count * points, 1)
    far = t.op("Abs", t.sub(t.reshape(at, shape), t.constant(np.arange(length), kind)))
    share = t.op("Relu", t.sub(1.0, far))
    share = t.mask(t.reshape(inside, shape), share)
    share = t.mean(t.reshape(share, (boxes, count, points, length)), [2], keep=False)
    return t.cast(share, t.dtype(call.dy))
