"""Rows of a batch that depend on each other, as far as the rules of operators tell.

A run on some inputs shows most of it: of a sum over the batch every row of the result is another
one. It does not show what rows decide together and those inputs do not meet: a largest value of all
that is compared with a bound, a norm that is scaled where it is too large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from onnxremat.errors import UnsupportedError
from onnxremat.graph import axis_layouts as layouts
from onnxremat.graph import axis_products as products
from onnxremat.graph import axis_quantised as quantised
from onnxremat.graph.axes import piece_of, row_of
from onnxremat.graph.batch_axes import Place, reduced_axes
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.spans import CannotSplitError, Span, UnevenError
from onnxremat.graph.traits import ONNX, SIZES, has_bodies
from onnxremat.rewrite.mixed_bodies import mixed_inside
from onnxremat.rewrite.told import Told

# Rules that refuse an axis because each entry of it is made of others along it.
ALONG = frozenset({
    products.softmax, products.one_axis, products.cumulated, products.normalised,
    products.skip_normalised, products.but_channels, layouts.gathered_elements,
    layouts.scattered_elements, quantised.softmax,
})  # fmt: skip

# Operators that give all rows one scale, that of the largest number among them.
ONE_SCALE = frozenset({
    ("", "DynamicQuantizeLinear"), ("com.microsoft", "DynamicQuantizeMatMul"),
    ("com.microsoft", "DynamicQuantizeLSTM"),
})  # fmt: skip

# Operators that go from entry to entry of an axis of their first input: the leading one, but for
# the layout that begins with the batch.
IN_TURN = frozenset({"GRU", "LSTM", "RNN"})


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
    return mixed_in(Told(graph, batch, dict(places), set(inputs)))


def mixed_in(told: Told) -> tuple[Op, str] | None:
    """As :func:`mixed_by`; what the ops make is added to what is told."""
    if told.batch < 2:
        return None
    for op in told.graph.ops:
        if told.names.isdisjoint(op.reads):
            continue
        if op.op_type in SIZES and _known(told.graph, op.reads[0]):
            continue  # what follows from sizes alone is the same for every row
        inside = mixed_inside(op, told, mixed_in) if has_bodies(op) else None
        if inside:
            return inside
        if op.op_type in IN_TURN and _from_row_to_row(op, told):
            return op, op.inputs[0]
        told.names.update(op.writes)
        made = next((name for name in op.writes if name in told.places), None)
        if made is None:
            if _of_all(op, told):
                told.of_all.update(op.writes)
            continue
        name = next((n for n in op.reads if n in told.of_all), "")
        name = name or _whole(op, told, told.own(made)) or _decided(op, told)
        if name:
            return op, name
    return None


def _known(graph: Graph, name: str) -> bool:
    """The size of a value depends on no data."""
    tensor = graph.tensors[name]
    return tensor.shape is not None and not tensor.seen


def _from_row_to_row(op: Op, told: Told) -> bool:
    """The rows of the batch are what a recurrence goes along."""
    place = told.placed(op.inputs[0])
    turns = 1 if told.facts.call(op).attributes.get("layout") else 0
    return place is not None and place.axis == turns


def _of_all(op: Op, told: Told) -> bool:
    """An op sums over all rows, or takes some of them, or reads what does."""
    if not told.of_all.isdisjoint(op.reads):
        return True
    place = told.placed(op.inputs[0]) if op.inputs else None
    if place is None or not op.standard:
        return False
    if op.op_type.startswith("Global"):
        return place.axis > 1
    if op.op_type in ("Gather", "Slice"):
        after = told.graph.tensors[op.outputs[0]].shape
        before = told.graph.tensors[op.inputs[0]].shape
        along = told.facts.call(op).attributes.get("axis", 0) % len(before or (0,))
        return along == place.axis if op.op_type == "Gather" else after != before
    return place.axis in (reduced_axes(told.facts, op) or ())


def _decided(op: Op, told: Told) -> str:
    """What an op reads that all rows decide, whether a rule knows the op or not; "" for nothing."""
    kind = "" if op.domain in ONNX else op.domain, op.op_type
    if kind in ONE_SCALE:
        return op.inputs[0] if op.inputs[0] in told.names else ""
    if row_of(op) is not None:
        return ""
    graph = told.graph
    mixed = (
        name
        for name in op.inputs
        if name in told.names and name not in told.places and _known(graph, name)
    )
    return next((n for n in mixed if math.prod(graph.tensors[n].shape or ()) % told.batch), "")


def _whole(op: Op, told: Told, rows: Span) -> str:
    """What an op reads all of for some rows, or more of than those, of values that depend on rows;
    "" for nothing."""
    row = row_of(op)
    try:
        piece = piece_of(op, told.facts, rows)
    except UnevenError:
        return ""
    except CannotSplitError:
        if row is None or row.rule not in ALONG:
            return ""
        return next((n for n in op.inputs if (at := told.placed(n)) and at.axis == rows.axis), "")
    for position, (name, read) in enumerate(zip(op.inputs, piece.reads, strict=True)):
        if name not in told.names or position in piece.constants or position in piece.unread:
            continue
        if read is None:
            return name
        if name in told.places and read.axis == told.places[name].axis:
            own = told.own(name)
            if read.hull(own) != own:
                return name
    return ""
