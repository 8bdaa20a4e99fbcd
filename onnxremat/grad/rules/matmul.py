"""Matrix products."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.host.blocked_rows import one_product
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.tape import Shape, Tape

WIDE = (
    512  # columns from which a Gemm's transposing of its first factor costs more than doing it once
)

MINORS = 16  # rows of a matrix whose minors are written out


@vjp("MatMul", reads="x0 x1")
def matmul(call: Call) -> Cotangents:
    """y = a @ b, batched and broadcast. da = dy @ b.T, db = a.T @ dy."""
    t, (a, b) = call.tape, call.op.inputs
    if t.rank(b) == 2 and t.rank(a) >= 2:
        return _by_matrix(call)
    if t.rank(a) >= 3 and t.shape(a)[:-2] == t.shape(b)[:-2]:
        da = t.outer(call.dy, b) if call.need(0) else None
        return [da, t.inner(a, call.dy) if call.need(1) else None]
    left = t.reshape(a, (1, *t.shape(a))) if t.rank(a) == 1 else a
    right = t.reshape(b, (*t.shape(b), 1)) if t.rank(b) == 1 else b
    shape = list(call.out_shape)
    if t.rank(b) == 1:
        shape.append(1)
    if t.rank(a) == 1:
        shape.insert(len(shape) - 1, 1)
    dy = t.reshape(call.dy, shape)
    da = db = None
    if call.need(0):
        da = t.unbroadcast(t.matmul(dy, t.swap_last(right)), t.shape(left))
        da = t.reshape(da, t.shape(a))
    if call.need(1):
        db = t.unbroadcast(t.matmul(t.swap_last(left), dy), t.shape(right))
        db = t.reshape(db, t.shape(b))
    return [da, db]


def _by_matrix(call: Call) -> Cotangents:
    """Right factor without batch axes: all leading axes of a are rows of one Gemm."""
    t, (a, b) = call.tape, call.op.inputs
    rows, (inner, columns) = math.prod(t.shape(a)[:-1]), t.shape(b)
    dy = t.reshape(call.dy, (rows, columns))
    da = t.reshape(t.gemm(dy, b, tb=True), t.shape(a)) if call.need(0) else None
    db = _over_rows(t, t.reshape(a, (rows, inner)), dy) if call.need(1) else None
    return [da, db]


def _over_rows(t: Tape, a: str, b: str) -> str:
    """a.T @ b of two matrices of many rows. The CPU's Gemm transposes its first factor again for
    every 128 columns of the second; where these are many, the narrower one is transposed once.
    (A Reshape before and behind keeps onnxruntime from putting that back into the Gemm.)"""
    narrow, wide = sorted((t.shape(a)[1], t.shape(b)[1]))
    if wide < WIDE or t.dtype(a) != T.FLOAT or t.shape(a)[0] < wide or one_product(t, a, b):
        return t.gemm(a, b, ta=True)
    if t.shape(a)[1] != narrow:
        return t.swap_last(_over_rows(t, b, a))
    rows = t.shape(a)[0]
    turned = t.reshape(t.swap_last(t.reshape(a, (1, rows, narrow))), (narrow, rows))
    return t.matmul(turned, b)


@vjp("Gemm", reads="x0 x1")
def gemm(call: Call) -> Cotangents:
    """y = alpha op(a) @ op(b) + beta c. dc = beta dy; da and db by one Gemm each."""
    t, (a, b), dy = call.tape, call.op.inputs[:2], call.dy
    ta, tb = bool(call.attribute("transA", 0)), bool(call.attribute("transB", 0))
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    da = db = dc = None
    if call.need(0):
        da = (
            t.gemm(b, dy, ta=tb, tb=True, alpha=alpha)
            if ta
            else t.gemm(dy, b, tb=not tb, alpha=alpha)
        )
    if call.need(1):
        db = _gemm_weights(t, a, dy, ta, tb, alpha)
    if call.need(2):
        dc = t.mul(t.unbroadcast(dy, call.shape(2)), beta)
    return [da, db, dc][: len(call.op.inputs)]


def _gemm_weights(t: Tape, a: str, dy: str, ta: bool, tb: bool, alpha: float) -> str:
    if alpha == 1.0 and not ta:
        return _over_rows(t, dy, a) if tb else _over_rows(t, a, dy)
    if tb:
        return t.gemm(dy, a, ta=True, tb=ta, alpha=alpha)
    return t.gemm(a, dy, ta=not ta, alpha=alpha)


@vjp("Einsum", reads="x*")
def einsum(call: Call) -> Cotangents:
    """y = sum over labels not in the result of the product of the inputs. Each input gets the
    Einsum of dy and the other inputs; labels only it has are broadcast, and where it has a label
    twice only the diagonal gets something."""
    t, inputs = call.tape, call.op.inputs
    operands, result = _labels(call)
    length = _lengths(operands, [t.shape(name) for name in inputs])
    if call.out_shape != tuple(length[label] for label in result):
        raise call.unsupported(
            "its result has not the shape that onnx infers, which broadcasts not"
        )
    made: list[str | None] = []
    for k, labels in enumerate(operands):
        if not call.need(k):
            made.append(None)
            continue
        others = [(operands[j], inputs[j]) for j in range(len(inputs)) if j != k]
        seen = set(result).union(*(row for row, _ in others))
        once = "".join(dict.fromkeys(labels))
        kept = "".join(label for label in once if label in seen)
        rows, names = [result, *(row for row, _ in others)], [name for _, name in others]
        equation = ",".join(rows) + "->" + kept
        there = _lengths(rows, [call.out_shape, *map(t.shape, names)])
        shape = [there[label] for label in kept]
        value = t.op("Einsum", call.dy, *names, shape=shape, equation=equation)
        spread = [there.get(label, 1) for label in once]
        value = t.expand(t.reshape(value, spread), [length[label] for label in once])
        made.append(_on_diagonal(t, value, labels))
    return made


def _on_diagonal(t: Tape, value: str, labels: str) -> str:
    """A tensor with one axis per different label, put where the axes of equal labels agree."""
    places = [labels.index(label) for label in dict.fromkeys(labels)]
    for place, label in enumerate(labels):
        if place in places:
            continue
        axis = places.index(labels.index(label))
        count = t.shape(value)[axis]
        eye = np.eye(count).reshape(
            [count if k == axis else 1 for k in range(t.rank(value))] + [count]
        )
        value = t.mul(t.reshape(value, (*t.shape(value), 1)), t.constant(eye, t.dtype(value)))
        places.append(place)
    return t.transpose(value, [places.index(place) for place in range(len(labels))])


def _lengths(operands: list[str], shapes: list[Shape]) -> dict[str, int]:
    """Size of each label; 1 in one operand may stand for any."""
    length: dict[str, int] = {}
    for labels, shape in zip(operands, shapes, strict=True):
        for label, size in zip(labels, shape, strict=True):
            length[label] = max(length.get(label, 0), size)
    return length


def _labels(call: Call) -> tuple[list[str], str]:
    """Labels of each operand and of the result, with an ellipsis spelled out."""
    equation = call.attribute("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    operands = left.split(",")
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c not in equation]
    ranks = [call.tape.rank(name) for name in call.op.inputs]
    hidden = [
        rank - len(labels.replace("...", "")) if "..." in labels else 0
        for rank, labels in zip(ranks, operands, strict=True)
    ]
    spare = "".join(free[: max(hidden, default=0)])
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        right = "..." * ("..." in left)
        right += "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    spelled = [
        labels.replace("...", spare[len(spare) - n :])
        for labels, n in zip(operands, hidden, strict=True)
    ]
    return spelled, right.replace("...", spare)


@vjp("FusedMatMul", "TransposeMatMul", domain="com.microsoft", reads="x0 x1")
def fused_matmul(call: Call) -> Cotangents:
    """y = alpha op(a) @ op(b), op a transpose of the last two axes, or of the first one to behind
    the batch axes. As MatMul."""
    t, (a, b) = call.tape, call.op.inputs
    dy = t.mul(call.dy, call.attribute("alpha", 1.0))
    orders = [_order(call, side, t.rank(name)) for side, name in (("A", a), ("B", b))]
    left, right = (t.transpose(name, p) for name, p in zip((a, b), orders, strict=True))
    made: list[str | None] = [None, None]
    if call.need(0):
        made[0] = t.unbroadcast(t.matmul(dy, t.swap_last(right)), t.shape(left))
    if call.need(1):
        made[1] = t.unbroadcast(t.matmul(t.swap_last(left), dy), t.shape(right))
    return [
        None if one is None else t.transpose(one, [order.index(k) for k in range(len(order))])
        for one, order in zip(made, orders, strict=True)
    ]


def _order(call: Call, side: str, rank: int) -> list[int]:
    """The permutation that op does."""
    order = list(range(rank))
    if call.attribute(f"transBatch{side}", 0):
        order = [*order[1:-1], 0, order[-1]]
    if call.attribute(f"trans{side}", 0):
        order[-2:] = order[:-3:-1]
    return order


@vjp("Det", reads="x0")
def determinant(call: Call) -> Cotangents:
    """y = det(x), x of shape [..., n, n]. dx[i, j] = dy (-1)**(i + j) det(x without row i and
    column j), which is right for singular matrices, too; all n**2 of these at once.

    Raises:
        UnsupportedError: n beyond :data:`MINORS`.
    """
    t, x = call.tape, call.x
    batch, n = call.out_shape, call.shape()[-1]
    if n > MINORS:
        raise call.unsupported(
            f"matrices have {n} rows, and a matrix without a row and a column is copied {n * n} "
            f"times: up to {MINORS} rows are"
        )
    dy = t.reshape(call.dy, (*batch, 1, 1))
    if n == 1:
        return [dy]
    others = np.array([[k for k in range(n) if k != i] for i in range(n)]).ravel()
    rank, many = len(batch), n * (n - 1)
    rows = t.op("Gather", x, t.integers(*others), shape=(*batch, many, n), dtype=t.dtype(x),
                axis=rank)  # fmt: skip
    both = t.op("Gather", rows, t.integers(*others), shape=(*batch, many, many), dtype=t.dtype(x),
                axis=rank + 1)  # fmt: skip
    minors = t.transpose(
        t.reshape(both, (*batch, n, n - 1, n, n - 1)),
        (*range(rank), rank, rank + 2, rank + 1, rank + 3),
    )
    signs = t.constant((-1.0) ** np.add.outer(np.arange(n), np.arange(n)), t.dtype(x))
    return [t.mul(dy, t.mul(t.op("Det", minors, shape=(*batch, n, n)), signs))]


@vjp("Inverse", domain="com.microsoft", reads="y0")
def inverse(call: Call) -> Cotangents:
    """y = x**-1, x of shape [..., n, n]. dx = -y^T dy y^T."""
    t, turned = call.tape, call.tape.swap_last(call.y)
    return [t.neg(t.matmul(t.matmul(turned, call.dy), turned))]
