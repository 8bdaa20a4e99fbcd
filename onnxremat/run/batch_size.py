"""Another batch size for a model that was exported with a fixed one.

The leading dimension of the inputs is changed, and with it the shapes that are written into the
model as constants (of Reshape, Expand and the like). Then both models run on the same rows, and
every output row has to be what it was.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.errors import ModelError, OnnxrematError, UnsupportedError, UsageError
from onnxremat.grad import training_of
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.onnx_io import inline_functions, read_small_weights, to_model, write_model
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import bind, build_graph
from onnxremat.ort.profile import run_session
from onnxremat.ort.session import DEFAULT, open_session, session_options
from onnxremat.run.compare import compare
from onnxremat.run.prepare import Source, read_source

# Position of the input that says a shape.
SHAPES = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Resize": 3}
MADE = ("Expand", "ConstantOfShape")  # these may make a batch out of nothing


def set_batch(source: Source, target: str | os.PathLike[str], batch: int) -> dict[str, Any]:
    """Write the model with another batch size; returns what was changed.

    Raises:
        UsageError: the model has no input with a batch dimension, or is a training step.
        UnsupportedError: rows of the result differ from rows of the original, or it does not run.
    """
    if batch < 1:
        raise UsageError(f"batch size {batch} is not positive")
    model, folder, name = read_source(source)
    _refuse_training(model)
    model = read_small_weights(inline_functions(model), folder)
    inputs, old = _batched(model)
    if isinstance(old, str):
        made = bind(model, dims={old: batch} | _others(model, old))
        write_model(made, target, folder)
        return {"model": name, "inputs": inputs, "before": old, "after": batch, "constants": 0}
    graph = build_graph(bind(model), folder)
    made, changed = _changed(to_model(graph), graph, inputs, old, batch)
    _compare(graph, made, inputs, old, batch, folder)
    write_model(made, target, folder)
    return {"model": name, "inputs": inputs, "before": old, "after": batch, "constants": changed}


def _refuse_training(model: onnx.ModelProto) -> None:
    try:
        training_of(model)
    except ModelError:
        return
    raise UsageError(
        "the model is a training step, whose constants depend on the batch size",
        hint="set the batch size of the inference model, then make the step again",
    )


def _batched(model: onnx.ModelProto) -> tuple[list[str], int | str]:
    """Inputs with a batch dimension, and that dimension: a number, or a name."""
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


def _others(model: onnx.ModelProto, batch: str) -> dict[str, int]:
    names = {
        dim.dim_param
        for value in model.graph.input
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param and dim.dim_param != batch
    }
    if names:
        raise UsageError(
            f"other dimensions are open too: {', '.join(sorted(names))}",
            hint="the batch size need not be fixed: give --dim "
            + f"{batch}=N with every command instead",
        )
    return {}


def _changed(
    model: onnx.ModelProto, graph: Graph, inputs: Sequence[str], old: int, new: int
) -> tuple[onnx.ModelProto, int]:
    """The model with new leading dimensions and constants, and how many constants changed."""
    for value in model.graph.input:
        if value.name in inputs:
            value.type.tensor_type.shape.dim[0].dim_value = new
    for value in model.graph.output:
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_value == old:
            dims[0].dim_value = new
    del model.graph.value_info[:]
    depends = _depends(graph, inputs)
    changed = 0
    for node, op in zip(model.graph.node, graph.ops, strict=True):
        position = SHAPES.get(op.op_type, -1)
        if not op.standard or not 0 <= position < len(op.inputs) or not op.inputs[position]:
            continue
        shape = _constant(graph, op.inputs[position])
        if shape is None:
            continue
        if op.inputs[0] not in depends and not (op.op_type in MADE and shape[:1] == [old]):
            continue
        scaled = _scaled(op, shape, old, new)
        if scaled != shape:
            changed += 1
            name = f"{op.name}/shape_of_batch_{new}"
            array = np.asarray(scaled, np.int64)
            model.graph.initializer.append(numpy_helper.from_array(array, name))
            node.input[position] = name
    return model, changed


def _depends(graph: Graph, inputs: Sequence[str]) -> set[str]:
    found = set(inputs)
    for op in graph.ops:
        if any(name in found for name in op.reads):
            found.update(op.writes)
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


def _scaled(op: Op, shape: Sequence[int], old: int, new: int) -> list[int]:
    """The shape with its batch dimension changed: the leading one where that is a multiple of
    the old batch, else the first that is; a -1 takes it up by itself."""
    found = list(shape)
    multiples = [i for i, size in enumerate(found) if size > 0 and size % old == 0]
    if found[:1] == [old] or op.op_type != "Reshape":
        places = [0] if found[:1] == [old] else []
    elif old == 1:
        places = [] if -1 in found or found[:1] == [0] else multiples[:1]
    elif multiples[:1] == [0] or not (-1 in found or found[:1] == [0]):
        places = multiples[:1]
    else:
        places = []
    for place in places:
        found[place] = found[place] // old * new
    return found


def _compare(
    graph: Graph,
    made: onnx.ModelProto,
    inputs: Sequence[str],
    old: int,
    new: int,
    folder: Path | None,
) -> None:
    feeds = seeded_feeds(graph)
    rows = np.arange(new) % old
    again = {name: value[rows] if name in inputs else value for name, value in feeds.items()}
    before = _run(to_model(graph), feeds, folder)
    try:
        after = _run(made, again, folder)
    except OnnxrematError as error:
        raise UnsupportedError(
            f"the model does not run with batch size {new}",
            why=error.why or error.what,
            hint="export it with an open batch dimension, and give --dim",
        ) from error
    for name, value in before.items():
        wanted = value[rows] if value.ndim and value.shape[0] == old else value
        one = compare({name: after[name]}, {name: wanted})
        if not one.ok:
            raise UnsupportedError(
                f"output '{name}' is another one with batch size {new}",
                why=f"its rows differ by {one.worst:.2g}, or it has another shape",
                hint="rows depend on each other, or the batch size is in a constant; export the "
                "model with an open batch dimension, and give --dim",
            )


def _run(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], folder: Path | None
) -> dict[str, np.ndarray]:
    session = open_session(model, session_options(replace(DEFAULT)), folder)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, run_session(session, feeds), strict=True))
