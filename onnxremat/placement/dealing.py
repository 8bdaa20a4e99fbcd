"""The classes of two devices dealt out anew, as well as it can be done: a search for placements of
any shape.

With everything else in its place, the loads of two devices are a matter of their classes alone. A
dynamic program over these, in an order with a narrow frontier, finds for every load of the first
device the least load of the second (:mod:`onnxremat.placement.frontier`); of these pairs the one
that makes the two as small as can be is taken. Pair after pair, until none gets better: a large
neighbourhood that is searched whole (Ahuja et al. 2002), where moves of single classes and clusters
stop early. Then some classes are moved at random, and all is dealt out again.
"""

from __future__ import annotations

from itertools import combinations
from math import inf

import numpy as np

from onnxremat.placement.annealing import Annealing
from onnxremat.placement.answer import Work
from onnxremat.placement.frontier import Frontier, Sides, narrow, states
from onnxremat.placement.graph import Index
from onnxremat.placement.kernels import pricing
from onnxremat.planner.problem import Floats

UNITS = (1_000, 8_000)  # of a load: first all pairs with few of them
NORMS = (32.0, 128.0)  # how much the larger of two loads counts more, in turn
TRIED = 12  # pairs of loads that are looked at as they are
SPREAD = 0.02  # weight of the sum of both loads beside the larger
KICK, HEAT = 300, 0.003  # moves between two rounds, and how warm
SLACK = 1e-9  # relative: a gain that is less is none
MOST_CLASSES = 1_500  # of a problem; where there are more, an order takes too long to find
MOST_STATES = 20_000  # of a pair, in all layers
MOST_CELLS = 1e8  # states times units

Pair = tuple[int, int]


class Dealing:
    """Pairs of devices of a problem, by its annealing, which keeps loads."""

    def __init__(self, annealing: Annealing) -> None:
        self.annealing, self.c = annealing, annealing.c
        c, graph = self.c, self.c.graph
        few = c.count <= MOST_CLASSES
        self.rank = np.empty(c.count, np.int64)
        self.rank[narrow(c) if few else range(c.count)] = np.arange(c.count)
        at, of = c.touching
        self.nets = [of[at[v] : at[v + 1]].tolist() for v in range(c.count)]
        pairs = combinations(range(graph.devices), 2)
        self.pairs = [pair for pair in pairs if few and pair[0] < graph.accelerators]
        self._fronts: dict[Pair, tuple[Index, Frontier | None]] = {}

    def improve(self, where: Index, work: Work, enough: float, kicks: int) -> tuple[float, Index]:
        """The best of so many rounds after the first one, until time is up or the value is
        ``enough``. ``where`` keeps all limits, and so does what is found."""
        best, value, start = where, self.annealing.value(where), where
        for turn in range(kicks + 1):
            for norm in NORMS:
                start = self._dealt_out(start, norm, work)
                found = self.annealing.value(start)
                if found < value * (1 - SLACK):
                    value, best = found, start
                    work.progress(value, enough, "dealing")
            if turn == kicks or value <= enough or not work.left:
                break
            self.annealing.round(best, KICK, HEAT)
            start = self.annealing.state.where.copy()
        return value, best

    def _dealt_out(self, where: Index, norm: float, work: Work) -> Index:
        """Deal pairs out anew, that of the largest loads first, until none gets better."""
        load = self._loads(where)
        level = dict.fromkeys(self.pairs, 0)
        while level and work.left:
            pair = min(level, key=lambda p: (level[p], -max(load[list(p)]), -sum(load[list(p)])))
            units = level.pop(pair)
            found = self.dealt(where, pair, norm, UNITS[units])
            if found is not None:
                where, load = found, self._loads(found)
                level |= {other: 0 for other in self.pairs if set(other) & set(pair)}
            elif units + 1 < len(UNITS):
                level[pair] = units + 1
        return where

    def _loads(self, where: Index) -> Floats:
        self.annealing.value(where)
        return np.asarray(self.annealing.state.load.sum(1))

    def dealt(self, where: Index, pair: Pair, norm: float, units: int) -> Index | None:
        """The best way to deal out the classes of a pair; None where none is better than what is
        there, or states are too many."""
        load = self._loads(where)
        both = np.flatnonzero((where == pair[0]) | (where == pair[1]))
        both = both[np.argsort(self.rank[both])]
        front = self._front(pair, both)
        scale = float(load.max())
        if front is None or not scale:
            return None
        first, second = load[list(pair)]
        least, best = float(energy(first / scale, second / scale, norm)) * (1 - SLACK), None
        for inside in _sets(front, scale, norm, units):
            tried = where.copy()
            tried[both] = pair[1]
            tried[both[inside]] = pair[0]
            first, second = self._loads(tried)[list(pair)]
            total = float(energy(first / scale, second / scale, norm))
            if max(first, second) <= scale and total < least and self._fits(tried, pair):
                least, best = total, tried
        return best

    def _fits(self, where: Index, pair: Pair) -> bool:
        graph, size = self.c.graph, self.c.size
        accelerators = [d for d in pair if d < graph.accelerators]
        return all(float(size[where == d].sum()) <= graph.memory for d in accelerators)

    def _front(self, pair: Pair, both: Index) -> Frontier | None:
        known = self._fronts.get(pair)
        if known is None or not np.array_equal(known[0], both):
            known = both, states(self._sides(both, pair[1]), MOST_STATES) if both.size else None
            self._fronts[pair] = known
        return known[1]

    def _sides(self, both: Index, second: int) -> Sides:
        """An accelerator, and a second device that pays for what it cuts if it is one too."""
        c, cpu = self.c, second >= self.c.graph.accelerators
        number: dict[int, int] = {}
        rows = [[number.setdefault(e, len(number)) for e in self.nets[v]] for v in both.tolist()]
        nets = list(number)
        held = np.asarray([e for row in rows for e in row], np.int64)
        pins = np.bincount(held, minlength=len(nets)).tolist()
        beyond = [len(c.nets[e]) > count for e, count in zip(nets, pins, strict=True)]
        own = np.where(c.supported, c.load, inf)
        return Sides(
            both.tolist(), rows, pins, beyond,
            own[both].tolist(), (c.slow if cpu else own)[both].tolist(),
            [(w, 0.0 if cpu else w) for w in c.weight[nets].tolist()],
        )  # fmt: skip


def energy(first: Floats, second: Floats, norm: float) -> Floats:
    """What is to be small of two loads, as shares of the largest of all."""
    return np.asarray((first**norm + second**norm) ** (1 / norm) + SPREAD * (first + second))


def _sets(front: Frontier, most: float, norm: float, units: int) -> list[Index]:
    """Classes of the first device, as places in the order, of the best pairs of loads: up to
    rounding, and to ``most`` for the first."""
    units = int(min(units, MOST_CELLS / front.states))
    layers = front.at_scale(units / most, nearest=True)
    widest = int(front.layers.states.max())
    room = pricing.Room(
        np.zeros((2, widest, units + 1)), np.zeros((2, widest), np.int64),
        np.zeros((front.states + 1) * (units + 1), np.uint8),
    )  # fmt: skip
    half = pricing.fill(layers, -front.rest, room)
    second = -room.profit[half, 0] / most
    can = np.flatnonzero(second <= 1)  # no load of the second device that is above all there is
    total = energy(can / units, second[can], norm)
    found = []
    for load in can[np.argsort(total, kind="stable")[:TRIED]].tolist():
        inside = np.zeros(len(front.order), np.uint8)
        pricing.trace(layers, room, load, inside)
        found.append(np.flatnonzero(inside))
    return found
