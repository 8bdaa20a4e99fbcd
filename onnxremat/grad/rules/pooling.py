"""Pooling over windows and over all of space."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.rules.geometry import Window, window_of
from onnxremat.grad.rules.scattering import added_at
from onnxremat.grad.tape import Tape


@vjp("MaxPool", variant="saved", reads="y1")
def max_pool_saved(call: Call) -> Cotangents:
    """y = largest of each window, and where it was. dx = dy added up at these places; MaxUnpool
    where windows do not overlap. Keeps the places, 8 bytes each.

    Raises:
        UnsupportedError: column-major indices.
    """
    return _max_pool(call, call.extra(1, T.INT64, call.out_shape))


@vjp("MaxPool", variant="input", reads="x0")
def max_pool_input(call: Call) -> Cotangents:
    """As the saved variant, with the places found again: for x that is kept anyway."""
    t, names = call.tape, ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
    settings = {name: call.attribute(name) for name in names}
    outputs = [(t.dtype(call.x), call.out_shape), (T.INT64, call.out_shape)]
    largest, indices = t.multi("MaxPool", [t.later(call.x, call.dy)], outputs, **settings)
    return _max_pool(call, indices, largest)


def _max_pool(call: Call, indices: str, spare: str = "") -> Cotangents:
    """``spare`` is an output that is not needed: onnxruntime keeps what nobody reads to the end
    of the run, so something waits for it."""
    t, shape = call.tape, call.shape()
    if call.attribute("storage_order", 0):
        raise call.unsupported("indices in column-major order")
    window = _window(call)
    scatters = not window.tiles or t.dtype(call.x) != T.FLOAT or any(_short(window))
    count, places = math.prod(shape), math.prod(call.out_shape)
    if scatters:
        indices = t.reshape(indices, (places,))
    if spare:
        indices = t.later(indices, spare)
    if not scatters:
        made = t.op(
            "MaxUnpool", call.dy, indices, t.integers(*shape), shape=shape,
            kernel_shape=window.kernel, strides=window.strides,
        )  # fmt: skip
        return [made]
    zeros = t.filled(0.0, (count,), t.dtype(call.x))
    made = added_at(t, zeros, indices, t.reshape(call.dy, (places,)), 0)
    return [t.reshape(made, shape)]


def _window(call: Call) -> Window:
    """The window of a pool.

    Raises:
        UnsupportedError: onnxruntime has other windows than the operator's definition.
    """
    kernel = tuple(call.attribute("kernel_shape"))
    window = window_of(call, call.shape()[2:], kernel, call.out_shape[2:])
    auto = call.attribute("auto_pad", "NOTSET")
    if auto.startswith("SAME") and set(window.dilations) != {1}:
        raise call.unsupported(f"its windows are dilated, which 'auto_pad' = {auto} goes without")
    if auto.startswith("SAME") and max(window.leftover()) > 0:
        raise call.unsupported(
            f"its strides are longer than its window, and 'auto_pad' = {auto} then cuts off what "
            "only some of onnxruntime's kernels do"
        )
    call.require_inferred()
    return window


def _short(window: Window) -> list[bool]:
    """Axes whose last window reaches beyond the input (ceil_mode)."""
    return [s * o > n for s, o, n in zip(window.strides, window.output, window.input, strict=True)]


@vjp("AveragePool")
def average_pool(call: Call) -> Cotangents:
    """y = mean of each window. dx = each dy / count spread over its window: repeated where the
    windows tile the input, else an AveragePool of dy with zeros between and around."""
    t, window = call.tape, _window(call)
    counts = _counts(window, bool(call.attribute("count_include_pad", 0)))
    dy = call.dy
    if (counts != window.taps).any():
        dy = t.mul(dy, t.constant(window.taps / counts, t.dtype(dy)))
    if window.tiles and not any(window.leftover()) and t.dtype(dy) == T.FLOAT and window.rank == 2:
        return [_repeated(t, t.mul(dy, 1.0 / window.taps), window)]
    return [_spread_windows(t, dy, window)]


def _counts(window: Window, with_padding: bool) -> np.ndarray:
    """Elements each window averages over."""
    counts = np.ones(window.output)
    for axis in range(window.rank):
        ends = window.input[axis], window.before[axis], window.after[axis]
        low, high = (-ends[1], ends[0] + ends[2]) if with_padding else (0, ends[0])
        per_axis = np.zeros(window.output[axis])
        for place, tap in product(range(window.output[axis]), range(window.kernel[axis])):
            at = place * window.strides[axis] + tap * window.dilations[axis] - window.before[axis]
            per_axis[place] += low <= at < high
        rows = [1] * window.rank
        rows[axis] = -1
        counts = counts * per_axis.reshape(rows)
    return counts


def _repeated(t: Tape, a: str, window: Window) -> str:
    """Every element repeated over its window, by a nearest-neighbour Resize."""
    scales = t.constant([1.0, 1.0, *window.kernel], T.FLOAT)
    shape = (*t.shape(a)[:2], *window.input)
    names = [a, "", scales]
    return t.multi(
        "Resize", names, [(t.dtype(a), shape)], mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )[0]  # fmt: skip


def _spread_windows(t: Tape, dy: str, window: Window) -> str:
    """Each dy / taps added to every element of its window: the mean over mirrored windows of dy,
    spread out to the spacing of the windows."""
    if set(window.dilations) != {1}:
        return _spread_by_transpose(t, dy, window)
    for axis, stride in enumerate(window.strides):
        dy = zeros_between(t, dy, 2 + axis, stride)
    apart = t.shape(dy)[2:]
    before = [k - 1 - p for k, p in zip(window.kernel, window.before, strict=True)]
    after = [
        n + k - 1 - b - a
        for n, k, b, a in zip(window.input, window.kernel, before, apart, strict=True)
    ]
    # onnxruntime fuses the Pad into the pool, which refuses padding of a whole kernel; what lies
    # beyond gets nothing.
    beyond = [max(0, a - (k - 1)) for a, k in zip(after, window.kernel, strict=True)]
    after = [a - b for a, b in zip(after, beyond, strict=True)]
    padded = t.pad(dy, [0, 0, *before], [0, 0, *after])
    sizes = [n - b for n, b in zip(window.input, beyond, strict=True)]
    pooled = t.op(
        "AveragePool", padded, shape=(*t.shape(dy)[:2], *sizes), kernel_shape=window.kernel,
        strides=[1] * window.rank,
    )  # fmt: skip
    return t.pad(pooled, [0] * t.rank(dy), [0, 0, *beyond])


def _spread_by_transpose(t: Tape, dy: str, window: Window) -> str:
    channels = t.shape(dy)[1]
    reached = [max(0, -n) for n in window.leftover()]  # beyond the padding (ceil_mode)
    window = replace(window, after=tuple(a + r for a, r in zip(window.after, reached, strict=True)))
    ones = t.filled(1.0 / window.taps, (channels, 1, *window.kernel), t.dtype(dy))
    leftover = window.leftover()
    reach = [min(n, s - 1) for n, s in zip(leftover, window.strides, strict=True)]
    missing = [n - r for n, r in zip(leftover, reach, strict=True)]
    sizes = [n - m for n, m in zip(window.input, missing, strict=True)]
    made = t.op(
        "ConvTranspose", dy, ones, shape=(*t.shape(dy)[:2], *sizes), strides=window.strides,
        dilations=window.dilations, pads=window.pads, group=channels, output_padding=reach,
    )  # fmt: skip
    return t.pad(made, [0] * t.rank(dy), [0, 0, *missing])


def zeros_between(t: Tape, a: str, axis: int, stride: int) -> str:
    """``stride - 1`` zeros after every element along an axis, none after the last."""
    shape = list(t.shape(a))
    if stride == 1 or shape[axis] == 1:
        return a
    apart = t.reshape(a, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    after = [0] * (len(shape) + 1)
    after[axis + 1] = stride - 1
    apart = t.pad(apart, [0] * len(after), after)
    length = shape[axis] * stride
    apart = t.reshape(apart, (*shape[:axis], length, *shape[axis + 1 :]))
    return t.slice(apart, [axis], [0], [length - stride + 1])


@vjp("LpPool", since=18, reads="x0 y0")
def lp_pool(call: Call) -> Cotangents:
    """y = (sum over each window of |x|**p)**(1/p). dx = x |x|**(p-2) times dy y**(1-p) spread
    over the windows."""
    t, window, order = call.tape, _window(call), call.attribute("p", 2)
    safe = t.where(t.compare("Equal", call.y, 0.0), 1.0, call.y)
    weighted = t.div(call.dy, t.op("Pow", safe, float(order - 1)) if order != 2 else safe)
    spread = t.mul(_spread_windows(t, weighted, window), float(window.taps))
    size = t.op("Abs", call.x)
    inner = call.x if order == 2 else t.mul(t.op("Sign", call.x), t.op("Pow", size, order - 1.0))
    return [t.mul(inner, spread)]


@vjp("GlobalAveragePool")
def global_average_pool(call: Call) -> Cotangents:
    """y = mean over space. dx = dy / count broadcast."""
    t, shape = call.tape, call.shape()
    return [t.expand(t.mul(call.dy, 1.0 / math.prod(shape[2:])), shape)]


@vjp("GlobalMaxPool", reads="x0 y0")
def global_max_pool(call: Call) -> Cotangents:
    """y = largest over space. dx = dy there, shared evenly between equal ones."""
    t = call.tape
    hit = t.cast(t.compare("Equal", call.x, call.y), t.dtype(call.x))
    count = t.sum(hit, range(2, len(call.shape())), keep=True)
    return [t.mul(hit, t.div(call.dy, count))]


@vjp("GlobalLpPool", reads="x0 y0")
def global_lp_pool(call: Call) -> Cotangents:
    """y = (sum over space of |x|**p)**(1/p). dx = x |x|**(p-2) dy y**(1-p), 0 where y is 0."""
    t, order = call.tape, call.attribute("p", 2)
    safe = t.where(t.compare("Equal", call.y, 0.0), 1.0, call.y)
    ratio = t.div(call.x, safe)
    if order != 2:
        ratio = t.mul(t.op("Sign", call.x), t.op("Pow", t.op("Abs", ratio), order - 1.0))
    return [t.mul(ratio, call.dy)]


@vjp("MaxUnpool", reads="x1")
def max_unpool(call: Call) -> Cotangents:
    """y = x put at places of a larger tensor. dx = dy at these places."""
    t, places = call.tape, math.prod(call.shape())
    flat = t.reshape(call.dy, (math.prod(call.out_shape),))
    indices = t.reshape(call.op.inputs[1], (places,))
    made = t.op("GatherElements", flat, indices, shape=(places,), axis=0)
    return call.only(t.reshape(made, call.shape()))
