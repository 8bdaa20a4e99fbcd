"""A partitioned model as one model again, that says of every node where it runs."""

from __future__ import annotations

from typing import Any

import onnx

from onnxremat.graph.onnx_io import to_model
from onnxremat.rewrite.gates import add_gates
from onnxremat.rewrite.partition import Copy, Partitioned
from onnxremat.rewrite.pins import add_pins

# Node metadata: where a node runs; the last is onnxruntime's own.
NODE_KEYS = ("onnxremat.device", "onnxremat.partition", "layer_ann")


def summary(parts: Partitioned) -> dict[str, Any]:
    """Partitions, boundaries and copies in order, as plain data."""
    rows: list[dict[str, Any]] = []
    for action in parts.actions:
        if isinstance(action, Copy):
            rows.append({"copy": action.value, "source": action.source, "target": action.target})
            continue
        rows.append(
            {
                "partition": action.name, "device": action.device,
                "nodes": len(action.graph.ops), "inputs": list(action.graph.inputs),
                "outputs": list(action.graph.outputs),
            }
        )  # fmt: skip
    return {"actions": rows, "outputs": dict(parts.followed.final)}


def annotated(parts: Partitioned) -> onnx.ModelProto:
    """The whole as one model that any runtime runs: duplicates, gates and pins in it, device and
    partition in the metadata of every node, the device under ``layer_ann`` too, onnxruntime's own
    key (its session option ``session.layer_assignment_settings`` reads it)."""
    graph = add_pins(add_gates(parts.graph))
    where = {
        op.name: (part.device, part.index) for part in parts.partitions for op in part.graph.ops
    }
    model = to_model(graph)
    for node in model.graph.node:
        kept = [(e.key, e.value) for e in node.metadata_props if e.key not in NODE_KEYS]
        del node.metadata_props[:]
        device, index = where.get(node.name, ("", -1))
        added = [*zip(NODE_KEYS, (device, str(index), device), strict=True)] if device else []
        for key, value in (*kept, *added):
            node.metadata_props.add(key=key, value=value)
    return model
