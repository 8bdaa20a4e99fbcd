"""Shapes of what an op reads and makes, () for what is not there or not known."""

from __future__ import annotations

from onnxremat.graph.ir import Graph, Op


def shape_of(graph: Graph, name: str) -> tuple[int, ...]:
    """Of a value."""
    tensor = graph.tensors.get(name)
    return (tensor.shape or ()) if tensor else ()


def read_shape(graph: Graph, op: Op, position: int) -> tuple[int, ...]:
    """Of an input."""
    return shape_of(graph, op.inputs[position]) if position < len(op.inputs) else ()


def made_shape(graph: Graph, op: Op) -> tuple[int, ...]:
    """Of the first output."""
    return shape_of(graph, op.outputs[0]) if op.outputs else ()
