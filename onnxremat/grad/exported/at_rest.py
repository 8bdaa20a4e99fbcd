"""Models put out of training mode, as files that were exported in it are not."""

from __future__ import annotations

import onnx
from onnx import helper

from onnxremat.grad.exported.marks import SPECTRAL, first_of, of_rewritten
from onnxremat.graph.ir import all_nodes, captures, subgraphs
from onnxremat.graph.traits import RANDOM

_SHOWN = 3
_RATIO = 2  # inputs of a Dropout that is at rest


def at_rest(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose batch normalizations use their running statistics and whose dropouts pass
    everything; the model itself where they do. Statistics that a normalization gave out are the
    running ones."""
    if not _in_training(model.graph):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    _put(made.graph)
    return made


def still_random(model: onnx.ModelProto) -> list[str]:
    """A warning about nodes that draw numbers whatever the mode, if there are any: a dropout of
    whole channels, say, which exporters write as its steps."""
    nodes = all_nodes(model.graph)
    names = [node.name or node.output[0] for node in nodes if node.op_type in RANDOM]
    if not names:
        return []
    return [
        f"{len(names)} nodes draw random numbers ({first_of(names, _SHOWN)}) and go on to "
        "in exported models: where they are of a dropout, export the module in eval mode, or with "
        "onnxremat.export"
    ]


def still_iterated(model: onnx.ModelProto) -> list[str]:
    """A warning about vectors of spectral normalizations, if there are any."""
    stored = {tensor.name for tensor in model.graph.initializer}
    names = [name for name in sorted(stored) if of_rewritten(name, stored) == SPECTRAL]
    if not names:
        return []
    return [
        f"{len(names)} vectors of spectral normalizations stay as they are "
        f"({first_of(names, _SHOWN)}): PyTorch's training moves them in every step, so that the "
        "norm stays what it is meant to be, and the file does not say how"
    ]


def _in_training(graph: onnx.GraphProto) -> bool:
    return any(
        (node.op_type == "Dropout" and len(node.input) > _RATIO) or _mode(node) is not None
        for node in all_nodes(graph)
    )


def _mode(node: onnx.NodeProto) -> onnx.AttributeProto | None:
    """The attribute that has a batch normalization train; none where it does not."""
    found = node.attribute if node.op_type == "BatchNormalization" else ()
    return next((each for each in found if each.name == "training_mode" and each.i), None)


def _put(graph: onnx.GraphProto) -> None:
    given: list[onnx.NodeProto] = []
    read = {value.name for value in graph.output}
    read |= {name for node in graph.node for name in (*node.input, *captures(node))}
    for node in graph.node:
        for body in subgraphs(node):
            _put(body)
        if node.op_type == "Dropout":
            del node.input[_RATIO:]
        mode = _mode(node)
        if mode is not None:
            node.attribute.remove(mode)
            pairs = zip(node.input[3:5], node.output[1:3], strict=False)
            given += [
                helper.make_node("Identity", [a], [b], f"{b}/at_rest")
                for a, b in pairs
                if b in read
            ]
            del node.output[1:]
    for node in given:  # of initializers, so that they can be first
        graph.node.insert(0, node)
