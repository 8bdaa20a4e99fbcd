"""Ops that move elements without changing them."""

from __future__ import annotations

import math

import numpy as np

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.rules.pooling import zeros_between
from onnxremat.grad.rules.runs import sum_of_runs

NO_END = (2**31 - 1, 2**63 - 1)  # of a slice: as far as there are elements


@vjp("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(call: Call) -> Cotangents:
    """y = x in another shape. dx = dy in x's shape."""
    return call.only(call.tape.reshape(call.dy, call.shape()))


@vjp("Identity", "Cast")
@vjp("CastLike", flat="x1")
def identity(call: Call) -> Cotangents:
    """y = x, maybe in another type. dx = dy (the walk casts it to x's type)."""
    return call.only(call.dy)


@vjp("Transpose")
def transpose(call: Call) -> Cotangents:
    """y = x with axes permuted. dx = dy with the inverse permutation."""
    rank = len(call.shape())
    perm = call.attribute("perm", list(range(rank))[::-1])
    return [call.tape.transpose(call.dy, [perm.index(axis) for axis in range(rank)])]


@vjp("Expand")
def expand(call: Call) -> Cotangents:
    """y = x broadcast. dx = dy summed over the broadcast axes (by the walk)."""
    return call.only(call.dy)


@vjp("Concat")
def concat(call: Call) -> Cotangents:
    """y = parts side by side. Each part gets its slice of dy."""
    t, axis, start = call.tape, call.attribute("axis") % len(call.out_shape), 0
    made: list[str | None] = []
    for k, name in enumerate(call.op.inputs):
        end = start + t.shape(name)[axis]
        made.append(t.slice(call.dy, [axis], [start], [end]) if call.need(k) else None)
        start = end
    return made


@vjp("Split")
def split(call: Call) -> Cotangents:
    """y0, y1, ... = parts of x. dx = their cotangents side by side, zeros where unused."""
    t, axis = call.tape, call.attribute("axis", 0) % len(call.shape())
    parts = [
        cotangent if cotangent is not None else t.zeros(name)
        for cotangent, name in zip(call.cotangents, call.op.outputs, strict=True)
    ]
    return call.only(t.concat(parts, axis))


@vjp("Slice")
def slice_(call: Call) -> Cotangents:
    """y = a part of x. dx = dy with zeros between (steps) and around it.

    Raises:
        UnsupportedError: bounds computed at run time, or backwards to what stands for the end.
    """
    t, shape, dy = call.tape, call.shape(), call.dy
    starts, ends = (call.value(k).reshape(-1).tolist() for k in (1, 2))  # a single number, too
    axes = call.value(3).tolist() if call.input(3) else list(range(len(starts)))
    steps = call.value(4).tolist() if call.input(4) else [1] * len(starts)
    before, after = [0] * len(shape), [0] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        axis %= len(shape)
        if step < 0:  # unlike numpy, ONNX begins with the first element if not before it
            start = max(start, -shape[axis])
            if end in NO_END:  # onnxruntime goes on to the first element; onnx infers none at all
                raise call.unsupported(f"it goes backwards, and ends at {end}")
        places = range(*slice(start, end, step).indices(shape[axis]))
        if len(places) == 0:
            return call.only(t.zeros(call.x))
        if step < 0:
            dy, places = t.reversed(dy, [axis]), places[::-1]
        dy = zeros_between(t, dy, axis, abs(step))
        before[axis] = places[0]
        after[axis] = shape[axis] - places[0] - t.shape(dy)[axis]
    return call.only(t.pad(dy, before, after))


@vjp("Pad")
def pad(call: Call) -> Cotangents:
    """y = x with a border. dx = dy without it; a border copied from x adds up where it came
    from (modes reflect, edge, wrap).

    Raises:
        UnsupportedError: widths computed at run time.
    """
    t, shape = call.tape, call.shape()
    axes = call.value(3).tolist() if call.input(3) else list(range(len(shape)))
    axes = [axis % len(shape) for axis in axes]
    widths = call.value(1).tolist()
    before, after = [0] * len(shape), [0] * len(shape)
    for axis, low, high in zip(axes, widths[: len(axes)], widths[len(axes) :], strict=True):
        before[axis], after[axis] = low, high
    mode = call.attribute("mode", "constant")
    if mode == "constant":
        dx = t.pad(call.dy, [-width for width in before], [-width for width in after])
        dv = (
            t.sub(t.sum(call.dy, range(len(shape))), t.sum(dx, range(len(shape))))
            if call.need(2)
            else None
        )
        return [dx, None, dv, None][: len(call.op.inputs)]
    dx = call.dy
    for axis, length in enumerate(shape):
        if before[axis] or after[axis]:
            # onnxruntime's and numpy's border modes agree: take the sources from numpy
            sources = _border(length, before[axis], after[axis], mode)
            dx = sum_of_runs(t, dx, axis, sources, length)
    return call.only(dx)


def _border(length: int, before: int, after: int, mode: str) -> np.ndarray:
    inner = np.arange(length)
    inner = inner[max(0, -before) : length - max(0, -after)]
    widths = (max(0, before), max(0, after))
    return np.pad(inner, widths, mode=mode)  # type: ignore[call-overload]


@vjp("Tile")
def tile(call: Call) -> Cotangents:
    """y = x repeated along axes. dx = the sum over the copies.

    Raises:
        UnsupportedError: counts computed at run time.
    """
    t, shape = call.tape, call.shape()
    counts = [y // x for x, y in zip(shape, call.out_shape, strict=True)] if 0 not in shape else []
    if math.prod(counts) == 1:
        return call.only(call.dy)
    apart = [size for pair in zip(counts, shape, strict=True) for size in pair]
    axes = [2 * k for k, count in enumerate(counts) if count != 1]
    return call.only(t.reshape(t.sum(t.reshape(call.dy, apart), axes), shape))


@vjp("DepthToSpace")
def depth_to_space(call: Call) -> Cotangents:
    """y = blocks of channels laid out in space. dx = SpaceToDepth of dy (in channel order)."""
    t, block = call.tape, call.attribute("blocksize")
    if call.attribute("mode", "DCR") == "DCR":
        return [t.op("SpaceToDepth", call.dy, shape=call.shape(), blocksize=block)]
    images, channels, height, width = call.shape()
    kept = channels // block**2
    apart = t.reshape(call.dy, (images, kept, height, block, width, block))
    return [t.reshape(t.transpose(apart, (0, 1, 3, 5, 2, 4)), call.shape())]


@vjp("SpaceToDepth")
def space_to_depth(call: Call) -> Cotangents:
    """y = blocks of space as channels. dx = DepthToSpace of dy."""
    return [call.tape.op("DepthToSpace", call.dy, shape=call.shape(),
                         blocksize=call.attribute("blocksize"), mode="DCR")]  # fmt: skip


@vjp("Trilu", reads="x1")
def trilu(call: Call) -> Cotangents:
    """y = the upper or lower triangle of x. dx = that of dy."""
    inputs = [call.dy, *call.op.inputs[1:]]
    made = call.tape.op("Trilu", *inputs, shape=call.shape(), upper=call.attribute("upper", 1))
    return call.only(made)


@vjp("ReverseSequence", reads="x1")
def reverse_sequence(call: Call) -> Cotangents:
    """y = leading parts of sequences reversed. dx = the same of dy."""
    t = call.tape
    made = t.op(
        "ReverseSequence", call.dy, call.op.inputs[1], shape=call.shape(),
        batch_axis=call.attribute("batch_axis", 1), time_axis=call.attribute("time_axis", 0),
    )  # fmt: skip
    return call.only(made)
