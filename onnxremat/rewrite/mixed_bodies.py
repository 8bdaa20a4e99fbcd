"""Rows of a batch that depend on each other inside the bodies of If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxremat.errors import OnnxrematError, UnsupportedError
from onnxremat.graph.batch import dependents
from onnxremat.graph.batch_axes import Place, places_from
from onnxremat.graph.ir import Op, subgraphs
from onnxremat.ort.infer import build_graph
from onnxremat.rewrite.told import Told

LARGEST = 4096  # entries of a constant that may be one that a rule reads: axes, a shape


def mixed_inside(
    op: Op, told: Told, look: Callable[[Told], tuple[Op, str] | None]
) -> tuple[Op, str] | None:
    """As :func:`onnxremat.rewrite.mixed_rows.mixed_by`, of the bodies of an op, and of a Scan that
    goes from row to row. Bodies that read a sequence, or what no run has shown the type of, are
    taken to be as they should be.

    Args:
        look: what is asked of each body.

    Raises:
        UnsupportedError: sizes of the values of a body are not known, so that its rows are not.
    """
    if not all(told.graph.tensors[name].dtype for name in op.reads):
        return None
    if op.op_type == "Scan":
        name = _from_row_to_row(op, told)
        if name:
            return op, name
    for body in subgraphs(op.node):
        given = _given(op, body, told)
        if given.names:
            found = look(_told(op, body, given, told))
            if found:
                return found
    return None


@dataclass
class _Given:
    """What a body is handed.

    Attributes:
        types: of its inputs, and of what it reads of the graph around it.
        names: those that depend on rows.
        places: where their rows lie.
        states: pairs of an input and the output that it is the next time.
    """

    types: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    places: dict[str, Place] = field(default_factory=dict)
    states: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, told: Told, outer: str, scanned: int | None = None) -> None:
        """One of them.

        Args:
            outer: its name in the graph around.
            scanned: the axis of that along which it is an entry, None for all of it.
        """
        tensor, place = told.graph.tensors[outer], told.placed(outer)
        shape = list(tensor.shape) if tensor.shape is not None else None
        if shape is not None and scanned is not None:
            del shape[scanned]
        self.types[name] = helper.make_tensor_value_info(name, tensor.dtype, shape)
        if outer in told.names:
            self.names.add(name)
        if place is not None and place.axis != scanned:
            behind = scanned is not None and scanned < place.axis
            self.places[name] = Place(place.axis - behind, place.inner)


def _scans(op: Op, told: Told) -> tuple[int, list[int]]:
    """How many states a Scan has, and the axis of each other input that it goes along."""
    call = told.facts.call(op)
    states = len(op.inputs) - call.attributes["num_scan_inputs"]
    axes = call.attributes.get("scan_input_axes") or [0] * (len(op.inputs) - states)
    rest = zip(op.inputs[states:], axes, strict=True)
    return states, [axis % len(told.graph.tensors[name].shape or (0,)) for name, axis in rest]


def _from_row_to_row(op: Op, told: Told) -> str:
    """A value that a Scan goes along row by row, where it takes something from row to row, or reads
    of others beside a row; "" for none."""
    states, axes = _scans(op, told)
    by_row = [
        name
        for name, axis in zip(op.inputs[states:], axes, strict=True)
        if (place := told.placed(name)) is not None and place.axis == axis
    ]
    others = told.names.intersection(op.reads).difference(by_row)
    return by_row[0] if by_row and (states or others) else ""


def _given(op: Op, body: onnx.GraphProto, told: Told) -> _Given:
    """What a body is handed, as it is the first time."""
    given = _Given()
    inner = [value.name for value in body.input]
    if op.op_type == "Loop":
        for value, kind in zip(body.input[:2], (TensorProto.INT64, TensorProto.BOOL), strict=False):
            given.types[value.name] = helper.make_tensor_value_info(value.name, kind, ())
        for name, outer in zip(inner[2:], op.inputs[2:], strict=True):
            given.add(name, told, outer)
        given.states = list(zip(inner[2:], _results(body)[1 : len(inner) - 1], strict=True))
    elif op.op_type == "Scan":
        states, axes = _scans(op, told)
        along: Sequence[int | None] = [*[None] * states, *axes]
        for name, outer, axis in zip(inner, op.inputs, along, strict=True):
            given.add(name, told, outer, axis)
        given.states = list(zip(inner[:states], _results(body)[:states], strict=True))
    for name in op.captures:
        given.add(name, told, name)
    return given


def _results(body: onnx.GraphProto) -> list[str]:
    return [value.name for value in body.output]


def _told(op: Op, body: onnx.GraphProto, given: _Given, told: Told) -> Told:
    """What is known of the values of a body. A state that depends on rows once it was made does so
    from the first time on."""
    try:
        graph = build_graph(_model(op, body, given, told))
    except OnnxrematError as error:
        raise UnsupportedError(
            f"it is not known whether '{op.name}' ({op.op_type}) makes rows of the batch of others",
            why=f"its body cannot be looked at: {error.what}",
            hint="leave the batch whole",
        ) from error
    while True:
        depends = dependents(graph, given.names)
        places = places_from(graph, given.places, told.batch)
        new = [(a, b) for a, b in given.states if b in depends and a not in given.names]
        if not new:
            return Told(graph, told.batch, places, set(given.names))
        for state, made in new:
            given.names.add(state)
            if made in places:
                given.places[state] = places[made]


def _model(op: Op, body: onnx.GraphProto, given: _Given, told: Told) -> onnx.ModelProto:
    """A body as a model; small constants that it reads of the graph around are its own."""
    frame, made = told.graph.model, onnx.ModelProto()
    made.ir_version = frame.ir_version
    made.opset_import.extend(frame.opset_import)
    made.graph.CopyFrom(body)
    made.graph.name = body.name or "body"
    del made.graph.input[:]
    constants = {}
    for name in op.captures:
        value = None if name in told.names else told.facts.constant(name)
        if value is not None and value.size <= LARGEST:
            constants[name] = numpy_helper.from_array(value, name)
    made.graph.initializer.extend(constants.values())
    for name in dict.fromkeys((*(value.name for value in body.input), *op.captures)):
        if name in given.types and name not in constants:
            made.graph.input.append(given.types[name])
    return made
