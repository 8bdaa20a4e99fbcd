"""Activation functions."""

from __future__ import annotations

import math

from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.tape import Tape

STEEP = 3e38  # times the smallest normal float32 it is above 1


@vjp("Relu", variant="output", reads="y0")
def relu_output(call: Call) -> Cotangents:
    """y = max(x, 0). dx = dy where y > 0."""
    return [where_positive(call.tape, call.y, call.dy)]


@vjp("Relu", variant="input", reads="x0")
def relu_input(call: Call) -> Cotangents:
    """y = max(x, 0). dx = dy where x > 0."""
    return [where_positive(call.tape, call.x, call.dy)]


def where_positive(t: Tape, a: str, value: str) -> str:
    """``value`` where a > 0, else 0.

    In float32 the mask comes from one pass of a HardSigmoid so steep that every positive number
    (denormal ones apart) gives 1: faster than comparing and casting.
    """
    if t.dtype(a) == T.FLOAT and t.dtype(value) == T.FLOAT:
        return t.mul(value, t.op("HardSigmoid", a, alpha=STEEP, beta=0.0))
    return t.mask(t.compare("Greater", a, 0.0), value)


@vjp("LeakyRelu", variant="output", reads="x0 y0")
def leaky_relu_output(call: Call) -> Cotangents:
    """y = x where x >= 0, else a x. dx = dy where y >= 0, else a dy (x is read if a < 0)."""
    slope = call.attribute("alpha", 0.01)
    return [_two_slopes(call, call.y if slope > 0 else call.x, slope)]


@vjp("LeakyRelu", variant="input", reads="x0")
def leaky_relu_input(call: Call) -> Cotangents:
    """As the variant from the output, reading x."""
    return [_two_slopes(call, call.x, call.attribute("alpha", 0.01))]


def _two_slopes(call: Call, sign_of: str, slope: float) -> str:
    t = call.tape
    return t.where(t.compare("Greater", sign_of, 0.0), call.dy, t.mul(call.dy, slope))


@vjp("PRelu", reads="x0 x1")
def prelu(call: Call) -> Cotangents:
    """y = x where x >= 0, else s x. dx = dy or s dy; ds = dy min(x, 0)."""
    t, (x, slope) = call.tape, call.op.inputs
    positive = t.compare("Greater", x, 0.0)
    dx = t.where(positive, call.dy, t.mul(call.dy, slope)) if call.need(0) else None
    ds = t.mul(call.dy, t.op("Min", x, 0.0)) if call.need(1) else None
    return [dx, ds]


@vjp("Elu", variant="output", reads="x0 y0")
def elu_output(call: Call) -> Cotangents:
    """y = x, or a (e**x - 1) below 0. dx = dy, or dy (y + a) (x is read if a < 0)."""
    t, alpha = call.tape, call.attribute("alpha", 1.0)
    below = t.mul(call.dy, t.add(call.y, alpha))
    sign_of = call.x if alpha < 0 else call.y
    return [t.where(t.compare("Greater", sign_of, 0.0), call.dy, below)]


@vjp("Elu", variant="input", reads="x0")
def elu_input(call: Call) -> Cotangents:
    """y = x, or a (e**x - 1) below 0. dx = dy, or dy a e**x."""
    t, alpha = call.tape, call.attribute("alpha", 1.0)
    below = t.mul(call.dy, t.mul(t.exp(t.op("Min", call.x, 0.0)), alpha))
    return [t.where(t.compare("Greater", call.x, 0.0), call.dy, below)]


@vjp("Selu", reads="x0 y0")
def selu(call: Call) -> Cotangents:
    """y = g x, or g a (e**x - 1) below 0. dx = dy g, or dy (y + g a) (x is read if a or g < 0)."""
    t = call.tape
    alpha = call.attribute("alpha", 1.67326319217681884765625)
    gamma = call.attribute("gamma", 1.05070102214813232421875)
    below = t.mul(call.dy, t.add(call.y, alpha * gamma))
    sign_of = call.x if min(alpha, gamma) < 0 else call.y
    return [t.where(t.compare("Greater", sign_of, 0.0), t.mul(call.dy, gamma), below)]


@vjp("Celu", reads="y0")
def celu(call: Call) -> Cotangents:
    """y = x, or a (e**(x/a) - 1) below 0. dx = dy, or dy (y/a + 1); 0 there if a is 0."""
    t, alpha = call.tape, call.attribute("alpha", 1.0)
    if alpha == 0.0:
        return [t.mask(t.compare("Greater", call.y, 0.0), call.dy)]
    below = t.mul(call.dy, t.add(t.mul(call.y, 1.0 / alpha), 1.0))
    return [t.where(t.compare("Greater", call.y, 0.0), call.dy, below)]


@vjp("ThresholdedRelu", reads="x0")
def thresholded_relu(call: Call) -> Cotangents:
    """y = x where x > a, else 0. dx = dy there."""
    t = call.tape
    return [t.mask(t.compare("Greater", call.x, call.attribute("alpha", 1.0)), call.dy)]


@vjp("Shrink", reads="x0")
def shrink(call: Call) -> Cotangents:
    """y = x moved towards 0 by the bias where |x| > l, else 0. dx = dy there."""
    t = call.tape
    return [
        t.mask(t.compare("Greater", t.op("Abs", call.x), call.attribute("lambd", 0.5)), call.dy)
    ]


@vjp("Sigmoid", variant="output", reads="y0")
def sigmoid_output(call: Call) -> Cotangents:
    """y = s(x). dx = dy y (1 - y)."""
    t = call.tape
    return [t.mul(call.dy, t.mul(call.y, t.sub(1.0, call.y)))]


@vjp("Sigmoid", variant="input", reads="x0")
def sigmoid_input(call: Call) -> Cotangents:
    """y = s(x). dx = dy s(x) s(-x)."""
    t = call.tape
    return [t.mul(call.dy, t.mul(t.op("Sigmoid", call.x), t.op("Sigmoid", t.neg(call.x))))]


@vjp("Tanh", variant="output", reads="y0")
def tanh_output(call: Call) -> Cotangents:
    """y = tanh(x). dx = dy (1 - y y)."""
    t = call.tape
    return [t.mul(call.dy, t.sub(1.0, t.mul(call.y, call.y)))]


@vjp("Tanh", variant="input", reads="x0")
def tanh_input(call: Call) -> Cotangents:
    """As the variant from the output, with y made again."""
    t = call.tape
    y = t.op("Tanh", call.x)
    return [t.mul(call.dy, t.sub(1.0, t.mul(y, y)))]


@vjp("Softplus", variant="output", reads="y0")
def softplus_output(call: Call) -> Cotangents:
    """y = log(1 + e**x). dx = dy (1 - e**-y)."""
    t = call.tape
    return [t.mul(call.dy, t.sub(1.0, t.exp(t.neg(call.y))))]


@vjp("Softplus", variant="input", reads="x0")
def softplus_input(call: Call) -> Cotangents:
    """y = log(1 + e**x). dx = dy s(x)."""
    t = call.tape
    return [t.mul(call.dy, t.op("Sigmoid", call.x))]


@vjp("Softsign", variant="output", reads="y0")
def softsign_output(call: Call) -> Cotangents:
    """y = x / (1 + |x|). dx = dy (1 - |y|)**2."""
    t = call.tape
    rest = t.sub(1.0, t.op("Abs", call.y))
    return [t.mul(call.dy, t.mul(rest, rest))]


@vjp("Softsign", variant="input", reads="x0")
def softsign_input(call: Call) -> Cotangents:
    """y = x / (1 + |x|). dx = dy / (1 + |x|)**2."""
    t = call.tape
    scale = t.add(t.op("Abs", call.x), 1.0)
    return [t.div(call.dy, t.mul(scale, scale))]


@vjp("HardSigmoid", reads="y0")
def hard_sigmoid(call: Call) -> Cotangents:
    """y = a x + b clipped to [0, 1]. dx = a dy strictly between."""
    t = call.tape
    inside = t.op("And", t.compare("Greater", call.y, 0.0), t.compare("Less", call.y, 1.0))
    return [t.mask(inside, t.mul(call.dy, call.attribute("alpha", 0.2)))]


@vjp("HardSwish", reads="x0")
def hard_swish(call: Call) -> Cotangents:
    """y = x h(x), h = x/6 + 1/2 clipped to [0, 1]. dx = dy (h(x) + x/6 where |x| < 3)."""
    t = call.tape
    gate = t.op("HardSigmoid", call.x, alpha=1.0 / 6.0, beta=0.5)
    slope = t.mask(t.compare("Less", t.op("Abs", call.x), 3.0), t.mul(call.x, 1.0 / 6.0))
    return [t.mul(call.dy, t.add(gate, slope))]


@vjp("Mish", reads="x0")
def mish(call: Call) -> Cotangents:
    """y = x tanh(p), p = log(1 + e**x). dx = dy (tanh p + x (1 - tanh(p)**2) s(x))."""
    t = call.tape
    gate = t.op("Tanh", t.op("Softplus", call.x))
    bend = t.mul(t.sub(1.0, t.mul(gate, gate)), t.op("Sigmoid", call.x))
    return [t.mul(call.dy, t.add(gate, t.mul(call.x, bend)))]


@vjp("Swish", since=24, reads="x0 y0")
def swish(call: Call) -> Cotangents:
    """y = x s(a x). dx = dy (s + a y (1 - s)), s made again."""
    alpha = call.attribute("alpha", 1.0)
    return [call.tape.mul(call.dy, silu_slope(call.tape, call.x, call.y, alpha))]


def silu_slope(t: Tape, x: str, y: str, alpha: float) -> str:
    """Derivative of y = x s(a x)."""
    gate = t.op("Sigmoid", t.mul(x, alpha))
    bend = t.mul(t.mul(y, alpha), t.sub(1.0, gate))
    return t.add(gate, bend)


@vjp("Gelu", since=20, reads="x0")
def gelu(call: Call) -> Cotangents:
    """y = x F(x), F the normal distribution or its tanh form. dx = dy (F + x F')."""
    slope = gelu_tanh_slope if call.attribute("approximate", "none") == "tanh" else gelu_erf_slope
    return [call.tape.mul(call.dy, slope(call.tape, call.x))]


def gelu_erf_slope(t: Tape, x: str) -> str:
    """F(x) + x f(x) with F(x) = (1 + erf(x / sqrt 2)) / 2 and f its density.

    The factor of the density goes into its exponent: one pass over memory less.
    """
    scaled = t.mul(x, math.sqrt(0.5))
    exponent = t.sub(-0.5 * math.log(2.0 * math.pi), t.mul(scaled, scaled))
    return t.add(half_plus_half(t, t.op("Erf", scaled)), t.mul(x, t.exp(exponent)))


def half_plus_half(t: Tape, a: str) -> str:
    """(a + 1) / 2 of values in [-1, 1]; in float32 by one pass of HardSigmoid."""
    if t.dtype(a) == T.FLOAT:
        return t.op("HardSigmoid", a, alpha=0.5, beta=0.5)
    return t.add(t.mul(a, 0.5), 0.5)


def gelu_tanh_slope(t: Tape, x: str) -> str:
    """Derivative of x (1 + tanh(k x (1 + c x x))) / 2."""
    k, c = math.sqrt(2.0 / math.pi), 0.044715
    square = t.mul(x, x)
    bent = t.op("Tanh", t.mul(t.mul(x, k), t.add(t.mul(square, c), 1.0)))
    slope = t.mul(t.add(t.mul(square, 1.5 * c * k), 0.5 * k), x)
    turn = t.mul(t.sub(1.0, t.mul(bent, bent)), slope)
    return t.add(half_plus_half(t, bent), turn)
