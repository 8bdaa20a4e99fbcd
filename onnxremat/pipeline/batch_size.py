"""Another batch size for a model that was exported with a fixed one.

The leading dimension of the inputs is changed, and with it the shapes that are written into the
model as constants (of Reshape, Expand and the like). Then both models run on the same rows, and
every output row has to be what it was, whatever rows are beside it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.errors import OnnxrematError, UnsupportedError, UsageError
from onnxremat.grad import is_step
from onnxremat.graph.batch import (
    SHAPES,
    batched_inputs,
    dependents,
    made_batches,
    said_shape,
    scaled_shape,
    without_sizes,
)
from onnxremat.graph.batch_axes import Place, batch_places
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import read_small_weights, to_model, write_model
from onnxremat.graph.traits import has_bodies
from onnxremat.limits import TENSOR_BYTES
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.functions import inline_functions
from onnxremat.ort.infer import bind, build_graph
from onnxremat.ort.offline import PORTABLE, optimised_for
from onnxremat.ort.profile import named_outputs
from onnxremat.pipeline.original.sizes import with_measured_shapes
from onnxremat.pipeline.original.source import Source, files_read, read_source
from onnxremat.rewrite.own_rows import require_own_rows
from onnxremat.rewrite.restore import restored
from onnxremat.session.compare import compare


def set_batch(source: Source, target: str | os.PathLike[str], batch: int) -> dict[str, Any]:
    """Write the model with another batch size; returns what was changed. The plan of a planned one
    is left out: it holds for the old batch.

    Raises:
        UsageError: the model has no input with a batch dimension, or is a training step; the target
            is the source.
        UnsupportedError: rows of the result differ from rows of the original, or it does not run.
    """
    if batch < 1:
        raise UsageError(f"batch size {batch} is not positive")
    if batch > TENSOR_BYTES:
        raise UsageError(f"batch size {batch} is too large", why="no tensor has so many rows")
    model, folder, name = read_source(source)
    _refuse_training(model)
    keep, before = files_read(source, model, folder), restored(model)
    facts: dict[str, Any] = {"model": name, "plan_left_out": before is not model}
    model = read_small_weights(inline_functions(before), folder)
    inputs, old = batched_inputs(model)
    if isinstance(old, str):
        made = bind(model, dims={old: batch} | _others(model, old))
        write_model(made, target, folder, keep)
        return facts | {"inputs": inputs, "before": old, "after": batch, "constants": 0}
    graph = build_graph(bind(model), folder)
    places = batch_places(graph, inputs, old)
    made, changed = _changed(to_model(graph), graph, inputs, places, (old, batch))
    _require_own_rows(to_model(graph), inputs, old, folder)
    _compare(graph, made, inputs, old, batch, folder)
    if old < 2 <= batch:  # one row alone does not show what several of them decide together
        _require_own_rows(made, inputs, batch, folder)
    write_model(made, target, folder, keep)
    return facts | {"inputs": inputs, "before": old, "after": batch, "constants": changed}


def _refuse_training(model: onnx.ModelProto) -> None:
    if is_step(model):
        raise UsageError(
            "the model is a training step, whose constants depend on the batch size",
            hint="set the batch size of the inference model, then make the step again",
        )


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
    model: onnx.ModelProto,
    graph: Graph,
    inputs: Sequence[str],
    places: Mapping[str, Place],
    sizes: tuple[int, int],
) -> tuple[onnx.ModelProto, int]:
    """The model with new leading dimensions and constants, and how many constants changed.

    Args:
        places: where the batch lies.
        sizes: of it, before and after.
    """
    old, new = sizes
    for value in model.graph.input:
        if value.name in inputs:
            value.type.tensor_type.shape.dim[0].dim_value = new
    for value in model.graph.output:
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_value == old:
            dims[0].dim_value = new
    del model.graph.value_info[:]
    depends, made = dependents(graph, inputs), made_batches(graph, old)
    said: dict[str, onnx.TensorProto] = {}
    for node, op in zip(model.graph.node, graph.ops, strict=True):
        if has_bodies(op) and depends.intersection(op.reads):
            node.CopyFrom(without_sizes(node))
        shape = said_shape(graph, op)
        if shape is None or not (op.inputs[0] in depends or op.outputs[0] in made):
            continue
        scaled = scaled_shape(op, shape, old, new, places.get(op.outputs[0]))
        if scaled != shape:
            name = f"{op.name}/shape_of_batch_{new}"
            said[name] = numpy_helper.from_array(np.asarray(scaled, np.int64), name)
            node.input[SHAPES[op.op_type]] = name
    # One of such a name is of a model that had this batch before, and nobody reads it.
    kept = [each for each in model.graph.initializer if each.name not in said]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, *said.values()])
    return model, len(said)


def _require_own_rows(
    model: onnx.ModelProto, inputs: Sequence[str], batch: int, folder: Path | None
) -> None:
    """Of the model as onnxruntime optimises it, in which what follows from sizes is a constant.

    Raises:
        UnsupportedError: it is not shown that each row is made of that row alone.
    """
    found = optimised_for(model, PORTABLE, folder, to_write=False)
    plain = to_model(found.graph)
    graph = with_measured_shapes(found.graph, plain, seeded_feeds(found.graph), found.folder)
    hint = "export the model with an open batch dimension, and give --dim"
    require_own_rows(graph, inputs, batch, hint=hint)


def _compare(
    graph: Graph,
    made: onnx.ModelProto,
    inputs: Sequence[str],
    old: int,
    new: int,
    folder: Path | None,
) -> None:
    """Both models on the same rows, again and again; where there are more of them than before, also
    on others in between: rows that are all of a batch see nothing of other ones."""
    feeds, others = seeded_feeds(graph), seeded_feeds(graph, 1)
    others = {name: others[name] if name in inputs else value for name, value in feeds.items()}
    model = to_model(graph)
    before = named_outputs(model, feeds, folder)
    rows = np.arange(new) % old
    after = _outputs(made, _batches(feeds, feeds, inputs, rows), new, folder)
    for name, value in before.items():
        _require_same(name, after[name], _rows_of(value, rows, old), new)
    if new <= old:
        return
    between = np.arange(new) % (2 * old)
    beside = named_outputs(model, others, folder)
    after = _outputs(made, _batches(feeds, others, inputs, between), new, folder)
    rowed = [name for name, value in before.items() if _has_rows(value, beside[name], old)]
    for name, value in _batches(before, beside, rowed, between).items():
        if name in rowed:
            _require_same(name, after[name], value, new)


def _batches(
    first: Mapping[str, Any], second: Mapping[str, Any], names: Sequence[str], rows: np.ndarray
) -> dict[str, Any]:
    """Some rows of two batches, one behind the other; what has none as it is in the first."""
    return {
        name: np.concatenate([value, second[name]])[rows] if name in names else value
        for name, value in first.items()
    }


def _has_rows(value: Any, other: Any, batch: int) -> bool:
    arrays = isinstance(value, np.ndarray) and isinstance(other, np.ndarray)
    return arrays and value.ndim > 0 and len(value) == batch and value.shape == other.shape


def _outputs(
    model: onnx.ModelProto, feeds: Mapping[str, Any], batch: int, folder: Path | None
) -> dict[str, Any]:
    """Raises:
    UnsupportedError: it does not run.
    """
    try:
        return named_outputs(model, feeds, folder)
    except OnnxrematError as error:
        raise UnsupportedError(
            f"the model does not run with batch size {batch}",
            why=error.why or error.what,
            hint="export it with an open batch dimension, and give --dim",
        ) from error


def _require_same(name: str, found: Any, wanted: Any, batch: int) -> None:
    """Raises:
    UnsupportedError: an output is another one.
    """
    one = compare({name: found}, {name: wanted})
    if not one.ok:
        raise UnsupportedError(
            f"output '{name}' is another one with batch size {batch}",
            why=f"its rows differ by {one.worst:.2g}, or it has another shape",
            hint="rows depend on each other, or the batch size is in a constant; export the "
            "model with an open batch dimension, and give --dim",
        )


def _rows_of(value: Any, rows: np.ndarray, old: int) -> Any:
    """These rows of an output: of an array of ``old`` rows, of each array of a sequence; of a
    sequence of one map per row, these maps. Others as they are."""
    if isinstance(value, np.ndarray):
        return value[rows] if value.ndim and value.shape[0] == old else value
    if isinstance(value, list) and all(isinstance(one, np.ndarray) for one in value):
        return [_rows_of(one, rows, old) for one in value]
    if isinstance(value, list) and len(value) == old:
        return [value[row] for row in rows]
    return value
