"""What a training step keeps: parameters, optimizer state, sums, statistics, counters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.errors import UsageError
from onnxremat.grad.description import KEY, Variable, training_of
from onnxremat.grad.unfold import Restored, apply_restored
from onnxremat.graph.onnx_io import read_model

Source: TypeAlias = onnx.ModelProto | str | os.PathLike[str]
Weights: TypeAlias = Source | Mapping[str, np.ndarray]


def open_source(source: Source) -> tuple[onnx.ModelProto, Path | None]:
    """A model and the folder of its external weights."""
    if isinstance(source, onnx.ModelProto):
        return source, None
    return read_model(source), Path(source).parent


class FirstValues:
    """Initial values by name, read one at a time.

    Args:
        sources: arrays, a model, or a model's file; the first that has a name counts. Where one is
            a training step, what it undid of the exporter's work is undone in the models too.
    """

    def __init__(self, *sources: Weights | None) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        self._stored: dict[str, tuple[onnx.TensorProto, str]] = {}
        models = []
        for source in sources:
            if isinstance(source, Mapping):
                self._arrays.update(source)
            elif source is not None:
                models.append(open_source(source))
        restored = [entry for model, _ in models for entry in _restored(model)]
        for model, folder in models:
            if not _is_step(model):
                model = apply_restored(model, restored, folder)
            for tensor in model.graph.initializer:
                self._stored.setdefault(tensor.name, (tensor, str(folder or "")))

    def of(self, variable: Variable, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """A new array with the first value of a variable.

        Raises:
            UsageError: there is none, or it has another shape.
        """
        name = variable.input
        if variable.initial == "zeros":
            return np.zeros(shape, dtype)
        if name in self._arrays:
            value = np.asarray(self._arrays[name])
        elif name in self._stored:
            value = numpy_helper.to_array(*self._stored[name])
        else:
            raise UsageError(
                f"no first value for '{name}'",
                why="neither the training graph nor the weights given hold it",
                hint="give the model that the graph was made from (--weights MODEL)",
            )
        if value.shape != shape:
            raise UsageError(
                f"'{name}' has shape {value.shape}, the training graph wants {shape}",
                hint="give the model that the training graph was made from",
            )
        return np.array(value, dtype, order="C")


def _is_step(model: onnx.ModelProto) -> bool:
    return any(entry.key == KEY for entry in model.metadata_props)


def _restored(model: onnx.ModelProto) -> tuple[Restored, ...]:
    return training_of(model).restored if _is_step(model) else ()


def input_types(model: onnx.ModelProto) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and element type per input of a model whose sizes are bound."""
    found = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = tuple(dim.dim_value for dim in kind.shape.dim)
        found[value.name] = shape, np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return found
