"""A bound for chains of devices on graphs with too many ideals: where a path can be cut.

Let s_1, ..., s_n be a path (the *spine*). An ideal is at place p where it holds s_1 ... s_p and no
more of it. All that comes before these is in it then, and nothing that comes after the others is;
so the work it holds (of :mod:`onnxremat.placement.balance`) is within known limits, and a net with
a pin in the former and one in the latter is cut. Two borders of an accelerator cut different nets
where none of these nets can be cut at both places, and the accelerator pays for both.

So a chain of devices of largest load T is a way through places and amounts of work, on which an
accelerator adds at most T less what it pays of work, a CPU at most T over the ratio. More work at a
place is never worse for the rest of the way, so the most that devices can have done at each place
tells whether there is a way; T is found by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onnxremat.graph.topological import first_come
from onnxremat.placement.balance import Balance, balance
from onnxremat.placement.classes import Classes
from onnxremat.placement.graph import Index
from onnxremat.planner.problem import Floats

STEPS = 20  # of the bisection
SHORT = 0.25  # nets over more of a device's load than this are not counted
SLACK = 1e-9  # of all work
MOST_CELLS = 40_000_000  # pairs of places times numbers of devices


def spine_bound(c: Classes, value: float) -> float:
    """A bound of the largest load of chains of devices, between that of balance and ``value``."""
    graph = c.graph
    found = balance(c.load, c.slow, c.supported, graph.accelerators, graph.cpus)
    spine = _Spine(c, found)
    low, high = found.bound, value
    cells = spine.places**2 * (graph.accelerators + 1) * (graph.cpus + 1)
    if cells > MOST_CELLS or not low < high:
        return min(low, value)
    for _ in range(STEPS):
        middle = (low + high) / 2
        if spine.allows(middle):
            high = middle
        else:
            low = middle
    return low


def _heaviest_path(c: Classes, order: list[int], work: Floats) -> list[int]:
    """The path of most work, from its first class to its last."""
    total, back = work.copy(), np.full(c.count, -1, np.int64)
    for v in order:
        for u in c.before[v]:
            if total[u] + work[v] > total[v]:
                total[v], back[v] = total[u] + work[v], u
    path = [int(np.argmax(total))]
    while back[path[-1]] >= 0:
        path.append(int(back[path[-1]]))
    return path[::-1]


@dataclass(frozen=True, eq=False)
class _Spine:
    """Places 0 to n of the heaviest path."""

    c: Classes
    balance: Balance

    @cached_property
    def order(self) -> list[int]:
        """Classes, each after those before it."""
        return first_come(self.c.before, self.c.after)

    @cached_property
    def path(self) -> list[int]:
        """Classes of the spine."""
        return _heaviest_path(self.c, self.order, self.balance.work)

    @property
    def places(self) -> int:
        """How many there are."""
        return len(self.path) + 1

    @cached_property
    def inside(self) -> Index:
        """The first place at which each class must be in an ideal; n + 1 for never."""
        found = np.full(self.c.count, self.places, np.int64)
        found[self.path] = np.arange(1, self.places)
        for v in reversed(self.order):
            for u in self.c.before[v]:
                found[u] = min(found[u], found[v])
        return found

    @cached_property
    def outside(self) -> Index:
        """The first place at which each class may be in an ideal."""
        found = np.zeros(self.c.count, np.int64)
        found[self.path] = np.arange(1, self.places)
        for v in self.order:
            for u in self.c.before[v]:
                found[v] = max(found[v], found[u])
        return found

    @cached_property
    def least(self) -> Floats:
        """Work of an ideal at each place, at least."""
        held = np.bincount(self.inside, self.balance.work, self.places + 1)
        return np.asarray(np.cumsum(held)[: self.places], np.float64)

    @cached_property
    def most(self) -> Floats:
        """Work of an ideal at each place, at most."""
        held = np.bincount(self.outside, self.balance.work, self.places + 1)
        return np.asarray(np.cumsum(held)[: self.places], np.float64)

    @cached_property
    def pays(self) -> Floats:
        """What an accelerator from place p to place q pays at least, (places, places)."""
        n, c = self.places, self.c
        cut, reach = np.zeros(n), np.arange(n)
        for pins, weight in zip(c.nets, c.weight.tolist(), strict=True):
            rows = list(pins)
            inside, outside = self.inside[rows], self.outside[rows]
            low, high = int(outside.min()), min(int(inside.max()) - 1, n - 1)
            if high < low or self.most[high] - self.least[low] > SHORT * self.balance.bound:
                continue
            reach[low : high + 1] = np.maximum(reach[low : high + 1], high)
            cut[int(inside.min()) : int(outside.max())] += weight
        apart = np.arange(n)[None, :] > reach[:, None]
        return np.where(apart, cut[:, None] + cut[None, :], 0.0)

    def allows(self, value: float) -> bool:
        """Whether there may be a chain of devices of load at most ``value``."""
        graph, n = self.c.graph, self.places
        slack = SLACK * float(self.balance.work.sum())
        onward = np.arange(n)[None, :] >= np.arange(n)[:, None]
        adds = np.where(onward, np.maximum(value - self.pays, 0.0), -np.inf)
        adds_cpu = np.where(onward, value / self.balance.ratio, -np.inf)
        done = np.full((graph.accelerators + 1, graph.cpus + 1, n), -np.inf)
        done[0, 0, 0] = 0.0
        for a in range(graph.accelerators + 1):
            for b in range(graph.cpus + 1):
                here = done[a, b]
                if a:
                    here = np.maximum(here, (done[a - 1, b][:, None] + adds).max(axis=0))
                if b:
                    here = np.maximum(here, (done[a, b - 1][:, None] + adds_cpu).max(axis=0))
                here = np.minimum(here, self.most)
                done[a, b] = np.where(here >= self.least - slack, here, -np.inf)
        return bool(done[-1, -1, -1] >= self.most[-1] - slack)
