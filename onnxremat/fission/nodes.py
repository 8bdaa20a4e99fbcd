"""Nodes that parts are written with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from onnxremat.graph.ir import Op


def with_attributes(node: onnx.NodeProto, changes: Mapping[str, object]) -> onnx.NodeProto:
    """A copy with other values of some attributes, without those that are None."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    kept = [a for a in copy.attribute if a.name not in changes]
    made = [
        onnx.helper.make_attribute(n, value) for n, value in changes.items() if value is not None
    ]
    del copy.attribute[:]
    copy.attribute.extend([*kept, *made])
    return copy


def concat(pieces: Sequence[str], output: str, axis: int) -> Op:
    """Values joined along an axis."""
    return op_of(
        onnx.helper.make_node("Concat", list(pieces), [output], name=f"{output}/concat", axis=axis)
    )


def op_of(node: onnx.NodeProto) -> Op:
    """A node of the default domain as an op."""
    return Op(node.name, node.op_type, node.domain, tuple(node.input), tuple(node.output), (), node)
