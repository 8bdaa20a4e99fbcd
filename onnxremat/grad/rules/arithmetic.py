"""Elementwise arithmetic of one or more tensors, with broadcasting.

Rules return cotangents of the broadcast shape; the walk sums the broadcast axes away.
"""

from __future__ import annotations

import math

import numpy as np

from onnxremat.grad.call import Call
from onnxremat.grad.exported.marks import reading_of
from onnxremat.grad.registry import Cotangents, vjp


@vjp("Add")
def add(call: Call) -> Cotangents:
    """y = a + b. da = db = dy."""
    return [call.dy, call.dy]


@vjp("Sub")
def sub(call: Call) -> Cotangents:
    """y = a - b. da = dy, db = -dy (negated after the sum over broadcast axes)."""
    t, db = call.tape, None
    if call.need(1):
        db = t.neg(t.unbroadcast(call.dy, call.shape(1)))
    return [call.dy, db]


@vjp("Sum")
def sum_(call: Call) -> Cotangents:
    """y = a + b + ... Each input gets dy."""
    return [call.dy] * len(call.op.inputs)


@vjp("Mean")
def mean(call: Call) -> Cotangents:
    """y = (a + b + ...) / n. Each input gets dy / n."""
    n = len(call.op.inputs)
    return [call.tape.mul(call.dy, 1.0 / n)] * n


@vjp("Mul", reads="x0 x1")
def mul(call: Call) -> Cotangents:
    """y = a b. da = dy b, db = dy a."""
    t, (a, b) = call.tape, call.op.inputs
    da = _scaled(call, b, 0) if call.need(0) else None
    db = _scaled(call, a, 1) if call.need(1) else None
    if a == b and da is not None:
        return [t.mul(da, 2.0), None]
    return [da, db]


def _scaled(call: Call, factor: str, target: int) -> str:
    """dy * factor; the sum over axes that were broadcast comes first where it can."""
    t = call.tape
    if t.size(factor) == 1:
        small = t.unbroadcast(call.dy, call.shape(target))
        fits = t.rank(factor) <= t.rank(small)
        return t.mul(small, factor if fits else t.reshape(factor, ()))
    return t.mul(call.dy, factor)


@vjp("Div", reads="x1 y0")
def div(call: Call) -> Cotangents:
    """y = a / b. da = dy / b, db = -(dy / b) y."""
    t, b = call.tape, call.op.inputs[1]
    value = call.optional_value(1)
    if value is not None and value.size == 1 and value.item() and not call.need(1):
        small = t.unbroadcast(call.dy, call.shape(0))
        return [t.mul(small, 1.0 / float(value.reshape(()))), None]
    quotient = t.div(call.dy, b)
    db = t.neg(t.unbroadcast(t.mul(quotient, call.y), call.shape(1))) if call.need(1) else None
    return [quotient, db]


@vjp("Pow", reads="x0 x1 y0")
def pow_(call: Call) -> Cotangents:
    """y = a ** b. da = dy b a**(b-1), db = dy y log(a) (0 where a <= 0)."""
    t, (a, b) = call.tape, call.op.inputs
    da = _pow_base(call) if call.need(0) else None
    db = None
    if call.need(1):
        positive = t.compare("Greater", a, 0.0)
        log = t.op("Log", t.where(positive, a, 1.0))
        db = t.mul(t.mul(call.dy, call.y), log)
    return [da, t.cast(db, t.dtype(b)) if db else None]


def _pow_base(call: Call) -> str:
    t, (a, b) = call.tape, call.op.inputs
    value = call.optional_value(1)
    if value is not None and value.size == 1:
        exponent = float(value.reshape(()))
        if exponent == 0.0:
            return t.zeros(a)
        if exponent == 1.0:
            return call.dy
        if exponent == 2.0:
            return t.mul(t.mul(call.dy, 2.0), a)
        if exponent == 0.5:
            return t.div(t.mul(call.dy, 0.5), call.y)
        if exponent == 3.0:
            return t.mul(call.dy, t.mul(t.mul(a, a), 3.0))
        return t.mul(call.dy, t.mul(t.op("Pow", a, exponent - 1.0), exponent))
    b = t.cast(b, t.dtype(a))
    none = t.compare("Equal", b, 0.0)  # there 0 a**0, not 0 a**-1, which is no number where a is 0
    return t.mul(call.dy, t.mul(b, t.op("Pow", a, t.sub(t.where(none, 1.0, b), 1.0))))


@vjp("Min", reads="x* y0")
def min_(call: Call) -> Cotangents:
    """y = min(a, b, ...). The smallest gets dy; equal ones share it evenly, but for PyTorch's clamp
    to what needs no gradient."""
    return _extreme(call, "Less")


@vjp("Max", reads="x* y0")
def max_(call: Call) -> Cotangents:
    """y = max(a, b, ...). The largest gets dy; equal ones share it evenly."""
    return _extreme(call, "Greater")


def _extreme(call: Call, wins: str) -> Cotangents:
    t, inputs, dtype = call.tape, call.op.inputs, call.tape.dtype(call.y)
    if len(inputs) == 1:
        return [call.dy]
    if len(inputs) == 2:
        alone = _is_clamp(call) and not (call.need(0) and call.need(1))
        tie = t.mul(t.cast(t.compare("Equal", *inputs), dtype), 1.0 if alone else 0.5)
        out: list[str | None] = []
        for k, other in ((0, 1), (1, 0)):
            won = t.cast(t.compare(wins, inputs[k], inputs[other]), dtype) if call.need(k) else None
            out.append(t.mul(call.dy, t.add(won, tie)) if won else None)
        return out
    hits = [t.cast(t.compare("Equal", name, call.y), dtype) for name in inputs]
    count = hits[0]
    for hit in hits[1:]:
        count = t.add(count, hit)
    share = t.div(call.dy, count)
    return [t.mul(share, hit) if call.need(k) else None for k, hit in enumerate(hits)]


@vjp("Where", reads="x0")
def where(call: Call) -> Cotangents:
    """y = a where c, else b. da = dy where c, db = dy where not c."""
    t, condition = call.tape, call.op.inputs[0]
    da = t.mask(condition, call.dy) if call.need(1) else None
    db = None
    if call.need(2):
        db = t.mask(t.op("Not", condition), call.dy)
    return [None, da, db]


@vjp("Neg")
def neg(call: Call) -> Cotangents:
    """y = -x. dx = -dy."""
    return [call.tape.neg(call.dy)]


@vjp("Abs", reads="x0")
def abs_(call: Call) -> Cotangents:
    """y = |x|. dx = dy sign(x)."""
    return [call.tape.mul(call.dy, call.tape.op("Sign", call.x))]


@vjp("Sqrt", reads="y0")
def sqrt(call: Call) -> Cotangents:
    """y = sqrt(x). dx = dy / (2 y)."""
    return [call.tape.div(call.tape.mul(call.dy, 0.5), call.y)]


@vjp("Exp", reads="y0")
def exp(call: Call) -> Cotangents:
    """y = exp(x). dx = dy y."""
    return [call.tape.mul(call.dy, call.y)]


@vjp("Log", reads="x0")
def log(call: Call) -> Cotangents:
    """y = log(x). dx = dy / x."""
    return [call.tape.div(call.dy, call.x)]


@vjp("Reciprocal", reads="y0")
def reciprocal(call: Call) -> Cotangents:
    """y = 1 / x. dx = -dy y y."""
    t = call.tape
    return [t.neg(t.mul(call.dy, t.mul(call.y, call.y)))]


@vjp("Erf", reads="x0")
def erf(call: Call) -> Cotangents:
    """y = erf(x). dx = dy 2/sqrt(pi) exp(-x x)."""
    t = call.tape
    bell = t.exp(t.neg(t.mul(call.x, call.x)))
    return [t.mul(call.dy, t.mul(bell, 2.0 / math.sqrt(math.pi)))]


@vjp("Clip", variant="output", reads="x0 x1 x2 y0")
def clip_output(call: Call) -> Cotangents:
    """y = min(max(x, lo), hi). dx = dy strictly between the bounds; a bound gets dy where y is it,
    the upper one alone where the lower is not below it.

    Reads only the result, so that x may die; where x equals a bound the bound gets dy. But where
    the file says that it is PyTorch's clamp, or no data enter x, x is read and gets dy itself: what
    begins at a bound (a gate of 1, a layer of zeros) would never leave it.
    """
    return _clip(call, call.y)


@vjp("Clip", variant="input", reads="x0 x1 x2")
def clip_input(call: Call) -> Cotangents:
    """As the variant from the output, reading x instead."""
    return _clip(call, call.x)


def _clip(call: Call, value: str) -> Cotangents:
    t, low, high = call.tape, call.input(1), call.input(2)
    within, beyond = ("Greater", "Less"), ("LessOrEqual", "GreaterOrEqual")
    if _is_closed(call):
        value, within, beyond = call.x, beyond[::-1], within[::-1]
    inside = [
        t.compare(kind, value, bound)
        for kind, bound in zip(within, (low, high), strict=True)
        if bound is not None
    ]
    out: list[str | None] = [call.dy, None, None]
    if inside:
        both = inside[0] if len(inside) == 1 else t.op("And", *inside)
        out[0] = t.mask(both, call.dy) if call.need(0) else None
    crossed = None  # then y is the upper bound, wherever x is
    if low is not None and high is not None and (call.need(1) or call.need(2)):
        crossed = t.compare(beyond[1], low, high)
    if low is not None and call.need(1):
        below = t.compare(beyond[0], value, low)
        below = below if crossed is None else t.op("And", below, t.op("Not", crossed))
        out[1] = t.mask(below, call.dy)
    if high is not None and call.need(2):
        above = t.compare(beyond[1], value, high)
        above = above if crossed is None else t.op("Or", above, crossed)
        out[2] = t.mask(above, call.dy)
    return out[: len(call.op.inputs)]


def _is_clamp(call: Call) -> bool:
    """Whether the file says that it is PyTorch's clamp."""
    about = reading_of(call.op.node)
    return about is not None and "aten.clamp" in about.call


def _is_closed(call: Call) -> bool:
    """Whether x gets dy where it equals a bound. PyTorch's rectifiers have 0 there, its clamp 1."""
    if _is_clamp(call):
        return True
    about = reading_of(call.op.node)
    rectifier = about is not None and any(kind in about.call for kind in ("hardtanh", "relu6"))
    return call.walk.is_still(call.x) and not rectifier


def _register_functions() -> None:
    """Functions of one number whose derivative is a short formula of the input."""
    derivatives: dict[str, tuple[str, str]] = {
        "Sin": ("cos(x)", "Cos"),
        "Sinh": ("cosh(x)", "Cosh"),
        "Cosh": ("sinh(x)", "Sinh"),
    }
    for op_type, (formula, derivative) in derivatives.items():

        def rule(call: Call, derivative: str = derivative) -> Cotangents:
            return [call.tape.mul(call.dy, call.tape.op(derivative, call.x))]

        rule.__doc__ = f"y = {op_type.lower()}(x). dx = dy {formula}."
        vjp(op_type, reads="x0")(rule)


_register_functions()


@vjp("Cos", reads="x0")
def cos(call: Call) -> Cotangents:
    """y = cos(x). dx = -dy sin(x)."""
    return [call.tape.neg(call.tape.mul(call.dy, call.tape.op("Sin", call.x)))]


@vjp("Tan", reads="y0")
def tan(call: Call) -> Cotangents:
    """y = tan(x). dx = dy (1 + y y)."""
    t = call.tape
    return [t.mul(call.dy, t.add(t.mul(call.y, call.y), 1.0))]


@vjp("Asin", reads="x0")
def asin(call: Call) -> Cotangents:
    """y = asin(x). dx = dy / sqrt(1 - x x)."""
    t = call.tape
    return [t.div(call.dy, t.op("Sqrt", t.sub(1.0, t.mul(call.x, call.x))))]


@vjp("Acos", reads="x0")
def acos(call: Call) -> Cotangents:
    """y = acos(x). dx = -dy / sqrt(1 - x x)."""
    t = call.tape
    return [t.neg(t.div(call.dy, t.op("Sqrt", t.sub(1.0, t.mul(call.x, call.x)))))]


@vjp("Atan", reads="x0")
def atan(call: Call) -> Cotangents:
    """y = atan(x). dx = dy / (1 + x x)."""
    t = call.tape
    return [t.div(call.dy, t.add(t.mul(call.x, call.x), 1.0))]


@vjp("Asinh", reads="x0")
def asinh(call: Call) -> Cotangents:
    """y = asinh(x). dx = dy / sqrt(x x + 1)."""
    t = call.tape
    return [t.div(call.dy, t.op("Sqrt", t.add(t.mul(call.x, call.x), 1.0)))]


@vjp("Acosh", reads="x0")
def acosh(call: Call) -> Cotangents:
    """y = acosh(x). dx = dy / sqrt(x x - 1)."""
    t = call.tape
    return [t.div(call.dy, t.op("Sqrt", t.sub(t.mul(call.x, call.x), 1.0)))]


@vjp("Atanh", reads="x0")
def atanh(call: Call) -> Cotangents:
    """y = atanh(x). dx = dy / (1 - x x)."""
    t = call.tape
    return [t.div(call.dy, t.sub(1.0, t.mul(call.x, call.x)))]


@vjp("CumSum", reads="x1")
def cumsum(call: Call) -> Cotangents:
    """y = running sum along an axis. dx = running sum of dy from the other end."""
    reverse = 1 - int(call.attribute("reverse", 0))
    exclusive = int(call.attribute("exclusive", 0))
    axis = int(np.asarray(call.value(1)).reshape(()))
    made = call.tape.op(
        "CumSum",
        call.dy,
        call.tape.constant(axis, 7),
        shape=call.shape(),
        reverse=reverse,
        exclusive=exclusive,
    )
    return [made, None]


@vjp("Mod", reads="x0 x1 y0")
def mod(call: Call) -> Cotangents:
    """y = a - b n, n the whole part of a / b. da = dy, db = -n dy."""
    t, (a, b) = call.tape, call.op.inputs
    whole = t.op("Round", t.div(t.sub(a, call.y), b)) if call.need(1) else ""
    return [call.dy, t.neg(t.mul(call.dy, whole)) if whole else None]
