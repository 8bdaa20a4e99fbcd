"""Nodes of pieces."""

from __future__ import annotations

from collections.abc import Mapping

import onnx


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
