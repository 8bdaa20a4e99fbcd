"""An order of classes with a narrow frontier, and the states along it: what pricing walks over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from onnxremat.placement.classes import Classes
from onnxremat.placement.graph import Index
from onnxremat.placement.kernels.pricing import Layers
from onnxremat.planner.problem import Floats

Kind = TypeVar("Kind", bound=np.generic)

NONE, ALL, SOME = 0, 1, 2  # of the decided pins of a net are in the set
MOST_STATES = 4096  # of one layer
STARTS = 12


@dataclass(frozen=True, eq=False)
class Frontier:
    """Layers of states for the classes that may be on an accelerator.

    Attributes:
        order: class of each layer.
        layers: loads not yet filled in.
        added: load that each transition adds, in the time of the graph.
    """

    order: Index
    layers: Layers
    added: Floats

    @property
    def states(self) -> int:
        """Of all layers together."""
        return int(self.layers.states.sum())

    def at_scale(self, units_per_time: float) -> Layers:
        """The layers with loads in whole units, rounded down; what is too much is cut off."""
        units = np.floor(self.added * units_per_time)
        return self.layers._replace(load=np.minimum(units, 2**30).astype(np.int32))


def frontier(c: Classes) -> Frontier | None:
    """The narrowest of some orders; None where all are too wide."""
    best: list[int] | None = None
    least = np.inf
    weight = c.load
    starts = sorted(range(c.count), key=lambda v: (len(_nets(c)[v]), -weight[v]))[:STARTS]
    for start in starts:
        order, width = _narrow(c, start)
        if width < least:
            best, least = order, width
    return None if best is None else _layers(c, best)


def _nets(c: Classes) -> list[list[int]]:
    at, of = c.touching
    return [of[at[v] : at[v + 1]].tolist() for v in range(c.count)]


def _narrow(c: Classes, start: int) -> tuple[list[int], float]:
    """An order that next takes the class that leaves the fewest nets open; and the sum over layers
    of 2 to the power of open nets."""
    touching = _nets(c)
    left = [len(pins) for pins in c.nets]
    opened = [False] * len(c.nets)
    order: list[int] = []
    taken = [False] * c.count
    edge: dict[int, int] = {start: 0}
    count, width, clock = 0, 0.0, 0
    while len(order) < c.count:
        if not edge:
            edge[next(v for v in range(c.count) if not taken[v])] = clock

        def change(v: int) -> tuple[int, int]:
            more = sum(1 for e in touching[v] if not opened[e] and left[e] > 1)
            less = sum(1 for e in touching[v] if opened[e] and left[e] == 1)
            return more - less, edge[v]

        v = min(edge, key=change)
        del edge[v]
        taken[v] = True
        order.append(v)
        for e in touching[v]:
            left[e] -= 1
            if left[e] == 0:
                count -= opened[e]
            elif not opened[e]:
                opened[e] = True
                count += 1
            for w in c.nets[e]:
                if not taken[w] and w not in edge:
                    clock += 1
                    edge[w] = clock
        width += 2.0 ** min(count, 60)
    return order, width


def _layers(c: Classes, order: list[int]) -> Frontier | None:
    touching, weight, acc = _nets(c), c.weight.tolist(), c.load.tolist()
    left = [len(pins) for pins in c.nets]
    opened: list[int] = []
    states: dict[tuple[int, ...], int] = {(): 0}
    rows: list[list[tuple[int, int, int, float, int]]] = []
    counts = [1]
    for v in order:
        here = touching[v]
        for e in here:
            left[e] -= 1
        known = set(opened)
        row_nets = opened + [e for e in here if e not in known]
        kept = [i for i, e in enumerate(row_nets) if left[e] > 0]
        touched = [i for i, e in enumerate(row_nets) if e in set(here)]
        after: dict[tuple[int, ...], int] = {}
        entered: dict[int, int] = {}
        row = []
        for state, source in states.items():
            for take in (0, 1) if c.supported[v] else (0,):
                next_, paid = list(state) + [-1] * (len(row_nets) - len(opened)), 0.0
                for i in touched:
                    if next_[i] < 0:
                        next_[i] = ALL if take else NONE
                    elif next_[i] != SOME and (next_[i] == ALL) != bool(take):
                        next_[i] = SOME
                        paid += weight[row_nets[i]]
                key = tuple(next_[i] for i in kept)
                target = after.setdefault(key, len(after))
                number = entered.get(target, 0)
                entered[target] = number + 1
                row.append((source, target, take, paid + (acc[v] if take else 0.0), number))
        if len(after) > MOST_STATES or max(entered.values()) > 255:
            return None
        rows.append(sorted(row, key=lambda entry: entry[1]))
        counts.append(len(after))
        states, opened = after, [row_nets[i] for i in kept]
    return _packed(order, rows, counts)


def _packed(
    order: list[int], rows: list[list[tuple[int, int, int, float, int]]], counts: list[int]
) -> Frontier:
    flat = [entry for row in rows for entry in row]

    def column(i: int, kind: type[Kind]) -> NDArray[Kind]:
        return np.asarray([entry[i] for entry in flat]).astype(kind)

    first = np.cumsum([0] + [len(row) for row in rows])
    shelf = np.cumsum([0, *counts])[:-1]
    layers = Layers(
        first.astype(np.int64), column(0, np.int32), column(1, np.int32), column(2, np.uint8),
        np.zeros(len(flat), np.int32), column(4, np.uint8), np.asarray(counts, np.int64),
        shelf.astype(np.int64),
    )  # fmt: skip
    return Frontier(np.asarray(order, np.int64), layers, np.asarray([entry[3] for entry in flat]))
