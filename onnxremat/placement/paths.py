"""A bound for latency from one path and many least cuts.

Fix a path P from a source to a sink. A piece is convex, so it holds one stretch of P; the pieces
that meet P run one after the other, and so do the CPU nodes of P. So no placement is quicker than
the least, over all ways to cut P into stretches (one piece each) and single CPU nodes, of

    sum of cut(stretch) + sum of cpu(node),
    cut(i..j) = min { load(D) : D holds P[i..j], and neither P[i-1] nor P[j+1] },

a least cut, infinite where the classes of the stretch are too many bytes or not supported, or where
one of them has nodes of P inside and outside the stretch. With q slots per accelerator a class may
be spread over slots of one: then stretches with classes of several nodes cost their nodes on P.
"""

from __future__ import annotations

from math import inf

import numpy as np

from onnxremat.placement.answer import Work
from onnxremat.placement.classes import Classes, condense
from onnxremat.placement.graph import PlacementGraph, topological
from onnxremat.placement.parting import LoadCuts
from onnxremat.planner.problem import Floats

SURE = 1e-9  # relative: what rounding may take from a bound


def longest(graph: PlacementGraph, weight: Floats, edge: Floats) -> list[int]:
    """The heaviest path by node weights, and weights of the outputs along it."""
    best, came = weight.copy(), [-1] * graph.count
    for v in topological(graph.inputs, graph.readers):
        for u in graph.inputs[v]:
            value = best[u] + edge[u] + weight[v]
            if value > best[v]:
                best[v], came[v] = value, u
    v = int(np.argmax(best))
    path = [v]
    while came[v] >= 0:
        v = came[v]
        path.append(v)
    return path[::-1]


def bound(graph: PlacementGraph, slots: int, upper: float, work: Work) -> float:
    """The best bound of some paths.

    Args:
        slots: pieces per accelerator.
        upper: bounds above it are of no use.
    """
    c = condense(graph, chain=False)
    least = LoadCuts(c)
    none = np.zeros(graph.count)
    found, seen = 0.0, set[tuple[int, ...]]()
    size = graph.size * (float(graph.cpu.sum()) / max(1.0, float(graph.size.sum())))
    for weight, edge in (
        (graph.acc, graph.out),
        (graph.acc, none),
        (graph.cpu, none),
        (size, none),
    ):
        path = longest(graph, weight, edge)
        if tuple(path) in seen or not work.left or found >= upper:
            continue
        seen.add(tuple(path))
        found = max(found, _Path(c, path, slots, least).bound(upper, work))
    return found


class _Path:
    def __init__(self, c: Classes, path: list[int], slots: int, least: LoadCuts) -> None:
        self.c, self.path, self.slots, self.least = c, path, slots, least
        self.classes = [int(c.of[v]) for v in path]
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        for i, g in enumerate(self.classes):
            self.first.setdefault(g, i)
            self.last[g] = i
        members = np.bincount(c.of, minlength=c.count)
        self.whole = members == 1 if slots > 1 else np.ones(c.count, np.bool_)

    def bound(self, upper: float, work: Work) -> float:
        """The least way to cut the path up."""
        graph, n = self.c.graph, len(self.path)
        most = min(n, self.slots * graph.accelerators)
        best = np.full((most + 1, n + 1), inf)
        best[0, 0] = 0.0
        for i, v in enumerate(self.path):
            best[:, i + 1] = np.minimum(
                best[:, i + 1], best[:, i] + (graph.cpu[v] if graph.cpus else inf)
            )
            floor = float(best[:, i].min())
            if floor >= upper:
                continue
            for j, cost in self._stretches(i, upper - floor, work):
                best[1:, j + 1] = np.minimum(best[1:, j + 1], best[:-1, i] + cost)
        return float(best[:, n].min()) * (1 - SURE)

    def _stretches(self, i: int, enough: float, work: Work) -> list[tuple[int, float]]:
        """(last place, cost) of the stretches from place i on that cost less than ``enough``."""
        c, graph = self.c, self.c.graph
        found: list[tuple[int, float]] = []
        held: set[int] = set()
        size = compute = 0.0
        for j in range(i, len(self.path)):
            g, v = self.classes[j], self.path[j]
            if not graph.supported[v]:
                break
            if self.slots == 1 and (self.first[g] < i or not c.supported[g]):
                break
            if g not in held or self.slots > 1:
                alone = self.slots > 1 and not self.whole[g]
                size += float(graph.size[v] if alone else c.size[g])
                compute += float(graph.acc[v] if alone else c.load[g])
            held.add(g)
            if size > graph.memory or compute >= enough:
                break
            if self.slots == 1 and any(self.last[h] > j for h in held):
                continue
            found.append((j, max(compute, self._cut(held, i, j, enough, work))))
        return found

    def _cut(self, held: set[int], i: int, j: int, enough: float, work: Work) -> float:
        if not work.left or not all(self.whole[g] for g in held):
            return 0.0
        refused = {self.classes[i - 1]} if i else set()
        if j + 1 < len(self.path):
            refused.add(self.classes[j + 1])
        return self.least.least(held, refused - held, enough)
