"""Along which axis of each tensor the batch lies.

Layers that want the sequence first (recurrences, attention of PyTorch) turn the batch away from the
front, and shapes written into a model hold its size at other places then. Where a sequence is a
multiple of the batch, sizes alone do not tell which place that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from onnx import helper

from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.spans import CannotSplitError, Facts

_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_PRODUCTS = frozenset({"FusedMatMul", "MatMul"})
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Where rows of the batch lie.

    Attributes:
        axis: that they lie along.
        inner: how many elements of this axis belong to one row; more than 1 where another axis was
            merged into it from behind (heads).
    """

    axis: int
    inner: int = 1


def batch_places(graph: Graph, inputs: Sequence[str], batch: int) -> dict[str, Place]:
    """Of what is computed from inputs with a leading batch; tensors of which it is not known, and
    all of a batch of one row, are left out.

    Args:
        graph: with shapes.
    """
    return places_from(graph, dict.fromkeys(inputs, Place(0)), batch)


def places_from(graph: Graph, given: Mapping[str, Place], batch: int) -> dict[str, Place]:
    """The same, of what is computed from values of which it is known."""
    if batch < 2:
        return {}
    places, facts = dict(given), Facts(graph)
    for op in graph.ops:
        for position, name in enumerate(op.inputs):
            if name in places and not any(made in places for made in op.outputs):
                _follow(graph, facts, op, position, places)
    return {name: place for name, place in places.items() if _holds(graph, name, place, batch)}


def reduced_axes(facts: Facts, op: Op) -> frozenset[int] | None:
    """The axes that a reduction sums over, None for another op, or where they are not known."""
    best = op.op_type in ("ArgMax", "ArgMin")
    if not op.standard or not (best or op.op_type.startswith("Reduce")):
        return None
    call = facts.call(op)
    try:
        rank = len(call.shape(0))
        given = (call.attributes.get("axis", 0),) if best else call.integers(1, "axes")
    except CannotSplitError:
        return None
    if not given:
        return frozenset(() if call.attributes.get("noop_with_empty_axes") else range(rank))
    return frozenset(axis % rank for axis in given)


def _holds(graph: Graph, name: str, place: Place, batch: int) -> bool:
    shape = graph.tensors[name].shape or ()
    return place.axis < len(shape) and shape[place.axis] % (batch * place.inner) == 0


def _follow(graph: Graph, facts: Facts, op: Op, position: int, places: dict[str, Place]) -> None:
    """Note the places in the outputs of an op by that in one of its inputs."""
    before = graph.tensors[op.inputs[position]].shape
    gone = reduced_axes(facts, op) if position == 0 else None
    if gone is not None:
        place = places[op.inputs[0]]
        if place.axis not in gone:
            fewer = 0 if facts.call(op).attributes.get("keepdims", 1) else len(gone)
            less = sum(axis < place.axis for axis in gone) if fewer else 0
            places[op.outputs[0]] = Place(place.axis - less, place.inner)
        return
    for number, name in enumerate(op.outputs):
        after = graph.tensors[name].shape if name else None
        if before is None or after is None or not prod(before):
            continue
        found = _place(op, (position, number), places[op.inputs[position]], before, after)
        if found is not None:
            places[name] = found


def _place(
    op: Op, ends: tuple[int, int], place: Place, before: Shape, after: Shape
) -> Place | None:
    """The place in an output, None where it is not known.

    Args:
        ends: positions of the input and the output.
    """
    told = {a.name: helper.get_attribute_value(a) for a in op.node.attribute}
    if op.op_type in _VIEWS:
        return _viewed(place, before, after)
    if op.op_type == "Transpose":
        order = told.get("perm", range(len(before))[::-1])
        return Place(list(order).index(place.axis), place.inner)
    if op.op_type in _RECURRENT:
        first = bool(told.get("layout", 0))
        return Place(0 if first else 2 - min(ends[1], 1)) if ends[0] == 0 else None
    if op.op_type == "Gather":
        return _gathered(ends[0], told.get("axis", 0), place, before, after)
    if op.op_type in _PRODUCTS and len(before) == len(after) > 1:
        return _multiplied(ends[0], told, place, len(after))
    axis = place.axis + len(after) - len(before)  # as broadcasting aligns them
    same = axis >= 0 and len(after) >= len(before) and after[axis] == before[place.axis]
    return Place(axis, place.inner) if same else None


def _gathered(position: int, axis: int, place: Place, before: Shape, after: Shape) -> Place | None:
    if position == 1:  # an axis that counts from the end does so in the table, whose rank is this
        rank = len(after) - len(before) + 1
        return Place(axis % rank + place.axis, place.inner)
    if place.axis == axis % len(before):
        return None
    axis %= len(before)
    more = len(after) - len(before)
    return Place(place.axis + more * (place.axis > axis), place.inner)


def _multiplied(position: int, told: Mapping[str, Any], place: Place, rank: int) -> Place | None:
    """In a product of matrices, also of onnxruntime's, which may have the first axis of a factor
    behind those of the batch (``transBatchA``)."""
    side, axis = "AB"[position], place.axis
    if told.get(f"transBatch{side}") and axis < rank - 1:
        axis = (axis - 1) % (rank - 1)
    if told.get(f"trans{side}") and axis >= rank - 2:
        axis = 2 * rank - 3 - axis
    summed = rank - 1 - position
    return None if axis == summed else Place(axis, place.inner)


def _viewed(place: Place, before: Shape, after: Shape) -> Place | None:
    """A view moves no element: as many lie between two rows as before."""
    step = place.inner * prod(before[place.axis + 1 :])
    for axis in range(len(after)):
        behind = prod(after[axis + 1 :])
        if behind <= step < behind * after[axis]:
            return Place(axis, step // behind) if step % behind == 0 else None
    return None
