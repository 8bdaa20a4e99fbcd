"""Graph to Problem, and a Solution's sequence back to a sequence of graph ops.

The reduction contracts alias ops (Reshape and the like, which share their input's buffer) into
the value they show: a reader of the view reads the value, and the shape of the view where that is
computed. ``Reduced.lift`` puts them back, each right before its first reader, again for every new
copy of the value.

Computed shapes are there as long as a reader of their view is, in the problem; a run drops them
once the view is shown. So that the problem never needs more than the run, they have no bytes in it:
it may need a few less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onnxremat.cost.table import CostTable
from onnxremat.graph.ir import Graph, Op, Role
from onnxremat.graph.traits import is_alias, may_recompute, takeover_inputs
from onnxremat.planner.bounds import Need, largest_need
from onnxremat.planner.problem import OneDevice, Problem, Rows
from onnxremat.planner.problem_lists import ProblemLists


@dataclass(frozen=True)
class Reduced:
    """A problem and the way back.

    Attributes:
        problem: numbers for planners; its ops are the graph's ops but contracted ones, in order.
        graph: the graph it was made from.
        index: problem op to graph op.
        view: contracted op (graph index) to the graph op that makes its value, None when it
            shows an input or a weight.
    """

    problem: Problem
    graph: Graph
    index: tuple[int, ...]
    view: dict[int, int | None]

    @cached_property
    def need(self) -> Need:
        """The op that needs most at once, in any order."""
        return largest_need(ProblemLists(self.problem))

    def lift(self, sequence: Sequence[int]) -> list[str]:
        """Graph op names in execution order, contracted ops put back."""
        ops, made = self.graph.ops, self.graph.producer
        kept = set(self.graph.outputs)
        runs: dict[int, int] = {}  # graph op -> how often it ran (once for kept values)
        shown: dict[int, int] = {}  # contracted op -> the copy of its value it shows
        order: list[str] = []

        def show(index: int) -> None:
            source = self.view[index]
            copy = 1 if source is None else runs.get(source, 0)
            if shown.get(index) == copy:
                return
            for name in ops[index].reads:
                if made.get(name) in self.view:
                    show(made[name])
            order.append(ops[index].name)
            shown[index] = copy

        for step in sequence:
            index = self.index[step]
            for name in ops[index].reads:
                if made.get(name) in self.view:
                    show(made[name])
            order.append(ops[index].name)
            if not (runs.get(index) and all(name in kept for name in ops[index].writes)):
                runs[index] = runs.get(index, 0) + 1
        for index in self.view:  # views that only a graph output or nothing reads
            if index not in shown:
                show(index)
        return order

    def project(self, names: Sequence[str]) -> list[int]:
        """The inverse of :meth:`lift`: problem ops of a sequence of graph op names."""
        where = {self.graph.ops[index].name: step for step, index in enumerate(self.index)}
        return [where[name] for name in names if name in where]


def reduce(
    graph: Graph, costs: CostTable, weight_bytes: int | None = None, *, computed: bool = True
) -> Reduced:
    """The planner's problem for a graph in its listed order.

    Args:
        costs: seconds and scratch per op.
        weight_bytes: resident bytes of the weights; the initializers' own bytes when None.
        computed: views whose shapes ops make are contracted, too. Elsewhere they are ops like any
            other, which have bytes of their own while what they show is read again.
    """
    view = _views(graph, computed)
    index = tuple(i for i in range(len(graph.ops)) if i not in view)
    root = _roots(graph, view)
    values: dict[str, int] = {}
    writes, reads, inplace = [], [], []
    for i in index:
        op = graph.ops[i]
        writes.append([values.setdefault(name, len(values)) for name in op.writes])
        found = [values[root[name]] for name in _read(graph, view, op) if root.get(name) in values]
        reads.append(list(dict.fromkeys(found)))
        inplace.append(_takeover(graph, op, root, values))
    names = list(values)
    kept = set(graph.outputs)
    seconds = [costs.seconds.get(graph.ops[i].name, 0.0) for i in index]
    step_of = {i: step for step, i in enumerate(index)}
    for contracted, source in view.items():
        if source is not None:
            seconds[step_of[source]] += costs.seconds.get(graph.ops[contracted].name, 0.0)
    shapes = {root[name] for i in view for name in graph.ops[i].reads[1:]}
    sizes = [0 if name in shapes else graph.tensors[name].bytes for name in names]
    problem = OneDevice(
        cost=np.asarray(seconds, np.float64),
        work=np.asarray([costs.scratch.get(graph.ops[i].name, 0) for i in index], np.int64),
        reads=Rows.of(reads),
        writes=Rows.of(writes),
        size=np.asarray(sizes, np.int64),
        keep=np.asarray([name in kept for name in names], np.bool_),
        inplace=Rows.of(inplace),
        recompute=np.asarray([may_recompute(graph.ops[i]) for i in index], np.bool_),
        fixed=graph.weight_bytes if weight_bytes is None else weight_bytes,
    ).problem()
    return Reduced(problem, graph, index, view)


def _views(graph: Graph, computed: bool) -> dict[int, int | None]:
    """Alias ops that can be contracted, with the op that makes the value they show."""
    made, outputs = graph.producer, set(graph.outputs)
    view: dict[int, int | None] = {}
    for index, op in enumerate(graph.ops):
        if not is_alias(op) or op.outputs[0] in outputs:
            continue
        if not computed and any(name in made for name in op.inputs[1:] if name):
            continue
        source = made.get(op.inputs[0])
        view[index] = view.get(source, source) if source is not None else None
        if source in view and view[source] is None:
            view[index] = None
    return view


def _read(graph: Graph, view: Mapping[int, int | None], op: Op) -> Iterator[str]:
    """What an op reads, and the computed shapes of the views among that."""
    for name in op.reads:
        yield name
        index = graph.producer.get(name, -1)
        if index in view:
            yield from _read(graph, view, graph.ops[index])


def _roots(graph: Graph, view: dict[int, int | None]) -> dict[str, str]:
    """Tensor to the tensor whose buffer it is (itself for most)."""
    root = {name: name for name, t in graph.tensors.items()}
    for index in sorted(view):
        op = graph.ops[index]
        root[op.outputs[0]] = root[op.inputs[0]]
    return root


def _takeover(graph: Graph, op: Op, root: dict[str, str], values: dict[str, int]) -> list[int]:
    out = graph.tensors[op.outputs[0]] if op.outputs and op.outputs[0] else None
    if out is None or out.role is Role.OUTPUT:
        return []
    positions = [i for i in takeover_inputs(op) if op.inputs[i]]
    if is_alias(op):  # not contracted: takes over its input when that dies
        positions = [0]
    found = []
    for position in positions:
        tensor = graph.tensors[op.inputs[position]]
        home = root[tensor.name]
        same = tensor.shape == out.shape or is_alias(op)
        fits = same and tensor.bytes == out.bytes and home in values
        if fits and graph.tensors[home].role is not Role.OUTPUT:
            found.append(values[home])
    return found
