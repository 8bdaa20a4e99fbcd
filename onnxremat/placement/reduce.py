"""Exact reductions: each only joins classes that some best placement has on one device anyway."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np

from onnxremat.placement.classes import Classes


class Union:
    """Disjoint sets of classes."""

    def __init__(self, count: int) -> None:
        self.to = list(range(count))
        self.changed = False

    def find(self, v: int) -> int:
        """The representative of v."""
        while self.to[v] != v:
            self.to[v] = self.to[self.to[v]]
            v = self.to[v]
        return v

    def join(self, u: int, v: int) -> None:
        """u and v are one from now on."""
        a, b = self.find(u), self.find(v)
        if a != b:
            self.to[a] = b
            self.changed = True

    def homes(self) -> list[int]:
        """The representative of each."""
        return [self.find(v) for v in range(len(self.to))]


def free_ends(c: Classes, *, weightless: bool = False) -> Classes:
    """Classes that cost nothing, with one neighbour m in the precedence (or none) and m in all of
    their nets, go where m goes.

    Exact: moved there, such a class cuts no net that was whole, and makes no circle, for a class
    with one neighbour lies on no path between others. Left alone where its bytes could matter: it
    has some, and all classes together do not fit one accelerator.

    Args:
        weightless: forget the bytes of such classes instead: what is proven of the answer holds of
            ``c`` too, but a placement of it may take more bytes.
    """
    fits = weightless or float(c.size.sum()) <= c.graph.memory
    while True:
        beside: list[set[int]] = [set(row) for row in c.before]
        for v, row in enumerate(c.before):
            for u in row:
                beside[u].add(v)
        common: list[set[int] | None] = [None] * c.count
        for pins in c.nets:
            for v in pins:
                known = common[v]
                common[v] = set(pins) if known is None else known & set(pins)
        to, busy = list(range(c.count)), set[int]()
        free = ~c.acc.any(1) & ~c.cpu.any(1) & c.supported & (fits | (c.size == 0))
        for v in np.flatnonzero(free).tolist():
            if v in busy or len(beside[v]) > 1:
                continue
            shared = common[v]
            options = set(beside[v]) if shared is None else shared - {v}
            options = options & beside[v] if beside[v] else options
            options = {m for m in options if m not in busy}
            if options:
                to[v] = min(options)
                busy |= {v, to[v]}
        if not busy:
            return c
        if weightless:
            c = replace(c, size=np.where(np.arange(c.count) == to, c.size, 0.0))
        c = c.joined(to)


def inseparable(c: Classes, upper: float) -> Classes:
    """Join pairs that no placement with a max-load below ``upper`` keeps apart.

    On an accelerator without its neighbour v, u costs at least its compute and all nets of both.
    """
    cpus = c.graph.cpus
    while True:
        weight: dict[tuple[int, int], float] = {}
        for pins, cost in zip(c.nets, c.weight.tolist(), strict=True):
            for pair in combinations(pins, 2):
                weight[pair] = weight.get(pair, 0.0) + cost
        acc, cpu = np.where(c.supported, c.load, np.inf).tolist(), c.slow.tolist()
        union = Union(c.count)
        for (u, v), cost in weight.items():
            ways = [max(acc[u], acc[v]) + cost]
            if cpus >= 1:
                ways += [max(cpu[u], acc[v] + cost), max(cpu[v], acc[u] + cost)]
            if cpus >= 2:
                ways.append(max(cpu[u], cpu[v]))
            if min(ways) >= upper:
                union.join(u, v)
        if not union.changed:
            return c
        c = c.joined(union.homes())
