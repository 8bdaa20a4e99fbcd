"""Dropout."""

from __future__ import annotations

from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.dropout import gain_of
from onnxremat.grad.registry import Cotangents, vjp


@vjp("Dropout", since=12, reads="x1 y1")
def dropout(call: Call) -> Cotangents:
    """y = x mask / (1 - ratio) in training mode, else x. dx = dy mask / (1 - ratio); the mask is
    kept, because drawing it again would give another one.

    Raises:
        UnsupportedError: ratio or mode computed at run time.
    """
    t = call.tape
    training = call.input(2) is not None and bool(call.value(2).reshape(()))
    ratio = float(call.value(1).reshape(())) if call.input(1) is not None else 0.5
    if not training or ratio == 0.0:
        return call.only(call.dy)
    mask = call.extra(1, T.BOOL, call.out_shape)
    return call.only(t.mask(mask, t.mul(call.dy, gain_of(1.0 - ratio))))
