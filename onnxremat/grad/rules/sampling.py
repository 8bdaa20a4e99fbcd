"""Images sampled at computed places: GridSample, and the grids of AffineGrid."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.rules.scattering import added_at
from onnxremat.grad.tape import Tape

CUBIC = -0.75  # of Keys' kernel, as onnxruntime and PyTorch have it
MODES = {"bilinear": "linear", "bicubic": "cubic"}  # names before opset 20


@dataclass(frozen=True)
class _Tap:
    """One element of the image along one axis, for every point [N, P].

    Attributes:
        place: its index, within the image.
        weight: its share of the result, "" for 1.
        slope: derivative of the share by the grid's coordinate, "" for 0.
    """

    place: str
    weight: str
    slope: str


@vjp("GridSample", since=16, reads="x0 x1")
def grid_sample(call: Call) -> Cotangents:
    """y[n, c, p] = sum over the elements around point p of their share times x[n, c, element]. The
    shares are products of one factor per axis (1, linear, or Keys' cubic in the distance to the
    point), and an element outside is 0, the nearest inside, or its mirror image.

    dx = dy times the shares, added up at the elements by ScatterElements, whose CPU kernel adds in
    a fixed order. dgrid = per axis the sum over channels and elements of dy x times the derivative
    of the share; 0 for the nearest element.

    Raises:
        UnsupportedError: a mode of interpolation or padding that ONNX does not have so far.
    """
    t, shape = call.tape, call.shape()
    axes, points = len(shape) - 2, math.prod(call.out_shape[2:])
    rows, image = (*shape[:2], points), (*shape[:2], math.prod(shape[2:]))
    taps = [_taps(call, axis, points) for axis in range(axes)]
    dy = t.reshape(call.dy, rows)
    x = t.reshape(call.x, image) if call.need(1) else ""
    dx = t.filled(0.0, image, t.dtype(call.x)) if call.need(0) else ""
    slopes = [""] * axes
    for element in product(*taps):
        index = _index(t, element, shape[2:])
        index = t.expand(t.reshape(index, (shape[0], 1, points)), rows)
        if call.need(0):
            share = _product(t, [tap.weight for tap in element])
            part = t.mul(dy, _per_point(t, share, dy)) if share else dy
            dx = added_at(t, dx, index, part, 2)
        if call.need(1) and element[0].slope:
            found = t.op("GatherElements", x, index, shape=rows, axis=2)
            found = t.sum(t.mul(found, dy), [1])
            for axis, tap in enumerate(element):
                others = [other.weight for k, other in enumerate(element) if k != axis]
                part = t.mul(found, t.cast(_product(t, [tap.slope, *others]), t.dtype(found)))
                slopes[axis] = t.add(slopes[axis], part) if slopes[axis] else part
    dgrid = None
    if slopes[0]:
        # The last axis of the image is the first coordinate of the grid.
        parts = [t.reshape(slope, (*call.shape(1)[:-1], 1)) for slope in reversed(slopes)]
        dgrid = t.concat(parts, len(shape) - 1)
    elif call.need(1):
        dgrid = t.zeros(call.op.inputs[1])
    return [t.reshape(dx, shape) if dx else None, dgrid]


def _per_point(t: Tape, share: str, like: str) -> str:
    """Shares [N, P] to be multiplied with [N, C, P]."""
    n, p = t.shape(share)
    return t.cast(t.reshape(share, (n, 1, p)), t.dtype(like))


def _product(t: Tape, factors: list[str]) -> str:
    made = ""
    for factor in factors:
        if factor:
            made = t.mul(made, factor) if made else factor
    return made


def _index(t: Tape, element: tuple[_Tap, ...], sizes: tuple[int, ...]) -> str:
    """Index of an element in the image seen as one row."""
    index = element[0].place
    for tap, size in zip(element[1:], sizes[1:], strict=True):
        index = t.add(t.mul(index, float(size)), tap.place)
    return index


def _taps(call: Call, axis: int, points: int) -> list[_Tap]:
    """The elements around every point along an axis of the image."""
    t, length, grid = call.tape, call.shape()[2 + axis], call.op.inputs[1]
    aligned = bool(call.attribute("align_corners", 0))
    last = len(call.shape(1)) - 1
    coordinate = call.shape(1)[-1] - 1 - axis
    g = t.slice(grid, [last], [coordinate], [coordinate + 1])
    g = t.add(t.reshape(g, (call.shape()[0], points)), 1.0)
    # As the kernel computes it, so that points on the border between elements fall to one side.
    if aligned:
        at, scale = t.mul(t.div(g, 2.0), float(length - 1)), (length - 1) / 2
    else:
        at, scale = t.div(t.sub(t.mul(g, float(length)), 1.0), 2.0), length / 2
    mode = call.attribute("mode", "linear")
    mode = MODES.get(mode, mode)
    if mode == "nearest":
        return [_tap(call, t.cast(t.op("Round", at), T.INT64), "", "", length)]
    kernels = {"linear": _linear, "cubic": _cubic}
    if mode not in kernels:
        raise call.unsupported(f"mode '{mode}' is not differentiated")
    base = t.op("Floor", at)
    rest, first = t.sub(at, base), t.cast(base, T.INT64)
    made = []
    for offset, weight, slope in kernels[mode](t, rest):
        place = t.add(first, float(offset)) if offset else first
        made.append(_tap(call, place, weight, t.mul(slope, scale), length))
    return made


def _tap(call: Call, place: str, weight: str, slope: str, length: int) -> _Tap:
    """An element that may lie outside, by the node's padding."""
    t, padding = call.tape, call.attribute("padding_mode", "zeros")
    if padding == "zeros":
        inside = t.op("And", t.compare("GreaterOrEqual", place, 0.0),
                      t.compare("Less", place, float(length)))  # fmt: skip
        share = t.cast(inside, t.dtype(call.op.inputs[1]))
        weight = t.mul(weight, share) if weight else share
        slope = t.mul(slope, share) if slope else ""
    elif padding == "reflection":
        place = _mirrored(t, place, length, bool(call.attribute("align_corners", 0)))
    elif padding != "border":
        raise call.unsupported(f"padding mode '{padding}' is not differentiated")
    return _Tap(t.op("Clip", place, 0.0, float(length - 1)), weight, slope)


def _mirrored(t: Tape, place: str, length: int, aligned: bool) -> str:
    """Indices mirrored at the centres (``aligned``) or the outer sides of the border elements."""
    if aligned:
        period = max(2 * (length - 1), 1)
        folded = t.op("Mod", place, float(period))  # of the sign of the period
        beyond = t.sub(float(length - 1), folded)
        return t.sub(float(length - 1), t.op("Abs", beyond))
    folded = t.op("Mod", place, float(2 * length))
    return t.op("Min", folded, t.sub(float(2 * length - 1), folded))


Kernel = Callable[[Tape, str], list[tuple[int, str, str]]]  # offset, weight, derivative


def _linear(t: Tape, rest: str) -> list[tuple[int, str, str]]:
    one = t.constant(np.ones((1, 1)), t.dtype(rest))
    return [(0, t.sub(1.0, rest), t.neg(one)), (1, rest, one)]


def _cubic(t: Tape, rest: str) -> list[tuple[int, str, str]]:
    """Keys' kernel (1981, "Cubic convolution interpolation"): polynomials of the distance, one for
    the two elements beside the point and one for the two beyond."""
    a, after = CUBIC, t.sub(1.0, rest)
    near, far = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
    made = []
    for offset, distance, terms in (
        (-1, t.add(rest, 1.0), far), (0, rest, near), (1, after, near), (2, t.add(after, 1.0), far)
    ):  # fmt: skip
        slope = _polynomial(t, distance, (3 * terms[0], 2 * terms[1], terms[2]))
        made.append(
            (offset, _polynomial(t, distance, terms), t.neg(slope) if offset > 0 else slope)
        )
    return made


def _polynomial(t: Tape, x: str, terms: tuple[float, ...]) -> str:
    """By Horner's rule, the highest power first."""
    value = t.mul(x, terms[0])
    for k, term in enumerate(terms[1:], start=1):
        value = t.add(value, term) if term else value
        value = t.mul(value, x) if k < len(terms) - 1 else value
    return value


@vjp("AffineGrid", since=20, reads="x1")
def affine_grid(call: Call) -> Cotangents:
    """y[n, p] = theta[n] (place of p, 1), the places being fixed. dtheta[n] = the sum over p of
    dy[n, p] (place of p, 1)**T.

    Raises:
        UnsupportedError: a size computed at run time, or a single element between aligned corners,
            which onnxruntime puts on the last and PyTorch in the middle.
    """
    t, sizes = call.tape, [int(size) for size in call.value(1)][2:]
    aligned = bool(call.attribute("align_corners", 0))
    if aligned and 1 in sizes:
        raise call.unsupported("align_corners with an axis of one element is not differentiated")
    places = np.meshgrid(*(_places(size, aligned) for size in sizes), indexing="ij")
    # The first coordinate belongs to the last axis.
    rows = np.stack([*(place.reshape(-1) for place in reversed(places)), np.ones(math.prod(sizes))])
    dy = t.reshape(call.dy, (call.shape()[0], math.prod(sizes), len(sizes)))
    dtheta = t.matmul(t.swap_last(dy), t.constant(rows.T, t.dtype(call.x)))
    return [dtheta, None]


def _places(size: int, aligned: bool) -> np.ndarray:
    """Coordinates from -1 to 1, of the centres of the outer elements or of their outer sides."""
    if aligned:
        return np.linspace(-1.0, 1.0, size)
    return (2 * np.arange(size) + 1) / size - 1.0
