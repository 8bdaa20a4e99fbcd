"""The batch: which inputs have one, and the shapes written into a model that hold its size."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx
from onnx import numpy_helper

from onnxremat.errors import UsageError
from onnxremat.graph.batch_axes import Place
from onnxremat.graph.ir import Graph, Op, captures, subgraphs

DECIDING = {"If": 1, "Loop": 2}  # inputs that say which branch runs, and how often a body does
# Position of the input that says a shape.
SHAPES = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Resize": 3}
PLACED = ("Expand", "Reshape")  # these may say a batch that is not their leading dimension
MADE = ("Expand", "ConstantOfShape")  # these may make a batch out of nothing


def batched_inputs(model: onnx.ModelProto) -> tuple[list[str], int | str]:
    """Inputs with a batch dimension, the leading one, and that dimension: a number, or a name.

    Raises:
        UsageError: there are none.
    """
    constants = {t.name for t in model.graph.initializer}
    leading: dict[str, int | str] = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in constants and dims:
            leading[value.name] = dims[0].dim_param or dims[0].dim_value
    old = next(iter(leading.values()), 0)
    if not old:
        raise UsageError("the model has no input with a batch dimension of known size or name")
    return [name for name, size in leading.items() if size == old], old


def dependents(graph: Graph, names: Collection[str]) -> set[str]:
    """Some tensors and all that is computed from them."""
    found = set(names)
    for op in graph.ops:
        if any(name in found for name in op.reads):
            found.update(op.writes)
    return found


def decided_by(op: Op, values: Collection[str]) -> bool:
    """Whether these values, or what is computed from them, say which branch of an If runs, or how
    often the body of a Loop does: of some rows that may be another one than of all."""
    return _decided(op.op_type, op.inputs, op.node, set(values))


def _decided(kind: str, inputs: Sequence[str], node: onnx.NodeProto, values: set[str]) -> bool:
    if values.intersection(inputs[: DECIDING.get(kind, 0)]):
        return True
    for body in subgraphs(node):
        # What a body is handed from run to run is taken to depend on all that it reads.
        found = values | {value.name for value in body.input[2 * (kind == "Loop") :]}
        for inner in body.node:
            reads = (*inner.input, *captures(inner))
            if found.intersection(reads):
                if _decided(inner.op_type, inner.input, inner, found):
                    return True
                found.update(filter(None, inner.output))
        if kind == "Loop" and body.output[0].name in found:
            return True
    return False


def without_sizes(node: onnx.NodeProto) -> onnx.NodeProto:
    """A node whose bodies state no sizes, which are those of one batch: onnxruntime provides for
    the stated ones."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    _forget_sizes(made)
    return made


def _forget_sizes(node: onnx.NodeProto) -> None:
    for body in subgraphs(node):
        del body.value_info[:]
        for value in (*body.input, *body.output):
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()
        for inner in body.node:
            _forget_sizes(inner)


def made_batches(graph: Graph, batch: int) -> set[str]:
    """Tensors that are made with the batch as a constant leading dimension, of what has none."""
    return {
        op.outputs[0]
        for op in graph.ops
        if op.op_type in MADE and (said_shape(graph, op) or [])[:1] == [batch]
        and not (op.op_type == "Expand" and _rows(graph, op.inputs[0]) == batch > 1)
    }  # fmt: skip


def _rows(graph: Graph, name: str) -> int:
    """The leading dimension of a tensor, 0 where it has none."""
    return next(iter(graph.tensors[name].shape or ()), 0)


def said_shape(graph: Graph, op: Op) -> list[int] | None:
    """The constant shape that an op reads, None where it reads none, or a computed one."""
    position = SHAPES.get(op.op_type, -1)
    if not op.standard or not 0 <= position < len(op.inputs) or not op.inputs[position]:
        return None
    return _constant(graph, op.inputs[position])


def scaled_shape(
    op: Op, shape: Sequence[int], old: int, new: int, place: Place | None = None
) -> list[int]:
    """The shape with its batch dimension changed; a -1 takes it up by itself.

    Args:
        place: where the batch lies in the output. Where that is not known, it is taken to be the
            leading dimension where that is a multiple of the old batch, else the first that is.
    """
    found = list(shape)
    if place is not None and op.op_type in PLACED and place.axis < len(found):
        if found[place.axis] > 0 and found[place.axis] % old == 0:
            found[place.axis] = found[place.axis] // old * new
        return found
    multiples = [i for i, size in enumerate(found) if size > 0 and size % old == 0]
    if found[:1] == [old] or op.op_type != "Reshape":
        places = [0] if found[:1] == [old] else []
    elif old == 1:
        places = [] if -1 in found or found[:1] == [0] else multiples[:1]
    elif multiples[:1] == [0] or not (-1 in found or found[:1] == [0]):
        places = multiples[:1]
    else:
        places = []
    for axis in places:
        found[axis] = found[axis] // old * new
    return found


def _constant(graph: Graph, name: str) -> list[int] | None:
    """Values of a constant tensor of integers, None when it is computed."""
    for tensor in graph.model.graph.initializer:
        if tensor.name == name:
            return [int(v) for v in numpy_helper.to_array(tensor).ravel()]
    if name in graph.producer:
        op = graph.ops[graph.producer[name]]
        for attribute in op.node.attribute:
            if op.op_type == "Constant" and attribute.name == "value":
                return [int(v) for v in numpy_helper.to_array(attribute.t).ravel()]
            if op.op_type == "Constant" and attribute.name == "value_ints":
                return list(attribute.ints)
    return None
