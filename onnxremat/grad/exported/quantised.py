"""Models whose weights, or results in between, are whole numbers that stand for others."""

from __future__ import annotations

import onnx

from onnxremat.grad.exported.marks import first_of
from onnxremat.grad.tape import FLOATS
from onnxremat.graph.ir import all_nodes

WORDS = ("Quantize", "Dequantize", "QLinear", "Integer")
FEW_BITS = ("MatMulNBits", "MatMulBnb4")
BEFORE = "make the step of the model as it was before it was quantised, and quantise what it trains"


def is_quantising(op_type: str) -> bool:
    """Whether an operator makes, takes or multiplies whole numbers that stand for others."""
    return op_type in FEW_BITS or any(word in op_type for word in WORDS)


def whole_weights(model: onnx.ModelProto) -> list[str]:
    """What is said of weights that are whole numbers: nobody trains them."""
    stored = {t.name: t for t in model.graph.initializer if len(t.dims) > 1}
    read = dict.fromkeys(
        name
        for node in all_nodes(model.graph)
        if is_quantising(node.op_type)
        for name in node.input
    )
    names = [n for n in read if n in stored and stored[n].data_type not in FLOATS]
    if not names:
        return []
    return [
        f"weights of a quantised model are whole numbers ({first_of(names, 3)}), which are not "
        f"trained: {BEFORE}"
    ]
