"""Dropout whose masks are a function of a counter.

onnxruntime's Dropout draws from a generator inside its kernel: a second run of the op gives
another mask, and a process that resumes training starts it anew. Here the mask is computed from
``dropout.step``, a state of the training step that each run raises by one. So a resumed run draws
what an uninterrupted one draws, and a planner may compute a mask again instead of keeping it.

Random numbers come from a counter-based generator (B. Widynski, "Squares: a fast counter-based
RNG", arXiv:2004.06278). Only few are drawn: an R x C mask takes random a, b (odd + even halves of
a sum) for its rows and columns, and element (i, j) is kept where

    (a_i + b_j) (2 c_i + 1 + 2 d_j)  mod 2**32, as a signed number,

is below a threshold. The second factor is odd, so the product is uniform; any two elements are
independent. That is four passes of 32-bit arithmetic, an eighth of the time of drawing each
element in onnxruntime's kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from onnx import TensorProto as T

from onnxremat.grad.tape import Shape, Tape
from onnxremat.graph.ir import Graph, Op

COUNTER = "dropout.step"
# Squares wants an odd key whose hexadecimal digits look irregular; any such will do.
KEY = int(np.uint64(0x9B3D71F6A58C2E47).astype(np.int64))
HALF = 32  # bits


def is_dropping(op: Op) -> bool:
    """A Dropout in training mode."""
    return op.standard and op.op_type == "Dropout" and len(op.inputs) > 2 and bool(op.inputs[2])


def gain_of(keep: float) -> float:
    """What the kept share of elements is multiplied by: nothing where none is kept."""
    return 1.0 / keep if keep > 0 else 0.0


def without_dropout(graph: Graph) -> Graph:
    """Every Dropout out of training mode."""
    return graph.with_ops(
        [replace(op, inputs=op.inputs[:2]) if is_dropping(op) else op for op in graph.ops]
    )


def with_counted_masks(
    t: Tape, ops: Sequence[Op], ratio_of: Callable[[str], np.ndarray | None], count: str
) -> list[Op]:
    """Dropouts in training mode as arithmetic on random numbers that ``count`` determines.

    Args:
        ratio_of: a tensor's value where it is known. Ops with a ratio made at run time stay.
        count: an int64 scalar, another one each run.
    """
    known = {op.name: ratio_of(op.inputs[1]) for op in ops if is_dropping(op)}
    ratios = {name: float(value.reshape(())) for name, value in known.items() if value is not None}
    ratios = {name: ratio for name, ratio in ratios.items() if ratio > 0}
    shapes = {op.name: t.shape(op.inputs[0]) for op in ops if op.name in ratios}
    if not shapes:
        return list(ops)
    start = len(t.ops)
    with t.scope("dropout", "forward"):
        pieces = dict(zip(shapes, _pieces(t, list(shapes.values()), count), strict=True))
    made = _taken_off(t, start)
    for op in ops:
        if op.name not in pieces:
            made.append(op)
            continue
        with t.scope(op.name, "forward"):
            renames = _drop(t, op, 1.0 - ratios[op.name], pieces[op.name])
        made += [each.renamed(each.name, renames, each.origin) for each in _taken_off(t, start)]
    return made


def _taken_off(t: Tape, start: int) -> list[Op]:
    emitted, t.ops[start:] = t.ops[start:], []
    return emitted


def _halves(shape: Shape) -> tuple[Shape, Shape]:
    """Leading and trailing dimensions with the fewest rows and columns together."""
    cuts = [(shape[:k], shape[k:]) for k in range(len(shape) + 1)]
    return min(cuts, key=lambda cut: math.prod(cut[0]) + math.prod(cut[1]))


def _pieces(t: Tape, shapes: Sequence[Shape], count: str) -> list[list[str]]:
    """Per shape the tensors a, b, 2 c + 1 and 2 d, ready to broadcast to it."""
    sizes = [math.prod(part) for shape in shapes for part in _halves(shape)]
    numbers = _numbers(t, 2 * sum(sizes), count)
    first, second = _split(t, numbers, [sum(sizes)] * 2)
    rows, factors = _split(t, first, sizes), _split(t, t.add(second, second), sizes)
    made = []
    for k, shape in enumerate(shapes):
        left, right = _halves(shape)
        column = (*left, *(1 for _ in right))
        made.append([
            t.reshape(rows[2 * k], column), t.reshape(rows[2 * k + 1], right),
            t.reshape(t.add(factors[2 * k], 1), column), t.reshape(factors[2 * k + 1], right),
        ])  # fmt: skip
    return made


def _split(t: Tape, numbers: str, sizes: Sequence[int]) -> tuple[str, ...]:
    outputs = [(T.INT32, (size,)) for size in sizes]
    return t.multi("Split", [numbers, t.integers(*sizes)], outputs, axis=0)


def _numbers(t: Tape, size: int, count: str) -> str:
    """``size`` random int32 numbers, others for every value of ``count``."""
    with np.errstate(over="ignore"):
        steps = np.arange(size, dtype=np.int64) * np.int64(KEY)
        jump = int(np.int64(size) * np.int64(KEY))
    x = y = t.add(t.constant(steps, T.INT64), t.mul(count, jump))
    z = t.add(y, KEY)
    for term in (y, z, y):
        x = _swapped(t, t.add(t.mul(x, x), term))
    x = t.cast(t.add(t.mul(x, x), z), T.UINT64)
    return t.cast(_shift(t, x, "RIGHT"), T.INT32)


def _shift(t: Tape, x: str, direction: str) -> str:
    return t.op("BitShift", x, t.constant(HALF, T.UINT64), direction=direction, shape=t.shape(x))


def _swapped(t: Tape, x: str) -> str:
    """Upper and lower half of 64 bits exchanged."""
    x = t.cast(x, T.UINT64)
    return t.cast(t.op("BitwiseOr", _shift(t, x, "RIGHT"), _shift(t, x, "LEFT")), T.INT64)


def _drop(t: Tape, op: Op, keep: float, pieces: Sequence[str]) -> dict[str, str]:
    """Emit mask and result of a Dropout; returns the names they are to have."""
    a, b, c, d = pieces
    x, shape = op.inputs[0], t.shape(op.inputs[0])
    number = t.op("Mul", t.op("Add", a, b, shape=shape), t.op("Add", c, d, shape=shape))
    bound = min(round(keep * 2**HALF) - 2 ** (HALF - 1), 2 ** (HALF - 1) - 1)
    mask = t.compare("Less", number, bound)
    # Not a cast of the mask itself: the backward pass has one, and onnxruntime would merge them
    # and keep four bytes per element instead of one.
    result = t.mul(t.mul(x, gain_of(keep)), t.cast(t.cast(mask, T.UINT8), t.dtype(x)))
    return {new: old for new, old in zip((result, mask), op.outputs, strict=False) if old}
