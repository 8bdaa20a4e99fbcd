"""Gathers and scatters."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.rules.runs import runs_of, sum_of_runs
from onnxremat.grad.tape import Tape

FEW_RUNS = 4  # slices up to which a known index is cheaper than a scatter


@vjp("Gather", reads="x1")
def gather(call: Call) -> Cotangents:
    """y = rows of x by index. dx = dy added up at the rows; slices where the index is known."""
    t, (x, indices) = call.tape, call.op.inputs
    shape, axis = t.shape(x), call.attribute("axis", 0) % t.rank(x)
    known = call.optional_value(1)
    if known is not None:
        places = np.where(known < 0, known + shape[axis], known).reshape(-1)
        if 0 < len(runs_of(places)) <= FEW_RUNS:
            flat = (*shape[:axis], places.size, *shape[axis + 1 :])
            return [sum_of_runs(t, t.reshape(call.dy, flat), axis, places, shape[axis]), None]
    rank = t.rank(indices)
    moved = [*range(axis, axis + rank)]
    rest = [k for k in range(t.rank(call.dy)) if k not in moved]
    rows = t.transpose(call.dy, [*moved, *rest])
    others = [d for k, d in enumerate(shape) if k != axis]
    count = t.size(indices)
    zeros = t.filled(0.0, (shape[axis], *others), t.dtype(call.dy))
    made = t.op(
        "ScatterND", zeros, t.reshape(_from_zero(t, indices, shape[axis], known), (count, 1)),
        t.reshape(rows, (count, *others)), shape=(shape[axis], *others), reduction="add",
    )  # fmt: skip
    back = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
    return [t.transpose(made, back), None]


def _from_zero(t: Tape, indices: str, length: int, known: np.ndarray | None) -> str:
    """Indices without negative ones (they count from the end), as int64."""
    if known is not None:
        return t.constant(np.where(known < 0, known + length, known), T.INT64)
    indices = t.cast(indices, T.INT64)
    return t.where(t.compare("Less", indices, 0), t.add(indices, length), indices)


@vjp("GatherElements", reads="x1")
def gather_elements(call: Call) -> Cotangents:
    """y[i, j] = x[index[i, j], j]. dx = dy added up there."""
    return [_scatter_elements(call, call.dy, call.attribute("axis", 0)), None]


def _scatter_elements(call: Call, updates: str, axis: int) -> str:
    t = call.tape
    return t.op(
        "ScatterElements", t.zeros(call.x), call.op.inputs[1], updates, shape=call.shape(),
        axis=axis, reduction="add",
    )  # fmt: skip


@vjp("GatherND", reads="x1")
def gather_nd(call: Call) -> Cotangents:
    """y = slices of x by index tuples. dx = dy added up there."""
    t, indices = call.tape, call.op.inputs[1]
    indices = _with_batch(t, indices, call.attribute("batch_dims", 0))
    made = t.op("ScatterND", t.zeros(call.x), indices, call.dy, shape=call.shape(), reduction="add")
    return [made, None]


def _with_batch(t: Tape, indices: str, batch: int) -> str:
    """Index tuples preceded by the indices of the batch axes."""
    shape = t.shape(indices)
    parts = []
    for axis in range(batch):
        ramp = np.arange(shape[axis]).reshape([-1 if k == axis else 1 for k in range(len(shape))])
        parts.append(t.expand(t.constant(ramp, T.INT64), (*shape[:-1], 1)))
    return t.concat([*parts, indices], len(shape) - 1)


@vjp("ScatterElements", reads="x1")
def scatter_elements(call: Call) -> Cotangents:
    """y = data with updates put (or added) at indices. data gets dy (0 where replaced), updates
    get dy there.

    Raises:
        UnsupportedError: reduction mul, max or min.
    """
    return _scatter(call, "GatherElements", {"axis": call.attribute("axis", 0)})


@vjp("ScatterND", reads="x1")
def scatter_nd(call: Call) -> Cotangents:
    """As ScatterElements, with slices put at index tuples."""
    return _scatter(call, "GatherND", {})


def _scatter(call: Call, gather_type: str, attributes: dict[str, Any]) -> Cotangents:
    t, (data, indices, updates) = call.tape, call.op.inputs
    reduction = call.attribute("reduction", "none")
    if reduction not in ("none", "add"):
        raise call.unsupported(f"reduction '{reduction}' is not differentiated")
    ddata = call.dy
    if reduction == "none" and call.need(0):
        ddata = t.op(
            call.op.op_type, call.dy, indices, t.zeros(updates), shape=t.shape(data), **attributes
        )
    dupdates = None
    if call.need(2):
        dupdates = t.op(gather_type, call.dy, indices, shape=t.shape(updates), **attributes)
    return [ddata, None, dupdates]


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
