"""Bounds for latency from paths and many least cuts.

Fix a path P from a source to a sink. A piece is convex, so it holds one stretch of P; the pieces
that meet P run one after the other, and so do the CPU nodes of P. So no placement is quicker than
the least, over all ways to cut P into stretches (one piece each) and single CPU nodes, of

    sum of cut(stretch) + sum of cpu(node),
    cut(i..j) = min { load(D) : D holds P[i..j], and neither P[i-1] nor P[j+1] },

a least cut, infinite where the classes of the stretch are too many bytes or not supported, or where
one of them has nodes of P inside and outside the stretch. With q slots per accelerator a class may
be spread over slots of one: then every node is a class of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from onnxremat.graph.topological import first_come
from onnxremat.placement.answer import Work
from onnxremat.placement.classes import Classes, condense
from onnxremat.placement.graph import PlacementGraph
from onnxremat.placement.parting import LoadCuts
from onnxremat.planner.problem import Floats

SURE = 1e-9  # relative: what rounding may take from a bound
MOST = 12  # paths


@dataclass(frozen=True, eq=False)
class Tail:
    """A path and the least time that it takes from each place on.

    Attributes:
        path: nodes.
        least: by slots that are left and place, shape (slots + 1, length + 1).
    """

    path: list[int]
    least: Floats

    @property
    def bound(self) -> float:
        """Of the whole path."""
        return float(self.least[-1, 0])


def tails(graph: PlacementGraph, slots: int, upper: float, work: Work) -> list[Tail]:
    """Several paths, until one proves ``upper`` or time is up; at least one.

    Args:
        slots: pieces per accelerator.
        upper: times that no placement below it has are of no use.
    """
    c = condense(graph if slots == 1 else graph.uncoloured(), chain=False)
    least = LoadCuts(c)
    found: list[Tail] = []
    for path in _paths(graph):
        if found and (not work.left or found[-1].bound >= upper):
            break
        found.append(_Path(c, path, slots, least).tail(upper, work))
    return found


def bound(graph: PlacementGraph, slots: int, upper: float, work: Work) -> float:
    """The best bound of some paths."""
    return max(tail.bound for tail in tails(graph, slots, upper, work))


def _paths(graph: PlacementGraph) -> Iterator[list[int]]:
    """The heaviest paths by several weights, then by time through nodes that are on none yet."""
    none = np.zeros(graph.count)
    size = graph.size * (float(graph.cpu.sum()) / max(1.0, float(graph.size.sum())))
    seen = set[tuple[int, ...]]()
    for weight, edge in (
        (graph.acc, graph.out),
        (graph.acc, none),
        (graph.cpu, none),
        (size, none),
    ):
        path = _Heaviest(graph, weight, edge).through(None)
        if tuple(path) not in seen:
            seen.add(tuple(path))
            yield path
    heaviest = _Heaviest(graph, graph.acc, graph.out)
    left = graph.acc > 0
    for path_ in seen:
        left[list(path_)] = False
    while left.any() and len(seen) < MOST:
        path = heaviest.through(int(np.argmax(np.where(left, heaviest.total, -1.0))))
        left[path] = False
        seen.add(tuple(path))
        yield path


class _Heaviest:
    """Heaviest paths by weights of nodes, and of the outputs along them."""

    def __init__(self, graph: PlacementGraph, weight: Floats, edge: Floats) -> None:
        order = first_come(graph.inputs, graph.readers)
        to, self.came = weight.copy(), [-1] * graph.count
        for v in order:
            for u in graph.inputs[v]:
                if to[u] + edge[u] + weight[v] > to[v]:
                    to[v], self.came[v] = to[u] + edge[u] + weight[v], u
        rest, self.goes = weight.copy(), [-1] * graph.count
        for u in reversed(order):
            for v in graph.readers[u]:
                if rest[v] + edge[u] + weight[u] > rest[u]:
                    rest[u], self.goes[u] = rest[v] + edge[u] + weight[u], v
        self.total = to + rest - weight  # of the heaviest path through each node

    def through(self, node: int | None) -> list[int]:
        """The heaviest path through a node, or of all."""
        path = [int(np.argmax(self.total)) if node is None else node]
        while self.came[path[0]] >= 0:
            path.insert(0, self.came[path[0]])
        while self.goes[path[-1]] >= 0:
            path.append(self.goes[path[-1]])
        return path


class _Path:
    def __init__(self, c: Classes, path: list[int], slots: int, least: LoadCuts) -> None:
        self.c, self.path, self.slots, self.least = c, path, slots, least
        self.classes = [int(c.of[v]) for v in path]
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        for i, g in enumerate(self.classes):
            self.first.setdefault(g, i)
            self.last[g] = i

    def tail(self, upper: float, work: Work) -> Tail:
        """The least ways to cut up what is left of the path, from each place on."""
        graph, n = self.c.graph, len(self.path)
        slow = graph.cpu if graph.cpus else np.full(graph.count, inf)
        quick = np.minimum(np.where(graph.supported, graph.acc, inf), slow)[self.path]
        before = np.concatenate(([0.0], np.cumsum(quick)))  # any way to a place takes this
        most = min(n, self.slots * graph.accelerators)
        least = np.full((most + 1, n + 1), inf)
        least[:, n] = 0.0
        for i in range(n - 1, -1, -1):
            least[:, i] = least[:, i + 1] + slow[self.path[i]]
            for j, cost in self._stretches(i, upper - before[i], work):
                least[1:, i] = np.minimum(least[1:, i], cost + least[:-1, j + 1])
        return Tail(self.path, least * (1 - SURE))

    def _stretches(self, i: int, enough: float, work: Work) -> list[tuple[int, float]]:
        """(last place, cost) of the stretches from place i on that cost less than ``enough``."""
        c, graph = self.c, self.c.graph
        found: list[tuple[int, float]] = []
        held: set[int] = set()
        size = compute = 0.0
        for j in range(i, len(self.path)):
            g = self.classes[j]
            if self.first[g] < i or not c.supported[g]:
                break
            if g not in held:
                size += float(c.size[g])
                compute += float(c.load[g])
            held.add(g)
            if size > graph.memory or compute >= enough:
                break
            if any(self.last[h] > j for h in held):
                continue
            found.append((j, max(compute, self._cut(held, i, j, enough, work))))
        return found

    def _cut(self, held: set[int], i: int, j: int, enough: float, work: Work) -> float:
        if not work.left:
            return 0.0
        refused = {self.classes[i - 1]} if i else set()
        if j + 1 < len(self.path):
            refused.add(self.classes[j + 1])
        return self.least.least(held, refused - held, enough)
