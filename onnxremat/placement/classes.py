"""The problem as solvers see it: classes that share a device, and nets.

A *class* is a set of nodes that share a device. A *net* is the output of a node (or of several with
the same readers): its pins are the classes of the node and of its readers. An accelerator with the
classes D pays the compute of D and every net that is *cut by D*, with some pins in D and some not.
All sums are pairs, (forward, backward).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onnxremat.placement.circles import components
from onnxremat.placement.graph import Flags, Index, PlacementGraph
from onnxremat.planner.problem import Floats

Packed = tuple[Index, Index]


@dataclass(frozen=True, eq=False)
class Classes:
    """c classes with their nets.

    Attributes:
        of: class of each node of the graph, shape (n,).
        acc, cpu: time on one accelerator and on one CPU, shape (c, 2).
        size: bytes in the graph's unit, shape (c,).
        supported: every node may run on an accelerator, shape (c,).
        before: classes each must not precede on the way from device to device.
        nets: pins of each net, ascending, at least two, all nets different.
        cost: of each net, shape (m, 2).
    """

    graph: PlacementGraph
    of: Index
    acc: Floats
    cpu: Floats
    size: Floats
    supported: Flags
    before: tuple[frozenset[int], ...]
    nets: tuple[tuple[int, ...], ...]
    cost: Floats

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.size)

    @cached_property
    def after(self) -> list[list[int]]:
        """Classes that come after each."""
        rows: list[list[int]] = [[] for _ in range(self.count)]
        for v, earlier in enumerate(self.before):
            for u in earlier:
                rows[u].append(v)
        return rows

    @cached_property
    def pins(self) -> Packed:
        """Nets as compressed rows."""
        return packed(self.nets)

    @cached_property
    def touching(self) -> Packed:
        """Nets of each class, as compressed rows."""
        rows: list[list[int]] = [[] for _ in range(self.count)]
        for e, pins in enumerate(self.nets):
            for v in pins:
                rows[v].append(e)
        return packed(rows)

    @cached_property
    def predecessors(self) -> Packed:
        """``before`` as compressed rows."""
        return packed([sorted(row) for row in self.before])

    @property
    def load(self) -> Floats:
        """Time on one accelerator, both passes, shape (c,)."""
        return np.asarray(self.acc.sum(1))

    @property
    def slow(self) -> Floats:
        """Time on one CPU, both passes, shape (c,)."""
        return np.asarray(self.cpu.sum(1))

    @property
    def weight(self) -> Floats:
        """Cost of each net, both passes, shape (m,)."""
        return np.asarray(self.cost.sum(1))

    def nodes(self, where: Sequence[int] | Index) -> Index:
        """A device per node from a device per class."""
        return np.asarray(where, np.int64)[self.of]

    def joined(self, to: Sequence[int]) -> Classes:
        """Classes united: ``to`` is a representative for each. Those that then depend on each other
        in a circle are united too."""
        after: list[set[int]] = [set() for _ in range(self.count)]
        for v, earlier in enumerate(self.before):
            for u in earlier:
                if to[u] != to[v]:
                    after[to[u]].add(to[v])
        home = components(after)
        united = [home[t] for t in to]
        return _grouped(self, united)


def packed(rows: Iterable[Iterable[int]]) -> Packed:
    """Compressed rows: row i is ``index[start[i]:start[i + 1]]``; never without an entry."""
    start, flat = [0], []
    for row in rows:
        flat += list(row)
        start.append(len(flat))
    return np.asarray(start, np.int64), np.asarray(flat or [0], np.int64)


def turned_round(graph: PlacementGraph) -> bool:
    """Whether classes of backward nodes only take part in the precedence of chains."""
    forward = np.zeros(len(graph.labels), np.bool_)
    forward[graph.colour[~graph.backward]] = True
    first, second = graph.colour[graph.tail], graph.colour[graph.head]
    back = graph.backward[graph.tail] & graph.backward[graph.head]
    return bool((back & (first != second) & ~(forward[first] & forward[second])).any())


def condense(graph: PlacementGraph, *, chain: bool) -> Classes:
    """One class per colour.

    Args:
        chain: for chains of devices: classes that depend on each other in a circle are one, and a
            class of backward nodes only takes part in the precedence by its backward edges, turned
            round. Else there is no precedence.
    """
    n = len(graph.labels)
    after: list[set[int]] = [set() for _ in range(n)]
    if chain:
        forward = np.zeros(n, np.bool_)
        forward[graph.colour[~graph.backward]] = True
        for u, v in zip(graph.tail.tolist(), graph.head.tolist(), strict=True):
            a, b = int(graph.colour[u]), int(graph.colour[v])
            if a == b:
                continue
            if not graph.backward[u] and not graph.backward[v]:
                after[a].add(b)
            elif graph.backward[u] and graph.backward[v] and not (forward[a] and forward[b]):
                after[b].add(a)
    before: list[set[int]] = [set() for _ in range(n)]
    for u, later in enumerate(after):
        for v in later:
            before[v].add(u)
    pins: dict[tuple[int, ...], list[float]] = {}
    for u, readers in enumerate(graph.readers):
        row = tuple(sorted({int(graph.colour[v]) for v in (u, *readers)}))
        if len(row) > 1 and graph.out[u] > 0:
            pins.setdefault(row, [0.0, 0.0])[int(graph.backward[u])] += float(graph.out[u])
    lacking = np.bincount(graph.colour, weights=~graph.supported, minlength=n)
    whole = Classes(
        graph, graph.colour, _sums(graph, graph.acc, n), _sums(graph, graph.cpu, n),
        np.bincount(graph.colour, graph.size, n).astype(np.float64), lacking == 0,
        tuple(frozenset(row) for row in before), tuple(pins),
        np.asarray(list(pins.values())).reshape(-1, 2),
    )  # fmt: skip
    return _grouped(whole, components(after)) if chain else whole


def _sums(graph: PlacementGraph, times: Floats, n: int) -> Floats:
    parts = [
        np.bincount(graph.colour, times * here, n) for here in (~graph.backward, graph.backward)
    ]
    return np.stack(parts, 1)


def _grouped(c: Classes, home: Sequence[int]) -> Classes:
    """Classes by the representative of each."""
    number = {name: i for i, name in enumerate(sorted(set(home)))}
    if len(number) == c.count:
        return c
    new = np.asarray([number[name] for name in home], np.int64)
    count = len(number)
    before: list[set[int]] = [set() for _ in range(count)]
    for v, earlier in enumerate(c.before):
        before[new[v]].update(int(new[u]) for u in earlier if new[u] != new[v])
    nets: dict[tuple[int, ...], list[float]] = {}
    for pins, (first, second) in zip(c.nets, c.cost.tolist(), strict=True):
        row = tuple(sorted({int(new[v]) for v in pins}))
        if len(row) > 1:
            cost = nets.setdefault(row, [0.0, 0.0])
            cost[0] += first
            cost[1] += second

    def total(values: Floats) -> Floats:
        return np.stack([np.bincount(new, values[:, part], count) for part in (0, 1)], 1)

    size = np.bincount(new, c.size, count).astype(np.float64)
    return Classes(
        c.graph, new[c.of], total(c.acc), total(c.cpu), size,
        np.bincount(new, ~c.supported, count) == 0, tuple(frozenset(row) for row in before),
        tuple(nets), np.asarray(list(nets.values())).reshape(-1, 2),
    )  # fmt: skip


def loads(c: Classes, where: Sequence[int] | Index) -> Floats:
    """(forward, backward) time of each device under a device per class, by nets; shape (D, 2)."""
    graph = c.graph
    found = np.zeros((graph.devices, 2))
    for v, d in enumerate(where):
        found[d] += c.acc[v] if d < graph.accelerators else c.cpu[v]
    for pins, cost in zip(c.nets, c.cost, strict=True):
        touched = {int(where[v]) for v in pins}
        if len(touched) > 1:
            for d in touched:
                if d < graph.accelerators:
                    found[d] += cost
    return found
