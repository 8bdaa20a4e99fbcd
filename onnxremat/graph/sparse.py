"""Sparse initializers and constants as dense ones, which is what onnxruntime makes of them at
load."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.errors import ModelError
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.limits import SPARSE_BYTES, check


def make_dense(graph: onnx.GraphProto) -> None:
    """Write the sparse initializers of a graph, and its constants, as dense ones, in place. Those
    that are results of the graph are left as they are.

    Raises:
        ModelError: an index out of its range, or more bytes than a model can hold.
    """
    for sparse in graph.sparse_initializer:
        graph.initializer.append(_dense(sparse, sparse.values.name))
    del graph.sparse_initializer[:]
    results = {value.name for value in graph.output}
    for node in graph.node:
        if node.op_type != "Constant" or results.intersection(node.output):
            continue
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
                dense = _dense(attribute.sparse_tensor, node.output[0])
                attribute.CopyFrom(helper.make_attribute("value", dense))


def with_dense(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its sparse initializers as dense ones; itself where it has none.

    Raises:
        ModelError: as for :func:`make_dense`.
    """
    if not model.graph.sparse_initializer:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    make_dense(made.graph)
    return made


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    shape = tuple(sparse.dims)
    check(
        tensor_bytes(sparse.values.data_type, shape), SPARSE_BYTES,
        f"bytes of sparse weight '{name}' once it is dense",
        hint="onnxruntime makes it dense, too: use a smaller weight", kind=ModelError,
    )  # fmt: skip
    try:
        values = numpy_helper.to_array(sparse.values)
        places = numpy_helper.to_array(sparse.indices).astype(np.int64)
        if places.ndim == 2:
            places = np.ravel_multi_index(tuple(places.T), shape)
        whole = np.zeros(int(np.prod(shape, dtype=np.int64)), values.dtype)
        if len(places) and not 0 <= places.min() <= places.max() < len(whole):
            raise ValueError("an index is out of range")
        whole[places] = values.reshape(-1)
        return numpy_helper.from_array(whole.reshape(shape), name)
    except (ValueError, TypeError, IndexError) as error:
        raise ModelError(
            f"sparse weight '{name}' is damaged", why=str(error), hint="export the model again"
        ) from error
