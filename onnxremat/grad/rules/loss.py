"""The loss operators of ONNX, for models that compute their loss themselves."""

from __future__ import annotations

import math

from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.losses import share_of
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.rules.scattering import added_at


@vjp("SoftmaxCrossEntropyLoss", reads="x1 x2 y1")
def softmax_cross_entropy(call: Call) -> Cotangents:
    """loss = -w log softmax(x)[label], reduced. dx = (softmax(x) - onehot) w dloss; reads the
    log-probabilities, which the forward op is made to write."""
    t, shape = call.tape, call.shape()
    log_probability = call.extra(1, t.dtype(call.x), shape)
    labels, share = _weights(call)
    probability = t.exp(log_probability)
    ones = t.constant(-1.0, t.dtype(call.x))
    minus = t.expand(t.reshape(ones, [1] * len(shape)), t.shape(labels))
    error = added_at(t, probability, labels, minus, 1)
    return call.only(t.mul(error, share))


@vjp("NegativeLogLikelihoodLoss", reads="x1 x2")
def negative_log_likelihood(call: Call) -> Cotangents:
    """loss = -w x[label], reduced. dx = -w dloss at the label."""
    t = call.tape
    labels, share = _weights(call)
    made = t.op(
        "ScatterElements", t.zeros(call.x), labels, t.neg(t.expand(share, t.shape(labels))),
        shape=call.shape(), axis=1,
    )  # fmt: skip
    return call.only(made)


def _weights(call: Call) -> tuple[str, str]:
    """Labels [N, 1, ...] with ignored ones replaced by 0, and the factor of each: dloss, the
    class weight, 0 where ignored, divided by the total weight for a mean.

    Raises:
        UnsupportedError: the class weights are trained.
    """
    if call.need(2):
        raise call.unsupported("its class weights are trained")
    t, dtype = call.tape, call.tape.dtype(call.x)
    flat = t.shape(call.op.inputs[1])
    column = (flat[0], 1, *flat[1:])
    labels = t.reshape(t.cast(call.op.inputs[1], T.INT64), column)
    ignored, weight = call.attribute("ignore_index"), None
    if ignored is not None:
        skip = t.compare("Equal", labels, ignored)
        labels = t.where(skip, 0, labels)
        weight = t.cast(t.op("Not", skip), dtype)
    table = call.input(2)
    if table is not None:
        picked = t.op("Gather", table, labels, shape=column, axis=0)
        weight = picked if weight is None else t.mul(picked, weight)
    reduction = call.attribute("reduction", "mean")
    if reduction == "none":
        dy = t.reshape(call.dy, column)
        return labels, dy if weight is None else t.mul(dy, weight)
    if weight is None:
        factor = 1.0 / math.prod(flat) if reduction == "mean" else 1.0
        return labels, t.reshape(t.mul(call.dy, factor), [1] * len(column))
    dy = call.dy
    if reduction == "mean":
        dy = share_of(t, dy, t.sum(weight, range(len(column))))
    return labels, t.mul(weight, dy)
