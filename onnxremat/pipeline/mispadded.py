"""Max poolings that onnxruntime computes otherwise than their file says.

Its ``Pad_Fusion`` (1.17 to 1.31 at least) makes a Pad with zeros a padding of the MaxPool behind
it, which counts as minus infinity: where a window holds negative values beside the padding, the
result is the largest of these instead of 0. Files of nets with ``ConstantPad2d(1, 0.)`` before a
pooling have this (BiT).
"""

from __future__ import annotations

import numpy as np

from onnxremat.grad.constants import Constants
from onnxremat.graph.ir import Graph, Op

NEVER_NEGATIVE = frozenset({"Abs", "Exp", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt"})


def mispadded(graph: Graph) -> list[str]:
    """A note on such poolings, if there are any."""
    names = [op.name or op.outputs[0] for op in graph.ops if _is_mispadded(graph, op)]
    if not names:
        return []
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return [
        f"onnxruntime computes MaxPool '{names[0]}'{more} otherwise than the file says: it pads "
        "with minus infinity where a Pad before it pads with zeros. What is written computes what "
        "onnxruntime computes of the original; with disabled_optimizers=['Pad_Fusion'] it would "
        "do as the file says, as PyTorch does"
    ]


def _is_mispadded(graph: Graph, op: Op) -> bool:
    at = graph.producer.get(op.inputs[0]) if op.inputs else None
    if op.op_type != "MaxPool" or len(op.writes) > 1 or at is None:
        return False
    pad = graph.ops[at]
    if pad.op_type != "Pad" or len(graph.readers[op.inputs[0]]) > 1:
        return False
    mode = next((a.s for a in pad.node.attribute if a.name == "mode"), b"constant")
    if mode != b"constant" or op.inputs[0] in graph.outputs or not _is_zero(graph, pad):
        return False
    before = graph.producer.get(pad.inputs[0])
    return before is None or graph.ops[before].op_type not in NEVER_NEGATIVE


def _is_zero(graph: Graph, pad: Op) -> bool:
    name = pad.inputs[2] if len(pad.inputs) > 2 else ""
    if not name:
        return True
    value = Constants(graph)(name)
    return value is not None and not np.any(value)
