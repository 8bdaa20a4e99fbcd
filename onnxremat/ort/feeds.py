"""Seeded inputs for a model, so that two models can be compared on the same data."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import onnx

from onnxremat.device.host import memory_bytes
from onnxremat.errors import UsageError
from onnxremat.graph.ir import Graph, Op
from onnxremat.ort.arrays import read_arrays
from onnxremat.ort.binding import check_elements
from onnxremat.units import format_bytes

# Ops whose integer inputs are indices into an axis of a data input: positions, index to data.
_INDEXED = {
    "Gather": {1: 0}, "GatherElements": {1: 0}, "GatherND": {1: 0}, "ScatterElements": {1: 0},
    "ScatterND": {1: 0}, "OneHot": {0: 1}, "NegativeLogLikelihoodLoss": {1: 0},
    "SoftmaxCrossEntropyLoss": {1: 0}, "EmbedLayerNormalization": {0: 2, 1: 4, 8: 3},
}  # fmt: skip
_AXIS = {"NegativeLogLikelihoodLoss": 1, "SoftmaxCrossEntropyLoss": 1, "EmbedLayerNormalization": 0}
_KEEPS_VALUES = {
    "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Expand", "Transpose",
    "Slice", "Concat", "Where", "Tile",
}  # fmt: skip


Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
BLOCK = 1 << 20  # numbers


class Repeated:
    """Floats for measuring, which nobody looks at: a million are drawn, and again and again the
    same. Drawing takes longer than a GPU needs for what reads them.

    The arrays are views of one another: for reading only."""

    def __init__(self) -> None:
        self._all = np.zeros(0, np.float32)

    def __call__(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """As many as a shape asks for."""
        size = int(np.prod(shape))
        if size <= BLOCK:
            return _floats(random, shape)
        if size > len(self._all):
            block = random.standard_normal(BLOCK, dtype=np.float32) / 16
            self._all = np.resize(block, size)
        return self._all[:size].reshape(shape)


def seeded_feeds(graph: Graph, seed: int = 0, drawn: Draw | None = None) -> dict[str, np.ndarray]:
    """Inputs drawn from a seeded generator.

    Floats are normal with a small spread (a training graph's parameters are inputs too: 1-d ones
    near 1, others scaled by fan-in); integers stay in the range of every axis they index;
    booleans are true.

    Args:
        drawn: floats of a shape, where others than these will do.

    Raises:
        UsageError: an input is of a kind that cannot be made up (a sequence, strings).
    """
    random = np.random.default_rng(seed)
    feeds = {}
    for name in graph.inputs:
        tensor = graph.tensors[name]
        if tensor.shape is None or not tensor.dtype:
            raise UsageError(
                f"input '{name}' cannot be made up",
                why="it is no tensor" if not tensor.dtype else "its shape is not known",
                hint="give a model of plain tensors"
                if not tensor.dtype
                else "bind it with --shape or --dim, or give inputs with --data feeds.npz",
            )
        if tensor.bytes > memory_bytes():
            raise UsageError(
                f"input '{name}' is larger than this machine's memory",
                why=f"{format_bytes(tensor.bytes)} of {format_bytes(memory_bytes())}",
                hint="bind smaller dimensions, or plan without running: --no-measure",
            )
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.dtype)
        if dtype == np.bool_:
            value = np.ones(tensor.shape, bool)
        elif np.issubdtype(dtype, np.integer):
            value = random.integers(0, index_range(graph, name), tensor.shape).astype(dtype)
        elif dtype == np.object_:
            raise UsageError(f"input '{name}' holds strings", hint="give inputs with --data")
        else:
            value = (drawn or _floats)(random, tensor.shape).astype(dtype, copy=False)
        feeds[name] = value
    return feeds


def _floats(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 1:
        return np.asarray(1.0 + 0.02 * random.standard_normal(shape))
    if len(shape) == 0:
        return np.asarray(0.01)
    draws = random.standard_normal(shape, dtype=np.float32)
    fan_in = int(np.prod(shape[1:]))
    # Images and activations keep unit spread; matrices and filters are scaled like weights.
    return draws if len(shape) == 3 or shape[0] < 8 else draws / np.sqrt(max(fan_in, 1))


def index_range(graph: Graph, name: str) -> int:
    """Smallest axis that the values of an integer input index, 2 when none is found."""
    waiting, seen, limits = [name], {name}, []
    while waiting:
        tensor = waiting.pop()
        for index in graph.readers.get(tensor, ()):
            op = graph.ops[index]
            for position, data in _INDEXED.get(op.op_type, {}).items():
                if op.inputs[position : position + 1] == (tensor,):
                    limits.append(_axis_length(graph, op.inputs[data], op))
            if op.op_type in _KEEPS_VALUES:
                fresh = [out for out in op.writes if out not in seen]
                seen.update(fresh)
                waiting += fresh
    return max(1, min((limit for limit in limits if limit), default=2))


def _axis_length(graph: Graph, data: str, op: Op) -> int:
    """Length of the axis that an op indexes, 0 where it is not known."""
    if op.op_type == "OneHot":
        return 2  # the depth is a value, not a shape: stay in range of any
    tensor = graph.tensors.get(data)
    shape = tensor.shape if tensor is not None else None
    if shape is None:
        return 0
    if op.op_type in ("GatherND", "ScatterND"):
        return min(shape[: _indexed_axes(graph, op)], default=0)
    axis = next((a.i for a in op.node.attribute if a.name == "axis"), _AXIS.get(op.op_type, 0))
    return shape[axis] if -len(shape) <= axis < len(shape) else 0


def _indexed_axes(graph: Graph, op: Op) -> int | None:
    """Leading axes that a row of indices goes into, None for all there may be."""
    rows = graph.tensors[op.inputs[1]].shape
    batch = next((a.i for a in op.node.attribute if a.name == "batch_dims"), 0)
    return batch + rows[-1] if rows else None


def load_feeds(path: Path, graph: Graph) -> dict[str, np.ndarray]:
    """Inputs from an ``.npz`` file with one array per input name.

    Raises:
        UsageError: not an npz file, an input missing, of another shape or type than planned for, or
            one that has a value in the model.
    """
    found = read_arrays(path, "inputs", "give an .npz file with one array per input")
    _refuse_defaults(path, found, graph)
    feeds = {}
    for name in graph.inputs:
        if not graph.tensors[name].dtype:
            raise UsageError(
                f"input '{name}' cannot be given by {path}",
                why="it is no tensor",
                hint="give a model of plain tensors",
            )
        if name not in found:
            raise UsageError(
                f"{path} has no array '{name}'", why=f"it has {', '.join(found) or 'none'}"
            )
        tensor, value = graph.tensors[name], found[name]
        if tensor.shape is not None and tuple(value.shape) != tensor.shape:
            raise UsageError(
                f"array '{name}' in {path} has shape {value.shape}, the model wants {tensor.shape}"
            )
        wanted = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.dtype))
        check_elements(f"array '{name}' in {path}", value, wanted)
        feeds[name] = value.astype(wanted, copy=False)
    return feeds


def _refuse_defaults(path: Path, found: Collection[str], graph: Graph) -> None:
    """Raises:
    UsageError: an array is for an input that has a value in the file: it would not be read. (Until
        ONNX's IR 4 every weight had to be among the inputs, which says nothing.)
    """
    if graph.model.ir_version < 4:
        return
    listed = {value.name for value in graph.model.graph.input}.difference(graph.inputs)
    for name in sorted(listed.intersection(found)):
        raise UsageError(
            f"input '{name}' has a value in the model's file, and {path} another one",
            why="inputs that have a value in the file are constants here",
            hint="take the value out of the file, or the array out of the data",
        )
