"""BatchNormalization, with batch statistics and with frozen ones.

The training form has ``momentum`` 0, so that its outputs 1 and 2 are the statistics of the batch;
the step updates the running statistics itself (see :mod:`onnxremat.grad.training_mode`).
"""

from __future__ import annotations

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.tape import Tape


@vjp("BatchNormalization", since=15, variant="affine", reads="x0 x1 x3 x4 y1 y2")
def affine(call: Call) -> Cotangents:
    """y = s (x - m) / sqrt(v + e) + b. dx = a (dy + c x + d) with one number per channel each: four
    passes that all threads share. (An inference BatchNormalization would do a product and a sum in
    one, but in one thread.)"""
    t, x, scale, dy = call.tape, call.x, call.op.inputs[1], call.dy
    if not call.attribute("training_mode", 0):
        return _frozen(call)
    mean, inverse = call.op.outputs[1], _inverse(call, call.op.outputs[2])
    axes, count = _axes(call), t.size(x) // call.shape()[1]
    total = t.sum(dy, axes)
    dscale = t.mul(inverse, t.sub(t.sum(t.mul(dy, x), axes), t.mul(mean, total)))
    if not call.need(0):
        return [None, dscale, total, None, None]
    slope = t.mul(inverse, t.mul(dscale, -1.0 / count))
    offset = t.sub(t.mul(total, -1.0 / count), t.mul(slope, mean))
    slope, offset, gain = (
        _spread(t, t.cast(row, t.dtype(x)), x) for row in (slope, offset, t.mul(scale, inverse))
    )
    mixed = t.add(t.add(t.mul(x, slope), offset), dy)
    return [t.mul(mixed, gain), dscale, total, None, None]


@vjp("BatchNormalization", since=15, variant="textbook", reads="x0 x1 x3 x4 y1 y2")
def textbook(call: Call) -> Cotangents:
    """As the affine variant, from the normalised x: slower, and exact where a channel's mean is
    large against its spread."""
    t, dy = call.tape, call.dy
    if not call.attribute("training_mode", 0):
        return _frozen(call)
    axes, count = _axes(call), t.size(call.x) // call.shape()[1]
    inverse = _inverse(call, call.op.outputs[2])
    centred = t.sub(call.x, _spread(t, call.op.outputs[1], call.x))
    normal = t.mul(centred, _spread(t, inverse, call.x))
    total, dscale = t.sum(dy, axes), t.sum(t.mul(dy, normal), axes)
    rest = t.sub(dy, _spread(t, t.mul(total, 1.0 / count), call.x))
    rest = t.sub(rest, t.mul(normal, _spread(t, t.mul(dscale, 1.0 / count), call.x)))
    dx = t.mul(rest, _spread(t, t.mul(call.op.inputs[1], inverse), call.x))
    return [dx, dscale, total, None, None]


def _frozen(call: Call) -> Cotangents:
    """Statistics are given: dx = dy s / sqrt(v + e). They get a gradient where they are computed
    from what is trained (weights that a net standardises itself): dm = -s sum(dy) / sqrt(v + e),
    dv = -s ds / 2 (v + e)."""
    t, dy = call.tape, call.dy
    _, scale, _, mean, variance = call.op.inputs
    axes = _axes(call)
    dx = dscale = dmean = dvariance = None
    if call.need(0):
        zeros = t.constant([0.0] * call.shape()[1], t.dtype(scale))
        dx = t.op(
            "BatchNormalization", dy, scale, zeros, zeros, variance, shape=call.shape(),
            epsilon=call.attribute("epsilon", 1e-5),
        )  # fmt: skip
    if not any(call.need(place) for place in (1, 2, 3, 4)):
        return [dx, None, None, None, None]
    total, inverse = t.sum(dy, axes), _inverse(call, variance)
    if call.need(1) or call.need(4):
        moment = t.sum(t.mul(dy, call.x), axes)
        dscale = t.mul(inverse, t.sub(moment, t.mul(mean, total)))
    if call.need(3):
        dmean = t.neg(t.mul(total, t.mul(scale, inverse)))
    if call.need(4) and dscale is not None:
        dvariance = t.mul(t.mul(t.mul(dscale, -0.5), scale), t.mul(inverse, inverse))
    return [dx, dscale, total, dmean, dvariance]


def _axes(call: Call) -> list[int]:
    return [axis for axis in range(len(call.shape())) if axis != 1]


def _inverse(call: Call, variance: str) -> str:
    t = call.tape
    return t.reciprocal_sqrt(t.add(variance, call.attribute("epsilon", 1e-5)))


def _spread(t: Tape, values: str, x: str) -> str:
    return t.reshape(values, (t.size(values), *[1] * (t.rank(x) - 2)))
