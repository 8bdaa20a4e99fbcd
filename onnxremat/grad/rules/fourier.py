"""Fourier transforms. Complex numbers are pairs along the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.tape import Tape

AXIS_AS_INPUT = 20  # opset from which DFT takes its axis as an input


@vjp("DFT", since=17, reads="x1 x2")
def dft(call: Call) -> Cotangents:
    """y = the transform of x along an axis, x cut or filled with zeros to its length L. The
    transform is linear, and its adjoint is the other direction without the factor: of a forward one
    L times the inverse of dy (zeros for what ``onesided`` leaves out), of an inverse one 1 / L
    times the forward one of dy. Then cut or filled to the length of x, and its real part where x is
    real. An inverse of one side stands for a spectrum and its mirror image, whose result is real:
    what occurs on both sides counts twice.

    Raises:
        UnsupportedError: length or axis computed at run time, or a spectrum of one side that is cut
            or filled, of which onnxruntime 1.31 makes something else than ONNX says.
    """
    t, shape, inverse = call.tape, call.shape(), bool(call.attribute("inverse", 0))
    axis = _axis(call)
    one_sided = bool(call.attribute("onesided", 0))
    real = one_sided and inverse
    length = call.out_shape[axis]
    if one_sided and not inverse:
        length = int(call.value(1)) if call.input(1) else shape[axis]
    if real and shape[axis] != length // 2 + 1:
        raise call.unsupported(
            f"its spectrum of one side has {shape[axis]} elements, not {length // 2 + 1}"
        )
    dy = _resized(t, call.dy, axis, length)
    if inverse:
        dx = t.mul(_transform(call, dy, axis, inverse=False), 1.0 / length)
        if real:
            dx = _resized(t, dx, axis, shape[axis])
            places = np.arange(shape[axis])
            factors = np.where((places == 0) | (2 * places == length), 1.0, 2.0)
            factors = factors.reshape([-1, *[1] * (len(shape) - 1 - axis)])
            dx = t.mul(dx, t.constant(factors, t.dtype(dx)))
    else:
        dx = t.mul(_transform(call, dy, axis, inverse=True), float(length))
    dx = _resized(t, dx, axis, shape[axis])
    if shape[-1] == 1:
        dx = t.slice(dx, [len(shape) - 1], [0], [1])
    return call.only(dx)


def _axis(call: Call) -> int:
    """The axis, counted from 0."""
    if call.version < AXIS_AS_INPUT:
        axis = call.attribute("axis", 1)
    else:
        axis = int(call.value(2)) if call.input(2) else -2
    return int(axis) % len(call.shape())


def _transform(call: Call, a: str, axis: int, inverse: bool) -> str:
    """The transform of its whole length, complex."""
    t = call.tape
    shape = (*t.shape(a)[:-1], 2)
    settings: dict[str, Any] = {"inverse": int(inverse)}
    inputs = [a]
    if call.version < AXIS_AS_INPUT:
        settings["axis"] = axis
    else:
        inputs += ["", t.constant(axis, T.INT64)]
    return t.multi("DFT", inputs, [(t.dtype(a), shape)], **settings)[0]


def _resized(t: Tape, a: str, axis: int, length: int) -> str:
    """Cut, or zeros behind."""
    after = [0] * t.rank(a)
    after[axis] = length - t.shape(a)[axis]
    return t.pad(a, [0] * t.rank(a), after)


@vjp("STFT", since=17, reads="x0 x1 x2 x3")
def stft(call: Call) -> Cotangents:
    """y[b, f] = transform of window * x[b, f step : f step + L]. As for DFT, the adjoint of the
    transform is L times the inverse one; times the window it is added up where the frames were,
    and times the frames it is the window's cotangent.

    Raises:
        UnsupportedError: step or frame length computed at run time.
    """
    t, shape, step = call.tape, call.shape(), int(call.value(1))
    length = int(call.value(3)) if call.input(3) else call.shape(2)[0]
    batch, frames = call.out_shape[:2]
    dy = _resized(t, call.dy, 2, length)
    d = t.mul(_transform(call, dy, 2, inverse=True), float(length))
    parts = shape[2] if len(shape) > 2 else 1
    d = t.slice(d, [3], [0], [parts])
    made: list[str | None] = [None] * len(call.op.inputs)
    if call.need(2):
        places = np.arange(frames)[:, None] * step + np.arange(length)
        taken = t.op(
            "Gather", t.reshape(call.x, (batch, shape[1], parts)), t.constant(places, T.INT64),
            shape=(batch, frames, length, parts), axis=1,
        )  # fmt: skip
        made[2] = t.sum(t.mul(taken, d), [0, 1, 3])
    if call.need(0):
        if call.input(2):
            d = t.mul(d, t.reshape(call.op.inputs[2], (length, 1)))
        made[0] = t.reshape(_overlapped(t, d, step, shape[1]), shape)
    return made


def _overlapped(t: Tape, frames: str, step: int, length: int) -> str:
    """Frames [B, F, L, C] every ``step`` elements, added up to [B, length, C]: each is cut into
    pieces of a step, and the k-th pieces of all frames lie side by side, k steps in."""
    batch, count, size, parts = t.shape(frames)
    total: str | None = None
    for start in range(0, size, step):
        piece = t.slice(frames, [2], [start], [min(start + step, size)])
        piece = t.reshape(_resized(t, piece, 2, step), (batch, count * step, parts))
        behind = length - start - count * step
        piece = t.pad(piece, [0, start, 0], [0, behind, 0])
        total = piece if total is None else t.add(total, piece)
    assert total is not None, "a frame has elements"
    return total
