"""Some ops of a graph as a graph of their own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import onnx

from onnxremat.errors import UnsupportedError
from onnxremat.graph.ir import Graph, Op, Role


def subgraph(graph: Graph, ops: Sequence[Op], outputs: Collection[str]) -> Graph:
    """Some ops of a graph as a graph of their own, in the given order.

    Args:
        outputs: tensors they make that others need.

    Raises:
        UnsupportedError: an input or output is no tensor, or of unknown shape.
    """
    made = {name for op in ops for name in op.writes}
    read = dict.fromkeys(name for op in ops for name in op.reads)
    weights = {name for name in read if graph.tensors[name].role is Role.WEIGHT}
    inputs = tuple(name for name in read if name not in made and name not in weights)
    returned = tuple(name for op in ops for name in op.writes if name in outputs)
    roles = dict.fromkeys(inputs, Role.INPUT) | dict.fromkeys(returned, Role.OUTPUT)
    tensors = {}
    for name in (*read, *made):
        old = graph.tensors[name]
        role = roles.get(name, Role.WEIGHT if name in weights else Role.ACTIVATION)
        tensors[name] = replace(old, role=role)
    model = _frame(graph.model, weights)
    model.graph.input.extend(_value(graph, name) for name in inputs)
    given = weights & graph.optional  # no constants here either
    model.graph.input.extend(value for value in graph.model.graph.input if value.name in given)
    model.graph.output.extend(_value(graph, name) for name in returned)
    return Graph(tuple(ops), tensors, inputs, returned, model)


def _frame(model: onnx.ModelProto, weights: Collection[str]) -> onnx.ModelProto:
    """Everything of a model but nodes, signature, metadata and other weights."""
    frame = onnx.ModelProto()
    frame.ir_version = model.ir_version
    frame.producer_name, frame.producer_version = model.producer_name, model.producer_version
    frame.opset_import.extend(model.opset_import)
    frame.graph.name = model.graph.name
    frame.graph.initializer.extend(t for t in model.graph.initializer if t.name in weights)
    frame.graph.sparse_initializer.extend(
        t for t in model.graph.sparse_initializer if t.values.name in weights
    )
    return frame


def _value(graph: Graph, name: str) -> onnx.ValueInfoProto:
    tensor = graph.tensors[name]
    if not tensor.dtype or tensor.shape is None:
        raise UnsupportedError(
            f"value '{name}' cannot go from one partition to another",
            why="it is no tensor, or its shape is not known",
            hint="pin the ops that make and read it to one device: --pin 'PATTERN=DEVICE'",
        )
    shape = [None] * len(tensor.shape) if tensor.seen else tensor.shape
    return onnx.helper.make_tensor_value_info(name, tensor.dtype, shape)
