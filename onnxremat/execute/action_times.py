"""Predicted seconds of every partition and copy of a plan, before any of it has run."""

from __future__ import annotations

from collections.abc import Mapping

from onnxremat.cost.boundaries import call_seconds, traffic_seconds
from onnxremat.cost.table import CostTable
from onnxremat.device.machine import Machine
from onnxremat.rewrite.partition import Key, Partition, Partitioned


def action_seconds(
    parts: Partitioned, machine: Machine, costs: Mapping[str, CostTable]
) -> dict[int, float]:
    """Seconds per action: a partition's ops, its call, and what it reads from other partitions and
    leaves for them; a copy's bytes over its link, nothing where a value is handed over."""
    found = {}
    for index, action in enumerate(parts.actions):
        if isinstance(action, Partition):
            table = costs[action.device]
            ops = sum(table.seconds.get(op.origin or op.name, 0.0) for op in action.graph.ops)
            values = len(action.graph.inputs) + len(action.graph.outputs)
            reads, writes = (_bytes(parts, keys) for keys in parts.uses[index])
            found[index] = (
                ops
                + call_seconds(table, values)
                + traffic_seconds(table, read=reads, written=writes)
            )
        else:
            link = machine.link(action.source, action.target)
            size = parts.graph.tensors[action.value].bytes
            found[index] = 0.0 if link.shared else link.seconds(size)
    return found


def _bytes(parts: Partitioned, keys: tuple[Key, ...]) -> int:
    """Bytes of values that have buffers of their own."""
    return sum(parts.graph.tensors[key[0]].bytes for key in keys if key not in parts.in_place)
