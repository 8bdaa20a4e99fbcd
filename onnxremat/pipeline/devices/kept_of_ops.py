"""What sessions on a device keep of the ops that they run for as long as they are open, beside the
weights that these read: as further weights of the planner's, one of a device that runs anything and
one of each op.

onnxruntime keeps its nodes. A provider that compiles its partitions keeps all that it computes in,
too; how much of that there is is only seen once partitions have run, and is then laid on their ops
by what they write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onnxremat.graph.ir import Graph, Op
from onnxremat.pipeline.devices.site import Site
from onnxremat.planner.problem import Bytes, Problem
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import peaks
from onnxremat.session.process import SESSION, further_bytes

MORE = 1.1  # times what was seen: of the same ops, smaller partitions keep more


def kept_of_ops(
    graph: Graph, ops: Sequence[Op], site: Site, per_byte: Mapping[str, float]
) -> Bytes:
    """Bytes kept on each device, of the first op that it runs and of each op with its views, shape
    (D, 1 + ops); without columns where nothing is counted.

    Args:
        ops: that are planned.
        per_byte: bytes kept for each that an op writes, on devices of which that was seen.
    """
    devices = site.machine.devices
    found = np.zeros((len(devices), 1 + len(ops)), np.int64)
    apart = any(device.computes and not device.in_host_memory for device in devices)
    nodes = further_bytes(graph) - further_bytes()
    for row, device in enumerate(devices):
        if device.name in per_byte:
            found[row, 1:] = [per_byte[device.name] * _written(graph, op) for op in ops]
        elif site.counted.sessions and not apart:
            found[row] = [SESSION + further_bytes(), *[nodes // len(ops)] * len(ops)]
    return found if found.any() else found[:, :0]


def _written(graph: Graph, op: Op) -> int:
    return sum(graph.tensors[name].bytes for name in op.writes)


def seen_per_byte(problem: Problem, schedule: Schedule, device: int, held: int) -> float:
    """Bytes that a device keeps for each that its ops write, so that a plan takes there what it
    took when it was carried out, and some more.

    Args:
        problem: without what is kept.
        held: bytes that the device took.
    """
    ran = {step.item for step in schedule.steps if step.runs and step.device == device}
    writes = problem.writes.lists()
    written = sum(int(problem.size[device, value]) for op in ran for value in writes[op])
    planned = int(peaks(problem, schedule)[device])
    return MORE * max(0, held - planned) / max(1, written)
