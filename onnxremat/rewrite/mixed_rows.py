"""Rows of a batch that depend on each other, as far as the rules of operators tell.

A run on some inputs shows most of it: of a sum over the batch every row of the result is another
one. It does not show what rows decide together and those inputs do not meet: a largest value of all
that is compared with a bound, a norm that is scaled where it is too large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from onnxremat.errors import UnsupportedError
from onnxremat.graph import axis_products as products
from onnxremat.graph import axis_quantised as quantised
from onnxremat.graph.axes import piece_of, row_of
from onnxremat.graph.batch_axes import Place
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.spans import CannotSplitError, Facts, Span, UnevenError
from onnxremat.graph.traits import ONNX, SIZES

# Rules that refuse an axis because each entry of it is made of others along it.
ALONG = frozenset({
    products.softmax, products.one_axis, products.cumulated, products.normalised,
    products.skip_normalised, quantised.softmax,
})  # fmt: skip

# Operators that give all rows one scale, that of the largest number among them.
ONE_SCALE = frozenset({
    ("", "DynamicQuantizeLinear"), ("com.microsoft", "DynamicQuantizeMatMul"),
    ("com.microsoft", "DynamicQuantizeLSTM"),
})  # fmt: skip


def require_own_rows(
    graph: Graph, inputs: Sequence[str], places: Mapping[str, Place], batch: int, *, hint: str
) -> None:
    """Arguments as of :func:`mixed_by`.

    Raises:
        UnsupportedError: rows are made of others.
    """
    found = mixed_by(graph, inputs, places, batch)
    if found is None:
        return
    op, name = found
    raise UnsupportedError(
        f"rows of the batch depend on each other: '{name}' is of all of them",
        where=f"read by node {op.name} ({op.op_type})",
        why="for other rows beside a row it may be another one",
        hint=hint,
    )


def mixed_by(
    graph: Graph, inputs: Sequence[str], places: Mapping[str, Place], batch: int
) -> tuple[Op, str] | None:
    """An op whose rows are made of a value that is of all rows, and that value; None where there
    is none by what is known. Ops without a rule that read no value that is too small for a row of
    each, and values of which it is not known where their rows lie, are taken to be as they should
    be.

    Args:
        inputs: with the batch as their leading dimension.
        places: where the batch lies.
    """
    if batch < 2:
        return None
    facts, told = Facts(graph), set(inputs)
    for op in graph.ops:
        if told.isdisjoint(op.reads) or (op.op_type in SIZES and _known(graph, op.reads[0])):
            continue  # what follows from sizes alone is the same for every row
        told.update(op.writes)
        place = next((places[name] for name in op.writes if name in places), None)
        if place is None:
            continue
        rows = Span(place.axis, 0, batch // 2 * place.inner)
        name = _whole(op, facts, rows, told, places) or _decided(op, graph, told, places, batch)
        if name:
            return op, name
    return None


def _known(graph: Graph, name: str) -> bool:
    """The size of a value depends on no data."""
    tensor = graph.tensors[name]
    return tensor.shape is not None and not tensor.seen


def _decided(op: Op, graph: Graph, told: set[str], places: Mapping[str, Place], batch: int) -> str:
    """What an op reads that all rows decide, whether a rule knows the op or not; "" for nothing."""
    if ("" if op.domain in ONNX else op.domain, op.op_type) in ONE_SCALE:
        return op.inputs[0] if op.inputs[0] in told else ""
    if row_of(op) is not None:
        return ""
    mixed = (n for n in op.inputs if n in told and n not in places and _known(graph, n))
    return next((n for n in mixed if math.prod(graph.tensors[n].shape or ()) % batch), "")


def _whole(op: Op, facts: Facts, rows: Span, told: set[str], places: Mapping[str, Place]) -> str:
    """What an op reads all of for some rows, of values that depend on rows; "" for nothing."""
    row = row_of(op)
    try:
        piece = piece_of(op, facts, rows)
    except UnevenError:
        return ""
    except CannotSplitError:
        along = row is not None and row.rule in ALONG and op.inputs[0] in told & places.keys()
        return op.inputs[0] if along and places[op.inputs[0]].axis == rows.axis else ""
    for position, (name, read) in enumerate(zip(op.inputs, piece.reads, strict=True)):
        if read is None and name in told and position not in piece.constants:
            return name
    return ""
