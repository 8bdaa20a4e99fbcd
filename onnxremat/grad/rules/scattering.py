"""Numbers added at places along an axis, or slices at index tuples, in a fixed order."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto as T

from onnxremat.grad.tape import Shape, Tape


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


def reduced_at(t: Tape, data: str, indices: str, updates: str, reduction: str) -> str:
    """``data`` with slices added (or what ``reduction`` says) at index tuples, as ScatterND has
    them. Its kernel reduces in several threads at once, wrongly where indices repeat: this is done
    element by element in one thread. Numbers of 16 bits are reduced in float32."""
    kept, shape = t.dtype(data), t.shape(data)
    if kept in (T.FLOAT16, T.BFLOAT16):
        wide = (t.cast(data, T.FLOAT), indices, t.cast(updates, T.FLOAT))
        return t.cast(reduced_at(t, *wide, reduction), kept)
    depth = t.shape(indices)[-1]
    length, width = math.prod(shape[:depth]), math.prod(shape[depth:])
    count = t.size(indices) // depth
    places = t.reshape(flat_indices(t, indices, shape[:depth]), (count, 1))
    made = t.op(
        "ScatterElements", t.reshape(data, (length, width)), t.expand(places, (count, width)),
        t.reshape(updates, (count, width)), shape=(length, width), axis=0, reduction=reduction,
    )  # fmt: skip
    return t.reshape(made, shape)


def flat_indices(t: Tape, tuples: str, lengths: Shape) -> str:
    """Index tuples (in the last axis) of axes of these lengths, as indices of all in one, int32."""
    steps = [math.prod(lengths[k + 1 :]) for k in range(len(lengths))]
    tuples = t.cast(tuples, T.INT32)
    ends = t.constant(np.array(lengths), T.INT32)
    tuples = t.where(t.compare("Less", tuples, 0), t.add(tuples, ends), tuples)
    return t.sum(t.mul(tuples, t.constant(np.array(steps), T.INT32)), [t.rank(tuples) - 1])
