"""Forward ops replaced by ones that compute the same, and make a faster training step or run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.grad.constants import Constants
from onnxremat.graph.ir import Graph, Op, Role, Tensor

FLOAT = onnx.TensorProto.FLOAT
LARGE = 1 << 18  # elements of a sum from which copying the bias before a Gemm costs too much


def pool_first(graph: Graph) -> Graph:
    """MaxPool before the rectifier it follows: the greatest of rectified values is the rectified
    greatest, and the rectifier then works, forward and backward, on the few values left."""
    ops = list(graph.ops)
    tensors = dict(graph.tensors)
    for index, pool in enumerate(graph.ops):
        if pool.op_type != "MaxPool" or not pool.standard or len(pool.writes) != 1:
            continue
        rectified, result = pool.inputs[0], pool.outputs[0]
        before = graph.producer.get(rectified)
        if before is None or not _only_feeds(graph, rectified, index):
            continue
        rectifier = ops[before]
        if rectifier.op_type not in ("Relu", "Clip") or not rectifier.standard:
            continue
        pooled = _declared(tensors, f"{rectified}/pooled", tensors[result])
        ops[before] = replace(pool, inputs=(rectifier.inputs[0],), outputs=(pooled,))
        ops[index] = replace(rectifier, inputs=(pooled, *rectifier.inputs[1:]), outputs=(result,))
    return graph.with_ops(ops, tensors)


def without_odd_bias(graph: Graph, constant_of: Constants) -> Graph:
    """Convolutions without a bias of zeros that is no vector, as PyTorch 2.13 writes it for
    Conv3d(bias=False) with ``optimize=False``: onnxruntime refuses to run them."""
    ops = []
    for op in graph.ops:
        bias = op.inputs[2] if op.op_type.startswith("Conv") and len(op.inputs) > 2 else ""
        if bias and len(graph.tensors[bias].shape or (1,)) > 1:
            value = constant_of(bias)
            if value is not None and not value.any():
                op = replace(op, inputs=op.inputs[:2])
        ops.append(op)
    return graph.with_ops(ops, graph.tensors)


def bias_apart(graph: Graph) -> Graph:
    """The bias of a large linear layer with an axis more, so that onnxruntime keeps MatMul and Add.

    It would make a Gemm of them, whose kernel first copies the bias into every row of the result,
    in one thread; the Add that stays works in place and in all threads.
    """
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    tensors, ops = dict(graph.tensors), []
    for op in graph.ops:
        bias = _large_bias(graph, op)
        if bias:
            rank, size = len(tensors[op.outputs[0]].shape or ()), (tensors[bias].shape or ())[0]
            shape = _stored(model, tensors, (*[1] * (rank - 1), size))
            view = replace(tensors[bias], shape=(*[1] * (rank - 1), size))
            seen = _declared(tensors, f"{op.name}/bias", view)
            node = helper.make_node("Reshape", [bias, shape], [seen], name=seen)
            ops.append(Op(seen, "Reshape", "", (bias, shape), (seen,), (), node))
            op = replace(op, inputs=tuple(seen if name == bias else name for name in op.inputs))
        ops.append(op)
    return replace(graph.with_ops(ops, tensors), model=model)


def _large_bias(graph: Graph, op: Op) -> str:
    """The vector that an Add gives to every row of a large product, "" if it does no such thing."""
    if op.op_type != "Add" or not op.standard:
        return ""
    made = graph.tensors[op.outputs[0]]
    if made.dtype != FLOAT or len(made.shape or ()) < 3 or made.bytes < 4 * LARGE:
        return ""
    for product, bias in (op.inputs, op.inputs[::-1]):
        index = graph.producer.get(product)
        if index is not None and graph.ops[index].op_type == "MatMul":
            shape = graph.tensors[bias].shape
            return bias if shape is not None and len(shape) == 1 and shape[0] > 1 else ""
    return ""


def _only_feeds(graph: Graph, name: str, reader: int) -> bool:
    return graph.readers.get(name, ()) == (reader,) and name not in graph.outputs


def _declared(tensors: dict[str, Tensor], stem: str, like: Tensor) -> str:
    """A new tensor of another one's type and shape."""
    name = stem
    while name in tensors:
        name += "_"
    tensors[name] = replace(like, name=name, role=Role.ACTIVATION)
    return name


def _stored(model: onnx.ModelProto, tensors: dict[str, Tensor], shape: tuple[int, ...]) -> str:
    """A shape as a constant of the model, one for all ops."""
    name = "onnxremat/shape/" + "x".join(map(str, shape))
    if name not in tensors:
        value = np.array(shape, np.int64)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
        kind = onnx.TensorProto.INT64
        tensors[name] = Tensor(name, kind, value.shape, value.nbytes, Role.WEIGHT)
    return name
