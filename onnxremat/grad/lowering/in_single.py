"""Operators that ONNX takes in any precision, and writes out in float32 alone.

The function by which ONNX defines MeanVarianceNormalization adds a constant of float32, which no
other type can be added to. Between two Casts it is right.
"""

from __future__ import annotations

import onnx
from onnx import helper

from onnxremat.graph.traits import ONNX

SINGLE = onnx.TensorProto.FLOAT
WRITTEN_IN_SINGLE = frozenset({"MeanVarianceNormalization"})


def between_casts(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with Casts around such ops of another precision; itself where it has none."""
    if not any(map(_is_such, model.graph.node)):
        return model
    known = onnx.shape_inference.infer_shapes(model).graph
    types = {tensor.name: tensor.data_type for tensor in known.initializer}
    for value in (*known.input, *known.value_info, *known.output):
        types[value.name] = value.type.tensor_type.elem_type
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    for node in model.graph.node:
        kind = types.get(node.input[0], SINGLE) if _is_such(node) else SINGLE
        made.graph.node.extend([node] if kind in (0, SINGLE) else _cast(node, kind))
    return made


def _is_such(node: onnx.NodeProto) -> bool:
    return node.op_type in WRITTEN_IN_SINGLE and node.domain in ONNX


def _cast(node: onnx.NodeProto, kind: int) -> list[onnx.NodeProto]:
    """A node of one input and one output between two Casts."""
    wide = onnx.NodeProto()
    wide.CopyFrom(node)
    (taken,), (given,) = node.input, node.output
    wide.input[:], wide.output[:] = [f"{given}/single_input"], [f"{given}/single"]
    before = helper.make_node("Cast", [taken], wide.input, f"{given}/to_single", to=SINGLE)
    after = helper.make_node("Cast", wide.output, [given], f"{given}/from_single", to=kind)
    return [before, wide, after]
