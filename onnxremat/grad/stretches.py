"""Cotangents of what is read in stretches along one axis, put together from those of the stretches.

The rule of a Slice pads the cotangent of what it took to the whole, and the wholes are added: with
``n`` parts ``2 n`` passes over all of it. Stretches that overlap in a few rows are joined in two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np

from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Op


@dataclass(frozen=True)
class Stretch:
    """A cotangent of the indices ``first`` to ``end`` (excluded) along an axis."""

    axis: int
    first: int
    end: int
    cotangent: str


def stretch_of(
    op: Op, cotangent: str, t: Tape, constant_of: Callable[[str], np.ndarray | None]
) -> Stretch | None:
    """That of an op which takes a stretch along one axis, None for any other."""
    if op.op_type != "Slice" or len(op.inputs) != 4:
        return None
    given = [constant_of(name) for name in op.inputs[1:]]
    values = [value.ravel().tolist() for value in given if value is not None]
    if [len(value) for value in values] != [1, 1, 1]:
        return None
    shape, axis = t.shape(op.inputs[0]), values[2][0] % t.rank(op.inputs[0])
    first, end, _ = slice(values[0][0], values[1][0]).indices(shape[axis])
    return Stretch(axis, first, end, cotangent) if first < end else None


def joined(t: Tape, like: str, stretches: Sequence[Stretch], whole: str | None) -> str:
    """The cotangent of a tensor.

    Args:
        like: the tensor.
        stretches: along one axis.
        whole: a cotangent of all of it, if there is one.
    """
    axis, shape = stretches[0].axis, t.shape(like)
    every = list(stretches)
    if whole is not None:
        every.append(Stretch(axis, 0, shape[axis], whole))
    bounds = sorted({0, shape[axis], *(b for s in every for b in (s.first, s.end))})
    segments = []
    for first, end in pairwise(bounds):
        terms = [
            t.slice(s.cotangent, [axis], [first - s.first], [end - s.first])
            for s in every
            if s.first <= first and end <= s.end
        ]
        size = (*shape[:axis], end - first, *shape[axis + 1 :])
        segments.append(reduce(t.add, terms) if terms else t.filled(0.0, size, t.dtype(like)))
    return t.concat(segments, axis)
