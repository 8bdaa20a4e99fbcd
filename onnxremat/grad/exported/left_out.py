"""Biases of zeros that PyTorch's exporter leaves out, which a fresh net has many of.

Its optimizer takes the bias away from a Gemm or convolution where all elements are zero (the rules
RemoveOptionalBias of onnxscript's rewriter), also the one that it has just made of a batch
normalization. The node still says what PyTorch's node read.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.grad.exported.marks import Reading, first_of, reading_of, rules_of, stem
from onnxremat.grad.exported.stored import Stored

BIAS = 2  # input of Gemm, Conv and ConvTranspose
# Of operators that begin so: which argument is the bias.
_ARGUMENT = {"linear": 2, "addmm": 0, "conv": 2, "_native_batch_norm": 2, "batch_norm": 2}

# Which input has no derivative at 0, so that code adds a small number to it.
_AT_ZERO = {"Sqrt": 0, "Log": 0, "Reciprocal": 0, "Div": 1}


def left_out_sums(model: onnx.ModelProto) -> list[str]:
    """A warning about small numbers that PyTorch's exporter took for 0 (up to 1e-8) and left out,
    if there are any: a root or a quotient still says that it reads a sum.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    found = [
        node.output[0]
        for node in model.graph.node
        if (at := _AT_ZERO.get(node.op_type)) is not None
        and (about := reading_of(node)) is not None
        and len(about.taken) > at
        and stem(about.taken[at]) == "add"
        and (maker := makers.get(node.input[at])) is not None
        and (made := reading_of(maker)) is not None
        and made.call != about.call
        and stem(made.made) != "add"
    ]
    if not found:
        return []
    return [
        f"the exporter left out what is added before {len(found)} roots, logarithms or quotients "
        f"({first_of(found, 3)}), as it takes numbers up to 1e-8 for 0: gradients are no numbers "
        "where the rest is 0 (optimize=False or onnxremat.export keeps it)"
    ]


def left_out(node: onnx.NodeProto, about: Reading) -> str:
    """PyTorch's name of the bias that a node had, "" where it had none or has it still."""
    if "RemoveOptionalBias" not in rules_of(node) or any(node.input[BIAS:]):
        return ""
    call = re.search(rf"aten\.({'|'.join(_ARGUMENT)}).*?args = \((.*)", about.call)
    if call is None:
        return ""
    arguments = call[2].split(", ")[: BIAS + 1]
    place = _ARGUMENT[call[1]]
    token = re.match(r"%(p_\w+)", arguments[place]) if place < len(arguments) else None
    return token[1] if token else ""


def zeros(node: onnx.NodeProto, name: str, stored: Stored) -> onnx.TensorProto | None:
    """The bias, None where the node's weight is not in the file."""
    weight = stored.tensors.get(node.input[1])
    if weight is None:
        return None
    values = {a.name: a.i for a in node.attribute if a.name in ("transB", "group")}
    if node.op_type == "ConvTranspose":
        length = weight.dims[1] * values.get("group", 1)
    else:
        last = node.op_type == "Gemm" and not values.get("transB")
        length = weight.dims[1 if last else 0]
    kind = onnx.helper.tensor_dtype_to_np_dtype(weight.data_type)
    return numpy_helper.from_array(np.zeros(length, kind), name)
