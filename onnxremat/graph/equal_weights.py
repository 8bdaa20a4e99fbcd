"""Weights that are one matrix: of the same bytes, or one the transpose of the other.

Exporters and onnxruntime make them: a matrix that two layers share is stored twice, and a product
with its transpose gets that as a weight of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnx import TensorProto

from onnxremat.graph.ir import Graph, Role
from onnxremat.graph.weights import CHUNK, place, weight_bytes

FEW = 16  # elements by which most are told apart
BLOCK = 1024  # rows that are compared at once


def equal_weights(graph: Graph, folder: Path | None, least: int) -> dict[str, str]:
    """Each weight that has the bytes of one before it, and that one.

    Args:
        folder: where external weights are.
        least: bytes of those that are looked at.
    """
    known: dict[object, list[TensorProto]] = {}
    found = {}
    for tensor, data in weight_values(graph, folder, least):
        start, end = data[:FEW].tobytes(), data[-FEW:].tobytes()
        alike = known.setdefault((tensor.data_type, tuple(tensor.dims), start, end), [])
        same = next((other for other in alike if _same(data, _bytes(other, folder))), None)
        if same is not None:
            found[tensor.name] = same.name
        else:
            alike.append(tensor)
    return found


def _same(data: np.ndarray, other: np.ndarray) -> bool:
    return all(
        np.array_equal(data[at : at + CHUNK], other[at : at + CHUNK])
        for at in range(0, len(data), CHUNK)
    )


def transposed_weights(graph: Graph, folder: Path | None, least: int) -> dict[str, str]:
    """Each float32 matrix that is the transpose of another one, and that one.

    Args:
        folder, least: as of :func:`equal_weights`.
    """
    rows: dict[object, list[TensorProto]] = {}
    columns: dict[str, tuple[TensorProto, object]] = {}
    for tensor, data in weight_values(graph, folder, least):
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2:
            matrix = _matrix(tensor, data)
            rows.setdefault((matrix.shape, matrix[0, :FEW].tobytes()), []).append(tensor)
            columns[tensor.name] = tensor, (matrix.shape[::-1], matrix[:FEW, 0].tobytes())
    found = {}
    for name, (tensor, column) in columns.items():
        for other in rows.get(column, ()):
            if other is not tensor and _turned(
                *(_matrix(t, _bytes(t, folder)) for t in (tensor, other))
            ):
                found[name] = other.name
                break
    return found


def _matrix(tensor: TensorProto, data: np.ndarray) -> np.ndarray:
    return data.view(np.uint32).reshape(tuple(tensor.dims))


def _turned(matrix: np.ndarray, other: np.ndarray) -> bool:
    return all(
        np.array_equal(matrix[:, at : at + BLOCK], other[at : at + BLOCK].T)
        for at in range(0, len(other), BLOCK)
    )


def weight_values(
    graph: Graph, folder: Path | None, least: int
) -> Iterator[tuple[TensorProto, np.ndarray]]:
    """Weights of at least so many bytes, and their bytes, which stay in a file where they lie in
    one until they are looked at."""
    for tensor in graph.model.graph.initializer:
        known = graph.tensors.get(tensor.name)
        if known is None or known.role is not Role.WEIGHT or weight_bytes(tensor) < least:
            continue
        yield tensor, _bytes(tensor, folder)


def _bytes(tensor: TensorProto, folder: Path | None) -> np.ndarray:
    """The bytes of a weight. What lies in a file keeps that open: no more than a few at a time."""
    where = place(tensor)
    if where is None:
        return np.frombuffer(tensor.raw_data, np.uint8)
    file = Path(folder or ".") / where.location
    return np.memmap(file, np.uint8, "r", where.start, (where.length,))
