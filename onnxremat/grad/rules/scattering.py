"""Numbers added at places along an axis, in a fixed order."""

from __future__ import annotations

from onnx import TensorProto as T

from onnxremat.grad.tape import Tape


def added_at(t: Tape, data: str, indices: str, updates: str, axis: int) -> str:
    """``data`` with ``updates`` added at ``indices``, as ScatterElements has them. The CPU
    provider's kernel adds no 16-bit numbers: they are added in float32."""
    kept = t.dtype(data)
    if kept in (T.FLOAT16, T.BFLOAT16):
        single = added_at(t, t.cast(data, T.FLOAT), indices, t.cast(updates, T.FLOAT), axis)
        return t.cast(single, kept)
    return t.op(
        "ScatterElements", data, indices, updates, shape=t.shape(data), axis=axis, reduction="add"
    )
