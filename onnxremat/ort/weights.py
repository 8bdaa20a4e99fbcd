"""Bytes a CPU session holds for weights once its kernels have packed what they pack."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping

from onnx import TensorProto

from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Graph, Op, Role
from onnxremat.graph.traits import packed_input

Weights = Mapping[str, tuple[int, tuple[int, ...]]]  # name to element type and shape
Forms = dict[object, int]  # how kernels keep a weight, to bytes
AS_IT_IS, RETURNED = "as it is", "returned"
INT8 = 4  # the accuracy level at which products of few bits are computed so
ALIGNED = 128  # bytes at most for where the parts of a packed copy begin


def held_bytes(
    ops: Iterable[Op], weights: Weights, given: Container[str] = (), returned: Iterable[str] = ()
) -> int:
    """Resident bytes of weights, packed copies included.

    Args:
        given: weights that may be given as inputs; they are no constants, and are not packed.
        returned: outputs of the model. Of a weight among them there is a copy, from the beginning
            of a run on.
    """
    return sum(sum(forms.values()) for forms in _forms(ops, weights, given, returned).values())


def held_by(graph: Graph) -> int:
    """:func:`held_bytes` of a graph."""
    return sum(sum(forms.values()) for forms in forms_of(graph).values())


def forms_of(graph: Graph) -> dict[str, Forms]:
    """In which forms a session of a graph holds each weight, and how many bytes each is."""
    weights = {
        name: (tensor.dtype, tensor.shape or ())
        for name, tensor in graph.tensors.items()
        if tensor.role is Role.WEIGHT
    }
    return _forms(graph.ops, weights, graph.optional, graph.outputs)


def _forms(
    ops: Iterable[Op], weights: Weights, given: Container[str], returned: Iterable[str]
) -> dict[str, Forms]:
    """A matrix product packs its constant matrix and gives the original back; ops of one type share
    the packed copy, whose columns are padded to multiples of 16. A product of few bits packs what
    it needs beside these, and gives the original of the bits alone back. Any other reader keeps the
    original as well: a weight that a MatMul and a Transpose read is held twice."""
    forms: dict[str, Forms] = {name: {} for name in weights}
    for name in weights.keys() & {*returned}:
        forms[name][AS_IT_IS] = forms[name][RETURNED] = tensor_bytes(*weights[name])
    for op in ops:
        packed = packed_input(op)
        for name in op.reads:
            if name not in weights:
                continue
            plain = _is_matrix(*weights[name]) and op.inputs.count(name) == 1 and name not in given
            if packed is not None and plain and op.inputs[packed] == name:
                turned = _transposed(op)
                forms[name][op.op_type, turned] = _packed_bytes(weights[name][1], turned)
            elif (
                _has_few_bits(op)
                and op.inputs[1] == name
                and not any(n in given for n in op.inputs)
            ):
                beside = _scales_packed(op, weights)
                forms[name][op.op_type, _level(op)] = tensor_bytes(*weights[name]) + beside
            else:
                forms[name][AS_IT_IS] = tensor_bytes(*weights[name])
    for name, found in forms.items():
        if not found:
            found[AS_IT_IS] = tensor_bytes(*weights[name])
    return forms


def _has_few_bits(op: Op) -> bool:
    return (op.domain, op.op_type) == ("com.microsoft", "MatMulNBits")


def _scales_packed(op: Op, weights: Weights) -> int:
    """Bytes that a kernel of few bits packs beside them (``matmul_nbits.cc``): for rows in int8 the
    scales again and sums of blocks, for rows in half precision the scales in float32."""
    dtype, shape = weights.get(op.inputs[2], (TensorProto.FLOAT, (0,)))
    copies = 2 * (_level(op) == INT8) + (dtype != TensorProto.FLOAT)
    return copies * 4 * math.prod(shape) + ALIGNED * bool(copies)


def _level(op: Op) -> int:
    return next((a.i for a in op.node.attribute if a.name == "accuracy_level"), 0)


def _is_matrix(dtype: int, shape: tuple[int, ...]) -> bool:
    return dtype == TensorProto.FLOAT and len(shape) == 2


def _packed_bytes(shape: tuple[int, ...], transposed: bool) -> int:
    columns, rows = shape if transposed else reversed(shape)
    return 4 * rows * (-columns % 16 + columns)


def _transposed(op: Op) -> bool:
    return any(a.name == "transB" and a.i for a in op.node.attribute)
