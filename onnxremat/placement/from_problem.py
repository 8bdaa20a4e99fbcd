"""The planner's problem of an ONNX model on a machine as a placement graph.

Nodes are its ops, times are milliseconds. Accelerators of a graph are alike, and so are CPUs: the
devices of one kind must be of one kind. What one op writes and another reads moves at the cost of
the link between an accelerator and the host, or between two accelerators where no CPU is beside
them. An op takes the bytes of what it writes and of its weights; ops that read one large weight
share a device, as the planner's groups do. Graph inputs are where they are read: they cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxremat.errors import UnsupportedError
from onnxremat.placement.graph import Index, PlacementGraph
from onnxremat.placement.reduce import Union
from onnxremat.planner.problem import Floats, Problem

MILLISECONDS = 1e3
TIED = 1 << 16  # bytes of a weight from which on its readers share a device
NEVER = 1e3  # times all work: an op that cannot run on a CPU
UNEQUAL = 1.5  # devices of one kind whose times differ by more than this factor are not alike


def graph_of(
    problem: Problem,
    accelerators: Sequence[int],
    cpus: Sequence[int],
    *,
    names: Sequence[str],
    forward: Sequence[bool],
    memory: int,
) -> PlacementGraph:
    """The placement graph.

    Args:
        problem: on several devices; its leading host inputs are left out.
        accelerators, cpus: devices of each kind; at least one accelerator.
        names: of the ops that are not host inputs.
        forward: whether each of these is of the forward pass.
        memory: bytes of one accelerator, 0 for as many as are asked for.

    Raises:
        UnsupportedError: devices of one kind that are not alike.
    """
    first, k = problem.host_inputs, accelerators[0]
    _check_alike(problem, accelerators)
    _check_alike(problem, cpus)
    acc = problem.cost[k, first:] * MILLISECONDS
    supported = np.isfinite(acc)
    acc = np.where(supported, acc, 0.0)
    slow = problem.cost[cpus[0], first:] * MILLISECONDS if cpus else acc
    slow = np.where(np.isfinite(slow), slow, NEVER * float(acc.sum() + 1.0))
    size, colour = _sizes_and_colours(problem)
    tail, head = edges(problem)
    count = problem.ops - first
    alone = np.bincount(colour, minlength=count)[colour] == 1
    labels = tuple(f"colour {g}" for g in range(int(colour.max(initial=-1)) + 1))
    return PlacementGraph(
        accelerators=len(accelerators), cpus=len(cpus),
        memory=float(memory or int(size.sum())), unit=1,
        ids=np.arange(count, dtype=np.int64), names=tuple(names), acc=acc, cpu=slow, size=size,
        backward=~np.asarray(forward, np.bool_), supported=supported, colour=colour,
        coloured=~alone, labels=labels, layer=np.full(count, -1, np.int64), tail=tail, head=head,
        out=_outputs(problem, k, cpus[0] if cpus else accelerators[-1]),
    )  # fmt: skip


def _check_alike(problem: Problem, devices: Sequence[int]) -> None:
    if not devices:
        return
    times = problem.cost[list(devices)]
    both = np.isfinite(times).all(axis=0)
    totals = times[:, both].sum(axis=1)
    same = bool((np.isfinite(times) == np.isfinite(times[0])).all())
    if not same or totals.max(initial=0.0) > UNEQUAL * totals.min(initial=np.inf):
        raise UnsupportedError(
            "devices of one kind are not alike",
            where=", ".join(problem.names[d] for d in devices),
            why="a placement graph has one time per node and kind of device",
            hint="a machine file whose devices of a kind run the same ops at about the same speed",
        )


def edges(problem: Problem) -> tuple[Index, Index]:
    """Ops that make and ops that read, pair by pair, numbered without host inputs."""
    first, producer = problem.host_inputs, problem.producer
    pairs = sorted(
        {
            (int(producer[value]) - first, op - first)
            for op, reads in enumerate(problem.reads.lists())
            for value in reads
            if producer[value] >= first
        }
    )
    found = np.asarray(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _outputs(problem: Problem, k: int, host: int) -> Floats:
    """Time to move what each op writes and others read."""
    first = problem.host_inputs
    read = np.zeros(problem.values, np.bool_)
    read[problem.reads.index] = True
    out = np.zeros(problem.ops - first)
    if host == k:
        return out
    for op, writes in enumerate(problem.writes.lists()[first:]):
        for value in writes:
            if read[value] and np.isfinite(problem.copy[k, host, value]):
                out[op] += float(problem.copy[k, host, value]) * MILLISECONDS
    return out


def _sizes_and_colours(problem: Problem) -> tuple[Floats, Index]:
    """Bytes of each op, a weight at the first that reads it, and colours numbered from 0."""
    first, count = problem.host_inputs, problem.ops - problem.host_inputs
    union = Union(count)
    reader: dict[int, int] = {}
    size = np.zeros(count)
    for op in range(count):
        size[op] = float(sum(problem.size[0, v] for v in problem.writes[op + first]))
        for weight in problem.uses[op + first].tolist():
            if weight not in reader or problem.weight[weight] < TIED:
                size[op] += float(problem.weight[weight])
            else:
                union.join(op, reader[weight])
            reader.setdefault(weight, op)
    groups: dict[int, int] = {}
    for op, group in enumerate(problem.group[first:].tolist()):
        if group >= 0:
            union.join(op, groups.setdefault(group, op))
    homes = union.homes()
    number = {home: i for i, home in enumerate(dict.fromkeys(homes))}
    return size, np.asarray([number[home] for home in homes], np.int64)
