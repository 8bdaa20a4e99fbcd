"""Initializers of a model, read when they are looked at, wherever they lie."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.errors import ModelError
from onnxremat.grad.tape import FLOATS

SPARSE = onnx.AttributeProto.SPARSE_TENSOR
_CONSTANT_FIELDS = ("value", "value_float", "value_floats")


class Stored:
    """Values of the initializers of a model.

    Args:
        model: the model.
        folder: where its external weights lie; without, those cannot be read.
    """

    def __init__(self, model: onnx.ModelProto, folder: Path | None = None) -> None:
        self._folder = folder
        self.tensors = {tensor.name: tensor for tensor in model.graph.initializer}

    def add(self, tensors: Iterable[onnx.TensorProto]) -> None:
        """Let further tensors be looked at as well."""
        self.tensors.update((tensor.name, tensor) for tensor in tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Dimensions."""
        return tuple(self.tensors[name].dims)

    def size(self, name: str) -> int:
        """Number of elements."""
        return math.prod(self.tensors[name].dims)

    def readable(self, name: str) -> bool:
        """Its value is at hand."""
        external = self.tensors[name].data_location == onnx.TensorProto.EXTERNAL
        return not external or self._folder is not None

    def value(self, name: str) -> np.ndarray:
        """The whole tensor.

        Raises:
            ModelError: it lies in a file that is not at hand.
        """
        if not self.readable(name):
            raise ModelError(
                f"the value of weight '{name}' is not at hand",
                why="it lies in a file of its own, and no folder was given",
                hint="give the model as a path, or the folder of its weights",
            )
        return numpy_helper.to_array(self.tensors[name], str(self._folder or ""))

    def ends(self, name: str) -> tuple[bytes, bytes] | None:
        """First and last element, without reading the rest; None where that is not possible."""
        tensor = self.tensors[name]
        width = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
        if not self.readable(name) or not self.size(name):
            return None
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            where = {entry.key: entry.value for entry in tensor.external_data}
            start = int(where.get("offset", 0))
            with (Path(self._folder or "") / where["location"]).open("rb") as file:
                file.seek(start)
                first = file.read(width)
                file.seek(start + (self.size(name) - 1) * width)
                return first, file.read(width)
        if tensor.raw_data:
            return tensor.raw_data[:width], tensor.raw_data[-width:]
        whole = numpy_helper.to_array(tensor).reshape(-1)
        return whole[:1].tobytes(), whole[-1:].tobytes()


def constants_stored(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with floating-point Constant nodes of more than one element as initializers: old
    exporters keep weights in such nodes. The model itself where it has none, or is from PyTorch,
    whose exporters write constants of the code that way, never parameters."""
    if model.producer_name == "pytorch":
        return model
    values = [_constant_value(node) for node in model.graph.node]
    if not any(values):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    pairs = zip(model.graph.node, values, strict=True)
    del result.graph.node[:]
    result.graph.node.extend(node for node, value in pairs if value is None)
    result.graph.initializer.extend(value for value in values if value is not None)
    return result


def _constant_value(node: onnx.NodeProto) -> onnx.TensorProto | None:
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    for attribute in node.attribute:
        if attribute.name not in _CONSTANT_FIELDS or attribute.type == SPARSE:
            continue
        found = helper.get_attribute_value(attribute)
        if not isinstance(found, onnx.TensorProto):
            found = numpy_helper.from_array(np.asarray(found, np.float32))
        if found.data_type in FLOATS and np.prod(found.dims, dtype=int) > 1:
            return named(found, node.output[0])
    return None


def named(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    """A copy of another name."""
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy


def made_by(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    """A node named after what it makes."""
    return helper.make_node(kind, inputs, [output], name=f"{output}/{kind}", **attributes)
