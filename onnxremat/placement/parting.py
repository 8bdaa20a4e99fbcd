"""Joining classes that no better placement keeps apart, by least cuts.

``load(D)`` is submodular, so the least load of an accelerator that holds u and not v is a least
cut. Where every way to part u and v costs the value at hand, they are one class.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np

from onnxremat.placement.answer import Work
from onnxremat.placement.classes import Classes, packed
from onnxremat.placement.kernels import cuts
from onnxremat.placement.reduce import Union, inseparable

TINY = 1e-11  # of the sum of all capacities: no room at all


class LoadCuts:
    """Least loads of accelerators that hold some classes and refuse others.

    A net has two vertices: every pin in the set pulls its first one in, the second one pulls in
    every pin, and the arc between them costs the net: paid unless all pins are in the set.
    """

    def __init__(self, c: Classes) -> None:
        n, m = c.count, len(c.nets)
        self.source, self.sink = n + 2 * m, n + 2 * m + 1
        arcs: list[tuple[int, int, float]] = [
            (v, self.sink, time) for v, time in enumerate(c.load.tolist())
        ]
        self.into = len(arcs)
        arcs += [(self.source, v, 0.0) for v in range(n)]
        self.total = float(c.load.sum() + 2 * c.weight.sum()) + 1e-300
        never = 4 * self.total
        for e, (pins, weight) in enumerate(zip(c.nets, c.weight.tolist(), strict=True)):
            a, b = n + e, n + m + e
            arcs.append((a, b, weight))
            for v in pins:
                arcs += [(v, a, never), (b, v, never)]
        self.never = never
        self.room = np.zeros(2 * len(arcs))
        self.room[::2] = [room for _, _, room in arcs]
        head = np.zeros(2 * len(arcs), np.int64)
        rows: list[list[int]] = [[] for _ in range(n + 2 * m + 2)]
        for i, (tail, to, _) in enumerate(arcs):
            head[2 * i], head[2 * i + 1] = to, tail
            rows[tail].append(2 * i)
            rows[to].append(2 * i + 1)
        first, arc = packed(rows)
        self.count = len(rows)
        self.network = cuts.Network(
            first, arc, head, self.room.copy(),
            *(np.zeros(self.count + 1, np.int64) for _ in range(4)),
        )  # fmt: skip

    def least(self, hold: Iterable[int], refuse: Iterable[int], enough: float) -> float:
        """The least load of an accelerator that holds and refuses such classes, or some value of at
        least ``enough`` that is not above it."""
        g = self.network
        g.room[:] = self.room
        for v in hold:
            g.room[2 * (self.into + v)] = self.never
        for v in refuse:
            g.room[2 * v] = self.never
        return float(
            cuts.least_cut(g, self.source, self.sink, min(enough, self.never), TINY * self.total)
        )


def part(c: Classes, upper: float, work: Work) -> Classes:
    """Join every pair of neighbours that no placement with a max-load below ``upper`` parts.

    Ends early, with what was joined so far, when time is up.
    """
    while work.left:
        c = inseparable(c, upper)
        union = Union(c.count)
        least = LoadCuts(c)
        pairs = sorted({pair for pins in c.nets for pair in combinations(pins, 2)})
        for u, v in pairs:
            if not work.left:
                break
            if union.find(u) != union.find(v) and _bound(c, least, u, v, upper) >= upper:
                union.join(u, v)
        if not union.changed:
            return c
        c = c.joined(union.homes())
    return c


def _bound(c: Classes, least: LoadCuts, u: int, v: int, upper: float) -> float:
    """No placement that parts u and v has a smaller max-load; stops at the first way below."""
    known: dict[tuple[int, int], float] = {}

    def alone(a: int, b: int) -> float:
        """Least load of an accelerator with a and without b."""
        if (a, b) not in known:
            known[a, b] = least.least([a], [b], upper) if c.supported[a] else np.inf
        return known[a, b]

    slow = c.slow
    ways = [np.inf]
    if c.graph.cpus >= 2:
        ways.append(max(slow[u], slow[v]))
    if c.graph.cpus and min(ways) >= upper:
        for a, b in ((u, v), (v, u)):
            if slow[a] < upper and alone(b, a) < upper:
                return 0.0
    if min(ways) < upper:
        return 0.0
    for a, b in ((u, v), (v, u)):
        if alone(a, b) >= upper:
            return upper
    return 0.0
