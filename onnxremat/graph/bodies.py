"""Weights inside bodies of If, Loop and Scan, as weights of the model.

onnxruntime keeps a weight of a body several times over: in the attribute that holds the body, in
the graph made of it, and as the kernels read it. As a weight of the model, which bodies may read,
it is held once, and can lie in a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx

from onnxremat.graph.ir import rename_captures, subgraphs
from onnxremat.graph.weights import set_apart

LEAST = 64 << 10  # bytes of a weight that is brought out


def brought_out(model: onnx.ModelProto, folder: Path | None) -> tuple[onnx.ModelProto, Path | None]:
    """The model with the big weights of its bodies as its own, and where its weights lie; both as
    they are where there are none.

    Args:
        folder: where external weights of ``model`` lie.
    """
    if not any(_inside(body) for body in _bodies(model.graph.node)):
        return model, folder
    made = onnx.ModelProto()
    made.CopyFrom(model)
    taken = {name for nodes in levels(made.graph) for node in nodes for name in _names(node)}
    taken |= {t.name for t in made.graph.initializer} | {v.name for v in made.graph.input}
    for body in _bodies(made.graph.node):
        for tensor in _inside(body):
            weight = made.graph.initializer.add()
            weight.CopyFrom(tensor)
            weight.name = _fresh(tensor.name, taken)
            taken.add(weight.name)
            _leave_out(body, tensor.name)
            _rename(body, {tensor.name: weight.name})
    return set_apart(made, folder)


def _bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """Bodies at every depth, outer ones first."""
    for node in nodes:
        for body in subgraphs(node):
            yield body
            yield from _bodies(body.node)


def levels(graph: onnx.GraphProto) -> Iterator[Iterable[onnx.NodeProto]]:
    """The nodes of a graph, and those of each body in it."""
    yield graph.node
    for body in _bodies(graph.node):
        yield body.node


def _names(node: onnx.NodeProto) -> Iterator[str]:
    """All names that a node and its bodies' signatures and weights give or read."""
    yield from (*node.input, *node.output)
    for body in subgraphs(node):
        yield from (value.name for value in (*body.input, *body.output))
        yield from (tensor.name for tensor in body.initializer)


def _inside(body: onnx.GraphProto) -> list[onnx.TensorProto]:
    """The big weights of a body, named: initializers and constants that it neither takes nor
    returns."""
    found = [t for t in body.initializer if t.ByteSize() >= LEAST or t.external_data]
    for node in body.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            for attribute in node.attribute:
                if attribute.name == "value" and attribute.t.ByteSize() >= LEAST:
                    named = onnx.TensorProto()
                    named.CopyFrom(attribute.t)
                    named.name = node.output[0]
                    found.append(named)
    ends = {value.name for value in (*body.input, *body.output)}
    return [tensor for tensor in found if tensor.name not in ends]


def _fresh(name: str, taken: set[str]) -> str:
    count, found = 0, f"{name}__of_body"
    while found in taken:
        count, found = count + 1, f"{name}__of_body{count}"
    return found


def _leave_out(body: onnx.GraphProto, name: str) -> None:
    """Remove the weight of that name from a body."""
    kept = [t for t in body.initializer if t.name != name]
    if len(kept) < len(body.initializer):
        del body.initializer[:]
        body.initializer.extend(kept)
    for index, node in enumerate(body.node):
        if node.op_type == "Constant" and name in node.output:
            del body.node[index]
            break
    known = [value for value in body.value_info if value.name != name]
    del body.value_info[:]
    body.value_info.extend(known)


def _rename(body: onnx.GraphProto, names: dict[str, str]) -> None:
    """Let the nodes of a body, and those of bodies in it, read other tensors."""
    for node in body.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        if subgraphs(node):
            node.CopyFrom(rename_captures(node, names))
