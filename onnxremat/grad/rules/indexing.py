"""Gathers and scatters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.exported.padding import padding_of
from onnxremat.grad.lowering.row_sums import sum_rows
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.rules.runs import runs_of, sum_of_runs
from onnxremat.grad.rules.scattering import added_at, flat_indices, reduced_at
from onnxremat.grad.tape import Shape, Tape

FEW_RUNS = 4  # slices up to which a known index is cheaper than a scatter


@vjp("Gather", reads="x1")
def gather(call: Call) -> Cotangents:
    """y = rows of x by index. dx = dy added up at the rows; slices where the index is known.

    Where PyTorch's exporter says that a row of an embedding is for padding, that row gets none.
    """
    t, (x, indices), dy = call.tape, call.op.inputs, _but_padding(call)
    shape, axis = t.shape(x), call.attribute("axis", 0) % t.rank(x)
    known = None if t.varies(shape[axis]) else call.optional_value(1)
    if known is not None:
        places = np.where(known < 0, known + shape[axis], known).reshape(-1)
        if 0 < len(runs_of(places)) <= FEW_RUNS:
            flat = (*shape[:axis], places.size, *shape[axis + 1 :])
            return [sum_of_runs(t, t.reshape(dy, flat), axis, places, shape[axis]), None]
    rank = t.rank(indices)
    moved = [*range(axis, axis + rank)]
    rest = [k for k in range(t.rank(dy)) if k not in moved]
    rows = t.transpose(dy, [*moved, *rest])
    others = [d for k, d in enumerate(shape) if k != axis]
    rows = t.reshape(rows, (t.size(indices), math.prod(others)))
    ids = t.reshape(_from_zero(t, indices, shape[axis], known), (t.size(indices),))
    made = t.reshape(_put(t, rows, ids, shape[axis], known), (shape[axis], *others))
    if axis == 0 and len(others) == 1:
        t.rows_at[made] = rows, ids
    back = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
    return [t.transpose(made, back), None]


def _but_padding(call: Call) -> str:
    """dy, 0 for indices of a padding row."""
    row, t = padding_of(call.op.node), call.tape
    if row is None:
        return call.dy
    indices = call.op.inputs[1]
    others = t.op("Not", t.compare("Equal", indices, row), dtype=T.BOOL)
    wide = (*t.shape(indices), *[1] * (t.rank(call.dy) - t.rank(indices)))
    return t.mask(t.reshape(others, wide), call.dy)


def _put(t: Tape, rows: str, places: str, length: int, known: np.ndarray | None) -> str:
    """Rows [N, D] added up at places [N] of [length, D]."""
    if (
        known is None
        or not known.size
        or len(set((known % length).reshape(-1).tolist())) < known.size
    ):
        return sum_rows(t, rows, places, length)
    zeros = t.filled(0.0, (length, t.shape(rows)[1]), t.dtype(rows))
    places = t.reshape(t.cast(places, T.INT64), (known.size, 1))
    return t.op("ScatterND", zeros, places, rows, shape=t.shape(zeros))  # no place twice


def _from_zero(t: Tape, indices: str, length: int, known: np.ndarray | None) -> str:
    """Indices without negative ones (they count from the end), as int32."""
    if known is not None:
        return t.constant(np.where(known < 0, known + length, known), T.INT32)
    indices = t.cast(indices, T.INT32)
    return t.where(t.compare("Less", indices, 0), t.add(indices, length), indices)


@vjp("GatherElements", reads="x1")
def gather_elements(call: Call) -> Cotangents:
    """y[i, j] = x[index[i, j], j]. dx = dy added up there."""
    t, indices = call.tape, call.op.inputs[1]
    return [added_at(t, t.zeros(call.x), indices, call.dy, call.attribute("axis", 0)), None]


@vjp("GatherND", reads="x1")
def gather_nd(call: Call) -> Cotangents:
    """y = slices of x by index tuples. dx = dy added up there."""
    t, indices, shape = call.tape, call.op.inputs[1], call.shape()
    indices = _with_batch(t, indices, call.attribute("batch_dims", 0))
    depth = t.shape(indices)[-1]
    count, width = t.size(indices) // depth, math.prod(shape[depth:])
    places = flat_indices(t, indices, shape[:depth])
    rows = t.reshape(call.dy, (count, width))
    made = sum_rows(t, rows, t.reshape(places, (count,)), math.prod(shape[:depth]))
    return [t.reshape(made, shape), None]


def _with_batch(t: Tape, indices: str, batch: int) -> str:
    """Index tuples preceded by the indices of the batch axes."""
    shape = t.shape(indices)
    parts = []
    for axis in range(batch):
        ramp = np.arange(shape[axis]).reshape([-1 if k == axis else 1 for k in range(len(shape))])
        parts.append(t.expand(t.constant(ramp, T.INT64), (*shape[:-1], 1)))
    return t.concat([*parts, indices], len(shape) - 1)


@vjp("ScatterElements", reads="x0 x1 x2 y0")
def scatter_elements(call: Call) -> Cotangents:
    """y = data with updates put, added, multiplied (or the largest, smallest taken) at indices.
    data gets dy (0 where replaced), updates get dy there; see :func:`_product` and
    :func:`_extreme` for the other reductions."""
    axis = {"axis": call.attribute("axis", 0)}
    return _scatter(_Scatter(call, "ScatterElements", "GatherElements", axis))


@vjp("ScatterND", reads="x0 x1 x2 y0")
def scatter_nd(call: Call) -> Cotangents:
    """As ScatterElements, with slices put at index tuples."""
    return _scatter(_Scatter(call, "ScatterND", "GatherND", {}))


@dataclass(frozen=True)
class _Scatter:
    """A scatter and the gather from the same places."""

    call: Call
    put: str
    take: str
    attributes: Mapping[str, Any]

    @property
    def shapes(self) -> tuple[Shape, Shape]:
        """Of data and updates."""
        return self.call.shape(0), self.call.shape(2)

    def into(self, data: str, updates: str, reduction: str) -> str:
        """``updates`` into ``data``; see :func:`reduced_at` for what several may go to one place
        of. Numbers of 16 bits, which the CPU provider does not reduce, are reduced in float32."""
        t, indices = self.call.tape, self.call.op.inputs[1]
        if self.put == "ScatterND" and reduction != "none":
            return reduced_at(t, data, indices, updates, reduction)
        kept = t.dtype(data)
        if reduction != "none" and kept in (T.FLOAT16, T.BFLOAT16):
            wide = self.into(t.cast(data, T.FLOAT), t.cast(updates, T.FLOAT), reduction)
            return t.cast(wide, kept)
        return t.op(
            self.put, data, indices, updates, shape=self.shapes[0], reduction=reduction,
            **self.attributes,
        )  # fmt: skip

    def back(self, data: str) -> str:
        """What lies at the places of the updates."""
        indices = self.call.op.inputs[1]
        return self.call.tape.op(self.take, data, indices, shape=self.shapes[1], **self.attributes)


def _scatter(s: _Scatter) -> Cotangents:
    call, t = s.call, s.call.tape
    reduction = call.attribute("reduction", "none")
    if reduction == "mul":
        return _product(s)
    if reduction in ("max", "min"):
        return _extreme(s)
    ddata = call.dy
    if reduction == "none" and call.need(0):
        ddata = s.into(call.dy, t.zeros(call.op.inputs[2]), "none")
    return [ddata, None, s.back(call.dy) if call.need(2) else None]


def _extreme(s: _Scatter) -> Cotangents:
    """dy goes to what is the largest (smallest) at a place; equal ones share it evenly."""
    call, t = s.call, s.call.tape
    data, _, updates = call.op.inputs
    own = t.cast(t.compare("Equal", data, call.y), t.dtype(data))
    others = t.cast(t.compare("Equal", updates, s.back(call.y)), t.dtype(data))
    share = t.div(call.dy, s.into(own, others, "add"))
    return [t.mul(share, own), None, t.mul(s.back(share), others) if call.need(2) else None]


def _product(s: _Scatter) -> Cotangents:
    """dy times the product of the other factors of a place, right with zeros among them too."""
    call, t = s.call, s.call.tape
    data, _, updates = call.op.inputs
    zeros = [t.cast(t.compare("Equal", name, 0.0), t.dtype(data)) for name in (data, updates)]
    safe = [t.add(name, zero) for name, zero in zip((data, updates), zeros, strict=True)]
    gained = t.mul(call.dy, s.into(safe[0], safe[1], "mul"))  # without the factors that are 0
    count = s.into(zeros[0], zeros[1], "add")
    without = t.mask(t.compare("Equal", count, 0.0), gained)
    single = t.mask(t.compare("Equal", count, 1.0), gained)

    def shared(factor: str, zero: str, none: str, one: str) -> str:
        kept = t.mul(t.div(none, factor), t.sub(1.0, zero))
        return t.add(kept, t.mul(one, zero))

    dupdates = None
    if call.need(2):
        dupdates = shared(safe[1], zeros[1], s.back(without), s.back(single))
    return [shared(safe[0], zeros[0], without, single), None, dupdates]


@vjp("OneHot", reads="x0 x1")
def one_hot(call: Call) -> Cotangents:
    """y = on at the index, off elsewhere, values = (off, on). dvalues = dy summed over each."""
    t, (indices, depth, values) = call.tape, call.op.inputs
    dtype = t.dtype(values)
    hot = t.op(
        "OneHot", indices, depth, t.constant([0.0, 1.0], dtype), shape=call.out_shape, dtype=dtype,
        axis=call.attribute("axis", -1),
    )  # fmt: skip
    axes = range(len(call.out_shape))
    on = t.sum(t.mul(call.dy, hot), axes)
    off = t.sub(t.sum(call.dy, axes), on)
    return [None, None, t.concat([t.reshape(off, (1,)), t.reshape(on, (1,))], 0)]
