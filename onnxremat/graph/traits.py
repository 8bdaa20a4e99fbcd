"""Facts about operators, one table per fact; nothing else tests ``op_type``.

Memory facts hold for onnxruntime's CPU kernels and were measured there: run each op on an input
that dies, watch the allocator (``tests/ort/test_contract.py`` repeats it).
"""

from __future__ import annotations

from collections.abc import Container

import onnx

from onnxremat.graph.ir import Op

ONNX = frozenset({"", "ai.onnx"})  # its own domain, by both names

# Output 0 is input 0's buffer, alive or not (kernels declared Alias(0, 0)).
ALIAS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})

# Output 0 is input 0 in another shape or type: a view of it, or gone once onnxruntime has optimised
# the graph. Where the other inputs come from does not matter.
_MOVING = "Cast CastLike Expand Flatten Identity Reshape Slice Squeeze Tile Transpose Unsqueeze"
MOVING = frozenset(_MOVING.split())

SIZES = frozenset({"Shape", "Size"})  # what they make is the same for all data of one size

# Output 0 may take over the buffer of a dying input of the same shape and element size.
_UNARY = (
    "Relu LeakyRelu Elu Selu Celu Sigmoid HardSigmoid Tanh Softplus Softsign Softmax LogSoftmax "
    "ThresholdedRelu ParametricSoftplus ScaledTanh Shrink Clip Cast BitCast Trilu "
    "Scatter ScatterElements TensorScatter"
)
INPLACE: dict[tuple[str, str], tuple[int, ...]] = {
    **{("", name): (0,) for name in _UNARY.split()},
    ("ai.onnx.ml", "TreeEnsemble"): (0,),
    ("ai.onnx.ml", "TreeEnsembleRegressor"): (0,),
    ("com.microsoft", "Trilu"): (0,),
    ("com.microsoft", "FusedConv"): (3,),  # the residual of a fused Conv + Add
    ("com.microsoft.nchwc", "Conv"): (3,),
}

# Input position of the constant float matrix that the kernel packs at load.
PACKED: dict[tuple[str, str], int] = {
    ("", "MatMul"): 1,
    ("", "Gemm"): 1,
    ("com.microsoft", "FusedMatMul"): 1,
    ("com.microsoft", "FusedGemm"): 1,
}

# A second run gives another value: never recompute.
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
     "Bernoulli"}
)  # fmt: skip

# Domains whose operators the stock CPU wheel runs.
DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc",
     "ai.onnx.preview", "ai.onnx.preview.training"}
)  # fmt: skip


def is_alias(op: Op) -> bool:
    """Output 0 shares input 0's buffer."""
    if op.domain in ONNX:
        return op.op_type in ALIAS
    return (op.domain, op.op_type) == ("com.microsoft", "ExpandDims")


def takeover_inputs(op: Op) -> tuple[int, ...]:
    """Input positions whose dying buffer output 0 may take over, in preference order."""
    domain = "" if op.domain in ONNX else op.domain
    found, count = INPLACE.get((domain, op.op_type), ()), len(op.inputs)
    return found if max(found, default=0) < count else tuple(i for i in found if i < count)


def packed_input(op: Op) -> int | None:
    """Position of the weight that the kernel keeps in a form of its own, if any."""
    domain = "" if op.domain in ONNX else op.domain
    position = PACKED.get((domain, op.op_type))
    return position if position is not None and position < len(op.inputs) else None


def has_bodies(op: Op) -> bool:
    """If, Loop, Scan: opaque single ops here."""
    return any(a.type in (5, 10) for a in op.node.attribute)


def is_racing(op: Op) -> bool:
    """A ScatterND with a reduction: its kernel divides the updates among threads, so that where
    indices repeat, sums are lost, other ones each time."""
    return op.op_type == "ScatterND" and reduces_in_threads(op.node)


def reduces_in_threads(node: onnx.NodeProto) -> bool:
    """The same of a node."""
    if node.op_type != "ScatterND" or node.domain not in ONNX:
        return False
    return any(a.name == "reduction" and a.s not in (b"", b"none") for a in node.attribute)


def writes_over_inputs(op: Op, read: Container[str]) -> bool:
    """A BatchNormalization in training mode of which nobody reads both new statistics: the kernel
    writes them over the old ones then, also over weights, which other ops may read too (those that
    onnxruntime made one because they were equal among them).

    Args:
        read: tensors that an op reads or the model returns.
    """
    if op.op_type != "BatchNormalization" or op.domain not in ONNX:
        return False
    trains = any(a.name == "training_mode" and a.i for a in op.node.attribute)
    return trains and not all(name in read for name in (*op.outputs[1:3], "", "")[:2])


def is_random(op: Op) -> bool:
    """Running it again gives other values (Dropout only in training mode)."""
    if op.op_type in RANDOM or is_racing(op):
        return True
    if op.op_type == "Dropout" and op.domain in ONNX:
        return len(op.inputs) > 2 and bool(op.inputs[2])
    return False


def may_recompute(op: Op) -> bool:
    """Running it again is safe and gives the same value. Bodies may hold random ops."""
    return not is_random(op) and not has_bodies(op)
