"""Operators that ONNX tried out and dropped: onnxruntime runs them still, in nets that were
converted from Core ML and Caffe2, and infers no shapes of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxremat.grad.lowering.writer import Writer


def _image_scaler(w: Writer) -> None:
    """y = s x + b, a number b for each channel."""
    bias = np.reshape(w.attribute("bias", [0.0]), (-1, 1, 1))
    scaled = w("Mul", w.input(0), w.like(w.attribute("scale", 1.0)))
    w("Add", scaled, w.like(bias), to=w.output(0))


def _scale(w: Writer) -> None:
    w("Mul", w.input(0), w.like(w.attribute("scale", 1.0)), to=w.output(0))


def _affine(w: Writer) -> None:
    """y = a x + b."""
    scaled = w("Mul", w.input(0), w.like(w.attribute("alpha", 1.0)))
    w("Add", scaled, w.like(w.attribute("beta", 0.0)), to=w.output(0))


def _of_scaled(kind: str) -> Callable[[Writer], None]:
    """y = a f(b x)."""

    def make(w: Writer) -> None:
        inner = w("Mul", w.input(0), w.like(w.attribute("beta", 0.0)))
        w("Mul", w(kind, inner), w.like(w.attribute("alpha", 0.0)), to=w.output(0))

    return make


def _crop(w: Writer) -> None:
    """An image without its borders (left, top, right, bottom), or as large as is said."""
    left, top, right, bottom = w.attribute("border", [0] * 4)
    rows, columns = w.shape(w.input(0))[2:]
    high, wide = w.attribute("scale", None) or (rows - top - bottom, columns - left - right)
    bounds = [[top, left], [top + high, left + wide], [2, 3]]
    w("Slice", w.input(0), *(w.constant(each) for each in bounds), to=w.output(0))


FORMER: dict[str, Callable[[Writer], None]] = {
    "Affine": _affine,
    "Crop": _crop,
    "ImageScaler": _image_scaler,
    "ParametricSoftplus": _of_scaled("Softplus"),
    "Scale": _scale,
    "ScaledTanh": _of_scaled("Tanh"),
}
