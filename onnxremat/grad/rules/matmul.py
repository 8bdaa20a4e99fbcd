"""Matrix products."""

from __future__ import annotations

import math

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp


@vjp("MatMul", reads="x0 x1")
def matmul(call: Call) -> Cotangents:
    """y = a @ b, batched and broadcast. da = dy @ b.T, db = a.T @ dy."""
    t, (a, b) = call.tape, call.op.inputs
    if t.rank(b) == 2 and t.rank(a) >= 2:
        return _by_matrix(call)
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
    db = t.gemm(t.reshape(a, (rows, inner)), dy, ta=True) if call.need(1) else None
    return [da, db]


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
        db = (
            t.gemm(dy, a, ta=True, tb=ta, alpha=alpha)
            if tb
            else t.gemm(a, dy, ta=not ta, alpha=alpha)
        )
    if call.need(2):
        dc = t.mul(t.unbroadcast(dy, call.shape(2)), beta)
    return [da, db, dc][: len(call.op.inputs)]


@vjp("Einsum", reads="x*")
def einsum(call: Call) -> Cotangents:
    """y = sum over labels not in the result of the product of the inputs. Each input gets the
    Einsum of dy and the other inputs; labels only it has are broadcast.

    Raises:
        UnsupportedError: a label twice in one operand (a diagonal).
    """
    t, inputs = call.tape, call.op.inputs
    operands, result = _labels(call)
    if any(len(set(labels)) < len(labels) for labels in (*operands, result)):
        raise call.unsupported("the equation takes a diagonal (a label twice in one operand)")
    length = _lengths(call, operands)
    made: list[str | None] = []
    for k, labels in enumerate(operands):
        if not call.need(k):
            made.append(None)
            continue
        others = [(operands[j], inputs[j]) for j in range(len(inputs)) if j != k]
        seen = set(result).union(*(row for row, _ in others))
        kept = "".join(label for label in labels if label in seen)
        equation = ",".join([result, *(row for row, _ in others)]) + "->" + kept
        shape = [length[label] for label in kept]
        names = [name for _, name in others]
        value = t.op("Einsum", call.dy, *names, shape=shape, equation=equation)
        spread = [length[label] if label in seen else 1 for label in labels]
        value = t.expand(t.reshape(value, spread), [length[label] for label in labels])
        made.append(value)
    return made


def _lengths(call: Call, operands: list[str]) -> dict[str, int]:
    """Size of each label; 1 in one operand may stand for any."""
    length: dict[str, int] = {}
    for labels, name in zip(operands, call.op.inputs, strict=True):
        for label, size in zip(labels, call.tape.shape(name), strict=True):
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


@vjp("FusedMatMul", domain="com.microsoft", reads="x0 x1")
def fused_matmul(call: Call) -> Cotangents:
    """y = alpha op(a) @ op(b), op a transpose of the last two axes. As MatMul.

    Raises:
        UnsupportedError: the batch axes are transposed too.
    """
    t, (a, b) = call.tape, call.op.inputs
    if call.attribute("transBatchA", 0) or call.attribute("transBatchB", 0):
        raise call.unsupported("batch axes are transposed")
    ta, tb = bool(call.attribute("transA", 0)), bool(call.attribute("transB", 0))
    dy = t.mul(call.dy, call.attribute("alpha", 1.0))
    left = t.swap_last(a) if ta else a
    right = t.swap_last(b) if tb else b
    da = db = None
    if call.need(0):
        da = t.unbroadcast(t.matmul(dy, t.swap_last(right)), t.shape(left))
        da = t.swap_last(da) if ta else da
    if call.need(1):
        db = t.unbroadcast(t.matmul(t.swap_last(left), dy), t.shape(right))
        db = t.swap_last(db) if tb else db
    return [da, db]
