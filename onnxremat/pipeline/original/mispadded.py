"""Max poolings that onnxruntime computes otherwise than their file says.

Its ``Pad_Fusion`` (1.17 to 1.31 at least, ``core/optimizer/pad_fusion.cc``) makes a Pad with zeros
a padding of the MaxPool behind it, which counts as minus infinity: where all other values of a
window are negative, the result is the largest of these instead of 0. Files of nets with
``ConstantPad2d(1, 0.)`` before a pooling have this (BiT).
"""

from __future__ import annotations

import numpy as np
from onnx import helper

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
        f"onnxruntime computes MaxPool '{names[0]}'{more} otherwise than the file says where all "
        "values beside the padding are negative: it pads with minus infinity, the Pad before it "
        "with zeros. What is written computes what onnxruntime computes of the original; with "
        "disabled_optimizers=['Pad_Fusion'] it would do as the file says, as PyTorch does"
    ]


def _is_mispadded(graph: Graph, op: Op) -> bool:
    if op.op_type != "MaxPool" or len(op.writes) > 1:
        return False
    if any(a.name == "auto_pad" and a.s not in (b"", b"NOTSET") for a in op.node.attribute):
        return False
    pad = _only_for(graph, op)
    if pad is not None and pad.op_type == "Cast":
        pad = _only_for(graph, pad)
    if pad is None or pad.op_type != "Pad" or not _is_padding(graph, pad):
        return False
    before = graph.producer.get(pad.inputs[0])
    return before is None or graph.ops[before].op_type not in NEVER_NEGATIVE


def _only_for(graph: Graph, op: Op) -> Op | None:
    """What makes the first input of an op, and nothing for anybody else."""
    name = op.inputs[0]
    at = graph.producer.get(name)
    shared = len(graph.readers[name]) > 1 or name in graph.outputs
    return None if at is None or shared else graph.ops[at]


def _is_padding(graph: Graph, pad: Op) -> bool:
    """Zeros, as known before a run, around images: nothing beside channels, nothing cut off."""
    told = {a.name: helper.get_attribute_value(a) for a in pad.node.attribute}
    if told.get("mode", b"constant") != b"constant" or len(pad.inputs) > 3:
        return False
    known, (_, sizes, value) = Constants(graph), (*pad.inputs, "", "")[:3]
    filled = known(value) if value else told.get("value", 0.0)
    counts = known(sizes) if sizes else told.get("pads")
    if filled is None or counts is None or np.any(filled):
        return False
    sides = np.reshape(counts, (2, -1))  # before each axis, and behind it
    return bool(sides.any() and (sides >= 0).all() and not sides[:, :2].any())
