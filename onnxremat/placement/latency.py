"""Latency of one sample where accelerators are called: annealing over slots, bounds and proofs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from onnxremat.errors import InfeasibleError
from onnxremat.placement import contiguous, labels, limits, paths
from onnxremat.placement.answer import SAME, Answer, Work
from onnxremat.placement.calls import forward_only
from onnxremat.placement.classes import Classes, condense, packed
from onnxremat.placement.contiguous import depth_first
from onnxremat.placement.graph import Index, PlacementGraph
from onnxremat.placement.kernels import slots as kernel
from onnxremat.placement.program import packing
from onnxremat.placement.rounds import Found, Rounds
from onnxremat.planner.problem import Floats
from onnxremat.planner.search.compiled import generator

ROUNDS = Rounds(heats=(0.05, 0.015, 0.004), most=500_000)
COLD = 1e-5
CPU = -1
METHOD, PATHS = "annealing", "paths and least cuts"
FIRST, PROOF = 0.06, 0.9  # shares of the time: of the first annealing, and of what is then left


class Slots:
    """Placements of nodes in slots, q per accelerator; slot -1 is a CPU core of the node's own."""

    def __init__(self, graph: PlacementGraph, q: int, seed: int = 0) -> None:
        self.graph, self.q = graph, q
        c = condense(graph, chain=False)
        self.c = c
        reader_at, reader = packed(graph.readers)
        input_at, inputs = packed(graph.inputs)
        members = graph.members
        n, slots = graph.count, graph.accelerators * q
        self.nodes = kernel.Nodes(
            graph.acc, cpu_times(graph), c.size, c.supported.astype(np.uint8), graph.out, reader_at,
            reader, input_at, inputs, c.of, members.start.astype(np.int64),
            members.index.astype(np.int64), np.asarray([graph.accelerators, q], np.int64),
            np.asarray([graph.memory]),
        )  # fmt: skip
        self.clock = kernel.Clock(
            np.full(n, CPU, np.int64), np.zeros(n), _ints(n), np.zeros(slots), _ints(slots),
            np.zeros(slots), _ints(slots), _ints(slots), _ints(n), _ints(n + slots),
            np.zeros(graph.accelerators), _ints(n), _ints(64), np.zeros(1), generator(seed + 1),
        )  # fmt: skip

    def value(self, where: Sequence[int] | Index) -> float:
        """Latency of a slot per node; ``inf`` where slots wait for each other."""
        self.clock.slot[:] = where
        return float(kernel.evaluate(self.nodes, self.clock))

    def fits(self, where: Index) -> bool:
        """Whether memory, support and colours are kept (nodes of a colour in one slot)."""
        graph, c = self.graph, self.c
        used = np.zeros(graph.accelerators)
        for g in range(c.count):
            here = {int(where[v]) for v in graph.members[g]}
            slot = next(iter(here))
            if len(here) > 1 or (slot >= 0 and not c.supported[g]):
                return False
            if slot >= 0:
                used[slot // self.q] += c.size[g]
        return bool((used <= graph.memory).all())

    def improve(self, starts: Sequence[Index], work: Work, enough: float) -> Found:
        """Rounds of annealing from starts, until time is up or latency is ``enough``."""
        pool = [(self.value(where), where) for where in starts if self.fits(where)]
        return ROUNDS.improve(pool, self._round, work, enough)

    def _round(self, base: tuple[float, Index], steps: int, heat: float) -> tuple[float, Index]:
        value, where = base
        t = self.clock
        t.slot[:] = where
        t.kept[:] = where
        t.best[0] = value
        hot = max(heat * value, 1e-300) if value < inf else 1.0
        kernel.anneal(self.nodes, t, steps, hot, min(hot, max(COLD * hot, 1e-301)))
        return float(t.best[0]), t.kept.copy()


def cpu_times(graph: PlacementGraph) -> Floats:
    """Time of each node on a CPU, infinite where there is none."""
    return graph.cpu if graph.cpus else np.full(graph.count, inf)


def _ints(count: int) -> Index:
    return np.zeros(max(1, count), np.int64)


def solve(graph: PlacementGraph, q: int, work: Work) -> Answer:
    """The least latency that is found with q pieces per accelerator, and what is proven.

    ``where`` of the answer has the accelerator of each node, or the first CPU for all nodes on
    CPUs, whose number is not limited.

    Raises:
        InfeasibleError: proven that nothing fits.
        UnsupportedError: the graph has backward nodes.
    """
    forward_only(graph)
    raw = condense(graph, chain=False)
    why = limits.reason(raw)
    if why:
        raise limits.refuse(graph, why)
    starts = _starts(graph, work)
    search = Slots(graph, 1, work.seed)
    starts = [s for s in starts if search.fits(s) and search.value(s) < inf]
    if not starts:
        packing(raw, work)  # may prove that there is none
        return Answer(METHOD, inf, 0.0, "", None, seconds=work.taken)
    found = _one_piece(search, starts, work if q == 1 else work.share(work.seconds / 2))
    if q > 1:
        found = _more_pieces(graph, q, found, work)
    where = np.where(found.slots < 0, graph.accelerators, found.slots // q)
    return Answer(
        METHOD, found.value, min(found.value, found.bound), found.by, where, seconds=work.taken,
        slots=found.slots, calls=q,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Timed:
    """A placement, a slot per node, its latency, and what is proven by whom."""

    value: float
    slots: Index
    bound: float
    by: str


def _one_piece(search: Slots, starts: Sequence[Index], work: Work) -> _Timed:
    """Annealing, bounds by paths, labels, and annealing again for the rest of the time."""
    graph = search.graph
    value, slots = search.improve(starts, work.share(work.seconds * FIRST), 0.0)
    tails = paths.tails(graph, 1, value, work.share(work.left / 2))
    bound, by = max(tail.bound for tail in tails), PATHS
    if work.left and not work.met(value, bound):
        proof = labels.prove(graph, tails, value, bound, work.share(work.left * PROOF))
        if proof.bound > bound:
            bound, by = proof.bound, "labels on all ideals"
        better = proof.slots
        if better is not None and search.fits(better) and search.value(better) < value:
            value, slots = search.value(better), better
    # Twice: a bound that has met the value lies below it by as much as is called the same.
    if work.left and not work.met(value, bound, 2 * SAME):
        value, slots = search.improve([slots], work, bound)
    return _Timed(value, slots, bound, by)


def _more_pieces(graph: PlacementGraph, q: int, one: _Timed, work: Work) -> _Timed:
    """The same placement, and better ones with q pieces per accelerator."""
    search, slots = Slots(graph, q, work.seed), np.where(one.slots < 0, CPU, one.slots * q)
    bound = paths.bound(graph, q, one.value, work.share(work.left / 2))
    value, slots = search.improve([slots], work, bound)
    return _Timed(value, slots, bound, PATHS)


def _starts(graph: PlacementGraph, work: Work) -> list[Index]:
    """A slot per node for q = 1: chains of stages, the chain of least load, all on CPUs."""
    found = [stages(graph)]
    if graph.cpus:
        found.append(np.full(graph.count, CPU, np.int64))
    try:
        chain = contiguous.solve(graph, work.share(work.seconds / 10))
    except InfeasibleError:
        return found
    if chain.where is not None:
        found.append(np.where(chain.where < graph.accelerators, chain.where, CPU))
    return found


def stages(graph: PlacementGraph) -> Index:
    """The best of one depth-first order of classes cut into stages: pieces on accelerators, each
    called after the last, and CPU classes between them. A slot per node."""
    c = condense(graph, chain=True)
    order = depth_first(c)
    n, k = c.count, min(graph.accelerators, c.count)
    best = np.full((k + 1, n + 1), inf)
    back = np.zeros((k + 1, n + 1), np.int64)  # start of the last piece; -1 for a CPU class
    best[0, 0] = 0.0
    for i in range(n):
        slow = best[:, i] + (c.slow[order[i]] if graph.cpus else inf)
        better = slow < best[:, i + 1]
        best[better, i + 1], back[better, i + 1] = slow[better], -1
        for j, load in _pieces(c, order, i):
            quick = best[:-1, i] + load  # one accelerator more
            better = np.concatenate(([False], quick < best[1:, j]))
            best[better, j], back[better, j] = quick[better[1:]], i
    a, at = int(np.argmin(best[:, n])), n
    slots = np.full(c.count, CPU, np.int64)
    while at and np.isfinite(best[a, at]):
        if back[a, at] < 0:
            at -= 1
            continue
        start = int(back[a, at])
        a -= 1
        slots[order[start:at]] = a
        at = start
    return c.nodes(slots)


def _pieces(c: Classes, order: list[int], start: int) -> Iterator[tuple[int, float]]:
    """(end, load) of the pieces of the order from ``start`` on that fit one accelerator."""
    at, of = c.touching
    inside: dict[int, int] = {}
    size = load = 0.0
    weight, acc = c.weight, c.load
    for j in range(start, len(order)):
        v = order[j]
        size += float(c.size[v])
        if size > c.graph.memory or not c.supported[v]:
            return
        load += float(acc[v])
        for e in of[at[v] : at[v + 1]].tolist():
            inside[e] = inside.get(e, 0) + 1
            load += float(weight[e]) * (inside[e] == 1)
            load -= float(weight[e]) * (inside[e] == len(c.nets[e]))
        yield j + 1, load
