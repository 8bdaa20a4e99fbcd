"""Lists that a Loop appends to, and tensors that it makes longer, as what its runs return.

TorchScript writes ``rows.append(h)`` in a loop as a state that is a sequence: each run inserts one
tensor, and ``torch.stack(rows)`` behind it is a ConcatFromSequence. A tensor to which each run
concatenates (``torch.cat([rows, h])``) is a state that changes its size. Neither has a size before
the run. Where no run reads what has been gathered so far, both are what a Loop returns of each run,
in another form: one tensor with a row per run, which has a size and a gradient.

A list of tensors of one size is one tensor with a row for each, wherever it comes from: so is one
of which a run reads the element that its data name (a tensor that is split, say).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from onnxremat.grad.control.rows import READERS, Rows
from onnxremat.graph.ir import Graph, Op, captures, subgraphs

ONNX = ("", "ai.onnx")
ValueOf = Callable[[str], np.ndarray | None]


@dataclass(frozen=True)
class Gathered:
    """A state of a Loop that each run only adds to.

    Attributes:
        state: position among the states.
        parts: what a run adds, in order, by the names in the body.
        between: results of the nodes that add it.
        axis: along which a tensor grows, None for a list.
        kind: element type.
    """

    state: int
    parts: tuple[str, ...]
    between: frozenset[str]
    axis: int | None
    kind: int


def with_rows(graph: Graph, value_of: ValueOf) -> onnx.ModelProto | None:
    """The model with such lists and states as tensors with a row per run or element; None where it
    has none.

    Args:
        value_of: value of a tensor known before the run, else None.
    """
    loops = {op.name: _gathered(graph, op) for op in graph.ops if _is(op, "Loop")}
    lists = {op.outputs[each.state]: op.name for op in graph.ops
             for each in loops.get(op.name, ()) if each.axis is None}  # fmt: skip
    elements = {op.outputs[0] for op in graph.ops if _of_one_size(graph, op, value_of)}
    read = {name for name in (*lists, *elements) if _only_read(graph, name)}
    made = Rows(graph, read)
    for op in graph.ops:
        gathered = [each for each in loops.get(op.name, ())
                    if each.axis is not None or op.outputs[each.state] in read]  # fmt: skip
        if gathered:
            _write_loop(made, op, gathered)
        elif op.writes and op.outputs[0] in elements & read:
            _write_elements(made, op)
        else:
            made.other(op)
    return made.model()


def _is(node: Op | onnx.NodeProto, *kinds: str) -> bool:
    return node.op_type in kinds and node.domain in ONNX


# ---- what a Loop gathers ---------------------------------------------------------------------


def _gathered(graph: Graph, op: Op) -> list[Gathered]:
    """States of a Loop that become what its runs return."""
    body, found = _body(op), list[Gathered]()
    uses: Counter[str] = Counter(value.name for value in body.output)
    for node in body.node:
        uses.update((*node.input, *captures(node)))
    for state, start in enumerate(op.inputs[2:]):
        output = op.outputs[state] if state < len(op.outputs) else ""
        each = _added_to(body, state, uses) if output else None
        if each is None or graph.tensors[output].shape is not None:
            continue
        if each.axis is not None or _is_empty(graph, start):
            found.append(each)
    return found


def _is_empty(graph: Graph, name: str) -> bool:
    at = graph.producer.get(name)
    return at is not None and _is(graph.ops[at], "SequenceEmpty")


def _body(op: Op) -> onnx.GraphProto:
    return next(each.g for each in op.node.attribute if each.name == "body")


def _added_to(body: onnx.GraphProto, state: int, uses: Counter[str]) -> Gathered | None:
    """What a run adds to a state, None where it does something else with it."""
    makers = {name: node for node in body.node for name in node.output}
    given, name = body.input[2 + state], body.output[1 + state].name
    is_list = given.type.HasField("sequence_type")
    parts, between, axes = list[str](), set[str](), set[int]()
    while name != given.name:
        node = makers.get(name)
        if node is None or uses[name] != 1 or not node.input:
            return None
        if is_list and _is(node, "SequenceInsert") and not any(node.input[2:]):
            parts.insert(0, node.input[1])
        elif not is_list and _is(node, "Concat"):
            parts[:0] = node.input[1:]
            axes.update(each.i for each in node.attribute if each.name == "axis")
        elif not _is(node, "Identity"):
            return None
        between.add(name)
        name = node.input[0]
    if not parts or uses[given.name] != 1 or len(axes) > 1:
        return None
    tensor = given.type.sequence_type.elem_type if is_list else given.type
    axis = None if is_list else next(iter(axes), None)
    if not is_list and axis is None:
        return None
    return Gathered(state, tuple(parts), frozenset(between), axis, tensor.tensor_type.elem_type)


def _write_loop(made: Rows, op: Op, gathered: list[Gathered]) -> None:
    """The Loop without these states, and with a row of each run for each; then what they were."""
    node = onnx.NodeProto()
    node.CopyFrom(op.node)
    body = next(each.g for each in node.attribute if each.name == "body")
    gone = {each.state for each in gathered}
    outputs = [*op.outputs, *[""] * (len(body.output) - 1 - len(op.outputs))]
    rows = [made.fresh(op.name, "rows") for _ in gathered]
    between = frozenset[str]().union(*(each.between for each in gathered))
    nodes = [n for n in body.node if between.isdisjoint(n.output)]
    returned = []
    for each in gathered:
        nodes += made.added(op.name, each.parts, each.axis)
        returned.append(onnx.helper.make_tensor_value_info(nodes[-1].output[0], each.kind, None))
    given = [v for k, v in enumerate(body.input) if k - 2 not in gone]
    kept = [v for k, v in enumerate(body.output) if k - 1 not in gone]
    for field, values in (
        (body.node, nodes),
        (body.input, given),
        (body.output, [*kept, *returned]),
    ):
        values = list(values)
        del field[:]
        field.extend(values)
    node.input[:] = [n for k, n in enumerate(op.inputs) if k - 2 not in gone]
    node.output[:] = [*(n for k, n in enumerate(outputs) if k not in gone), *rows]
    made.node(node, op.name)
    for each, name in zip(gathered, rows, strict=True):
        output = outputs[each.state]
        if each.axis is not None:
            whole = made.joined(op.name, name, each.axis)
            made("Concat", op.name, op.inputs[2 + each.state], whole, to=output, axis=each.axis)
        elif len(each.parts) > 1:
            made.joined(op.name, name, 0, to=made.rows[output])
        else:
            made("Identity", op.name, name, to=made.rows[output])


# ---- other lists of tensors of one size ------------------------------------------------------


def _of_one_size(graph: Graph, op: Op, value_of: ValueOf) -> bool:
    """Whether an op makes a list that is one tensor in another form."""
    shapes = {graph.tensors[name].shape for name in op.reads}
    if _is(op, "SequenceConstruct"):
        return len(shapes) == 1 and None not in shapes
    if not _is(op, "SplitToSequence") or graph.tensors[op.inputs[0]].shape is None:
        return False
    if len(op.inputs) < 2 or not op.inputs[1]:
        return True
    size = value_of(op.inputs[1])
    return size is not None and size.ndim == 0 and int(size) == 1


def _write_elements(made: Rows, op: Op) -> None:
    whole, x = made.rows[op.outputs[0]], op.inputs[0]
    if op.op_type == "SequenceConstruct":
        first = made.constant([0])
        each = [made("Unsqueeze", op.name, name, first) for name in op.inputs]
        made("Concat", op.name, *each, to=whole, axis=0)
        return
    told = {each.name: each.i for each in op.node.attribute}
    rank = len(made.graph.tensors[x].shape or ())
    axis = told.get("axis", 0) % rank
    keeps = told.get("keepdims", 1)  # onnxruntime squeezes where a size is given, too
    order = [axis, *(k for k in range(rank) if k != axis)]
    moved = made("Transpose", op.name, x, perm=order, to="" if keeps else whole)
    if keeps:
        made("Unsqueeze", op.name, moved, made.constant([axis + 1]), to=whole)


# ---- who reads a list ------------------------------------------------------------------------


def _only_read(graph: Graph, name: str) -> bool:
    """Whether a list is only looked into, by ops or in bodies, and its name is of nothing else."""
    readers = [op for op in graph.ops if name in op.reads]
    nodes = [op.node for op in readers if op.captures]
    plain = all(_is(op, *READERS) for op in readers if name in op.inputs)
    return name not in graph.outputs and plain and all(_only_read_in(n, name) for n in nodes)


def _only_read_in(node: onnx.NodeProto, name: str) -> bool:
    """The same of all bodies of a node."""
    for body in subgraphs(node):
        if any(name == value.name for value in (*body.input, *body.output)):
            return False
        for inner in body.node:
            read = name in inner.input and not _is(inner, *READERS)
            if read or name in inner.output or not _only_read_in(inner, name):
                return False
    return True
