"""What OpenVINO reads wrongly, said another way (seen with onnxruntime-ep-openvino 1.8.1).

Its reader takes these float attributes to be absent when they are 0, and puts in the operator's
default: a HardSigmoid of beta 0 (the mask of Relu's gradient) then gives 1/2 at 0. The smallest
normal number does the same and is read. ``tests/devices/test_openvino.py`` repeats it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from onnxremat.graph.ir import Graph, Op

ZERO_IS_LOST = {"HardSigmoid": ("alpha", "beta"), "Selu": ("alpha", "gamma")}
TINY = float(np.finfo(np.float32).tiny)


def for_openvino(graph: Graph) -> Graph:
    """The graph with such attributes written so that OpenVINO reads them."""
    ops = tuple(_readable(op) if op.op_type in ZERO_IS_LOST else op for op in graph.ops)
    return graph.with_ops(ops)


def _readable(op: Op) -> Op:
    node = onnx.NodeProto()
    node.CopyFrom(op.node)
    for attribute in node.attribute:
        if attribute.name in ZERO_IS_LOST[op.op_type] and attribute.f == 0.0:
            attribute.f = TINY
    return replace(op, node=node)
