"""Operators of the com.microsoft domain that onnxruntime's tools write into models."""

from __future__ import annotations

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.rules.activation import gelu_erf_slope, gelu_tanh_slope, silu_slope

MICROSOFT = "com.microsoft"


@vjp("Gelu", domain=MICROSOFT, reads="x0")
def gelu(call: Call) -> Cotangents:
    """y = x F(x), F the normal distribution. dx = dy (F + x F')."""
    return [call.tape.mul(call.dy, gelu_erf_slope(call.tape, call.x))]


@vjp("BiasGelu", domain=MICROSOFT, reads="x0 x1")
def bias_gelu(call: Call) -> Cotangents:
    """y = gelu(x + b). dx = db = dy gelu'(x + b)."""
    t = call.tape
    dx = t.mul(call.dy, gelu_erf_slope(t, t.add(*call.op.inputs)))
    return [dx, dx]


@vjp("FastGelu", domain=MICROSOFT, reads="x0 x1")
def fast_gelu(call: Call) -> Cotangents:
    """y = gelu(x + b) in its tanh form. dx = db = dy gelu'(x + b)."""
    t, bias = call.tape, call.input(1)
    inner = call.x if bias is None else t.add(call.x, bias)
    dx = t.mul(call.dy, gelu_tanh_slope(t, inner))
    return [dx, dx][: len(call.op.inputs)]


@vjp("QuickGelu", domain=MICROSOFT, reads="x0 y0")
def quick_gelu(call: Call) -> Cotangents:
    """y = x s(a x). dx = dy (s + a y (1 - s))."""
    alpha = call.attribute("alpha", 1.702)
    return [call.tape.mul(call.dy, silu_slope(call.tape, call.x, call.y, alpha))]
