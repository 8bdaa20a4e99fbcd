"""Seeded inputs for a model, from what the model itself says of them."""

import re
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from models.builder import BATCH_DIM, BATCH_PROPERTY, WEIGHT_DOC

RANGE = re.compile(r"range \[(-?\d+), (-?\d+)\)")


def feeds(model: onnx.ModelProto, seed: int = 0, **dims: int) -> dict[str, NDArray[Any]]:
    """One array per graph input that is no initializer.

    Floats are drawn from N(0, 1), booleans evenly, integers from the ``range [low, high)`` in
    the input's doc string. ``dims`` gives sizes of symbolic dimensions, such as ``batch=4``;
    otherwise the batch is the one the model was built for.
    """
    known = dict(dims)
    for prop in model.metadata_props:
        if prop.key == BATCH_PROPERTY:
            known.setdefault(BATCH_DIM, int(prop.value))
    initializers = {tensor.name for tensor in model.graph.initializer}
    rng = np.random.default_rng(seed)
    return {
        info.name: _values(info, known, rng)
        for info in model.graph.input
        if info.name not in initializers
    }


def _values(
    info: onnx.ValueInfoProto, known: dict[str, int], rng: np.random.Generator
) -> NDArray[Any]:
    if info.doc_string == WEIGHT_DOC:
        raise ValueError(f"input {info.name} is a weight: the model was built with weights=False")
    dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
    shape = [_dim(info.name, dim, known) for dim in info.type.tensor_type.shape.dim]
    if np.issubdtype(dtype, np.floating):
        return rng.standard_normal(shape, dtype=np.float32).astype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    bounds = RANGE.search(info.doc_string)
    if bounds is None:
        raise ValueError(f"input {info.name} has no 'range [low, high)' in its doc string")
    return rng.integers(int(bounds[1]), int(bounds[2]), shape).astype(dtype)


def _dim(name: str, dim: onnx.TensorShapeProto.Dimension, known: dict[str, int]) -> int:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    if dim.dim_param not in known:
        raise ValueError(f"input {name}: give a size for dimension {dim.dim_param or '?'!r}")
    return known[dim.dim_param]
