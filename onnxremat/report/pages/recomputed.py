"""What a plan recomputes: which ops, how often, at what time, for which bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnxremat.graph.ir import Graph
from onnxremat.graph.traits import is_alias
from onnxremat.schedule.plan import Compute, Free, Plan


@dataclass(frozen=True, slots=True)
class Recomputed:
    """An op that runs more than once.

    Attributes:
        times: runs beyond the first.
        bytes: of its outputs that are given back and made again; what not keeping them frees.
        seconds: all runs beyond the first together.
    """

    op: str
    op_type: str
    times: int
    bytes: int
    seconds: float


def recomputed_ops(plan: Plan, graph: Graph, seconds: Mapping[str, float]) -> list[Recomputed]:
    """The ops that a plan runs again: the most bytes first, then the most seconds.

    Args:
        graph: the graph the plan was made for.
        seconds: of one run, per op name.
    """
    ops = {op.name: op for op in graph.ops}
    times: dict[str, int] = {}
    freed: dict[str, int] = {}
    gone: set[tuple[str, int]] = set()
    for step in plan.steps:
        if isinstance(step, Free):
            gone.add((step.tensor, step.copy))
        elif isinstance(step, Compute) and step.copy:
            op = ops[step.op]
            again = [name for name in op.writes if (name, step.copy - 1) in gone]
            size = 0 if is_alias(op) else sum(graph.tensors[name].bytes for name in again)
            times[op.name] = times.get(op.name, 0) + 1
            freed[op.name] = max(freed.get(op.name, 0), size)
    rows = [
        Recomputed(name, ops[name].op_type, n, freed[name], n * seconds.get(name, 0.0))
        for name, n in times.items()
    ]
    return sorted(rows, key=lambda row: (-row.bytes, -row.seconds, row.op))
