"""A plan written out: every run an op of its own, reading the copies it really reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxremat.errors import UsageError
from onnxremat.graph.ir import Graph, Op, Role
from onnxremat.graph.order import EAGER, priority_order


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an op: which copies of which tensors it reads and writes."""

    op: Op
    copy: int
    reads: tuple[tuple[str, int], ...]
    writes: tuple[tuple[str, int], ...]


def resolve(graph: Graph, sequence: Sequence[str]) -> list[Run]:
    """Runs of a sequence of op names, each read resolved to the latest copy.

    Raises:
        UsageError: an unknown op, an op that never runs, or a read of what is not there yet.
    """
    by_name = {op.name: op for op in graph.ops}
    made = graph.producer
    kept = set(graph.outputs)
    latest: dict[str, int] = {}
    copies: dict[str, int] = {}
    runs = []
    for step, name in enumerate(sequence):
        op = by_name.get(name)
        if op is None:
            raise UsageError(
                f"the plan runs op '{name}', which the model does not have",
                hint="plan again: the plan belongs to another model",
            )
        copy = copies.get(name, 0)
        copies[name] = copy + 1
        reads = []
        for tensor in op.reads:
            if tensor in made:
                if tensor not in latest:
                    raise UsageError(f"step {step} ({name}) reads '{tensor}' before it is made")
                reads.append((tensor, latest[tensor]))
        for tensor in op.writes:
            if not (tensor in kept and copy):
                latest[tensor] = copy
        runs.append(Run(op, copy, tuple(reads), tuple((t, copy) for t in op.writes)))
    never = [name for name in by_name if name not in copies]
    if never:
        raise UsageError(f"the plan never runs op '{never[0]}' ({len(never)} such ops)")
    return runs


def copy_mark(graph: Graph) -> str:
    """What tells the name of a copy from its original's: ``__r``, longer where the graph has
    such names already (a planned model that is planned again)."""
    mark = "__r"
    ops = (op.name for op in graph.ops)
    names = [name for name in (*graph.tensors, *graph.names_inside, *ops) if mark in name]
    while any(mark in name for name in names):
        mark += "r"
    return mark


def expand(graph: Graph, sequence: Sequence[str]) -> Graph:
    """The graph with one op per step, in step order; recomputations carry their origin.

    Raises:
        UsageError: see :func:`resolve`.
    """
    ops = []
    tensors = dict(graph.tensors)
    mark = copy_mark(graph)
    for run in resolve(graph, sequence):
        names = {name: f"{name}{mark}{copy}" for name, copy in (*run.reads, *run.writes) if copy}
        if not run.copy:
            ops.append(run.op.renamed(run.op.name, names, origin=""))
            continue
        ops.append(run.op.renamed(f"{run.op.name}{mark}{run.copy}", names, origin=run.op.name))
        for name in run.op.writes:
            old, new = graph.tensors[name], names[name]
            tensors[new] = replace(old, name=new, role=Role.ACTIVATION)
    return graph.with_ops(ops, tensors)


def settled(graph: Graph, sequence: Sequence[str]) -> list[str]:
    """The sequence as a session that follows the listed order really runs it: Shape and Size ops
    as soon as their input is there.

    Raises:
        UsageError: see :func:`resolve`.
    """
    if not any(op.op_type in EAGER for op in graph.ops):
        return list(sequence)
    return [sequence[step] for step in priority_order(expand(graph, sequence))]
