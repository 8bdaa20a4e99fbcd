"""Sums over an axis in parts: what a stretch of the input gives, and how parts are put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import TensorProto as T

from onnxremat.graph.axis_windows import SPATIAL
from onnxremat.graph.spans import Call, CannotSplitError, Piece, Rule, Span

MEAN = "mean"


@dataclass(frozen=True)
class Total:
    """How an operator's output is put together from what it gives for stretches of its first input.

    Attributes:
        joins: the operator of two such outputs (Add, Max, Min, Mul), or ``mean``: their sum, each
            by its share of the axis.
        rule: of a stretch of the first input along an axis that it sums over.
    """

    joins: str
    rule: Rule


_FLOATS = {T.FLOAT, T.FLOAT16, T.BFLOAT16, T.DOUBLE}
# Opsets before which onnxruntime has Max and Min of these element types alone.
_LARGEST = {8: {T.FLOAT, T.FLOAT16}, 12: {T.FLOAT, T.FLOAT16, T.DOUBLE}}


def require_join(total: Total, opset: int, dtype: int) -> None:
    """Raises:
    CannotSplitError: such results are not put together: shares of a whole number are none, and
        onnxruntime does not have every operator of every type.
    """
    if total.joins == MEAN and dtype not in _FLOATS:
        raise CannotSplitError("a mean of whole numbers is rounded once")
    every = {dtype} - {T.BOOL}  # which ReduceMax and ReduceMin have
    known = next((kinds for version, kinds in _LARGEST.items() if opset < version), every)
    if total.joins in ("Max", "Min") and dtype not in known:
        raise CannotSplitError(f"opset {opset} has no {total.joins} of its type")


def reduced(call: Call, span: Span) -> Piece:
    """The axes that it reduces."""
    rank = len(call.shape(0))
    given = call.integers(1, "axes")
    if not given and call.attributes.get("noop_with_empty_axes"):
        raise CannotSplitError("it reduces nothing")
    if span.axis not in {axis % rank for axis in given or range(rank)}:
        raise CannotSplitError("it does not reduce this axis")
    return Piece((span, *call.none()[1:]), span)


def pooled(call: Call, span: Span) -> Piece:
    """Rows and columns of an image."""
    if span.axis < SPATIAL:
        raise CannotSplitError("each image of a channel has its own")
    return Piece((span,), span)


BLOCKED = "com.microsoft.nchwc"
TOTALS: Mapping[tuple[str, str], Total] = {
    ("", "ReduceSum"): Total("Add", reduced),
    ("", "ReduceL1"): Total("Add", reduced),
    ("", "ReduceSumSquare"): Total("Add", reduced),
    ("", "ReduceMean"): Total(MEAN, reduced),
    ("", "ReduceMax"): Total("Max", reduced),
    ("", "ReduceMin"): Total("Min", reduced),
    ("", "ReduceProd"): Total("Mul", reduced),
    ("", "GlobalAveragePool"): Total(MEAN, pooled),
    ("", "GlobalMaxPool"): Total("Max", pooled),
    (BLOCKED, "GlobalAveragePool"): Total(MEAN, pooled),
    (BLOCKED, "GlobalMaxPool"): Total("Max", pooled),
}
