"""Resize. Its ancestor Upsample is one by then: forward graphs are at opset 18 or later."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto as T
from onnx import helper

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.tape import Tape
from onnxremat.ort.session import Options, open_session, session_options

COPIED = (
    "antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "mode",
    "nearest_mode",
)  # fmt: skip
CROP = "tf_crop_and_resize"


@vjp("Resize", since=11)
def resize(call: Call) -> Cotangents:
    """y = x interpolated, one axis after the other, each a fixed matrix. dx = dy times the
    transposed matrices; a pool where elements were just repeated. What lies outside of the
    region that is cropped is a constant: its row of the matrix is 0.

    Raises:
        UnsupportedError: a policy that changes the size asked for, or a region computed at run
            time.
    """
    t, shape, out = call.tape, call.shape(), call.out_shape
    if len(out) != len(shape):
        raise call.unsupported(f"the file gives its result the shape {out}, its input {shape}")
    if 0 in out:  # a product over nothing is not written by every kernel
        return call.only(t.filled(0.0, shape, t.dtype(call.x)))
    matrices = {
        axis: interpolation(call, axis)
        for axis in range(len(shape))
        if shape[axis] != out[axis]
        or _scale(call, axis) not in (None, 1.0)
        or _region(call, axis) != (0.0, 1.0)
    }
    factors = [o // n for n, o in zip(shape, out, strict=True)]
    repeated = all(_repeats(matrix) for matrix in matrices.values())
    spatial = len(shape) > 2 and all(axis >= 2 for axis in matrices)
    if matrices and repeated and spatial and t.dtype(call.x) == T.FLOAT:
        kernel = factors[2:]
        pooled = t.op("AveragePool", call.dy, shape=shape, kernel_shape=kernel, strides=kernel)
        return call.only(t.mul(pooled, float(math.prod(kernel))))
    dx = call.dy
    # The last axis first: its product needs no reshaping, and it shrinks what follows.
    for axis in sorted(matrices, reverse=True):
        dx = along_axis(t, dx, axis, matrices[axis])
    return call.only(dx)


def along_axis(t: Tape, a: str, axis: int, matrix: np.ndarray) -> str:
    """a with an axis of length o turned into one of length n by a matrix [o, n]."""
    shape = t.shape(a)
    to = (*shape[:axis], matrix.shape[1], *shape[axis + 1 :])
    if axis == len(shape) - 1 > 0:
        return t.matmul(a, t.constant(matrix, t.dtype(a)))
    rest = math.prod(shape[axis + 1 :])
    rows = t.reshape(a, (math.prod(shape[:axis]), shape[axis], rest))
    return t.reshape(t.matmul(t.constant(matrix.T, t.dtype(a)), rows), to)


def _repeats(matrix: np.ndarray) -> bool:
    """Whether the matrix [o, n] repeats every element o / n times."""
    o, n = matrix.shape
    return o % n == 0 and np.array_equal(matrix, np.repeat(np.eye(n), o // n, axis=0))


def _scale(call: Call, axis: int) -> float | None:
    """The scale the node asks for along an axis, None when it asks for a size."""
    if call.input(3) is not None and call.input(2) is None:
        return None
    scales = call.value(2)
    if scales.size == 0:
        return None
    axes = [a % len(call.shape()) for a in call.attribute("axes", range(len(call.shape())))]
    return float(scales[axes.index(axis)]) if axis in axes else None


def _region(call: Call, axis: int) -> tuple[float, float]:
    """Where the cropped part of an axis begins and ends, as parts of its length."""
    if call.attribute("coordinate_transformation_mode", "") != CROP:
        return 0.0, 1.0
    region, rank = call.value(1), len(call.shape())
    axes = [a % rank for a in call.attribute("axes", range(rank))]
    if axis not in axes:
        return 0.0, 1.0
    place = axes.index(axis)
    return float(region[place]), float(region[len(axes) + place])


def interpolation(call: Call, axis: int) -> np.ndarray:
    """The matrix [o, n] of a Resize along one axis: what onnxruntime makes of unit vectors.

    Raises:
        UnsupportedError: the policy for the aspect ratio changes the size asked for.
    """
    n, o = call.shape()[axis], call.out_shape[axis]
    if call.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise call.unsupported("keep_aspect_ratio_policy is not differentiated")
    attributes = {name: call.attribute(name) for name in COPIED}
    attributes = {name: value for name, value in attributes.items() if value is not None}
    scale = _scale(call, axis)
    start, end = _region(call, axis)
    inputs = ["x", "roi", "", "sizes"] if scale is None else ["x", "roi", "scales"]
    node = helper.make_node("Resize", inputs, ["y"], **attributes)
    # The data are unit vectors along one axis, one per row.
    sides = [0.0, 0.0, 0.0, start, 1.0, 1.0, 1.0, end]
    initializers = [
        helper.make_tensor("roi", T.FLOAT, [8], sides),
        helper.make_tensor("sizes", T.INT64, [4], [1, 1, n, o])
        if scale is None
        else helper.make_tensor("scales", T.FLOAT, [4], [1.0, 1.0, 1.0, scale]),
    ]
    graph = helper.make_graph(
        [node],
        "interpolation",
        [helper.make_tensor_value_info("x", T.FLOAT, [1, 1, n, n])],
        [helper.make_tensor_value_info("y", T.FLOAT, None)],
        initializers,
    )
    opsets = [helper.make_opsetid("", max(call.version, 18))]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = open_session(model, session_options(Options(threads=1)))
    (result,) = session.run(None, {"x": np.eye(n, dtype=np.float32)[None, None]})
    return np.asarray(result[0, 0].T, np.float64)
