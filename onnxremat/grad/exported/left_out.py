"""Biases of zeros that PyTorch's exporter leaves out, which a fresh net has many of.

Its optimizer takes the bias away from a Gemm or convolution where all elements are zero (the rules
RemoveOptionalBias of onnxscript's rewriter), also the one that it has just made of a batch
normalization. The node still says what PyTorch's node read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.grad.exported.marks import Reading, first_of, reading_of, rules_of, stem
from onnxremat.grad.exported.stored import Stored

BIAS = 2  # input of Gemm, Conv and ConvTranspose
# Of operators that begin so: which argument is the bias.
_ARGUMENT = {"linear": 2, "addmm": 0, "conv": 2, "_native_batch_norm": 2, "batch_norm": 2}

# Which input has no derivative at 0, so that code adds a small number to it.
_AT_ZERO = {"Sqrt": 0, "Log": 0, "Reciprocal": 0, "Div": 1, "Pow": 0}
# What hands on that its first input is 0.
_PASSES = frozenset(("ReduceSum", "ReduceMean", "Unsqueeze", "Squeeze", "Reshape", "Expand"))


def left_out_sums(model: onnx.ModelProto) -> list[str]:
    """A warning about small numbers that PyTorch's exporter took for 0 (up to 1e-8) and left out,
    if there are any: a root or a quotient, or a sum before it, still says that it reads a sum.
    """
    found = [*_without_sums(model)]
    if not found:
        return []
    return [
        f"the exporter left out what is added before {len(found)} roots, logarithms, powers or "
        f"quotients ({first_of(found, 3)}), as it takes numbers up to 1e-8 for 0: values and "
        "gradients are no numbers where the rest is 0 (optimize=False or onnxremat.export keeps it)"
    ]


def _without_sums(model: onnx.ModelProto) -> Iterator[str]:
    """Results of nodes before which a sum is missing."""
    makers = {name: node for node in model.graph.node for name in node.output}
    told = Counter(name for node in model.graph.node if (about := reading_of(node))
                   for name in {*about.taken})  # fmt: skip
    for node in model.graph.node:
        place = _AT_ZERO.get(node.op_type)
        reader = node
        while place is not None:
            maker = makers.get(reader.input[place])
            if _misses_sum(reader, place, maker, told):
                yield node.output[0]
                break
            passes = maker is not None and maker.op_type in _PASSES
            reader, place = (maker, 0) if maker is not None and passes else (node, None)


def _misses_sum(
    reader: onnx.NodeProto, place: int, maker: onnx.NodeProto | None, told: Mapping[str, int]
) -> bool:
    """The node says that it reads a sum, and reads what is none, or a sum of which no node says
    that it reads that (``a + b`` for ``a + b + 1e-8``)."""
    about, made = reading_of(reader), None if maker is None else reading_of(maker)
    if about is None or made is None or made.call == about.call or len(about.taken) <= place:
        return False
    wanted = about.taken[place]
    if stem(wanted) != "add" or wanted == made.made:
        return False
    return stem(made.made) != "add" or not told[made.made]


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
