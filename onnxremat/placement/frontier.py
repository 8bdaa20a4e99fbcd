"""An order of classes with a narrow frontier, and the states along it: what dynamic programs over
two sides of classes walk over, a set and the rest."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from onnxremat.placement.classes import Classes
from onnxremat.placement.graph import Index
from onnxremat.placement.kernels.pricing import Layers
from onnxremat.planner.problem import Floats

Kind = TypeVar("Kind", bound=np.generic)
# Source, target, whether the class is in the set, load of the set and of the rest.
Entry: TypeAlias = tuple[int, int, int, float, float]

NONE, ALL, SOME = 0, 1, 2  # of the decided pins of a net are in the set
MOST_STATES = 4096  # of one layer
STARTS = 12


@dataclass(frozen=True, eq=False)
class Sides:
    """Classes that are dealt out to a set and the rest, in this order.

    Attributes:
        order: the classes.
        nets: of each of them, by number.
        pins: of each net, how many are among the classes.
        beyond: of each net, whether there are more: then a side pays it that has any of them, else
            both do when each has some.
        load, rest: of each class, to the set and to the rest; ``inf`` where it may not be there.
        weight: of each net, to the set and to the rest, shape (m, 2).
    """

    order: list[int]
    nets: list[list[int]]
    pins: list[int]
    beyond: list[bool]
    load: list[float]
    rest: list[float]
    weight: list[tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Frontier:
    """Layers of states for the classes of a problem of two sides.

    Attributes:
        order: class of each layer.
        layers: loads not yet filled in.
        added, rest: load that each transition adds to the set and to the rest, in the time of the
            graph.
    """

    order: Index
    layers: Layers
    added: Floats
    rest: Floats

    @property
    def states(self) -> int:
        """Of all layers together."""
        return int(self.layers.states.sum())

    def at_scale(self, units_per_time: float, *, nearest: bool = False) -> Layers:
        """The layers with loads in whole units, rounded down or to the nearest; what is too much is
        cut off."""
        units = (np.rint if nearest else np.floor)(self.added * units_per_time)
        return self.layers._replace(load=np.minimum(units, 2**30).astype(np.int32))

    def gains(self, prices: Floats) -> Floats:
        """Of each transition, where a class in the set has its price; ``prices`` by class."""
        of = np.repeat(self.order, np.diff(self.layers.first))
        return np.where(self.layers.take > 0, prices[of], 0.0)


def frontier(c: Classes) -> Frontier | None:
    """The states of one set of classes; None where they are too many."""
    return states(_alone(c, narrow(c)))


def narrow(c: Classes) -> list[int]:
    """The order with the narrowest frontier of some."""
    touching, load = _nets(c), c.load
    starts = sorted(range(c.count), key=lambda v: (len(touching[v]), -load[v]))[:STARTS]
    return min(
        (_narrow(c, start) for start in starts), key=lambda found: found[1], default=([], 0.0)
    )[0]


def _alone(c: Classes, order: list[int]) -> Sides:
    """A set that pays what it cuts, and a rest that pays nothing."""
    touching = _nets(c)
    load = np.where(c.supported, c.load, np.inf).tolist()
    return Sides(
        order, [touching[v] for v in order], [len(pins) for pins in c.nets], [False] * len(c.nets),
        [load[v] for v in order], [0.0] * len(order), [(w, 0.0) for w in c.weight.tolist()],
    )  # fmt: skip


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


def states(sides: Sides, most: float = inf) -> Frontier | None:
    """The states along the order; None where they are more than ``most`` in all, or too many in one
    layer."""
    left = list(sides.pins)
    opened: list[int] = []
    now: dict[tuple[int, ...], int] = {(): 0}
    rows: list[list[Entry]] = []
    counts = [1]
    for v, here in enumerate(sides.nets):
        for e in here:
            left[e] -= 1
        known = set(opened)
        row_nets = opened + [e for e in here if e not in known]
        kept = [i for i, e in enumerate(row_nets) if left[e] > 0]
        at = {e: i for i, e in enumerate(row_nets)}
        touched = [(at[e], sides.beyond[e], sides.weight[e]) for e in here]
        fresh = (-1,) * (len(row_nets) - len(opened))
        after: dict[tuple[int, ...], int] = {}
        row: list[Entry] = []
        for state, source in now.items():
            for take, own in ((0, sides.rest[v]), (1, sides.load[v])):
                if own < inf:
                    key, load, rest = _dealt(state + fresh, kept, touched, take)
                    target = after.setdefault(key, len(after))
                    load, rest = (load + own, rest) if take else (load, rest + own)
                    row.append((source, target, take, load, rest))
        entered = np.bincount([entry[1] for entry in row]) if row else np.asarray([256])
        if len(after) > MOST_STATES or entered.max() > 255 or sum(counts) > most:
            return None
        rows.append(sorted(row, key=lambda entry: entry[1]))
        counts.append(len(after))
        now, opened = after, [row_nets[i] for i in kept]
    return _packed(sides.order, rows, counts)


def _dealt(
    state: tuple[int, ...],
    kept: list[int],
    touched: list[tuple[int, bool, tuple[float, float]]],
    take: int,
) -> tuple[tuple[int, ...], float, float]:
    """The state after one more class, by the nets that are still open then, and what its nets cost
    the set and the rest."""
    next_, load, rest = list(state), 0.0, 0.0
    side = ALL if take else NONE
    for i, beyond, (to_set, to_rest) in touched:
        was = next_[i]
        if was in (SOME, side):
            continue
        next_[i] = side if was < 0 else SOME
        if beyond:  # the side that is new to it pays
            load, rest = (load + to_set, rest) if take else (load, rest + to_rest)
        elif was >= 0:
            load, rest = load + to_set, rest + to_rest
    return tuple([next_[i] for i in kept]), load, rest


def _packed(order: list[int], rows: list[list[Entry]], counts: list[int]) -> Frontier:
    flat = [entry for row in rows for entry in row]

    def column(i: int, kind: type[Kind]) -> NDArray[Kind]:
        return np.asarray([entry[i] for entry in flat]).astype(kind)

    first = np.cumsum([0, *(len(row) for row in rows)])
    target, place = column(1, np.int32), np.arange(len(flat))
    begins = np.isin(place, first[:-1]) | (np.diff(target, prepend=-1) != 0)
    number = place - np.maximum.accumulate(np.where(begins, place, 0))
    shelf = np.cumsum([0, *counts])[:-1]
    layers = Layers(
        first.astype(np.int64), column(0, np.int32), target, column(2, np.uint8),
        np.zeros(len(flat), np.int32), number.astype(np.uint8), np.asarray(counts, np.int64),
        shelf.astype(np.int64),
    )  # fmt: skip
    return Frontier(
        np.asarray(order, np.int64), layers, column(3, np.float64), column(4, np.float64)
    )
