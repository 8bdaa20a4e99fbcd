"""The planner's problem of an ONNX model on a machine as a placement graph.

Nodes are its ops, times are milliseconds. Accelerators of a graph are alike, and so are CPUs: the
devices of one kind must be of one kind. Graph inputs are where they are read: they cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxremat.errors import UnsupportedError
from onnxremat.placement.graph import Index, PlacementGraph
from onnxremat.placement.reduce import Union
from onnxremat.planner.problem import Floats, Problem

UNIT = 1e-3  # seconds of a time unit of the graphs
TIED = 1 << 16  # bytes of a weight from which on its readers share a device
NEVER = 1e3  # times all work: an op that cannot run on a CPU
UNEQUAL = 1.5  # devices of one kind whose times differ by more than this factor are not alike


@dataclass(frozen=True)
class Kinds:
    """Numbers of the devices of each kind; at least one accelerator."""

    accelerators: tuple[int, ...]
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Ops:
    """What a problem does not say of its ops (but host inputs).

    Attributes:
        names: of each.
        forward: whether it is of the forward pass.
        moving: seconds that a device loses where its output crosses the device's border.
    """

    names: tuple[str, ...]
    forward: Sequence[bool]
    moving: Floats


def graph_of(
    problem: Problem, kinds: Kinds, ops: Ops, memory: float | None, *, lumped: bool
) -> PlacementGraph:
    """The placement graph.

    Args:
        problem: on several devices; its leading host inputs are left out.
        memory: bytes of one accelerator, as many as are asked for when None.
        lumped: an op takes the bytes of its weights and of what it writes, and ops that read one
            large weight or are of one group share a device: what the files of placement graphs know
            of memory. Else it takes those of the weights that it is the first to read, for who
            looks at the bytes of a placement himself.

    Raises:
        UnsupportedError: devices of one kind that are not alike.
    """
    first = problem.host_inputs
    _check_alike(problem, kinds.accelerators)
    _check_alike(problem, kinds.cpus)
    acc = problem.cost[kinds.accelerators[0], first:] / UNIT
    supported = np.isfinite(acc)
    acc = np.where(supported, acc, 0.0)
    slow = problem.cost[kinds.cpus[0], first:] / UNIT if kinds.cpus else acc
    slow = np.where(np.isfinite(slow), slow, NEVER * float(acc.sum() + 1.0))
    size, colour = _sizes_and_colours(problem, lumped)
    tail, head = edges(problem)
    count = problem.ops - first
    alone = np.bincount(colour, minlength=count)[colour] == 1
    labels = tuple(f"colour {g}" for g in range(int(colour.max(initial=-1)) + 1))
    return PlacementGraph(
        accelerators=len(kinds.accelerators), cpus=len(kinds.cpus),
        memory=float(size.sum() if memory is None else memory), unit=1,
        ids=np.arange(count, dtype=np.int64), names=ops.names, acc=acc, cpu=slow, size=size,
        backward=~np.asarray(ops.forward, np.bool_), supported=supported, colour=colour,
        coloured=~alone, labels=labels, layer=np.full(count, -1, np.int64), tail=tail, head=head,
        out=ops.moving / UNIT,
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


def _sizes_and_colours(problem: Problem, lumped: bool) -> tuple[Floats, Index]:
    """Bytes of each op, a weight at the first that reads it, and colours numbered from 0."""
    first, count = problem.host_inputs, problem.ops - problem.host_inputs
    union = Union(count)
    reader: dict[int, int] = {}
    size, weights = np.zeros(count), problem.weight.max(axis=0)
    for op in range(count):
        if lumped:
            size[op] = float(sum(problem.size[0, v] for v in problem.writes[op + first]))
        for weight in problem.uses[op + first].tolist():
            tied = lumped and weights[weight] >= TIED
            if weight not in reader or (lumped and not tied):
                size[op] += float(weights[weight])
            elif tied:
                union.join(op, reader[weight])
            reader.setdefault(weight, op)
    groups: dict[int, int] = {}
    for op, group in enumerate(problem.group[first:].tolist()):
        if lumped and group >= 0:
            union.join(op, groups.setdefault(group, op))
    homes = union.homes()
    number = {home: i for i, home in enumerate(dict.fromkeys(homes))}
    return size, np.asarray([number[home] for home in homes], np.int64)
