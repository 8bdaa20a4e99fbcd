"""Rows of a batch inside the bodies of If, Loop and Scan, and in what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxremat.errors import OnnxrematError
from onnxremat.graph.ir import Graph, Op, subgraphs
from onnxremat.ort.infer import build_graph
from onnxremat.rewrite.told import Lost, Rows, Told

LARGEST = 4096  # entries of a constant that may be one that a rule reads: axes, a shape
Follow: TypeAlias = Callable[[Told], None]
Found: TypeAlias = Rows | Lost | None  # of a value; None for one that depends on no row


def follow_bodies(op: Op, told: Told, follow: Follow) -> None:
    """What an op with bodies makes of values with rows of their own is told.

    Args:
        follow: what adds to what is told of a body.
    """
    made: dict[str, Found] = {}
    try:
        if not all(told.tensors[name].dtype for name in op.reads):
            raise _UnknownError("it reads what is no tensor")
        if op.op_type not in _WAYS or not op.standard:
            raise _UnknownError("no rule knows its body")
        made = _WAYS[op.op_type](op, told, follow)
    except _UnknownError as error:
        made = {name: Lost(op, name, str(error)) for name in op.writes}
    for name, rows in made.items():
        if isinstance(rows, Rows) and told.shape(name)[rows.axis :][:1] != (len(rows.rows),):
            rows = Lost(op, name, "its size is not known, or not that of its body")
        told.note(name, rows)


class _UnknownError(Exception):
    """It is not known what an op makes of rows; the text says why."""


@dataclass
class _Body:
    """A body, and what it is handed.

    Attributes:
        types: of its inputs, and of what it reads of the graph around it.
        own: where their rows lie, of those that have some.
        lost: those of which that is not shown.
        states: pairs of an input and the output that it is the next time.
    """

    op: Op
    proto: onnx.GraphProto
    outer: Told
    types: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)
    own: dict[str, Rows] = field(default_factory=dict)
    lost: dict[str, Lost] = field(default_factory=dict)
    states: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in self.op.captures:
            self.add(name, name)

    def add(self, name: str, outer: str, scanned: int | None = None) -> None:
        """What it is handed.

        Args:
            outer: its name in the graph around.
            scanned: the axis of that along which it is an entry, None for all of it.
        """
        tensor, rows = self.outer.tensors[outer], self.outer.own.get(outer)
        shape = list(tensor.shape) if tensor.shape is not None else None
        if shape is not None and scanned is not None:
            del shape[scanned]
        self.types[name] = helper.make_tensor_value_info(name, tensor.dtype, shape)
        if rows is not None:
            behind = scanned is not None and scanned < rows.axis
            self.own[name] = rows.moved(-behind)

    def followed(self, follow: Follow) -> Told:
        """What is known of its values. A state that depends on rows once it was made does so from
        the first time on, where they lie then."""
        graph = self._graph()
        while True:
            told = Told(graph, dict(self.own), dict(self.lost))
            follow(told)
            if not any(self._changes(state, made, told) for state, made in self.states):
                for name in told.counts.intersection(value.name for value in self.proto.output):
                    told.lost[name] = Lost(self.op, name, "it gives a number of rows perhaps")
                return told

    def _changes(self, state: str, made: str, told: Told) -> bool:
        """A state is another one from the second time on, which is noted."""
        rows = told.known(made)
        if state in self.lost:
            return False
        before, after = told.shape(state), told.shape(made)
        if isinstance(rows, Rows) and (before != after or rows != self.own.get(state, rows)):
            rows = Lost(self.op, made, "its rows lie elsewhere, or its size changes, each time")
        elif rows is None and len(before) != len(after):
            rows = Lost(self.op, made, "its size changes each time")
        if isinstance(rows, Lost):
            self.lost[state] = rows
            self.own.pop(state, None)
            return True
        if rows is not None and state not in self.own:
            self.own[state] = rows
            return True
        return False

    def _graph(self) -> Graph:
        try:
            return build_graph(self._model())
        except OnnxrematError as error:
            raise _UnknownError(f"its body cannot be looked at: {error.what}") from error

    def _model(self) -> onnx.ModelProto:
        """As a model; small constants that it reads of the graph around are its own."""
        frame, made = self.outer.graph.model, onnx.ModelProto()
        made.ir_version = frame.ir_version
        made.opset_import.extend(frame.opset_import)
        made.graph.CopyFrom(self.proto)
        made.graph.name = self.proto.name or "body"
        del made.graph.input[:]
        constants = {}
        for name in self.op.captures:
            value = None if self.outer.depends(name) else self.outer.facts.constant(name)
            if value is not None and value.size <= LARGEST:
                constants[name] = numpy_helper.from_array(value, name)
        made.graph.initializer.extend(constants.values())
        for name in dict.fromkeys((*(value.name for value in self.proto.input), *self.op.captures)):
            if name in self.types and name not in constants:
                made.graph.input.append(self.types[name])
        return made


def _either(op: Op, name: str, found: Iterable[Found]) -> Found:
    """The rows of a value that is one of several."""
    known = dict.fromkeys(rows for rows in found if rows is not None)  # in the order of branches
    lost = [rows for rows in known if isinstance(rows, Lost)]
    if len(known) > 1 and not lost:
        return Lost(op, name, "its rows lie elsewhere in each branch")
    return lost[0] if lost else next(iter(known), None)


def _of_if(op: Op, told: Told, follow: Follow) -> dict[str, Found]:
    if told.depends(op.inputs[0]):
        raise _UnknownError("which branch runs depends on rows")
    results = []
    for proto in subgraphs(op.node):
        inside = _Body(op, proto, told).followed(follow)
        names = [value.name for value in proto.output]
        results.append([(inside.known(name), inside.tensors[name]) for name in names])
    made = {}
    for name, found in zip(op.outputs, zip(*results, strict=True), strict=True):
        made[name] = _either(op, name, (rows for rows, _ in found))
        told.learn(name, [tensor for _, tensor in found])
    return made


def _of_loop(op: Op, told: Told, follow: Follow) -> dict[str, Found]:
    if any(told.depends(name) for name in op.inputs[:2]):
        raise _UnknownError("how often its body runs depends on rows")
    (proto,) = subgraphs(op.node)
    body = _Body(op, proto, told)
    inner, results = [v.name for v in proto.input], [v.name for v in proto.output]
    for value, kind in zip(proto.input[:2], (TensorProto.INT64, TensorProto.BOOL), strict=False):
        body.types[value.name] = helper.make_tensor_value_info(value.name, kind, ())
    for name, outer in zip(inner[2:], op.inputs[2:], strict=True):
        body.add(name, outer)
    body.states = list(zip(inner[2:], results[1 : len(inner) - 1], strict=True))
    inside = body.followed(follow)
    if inside.depends(results[0]):
        raise _UnknownError("how often its body runs depends on rows")
    return _made(op, told, inside, body, results[len(inner) - 1 :], [0] * len(op.outputs))


def _made(
    op: Op, told: Told, inside: Told, body: _Body, scans: Sequence[str], axes: Sequence[int]
) -> dict[str, Found]:
    """What an op gives whose body ran again and again: its states at last, and what it made each
    time, along new axes."""
    made: dict[str, Found] = {}
    for name, (state, result) in zip(op.outputs, body.states, strict=False):
        made[name] = body.lost.get(state) or body.own.get(state) or inside.known(result)
        told.learn(name, [inside.tensors[state]])
    for name, result, axis in zip(op.outputs[len(body.states) :], scans, axes, strict=False):
        rows = inside.known(result)
        if isinstance(rows, Rows):
            rows = rows.moved(rows.axis >= axis)
        made[name] = rows
    made.pop("", None)
    return made


def _of_scan(op: Op, told: Told, follow: Follow) -> dict[str, Found]:
    call = told.facts.call(op)
    if call.opset < 9:
        raise _UnknownError("no rule knows it as it was before opset 9")
    (proto,) = subgraphs(op.node)
    states = len(op.inputs) - call.attributes["num_scan_inputs"]
    scanned, given = op.inputs[states:], call.attributes.get("scan_input_axes")
    given = given or [0] * len(scanned)
    axes = [axis % len(told.shape(name) or (0,)) for name, axis in zip(scanned, given, strict=True)]
    inner, results = [v.name for v in proto.input], [v.name for v in proto.output]
    scans = results[states:]
    given = call.attributes.get("scan_output_axes") or [0] * len(scans)
    ranks = [len(told.shape(name)) if name else 0 for name in op.outputs[states:]]
    new = [axis % (rank or 1) for axis, rank in zip(given, ranks, strict=False)]
    along = [name for name, axis in zip(scanned, axes, strict=True)
             if name in told.own and told.own[name].axis == axis]  # fmt: skip
    if along:
        return _from_row_to_row(op, told, along, new)
    body = _Body(op, proto, told)
    for name, outer in zip(inner, op.inputs[:states], strict=False):
        body.add(name, outer)
    for name, outer, axis in zip(inner[states:], scanned, axes, strict=True):
        body.add(name, outer, axis)
    body.states = list(zip(inner[:states], results[:states], strict=True))
    return _made(op, told, body.followed(follow), body, scans, new)


def _from_row_to_row(
    op: Op, told: Told, along: Sequence[str], new: Sequence[int]
) -> dict[str, Found]:
    """Of a Scan whose body sees one row each time, and nothing of another."""
    call = told.facts.call(op)
    rows = {told.own[name].rows for name in along}
    others = [name for name in op.reads if told.depends(name) and name not in along]
    turned = any(
        any(call.attributes.get(f"scan_{end}_directions", ())) for end in ("input", "output")
    )
    if len(op.inputs) > len(along) and call.attributes["num_scan_inputs"] < len(op.inputs):
        raise _UnknownError(f"it goes along the rows of '{along[0]}' with something in hand")
    if others or turned or len(rows) > 1:
        raise _UnknownError(f"it goes along the rows of '{along[0]}' and reads other ones")
    return {n: Rows(axis, *rows) for n, axis in zip(op.outputs, new, strict=False) if n}


_WAYS = {"If": _of_if, "Loop": _of_loop, "Scan": _of_scan}
