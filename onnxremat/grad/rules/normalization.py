"""Layer, instance, group and RMS normalization, and normalization by a norm."""

from __future__ import annotations

import math

from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.tape import Tape

TINY = 1e-5  # what a scale is kept away from 0 by


def through_moments(t: Tape, dxhat: str, xhat: str, inverse: str, axes: list[int]) -> str:
    """dx of xhat = (x - mean) / spread over ``axes``: (dxhat - mean(dxhat) - xhat mean(dxhat
    xhat)) / spread."""
    centred = t.sub(dxhat, t.mean(dxhat, axes))
    return t.mul(t.sub(centred, t.mul(xhat, t.mean(t.mul(dxhat, xhat), axes))), inverse)


@vjp("LayerNormalization", variant="saved", reads="x0 x1 y1 y2")
def layer_norm_saved(call: Call) -> Cotangents:
    """y = s xhat + b, xhat = (x - mean) / spread over the last axes. Keeps x, mean and 1/spread;
    xhat is not made again: dy is divided by the spread instead, first of all."""
    t = call.tape
    axis = call.attribute("axis", -1) % len(call.shape())
    shape = (*call.shape()[:axis], *[1] * (len(call.shape()) - axis))
    stash = T.FLOAT if call.attribute("stash_type", 1) == 1 else t.dtype(call.x)
    mean = call.extra(1, stash, shape)
    inverse = t.cast(call.extra(2, stash, shape), t.dtype(call.x))
    if stash == t.dtype(call.x):
        return _layer_norm(call, axis, inverse, t.sub(call.x, mean), centred=True)
    return _layer_norm(call, axis, inverse, _normalised(call, axis), centred=False)


@vjp("LayerNormalization", variant="portable", reads="x0 x1")
def layer_norm_portable(call: Call) -> Cotangents:
    """As the saved variant, for providers without the outputs 1 and 2: 1/spread made again, and
    xhat by one LayerNormalization."""
    t = call.tape
    axis = call.attribute("axis", -1) % len(call.shape())
    axes = list(range(axis, len(call.shape())))
    centred = t.sub(call.x, t.mean(call.x, axes))
    variance = t.mean(t.mul(centred, centred), axes)
    inverse = t.reciprocal_sqrt(t.add(variance, call.attribute("epsilon", 1e-5)))
    return _layer_norm(call, axis, inverse, _normalised(call, axis), centred=False)


@vjp("LayerNormalization", variant="output", reads="x1 x2 y0 y2", exact=False)
def layer_norm_output(call: Call) -> Cotangents:
    """As the saved variant, with xhat = (y - b) / s from the result, which is often kept anyway.
    Loses digits where |b| is large against |s|; elements with |s| below 1e-5 get no gradient that
    means anything."""
    t = call.tape
    axis = call.attribute("axis", -1) % len(call.shape())
    stash = T.FLOAT if call.attribute("stash_type", 1) == 1 else t.dtype(call.x)
    inverse = call.extra(2, stash, (*call.shape()[:axis], *[1] * (len(call.shape()) - axis)))
    scale, bias = call.op.inputs[1], call.input(2)
    safe = t.where(t.compare("Less", t.op("Abs", scale), TINY), TINY, scale)
    xhat = t.div(call.y if bias is None else t.sub(call.y, bias), safe)
    return _layer_norm(call, axis, t.cast(inverse, t.dtype(call.x)), xhat, centred=False)


def _normalised(call: Call, axis: int) -> str:
    """xhat."""
    t, shape = call.tape, call.shape()
    ones = t.constant([1.0] * math.prod(shape[axis:]), t.dtype(call.op.inputs[1]))
    return t.op(
        "LayerNormalization", call.x, t.reshape(ones, shape[axis:]), shape=shape, axis=axis,
        epsilon=call.attribute("epsilon", 1e-5),
    )  # fmt: skip


def _layer_norm(call: Call, axis: int, inverse: str, z: str, *, centred: bool) -> Cotangents:
    """dx = g - mean(g) - xhat mean(g xhat), g = s dy / spread.

    Args:
        inverse: 1/spread of each row.
        z: x less its mean where ``centred``, else xhat, which is that times ``inverse``.
    """
    t = call.tape
    width = math.prod(call.shape()[axis:])
    rows = t.size(call.x) // width
    dy, z = t.reshape(call.dy, (rows, width)), t.reshape(z, (rows, width))
    inverse = t.reshape(inverse, (rows, 1))
    lead = list(range(axis))
    smaller = t.mul(dy, inverse)
    weighted = t.mul(smaller if centred else dy, z)
    dscale = db = dx = None
    if call.need(1):
        dscale = _parameter(call, weighted, 1, lead)
    if call.need(2):
        db = _parameter(call, dy, 2, lead)
    if call.need(0):
        row, moment = _scaled_mean(call, weighted, axis)
        moment = t.mul(moment, inverse)
        if centred:  # once more: the square of a number for a row may be too small to be one
            moment = t.mul(moment, inverse)
        gained = t.mul(smaller, row)
        dx = t.sub(t.sub(gained, t.mul(z, moment)), t.mean(gained, [1]))
        dx = t.reshape(dx, call.shape())
    return [dx, dscale, db][: len(call.op.inputs)]


def _scaled_mean(call: Call, rows: str, axis: int) -> tuple[str, str]:
    """The scale, as it is multiplied with rows, and the mean of each row of their product."""
    t, scale, shape = call.tape, call.op.inputs[1], call.shape()
    width = math.prod(shape[axis:])
    if _of_rows(call, 1, axis):
        full = t.reshape(t.expand(scale, shape), t.shape(rows))
        return full, t.mean(t.mul(rows, full), [1])
    flat = t.reshape(scale, t.shape(scale)[max(0, len(t.shape(scale)) - len(shape) + axis) :])
    row = t.reshape(t.expand(flat, shape[axis:]), (width,))
    # The product with a column spares the pass that would scale dy xhat first.
    return row, t.matmul(rows, t.mul(t.reshape(row, (width, 1)), 1.0 / width))


def _of_rows(call: Call, position: int, axis: int) -> bool:
    """Whether a parameter has other numbers for other rows."""
    own = call.shape(position)
    return math.prod(own[: max(0, len(own) - len(call.shape()) + axis)]) != 1


def _parameter(call: Call, rows: str, position: int, lead: list[int]) -> str:
    """Sum over rows in the shape of a parameter (which may broadcast further)."""
    t, own = call.tape, call.shape(position)
    if _of_rows(call, position, len(lead)):
        return t.unbroadcast(t.reshape(rows, call.shape()), own)
    summed = t.reshape(t.sum(rows, [0]), call.shape()[len(lead) :])
    return t.reshape(t.unbroadcast(summed, own[-len(t.shape(summed)) :]), own)


@vjp("InstanceNormalization", reads="x0 x1")
def instance_norm(call: Call) -> Cotangents:
    """y = s xhat + b, xhat = (x - mean) / spread over space, s and b per channel."""
    channels = call.shape()[1]
    return _grouped(call, channels, channels)


@vjp("GroupNormalization", since=18, reads="x0 x1")
def group_norm(call: Call) -> Cotangents:
    """y = s xhat + b, xhat = (x - mean) / spread over groups of channels and space; s and b per
    channel (per group before opset 21).

    Raises:
        UnsupportedError: there are other numbers of these, which onnxruntime runs all the same.
    """
    groups, sizes = call.attribute("num_groups"), {call.shape(1), call.shape(2)}
    if sizes not in ({(groups,)}, {(call.shape()[1],)}):
        raise call.unsupported("its scale and bias are not one number per channel, or per group")
    return _grouped(call, groups, call.shape(1)[0])


def _grouped(call: Call, groups: int, size: int) -> Cotangents:
    """Moments over rows of [N, groups, rest]; parameters per ``size`` blocks of channels."""
    t, x, dy = call.tape, call.x, call.dy
    images, channels = call.shape()[:2]
    space = t.size(x) // (images * channels)
    flat = (images, groups, channels // groups * space)
    rows = t.reshape(x, flat)
    centred = t.sub(rows, t.mean(rows, [2]))
    variance = t.mean(t.mul(centred, centred), [2])
    inverse = t.reciprocal_sqrt(t.add(variance, call.attribute("epsilon", 1e-5)))
    xhat = t.mul(centred, inverse)
    block = (images, size, t.size(x) // (images * size))
    dscale = db = None
    if call.need(1):
        dscale = t.sum(t.mul(t.reshape(dy, block), t.reshape(xhat, block)), [0, 2])
    if call.need(2):
        db = t.sum(t.reshape(dy, block), [0, 2])
    dx = None
    if call.need(0):
        gained = t.mul(t.reshape(dy, block), t.reshape(call.op.inputs[1], (size, 1)))
        dx = through_moments(t, t.reshape(gained, flat), xhat, inverse, [2])
        dx = t.reshape(dx, call.shape())
    return [dx, dscale, db]


@vjp("RMSNormalization", since=23, reads="x0 x1")
@vjp("SimplifiedLayerNormalization", reads="x0 x1")
def rms_norm(call: Call) -> Cotangents:
    """y = s xhat, xhat = x / sqrt(mean(x x) + e) over the last axes. dx = (dxhat - xhat
    mean(dxhat xhat)) / rms with dxhat = s dy, ds = sum(dy xhat)."""
    t, x, scale = call.tape, call.x, call.op.inputs[1]
    axes = list(range(call.attribute("axis", -1) % len(call.shape()), len(call.shape())))
    mean = t.mean(t.mul(x, x), axes)
    inverse = t.reciprocal_sqrt(t.add(mean, call.attribute("epsilon", 1e-5)))
    xhat = t.mul(x, inverse)
    dscale = t.mul(call.dy, xhat) if call.need(1) else None
    dx = None
    if call.need(0):
        dxhat = t.mul(call.dy, scale)
        moment = t.mean(t.mul(dxhat, xhat), axes)
        dx = t.mul(t.sub(dxhat, t.mul(xhat, moment)), inverse)
    return [dx, dscale]


@vjp("LpNormalization", reads="x0 y0")
def lp_norm(call: Call) -> Cotangents:
    """y = x / |x| along an axis. dx = (dy - u sum(dy y)) / |x|, u = y (p = 2) or sign(x); 0 where
    |x| is 0, as y is."""
    t, axis = call.tape, call.attribute("axis", -1) % len(call.shape())
    order = call.attribute("p", 2)
    norm = t.reduce("L1" if order == 1 else "L2", call.x, [axis], keep=True)
    direction = t.op("Sign", call.x) if order == 1 else call.y
    moment = t.sum(t.mul(call.dy, call.y), [axis], keep=True)
    none = t.compare("Equal", norm, 0.0)
    slope = t.div(t.sub(call.dy, t.mul(direction, moment)), t.where(none, 1.0, norm))
    return [t.mask(t.op("Not", none), slope)]


@vjp("LRN", reads="x0")
def lrn(call: Call) -> Cotangents:
    """y = x d**-b, d = k + a/n sum over n neighbouring channels of x x. dx = dy d**-b - 2 a b/n
    x (sum over the mirrored window of dy x d**(-b-1))."""
    t, x, size = call.tape, call.x, call.attribute("size")
    alpha, beta = call.attribute("alpha", 1e-4), call.attribute("beta", 0.75)
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = _window_sum(t, t.mul(x, x), size, before, after)
    base = t.add(t.mul(squares, alpha / size), call.attribute("bias", 1.0))
    gained = t.mul(call.dy, t.op("Pow", base, -beta))
    spread = _window_sum(t, t.div(t.mul(gained, x), base), size, after, before)
    return [t.sub(gained, t.mul(t.mul(x, spread), 2.0 * alpha * beta / size))]


def _window_sum(t: Tape, a: str, size: int, before: int, after: int) -> str:
    """Sum over a window of channels, by a padded AveragePool over the channel axis."""
    images, channels = t.shape(a)[:2]
    flat = t.reshape(a, (images, 1, channels, t.size(a) // (images * channels)))
    padded = t.pad(flat, (0, 0, before, 0), (0, 0, after, 0))
    pooled = t.op(
        "AveragePool", padded, shape=t.shape(flat), kernel_shape=[size, 1], strides=[1, 1]
    )
    return t.reshape(t.mul(pooled, float(size)), t.shape(a))
