"""What exporters do to the names of parameters, undone; and the facts written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.errors import UnsupportedError
from onnxremat.exporting.pytorch import SHELL
from onnxremat.grad.exported.listed import KEY, Parameters


def restored(
    model: onnx.ModelProto, facts: Parameters, values: Mapping[str, np.ndarray], needed: set[str]
) -> onnx.ModelProto:
    """The model with one initializer per parameter and buffer, under its name, changed in place.

    Args:
        values: of every parameter and buffer.
        needed: parameters that some output depends on and that get a gradient.

    Raises:
        UnsupportedError: the exporter folded a needed parameter into something else.
    """
    graph = model.graph
    prefix = f"{SHELL}."
    stored = [t.name for t in graph.initializer]
    _rename(graph, {name: name.removeprefix(prefix) for name in stored if name.startswith(prefix)})
    _rename(graph, facts.tied)
    _split_merged(graph, values)
    _drop_repeated(graph)
    _drop_unread(graph)
    held = {tensor.name: tensor for tensor in graph.initializer}
    for name in (*facts.trained, *facts.frozen):
        if name in needed and not _holds(held.get(name), values[name]):
            raise UnsupportedError(
                f"the exporter did not keep the parameter '{name}'",
                why="it is part of a constant, or stored in another layout",
                hint="try the other exporter: exporter='legacy' or exporter='dynamo'",
            )
    _stop_dropping(model)
    present = replace(
        facts,
        trained=tuple(name for name in facts.trained if name in held and name in needed),
        frozen=tuple(
            name
            for name in (*facts.trained, *facts.frozen)
            if name in held and (name in facts.frozen or name not in needed)
        ),
        stopped=tuple(n for n in facts.trained if n in held and n not in needed),
        buffers=tuple(name for name in facts.buffers if name in held),
        resting=tuple(name for name in facts.resting if name in held),
        tied={alias: name for alias, name in facts.tied.items() if name in held},
        unused=tuple(name for name in facts.trained if name not in held),
    )
    for entry in [e for e in model.metadata_props if e.key == KEY]:
        model.metadata_props.remove(entry)
    model.metadata_props.add(key=KEY, value=present.to_json())
    return model


def _holds(tensor: onnx.TensorProto | None, value: np.ndarray) -> bool:
    if tensor is None or tuple(tensor.dims) != value.shape:
        return False
    return bool(np.array_equal(numpy_helper.to_array(tensor), value, equal_nan=True))


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Initializers and all that reads them, in bodies of control flow too."""
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name in names:
                node.input[position] = names[name]
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _rename(body, names)


def _split_merged(graph: onnx.GraphProto, values: Mapping[str, np.ndarray]) -> None:
    """A parameter that an Identity copies from another one of equal value is its own again."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    kept = []
    for node in graph.node:
        name = node.output[0] if node.output else ""
        source = stored.get(node.input[0]) if node.input else None
        if node.op_type == "Identity" and name in values and _holds(source, values[name]):
            graph.initializer.append(numpy_helper.from_array(np.array(values[name]), name))
        else:
            kept.append(node)
    if len(kept) < len(graph.node):
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(copies)


def _drop_repeated(graph: onnx.GraphProto) -> None:
    """Tied parameters stored under both names are one."""
    kept = {tensor.name: tensor for tensor in reversed(graph.initializer)}
    if len(kept) < len(graph.initializer):
        copies = [onnx.TensorProto.FromString(t.SerializeToString()) for t in kept.values()]
        del graph.initializer[:]
        graph.initializer.extend(reversed(copies))


def _drop_unread(graph: onnx.GraphProto) -> None:
    read = _read(graph) | {value.name for value in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    if len(kept) < len(graph.initializer):
        copies = [onnx.TensorProto.FromString(t.SerializeToString()) for t in kept]
        del graph.initializer[:]
        graph.initializer.extend(copies)


def _read(graph: onnx.GraphProto) -> set[str]:
    names: set[str] = set()
    for node in graph.node:
        names.update(node.input)
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                names |= _read(body) | {value.name for value in body.output}
    return names


def _stop_dropping(model: onnx.ModelProto) -> None:
    """Dropout ops pass everything as the file stands: ``differentiate`` switches them on."""
    graphs = [model.graph, *model.functions]
    for graph in graphs:
        for node in graph.node:
            if node.op_type == "Dropout" and not node.domain and len(node.input) > 2:
                del node.input[2:]
