"""Values that lie in the memory a plugin provider shares with the processor, from the start."""

from __future__ import annotations

from collections.abc import Collection

from onnxremat.device.machine import Device, Machine
from onnxremat.ort.values import shared_memory
from onnxremat.rewrite.partition import Partition, Partitioned


def pooled(parts: Partitioned, machine: Machine) -> dict[str, Device]:
    """Values that a plugin provider reads or updates, with its device: they are made in the memory
    that it shares with the processor, else every binding would copy them."""
    olds = {new: old for old, new in parts.pairs}
    found = {}
    for part in parts.partitions:
        device = machine.device(part.device)
        if device.opaque and shared_memory(device) is not None:
            updated = [olds[name] for name in part.graph.outputs if name in olds]
            found.update(dict.fromkeys((*part.graph.inputs, *updated), device))
    return found


def ready_made(part: Partition, pool: Collection[str], updated: Collection[str]) -> set[str]:
    """Results of a partition that have their buffer before it starts."""
    return {name for name in part.graph.outputs if name in pool and name not in updated}
