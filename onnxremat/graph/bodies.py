"""Weights inside bodies of If, Loop and Scan, as weights of the model.

onnxruntime keeps a weight of a body several times over: in the attribute that holds the body, in
the graph made of it, and as the kernels read it. As a weight of the model, which bodies may read,
it is held once, and can lie in a file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import onnx

from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import rename_captures, subgraphs
from onnxremat.graph.weights import set_apart

LEAST = 64 << 10  # bytes of a weight that is brought out
PACKING = ("Gemm", "GRU", "LSTM", "MatMul")  # kernels that pack a constant
FLOATS = (
    onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
)  # fmt: skip
# Whether a weight is to be outside; the second is whether a node holds it.
Wanted: TypeAlias = Callable[[onnx.TensorProto, bool], bool]


def brought_out(model: onnx.ModelProto, folder: Path | None) -> tuple[onnx.ModelProto, Path | None]:
    """The model with the big weights of its bodies as its own, and where its weights lie; both as
    they are where there are none.

    Args:
        folder: where external weights of ``model`` lie.
    """
    made = with_weights_outside(model)
    return (model, folder) if made is model else set_apart(made, folder)


def with_weights_outside(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the big weights of its bodies as its own; itself where there are none."""
    return _lifted(model, lambda t, _: t.ByteSize() >= LEAST or bool(t.external_data))


def bytes_inside(model: onnx.ModelProto) -> int:
    """What onnxruntime keeps of the big weights of bodies: each in the attribute and as a tensor,
    and once more where a kernel packs it."""
    total = 0
    for body in _bodies(model.graph.node):
        packed = {name for node in body.node if node.op_type in PACKING for name in node.input}
        for tensor in _weights(body, lambda t, _: not t.external_data):
            size = tensor_bytes(tensor.data_type, tensor.dims)
            total += (2 + (tensor.name in packed)) * size if size >= LEAST else 0
    return total


def with_learned_outside(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what may be parameters in its bodies as its own initializers, under the names
    that they have there where these are free: floating-point numbers, but for one alone, and for
    constants in files of PyTorch's exporters, which write those of the code that way."""
    code = model.producer_name == "pytorch"

    def learned(tensor: onnx.TensorProto, constant: bool) -> bool:
        if constant and code:
            return False
        return tensor.data_type in FLOATS and math.prod(tensor.dims) > 1

    return _lifted(model, learned, keep_names=True)


def _lifted(model: onnx.ModelProto, wanted: Wanted, *, keep_names: bool = False) -> onnx.ModelProto:
    """The model with some weights of its bodies as its own; itself where there are none."""
    look = _weights if keep_names else _inside
    if not any(look(body, wanted) for body in _bodies(model.graph.node)):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    taken = {name for nodes in levels(made.graph) for node in nodes for name in _names(node)}
    taken |= {t.name for t in made.graph.initializer} | {v.name for v in made.graph.input}
    given = _given(made.graph)
    for body in _bodies(made.graph.node):
        if keep_names:
            _read_results(body, wanted)
        for tensor in _inside(body, wanted):
            weight = made.graph.initializer.add()
            weight.CopyFrom(tensor)
            if not keep_names or given[tensor.name] > 1:
                weight.name = _fresh(tensor.name, taken)
            taken.add(weight.name)
            _leave_out(body, tensor.name)
            _rename(body, {tensor.name: weight.name})
    return made


def _bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """Bodies at every depth, outer ones first."""
    for node in nodes:
        for body in subgraphs(node):
            yield body
            yield from _bodies(body.node)


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, and each body in it."""
    yield graph
    yield from _bodies(graph.node)


def levels(graph: onnx.GraphProto) -> Iterator[Iterable[onnx.NodeProto]]:
    """The nodes of a graph, and those of each body in it."""
    for each in graphs(graph):
        yield each.node


def _names(node: onnx.NodeProto) -> Iterator[str]:
    """All names that a node and its bodies' signatures and weights give or read."""
    yield from (*node.input, *node.output)
    for body in subgraphs(node):
        yield from (value.name for value in (*body.input, *body.output))
        yield from (tensor.name for tensor in body.initializer)


def _read_results(body: onnx.GraphProto, wanted: Wanted) -> None:
    """Let a body return what it reads of a weight that it returned itself."""
    results = {value.name for value in body.output}
    for own in [tensor.name for tensor in _weights(body, wanted) if tensor.name in results]:
        name = f"{own}__returned"
        for node in body.node:
            node.output[:] = [name if each == own else each for each in node.output]
        for stored in body.initializer:
            stored.name = name if stored.name == own else stored.name
        _rename(body, {own: name})
        body.node.add(op_type="Identity", input=[name], output=[own])


def _given(graph: onnx.GraphProto) -> Counter[str]:
    """How often each name is given, in the graph and in its bodies."""
    found: Counter[str] = Counter()
    for each in (graph, *_bodies(graph.node)):
        found.update(name for node in each.node for name in node.output)
        found.update(tensor.name for tensor in each.initializer)
        found.update(value.name for value in each.input)
    return found


def _inside(body: onnx.GraphProto, wanted: Wanted) -> list[onnx.TensorProto]:
    """Some weights of a body, named: initializers and constants that it neither takes nor
    returns."""
    ends = {value.name for value in (*body.input, *body.output)}
    return [tensor for tensor in _weights(body, wanted) if tensor.name not in ends]


def _weights(body: onnx.GraphProto, wanted: Wanted) -> list[onnx.TensorProto]:
    """Some weights of a body, named."""
    found = [tensor for tensor in body.initializer if wanted(tensor, False)]
    for node in body.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            for attribute in node.attribute:
                if attribute.name == "value" and wanted(attribute.t, True):
                    named = onnx.TensorProto()
                    named.CopyFrom(attribute.t)
                    named.name = node.output[0]
                    found.append(named)
    return found


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
