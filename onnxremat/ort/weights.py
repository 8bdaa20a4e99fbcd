"""Bytes a CPU session holds for weights once its kernels have packed what they pack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import TensorProto

from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Graph, Op, Role
from onnxremat.graph.traits import packed_input

Weights = Mapping[str, tuple[int, tuple[int, ...]]]  # name to element type and shape


def held_bytes(ops: Iterable[Op], weights: Weights, returned: Iterable[str] = ()) -> int:
    """Resident bytes of weights, packed copies included.

    Args:
        returned: outputs of the model. Of a weight among them there is a copy, from the beginning
            of a run on.

    A matrix product packs its constant matrix and gives the original back; ops of one type share
    the packed copy, whose columns are padded to multiples of 16. Any other reader keeps the
    original as well: a weight that a MatMul and a Transpose read is held twice.
    """
    forms: dict[str, dict[object, int]] = {name: {} for name in weights}
    for name in weights.keys() & {*returned}:
        forms[name]["as it is"] = forms[name]["returned"] = tensor_bytes(*weights[name])
    for op in ops:
        packed = packed_input(op)
        for name in op.reads:
            if name not in weights:
                continue
            plain = _is_matrix(*weights[name]) and op.inputs.count(name) == 1
            if packed is not None and plain and op.inputs[packed] == name:
                turned = _transposed(op)
                forms[name][op.op_type, turned] = _packed_bytes(weights[name][1], turned)
            else:
                forms[name]["as it is"] = tensor_bytes(*weights[name])
    return sum(
        sum(forms[name].values()) if forms[name] else tensor_bytes(*weights[name])
        for name in weights
    )


def held_by(graph: Graph) -> int:
    """:func:`held_bytes` of a graph."""
    weights = {
        name: (tensor.dtype, tensor.shape or ())
        for name, tensor in graph.tensors.items()
        if tensor.role is Role.WEIGHT
    }
    return held_bytes(graph.ops, weights, graph.outputs)


def _is_matrix(dtype: int, shape: tuple[int, ...]) -> bool:
    return dtype == TensorProto.FLOAT and len(shape) == 2


def _packed_bytes(shape: tuple[int, ...], transposed: bool) -> int:
    columns, rows = shape if transposed else reversed(shape)
    return 4 * rows * (-columns % 16 + columns)


def _transposed(op: Op) -> bool:
    return any(a.name == "transB" and a.i for a in op.node.attribute)
