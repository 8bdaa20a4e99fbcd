"""The least latency of one piece per accelerator, proven: labels on the ideals.

A placement is a way through the ideals of the classes, each step a piece on one accelerator more,
or a class on CPU cores; any order of its pieces and CPU classes that data can flow in will do. A
label of an ideal says when each output that is still to be read is there. A label that another one
beats in all of them is dropped (multiobjective shortest paths, Martins 1984), and so is one from
which some path (:mod:`onnxremat.placement.paths`) cannot end below the value that is tried. Values
are tried from below, so that there is a bound when time is up.

Classes without time that hang on one neighbour go where that is, and their bytes are forgotten: a
relaxation. A class with a node that others read and that does not wait for each of its nodes that
read others is refused: on CPUs it is no one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxremat.graph.topological import first_come
from onnxremat.placement.answer import SAME, Work
from onnxremat.placement.chains import all_ideals
from onnxremat.placement.classes import Classes, condense, packed
from onnxremat.placement.graph import Index, PlacementGraph
from onnxremat.placement.kernels import labels as kernel
from onnxremat.placement.paths import Tail
from onnxremat.placement.reduce import free_ends

MOST_IDEALS = 300_000
MOST_LABELS, MOST_TIMES = 4_000_000, 60_000_000
AT_ONCE = 1_000_000  # pairs between looks at the clock
STEPS = (0.25, 0.5, 0.75)  # between the bound and the value: what is tried first
CPU = -1


@dataclass(frozen=True, eq=False)
class Proof:
    """What was proven.

    Attributes:
        bound: no placement is quicker.
        slots: a slot per node of one that takes ``bound``, but perhaps more bytes than there are;
            None where no way below the value was found.
    """

    bound: float
    slots: Index | None = None


def prove(
    graph: PlacementGraph, tails: Sequence[Tail], value: float, bound: float, work: Work
) -> Proof:
    """A bound between ``bound`` and ``value``, or the least latency where that is below ``value``.

    Args:
        tails: of one slot per accelerator, for times below ``value``.
    """
    c = condense(graph, chain=True)
    if c.count < len(graph.labels) or not _at_once(graph, c):
        return Proof(bound)
    search = _Search.begin(graph, free_ends(c, weightless=True), tails, work)
    if search is None:
        return Proof(bound)
    enough = value * (1 - max(work.gap, SAME / 2))
    for target in (*(bound + step * (enough - bound) for step in STEPS), enough):
        if not search.below(target, work):
            return Proof(bound)
        found = search.found()
        if found is not None:
            return found
        bound = max(bound, target)
        work.progress(value, bound, "labels")
    return Proof(bound)


def _at_once(graph: PlacementGraph, c: Classes) -> bool:
    """In every class each node that others read waits for each node that reads others."""
    reach = [0] * graph.count
    for u in reversed(first_come(graph.inputs, graph.readers)):
        reach[u] = 1 << u
        for v in graph.readers[u]:
            reach[u] |= reach[v]
    for g, members in enumerate(_members(graph, c)):
        into = [v for v in members if any(c.of[u] != g for u in graph.inputs[v])]
        out = sum(1 << v for v in members if any(c.of[w] != g for w in graph.readers[v]))
        if any(reach[v] & out != out for v in into):
            return False
    return True


def _members(graph: PlacementGraph, c: Classes) -> list[list[int]]:
    """Nodes of each class, in the order data flows."""
    found: list[list[int]] = [[] for _ in range(c.count)]
    for v in first_come(graph.inputs, graph.readers):
        found[c.of[v]].append(v)
    return found


class _Search:
    """Tables of one graph; see :mod:`onnxremat.placement.kernels.labels`."""

    def __init__(self, g: kernel.Called, ideals: kernel.Ideals) -> None:
        self.g, self.ideals = g, ideals
        count, k = len(ideals.bits), g.tail.shape[1] - 1
        n, c, nets = len(g.of), len(g.size), len(g.weight)
        many, ints, times = MOST_LABELS, _ints, np.zeros
        self.pool = kernel.Pool(
            np.full((count, k + 1), -1, np.int32), np.zeros(many, np.int32),
            np.zeros(many, np.int32), np.zeros(many, np.int32), np.zeros(many, np.uint8),
            ints(many), times(MOST_TIMES), times(many), times(many), ints(3), times(1), ints(1),
        )  # fmt: skip
        deep = c + 2
        self.room = kernel.Room(
            times(n), np.zeros(c, np.uint8), np.zeros(nets, np.uint8), ints(nets), ints(count),
            ints(1), ints(deep), ints(deep), ints(deep), times(deep), times(n),
        )  # fmt: skip

    @classmethod
    def begin(
        cls, graph: PlacementGraph, c: Classes, tails: Sequence[Tail], work: Work
    ) -> _Search | None:
        """None where ideals are too many, or time is up."""
        grown = all_ideals(c, work, MOST_IDEALS)
        if grown is None:
            return None
        bits, first, child, added = grown
        g = _called(graph, c, tails)
        ideals = kernel.Ideals(
            bits, first, np.ascontiguousarray(child), np.ascontiguousarray(added),
            np.zeros(len(bits) + 1, np.int64), np.zeros(1, np.int32),
            np.zeros((len(bits), len(tails)), np.int32),
        )  # fmt: skip
        readers = packed(graph.readers)
        count = kernel.survey(ideals, g.of, g.path, *readers, False)
        ideals = ideals._replace(live=np.zeros(max(1, count), np.int32))
        kernel.survey(ideals, g.of, g.path, *readers, True)
        return cls(g, ideals)

    def below(self, target: float, work: Work) -> bool:
        """Look for the quickest way below a target; whether that was done to the end."""
        t, last = self.pool, len(self.ideals.bits) - 1
        t.head[:] = -1
        t.state[:] = (1, 0, 0)
        t.head[0, 0], t.next[0], t.back[0], t.ideal[0], t.at[0] = 0, -1, -1, 0, 0
        t.end[0] = t.sure[0] = 0.0
        t.best[0], t.found[0] = target, -1
        at = 0
        while 0 <= at < last and work.left:
            at = kernel.expand(self.g, self.ideals, t, self.room, at, AT_ONCE)
        return at == last

    def found(self) -> Proof | None:
        """The quickest way, where there is one below the target."""
        t, label = self.pool, int(self.pool.found[0])
        if label < 0:
            return None
        slots = np.full(len(self.g.size), CPU, np.int64)
        used = 0
        while t.back[label] >= 0:
            before = int(t.back[label])
            if t.kind[label] == kernel.PIECE:
                piece = self.ideals.bits[t.ideal[label]] & ~self.ideals.bits[t.ideal[before]]
                inside = np.unpackbits(piece.view(np.uint8), bitorder="little")[: len(slots)]
                slots[inside > 0] = used
                used += 1
            label = before
        return Proof(float(t.best[0]), slots[self.g.of])


def _ints(count: int) -> Index:
    return np.zeros(count, np.int64)


def _called(graph: PlacementGraph, c: Classes, tails: Sequence[Tail]) -> kernel.Called:
    members = _members(graph, c)
    feed = [
        sorted({u for v in row for u in graph.inputs[v] if c.of[u] != g})
        for g, row in enumerate(members)
    ]
    k, longest = graph.accelerators, max(len(tail.path) for tail in tails)
    path = np.full((len(tails), longest + 1), -1, np.int32)
    least = np.zeros((len(tails), k + 1, longest + 1))
    for p, tail in enumerate(tails):
        length = len(tail.path)
        path[p, :length] = tail.path
        rows = np.minimum(np.arange(k + 1), len(tail.least) - 1)  # more slots than places
        least[p, :, : length + 1] = tail.least[rows]
    net_at, net_of = c.touching
    return kernel.Called(
        c.load, c.size, c.supported.astype(np.uint8), c.weight,
        np.asarray([len(pins) for pins in c.nets], np.int64), net_at, net_of, *packed(feed),
        *packed(members), c.of.astype(np.int64), graph.cpu.astype(np.float64),
        *packed(graph.inputs), path, least, np.asarray([graph.memory, float(graph.cpus > 0)]),
    )  # fmt: skip
