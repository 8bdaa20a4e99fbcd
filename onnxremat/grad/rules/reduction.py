"""Reductions over axes."""

from __future__ import annotations

import math

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.tape import Shape


def reduced_axes(call: Call) -> list[int]:
    """Axes the node reduces, from its attribute or input, counted from 0.

    Raises:
        UnsupportedError: the axes are computed at run time.
    """
    rank = len(call.shape())
    axes = call.attribute("axes")
    if axes is None and call.input(1) is not None:
        axes = call.value(1).tolist()
    if not axes:
        return [] if call.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis % rank for axis in axes)


def _kept(call: Call, name: str) -> str:
    """A tensor of the result's shape with the reduced axes put back as length 1."""
    axes = reduced_axes(call)
    shape: Shape = tuple(1 if i in axes else d for i, d in enumerate(call.shape()))
    return call.tape.reshape(name, shape)


def _count(call: Call) -> int:
    return max(1, math.prod(call.shape()[axis] for axis in reduced_axes(call)))


@vjp("ReduceSum")
def reduce_sum(call: Call) -> Cotangents:
    """y = sum of x. dx = dy broadcast."""
    return call.only(call.tape.expand(_kept(call, call.dy), call.shape()))


@vjp("ReduceMean")
def reduce_mean(call: Call) -> Cotangents:
    """y = mean of x. dx = dy / n broadcast."""
    t = call.tape
    return call.only(t.expand(t.mul(_kept(call, call.dy), 1.0 / _count(call)), call.shape()))


@vjp("ReduceMax", "ReduceMin", reads="x0 y0")
def reduce_extreme(call: Call) -> Cotangents:
    """y = largest (smallest) x. dx = dy there, shared evenly between equal ones."""
    t = call.tape
    hit = t.cast(t.compare("Equal", call.x, _kept(call, call.y)), t.dtype(call.x))
    share = t.div(_kept(call, call.dy), t.sum(hit, reduced_axes(call), keep=True))
    return call.only(t.mul(hit, share))


@vjp("ReduceProd", reads="x0")
def reduce_prod(call: Call) -> Cotangents:
    """y = product of x. dx = dy times the product of the others, right with zeros too."""
    t, axes = call.tape, reduced_axes(call)
    zero = t.compare("Equal", call.x, 0.0)
    safe = t.where(zero, 1.0, call.x)
    zeros = t.sum(t.cast(zero, t.dtype(call.x)), axes, keep=True)
    product = t.mul(_kept(call, call.dy), t.reduce("Prod", safe, axes, keep=True))
    without = t.mask(t.compare("Equal", zeros, 0.0), product)
    single = t.mask(t.compare("Equal", zeros, 1.0), product)
    return call.only(t.add(t.mask(t.op("Not", zero), t.div(without, safe)), t.mask(zero, single)))


@vjp("ReduceL1", reads="x0")
def reduce_l1(call: Call) -> Cotangents:
    """y = sum of |x|. dx = dy sign(x)."""
    t = call.tape
    return call.only(t.mul(t.op("Sign", call.x), _kept(call, call.dy)))


@vjp("ReduceL2", reads="x0 y0")
def reduce_l2(call: Call) -> Cotangents:
    """y = sqrt(sum of x x). dx = dy x / y, 0 where y is 0."""
    t = call.tape
    norm = _kept(call, call.y)
    safe = t.where(t.compare("Equal", norm, 0.0), 1.0, norm)
    return call.only(t.mul(call.x, t.div(_kept(call, call.dy), safe)))


@vjp("ReduceSumSquare", reads="x0")
def reduce_sum_square(call: Call) -> Cotangents:
    """y = sum of x x. dx = 2 dy x."""
    t = call.tape
    return call.only(t.mul(call.x, t.mul(_kept(call, call.dy), 2.0)))


@vjp("ReduceLogSum", reads="y0")
def reduce_log_sum(call: Call) -> Cotangents:
    """y = log(sum of x). dx = dy / e**y broadcast."""
    t = call.tape
    share = t.mul(_kept(call, call.dy), t.exp(t.neg(_kept(call, call.y))))
    return call.only(t.expand(share, call.shape()))


@vjp("ReduceLogSumExp", reads="x0 y0")
def reduce_log_sum_exp(call: Call) -> Cotangents:
    """y = log(sum of e**x). dx = dy e**(x - y)."""
    t = call.tape
    return call.only(t.mul(_kept(call, call.dy), t.exp(t.sub(call.x, _kept(call, call.y)))))


@vjp("TopK", reads="y1")
def top_k(call: Call) -> Cotangents:
    """y = the k largest of x. dx = dy at their places, 0 elsewhere."""
    t = call.tape
    indices = call.extra(1, 7, call.out_shape)
    axis = call.attribute("axis", -1) % len(call.shape())
    made = t.op("ScatterElements", t.zeros(call.x), indices, call.dy, shape=call.shape(), axis=axis)
    return call.only(made)


@vjp("Softmax", variant="output", since=13, reads="y0")
def softmax(call: Call) -> Cotangents:
    """y = softmax(x). dx = y (dy - sum(dy y))."""
    return [_softmax(call, call.y)]


@vjp("Softmax", variant="input", since=13, reads="x0")
def softmax_input(call: Call) -> Cotangents:
    """As the variant from the output, with y made again."""
    t, axis = call.tape, call.attribute("axis", -1) % len(call.shape())
    return [_softmax(call, t.op("Softmax", call.x, axis=axis))]


def _softmax(call: Call, y: str) -> str:
    t, axis = call.tape, call.attribute("axis", -1) % len(call.shape())
    return t.mul(y, t.sub(call.dy, t.sum(t.mul(call.dy, y), [axis], keep=True)))


@vjp("LogSoftmax", variant="output", since=13, reads="y0")
def log_softmax(call: Call) -> Cotangents:
    """y = log softmax(x). dx = dy - e**y sum(dy)."""
    t, axis = call.tape, call.attribute("axis", -1) % len(call.shape())
    return [t.sub(call.dy, t.mul(t.exp(call.y), t.sum(call.dy, [axis], keep=True)))]


@vjp("LogSoftmax", variant="input", since=13, reads="x0")
def log_softmax_input(call: Call) -> Cotangents:
    """As the variant from the output, with softmax(x) made again."""
    t, axis = call.tape, call.attribute("axis", -1) % len(call.shape())
    y = t.op("Softmax", call.x, axis=axis)
    return [t.sub(call.dy, t.mul(y, t.sum(call.dy, [axis], keep=True)))]
