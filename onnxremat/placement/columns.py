"""Bounds for placements of any shape: can sets of load at most T cover all classes?

For a value T let prices be any numbers p >= 0 on the classes, and z the most that a set of load at
most T is priced on an accelerator. If a placement has a max-load of at most T, its k accelerators
hold sets of price at most z each; and with any m >= 0 and p <= m cpu (for classes that a CPU can
run within T) its l CPUs hold at most m T each. So sum(p) <= k z + l m T, and prices with more prove
that no placement has a max-load of T. The best prices are the dual of the linear program that
covers the classes by such sets (column generation, Gilmore and Gomory 1961), found by cutting
planes, one row ``p(D) <= 1`` per set, between the best prices so far and the relaxation's (in-out
separation, Ben-Ameur and Neto 2007). Sets are priced exactly over a narrow frontier of classes
(:mod:`onnxremat.placement.frontier`), with loads rounded down to units: z is never too small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from onnxremat.placement.answer import SAME, Work
from onnxremat.placement.balance import balance
from onnxremat.placement.classes import Classes
from onnxremat.placement.completion import assembled, priced_sets
from onnxremat.placement.frontier import Frontier, frontier
from onnxremat.placement.graph import Flags, Index
from onnxremat.placement.kernels import pricing
from onnxremat.planner.model import Model
from onnxremat.planner.problem import Floats
from onnxremat.planner.solvers import Relaxation
from onnxremat.planner.solvers.base import Limits

SURE = 1e-7  # relative: prices that prove by less do not
BUDGET = 1.5e8  # loads times transitions of one pricing
MEMORY = 4e8  # bytes of the transitions that are kept
FINEST, COARSEST = 1 << 18, 512  # units of a load
FINER = 8.0  # units per class of a set, in the gap that is looked at
GAPS = (0.05, 0.02, 0.01, 0.005, 0.002, 1e-3, 5e-4, 2e-4, 1e-4, 2e-5, 5e-6)  # tried in turn
FINE = 1e-4  # of the value: nearer than this no value is tried
SETS, APART, NEAR = 10, 400, 0.97  # sets of one pricing: how many, how far apart, how good
CLOSE = 0.002  # prices and the linear program, in sets, before sets are listed
ROWS = 40  # listed sets that become rows at once
WORTH = 0.5  # sets of a lower price than this are too many to list
HALF = 0.5  # between the prices at hand and those of the relaxation


class Pricing:
    """Sets of most price within a load.

    Args:
        gap: share of a load that is to be told apart: rounding takes some part of it.
    """

    def __init__(self, c: Classes, front: Frontier, gap: float) -> None:
        self.c, self.front = c, front
        most = min(BUDGET / max(1, len(front.added)), MEMORY / max(1, front.states), FINEST)
        wanted = FINER * c.count / (c.graph.accelerators + 1) / gap
        self.units = int(max(COARSEST, min(wanted, most)))
        widest = int(front.layers.states.max())
        self.room = pricing.Room(
            np.zeros((2, widest, self.units + 1)), np.zeros((2, widest), np.int64),
            np.zeros((front.states + 1) * (self.units + 1), np.uint8),
        )  # fmt: skip

    def best(self, prices: Floats, most: float) -> tuple[float, list[Flags]]:
        """The highest price of a set of load at most ``most`` (never too low); the classes of that
        set, then of the best ones of some other loads."""
        layers = self.front.at_scale(self.units / most)
        half = pricing.fill(layers, np.ascontiguousarray(prices[self.front.order]), self.room)
        found = self.room.profit[half, 0]
        width = max(1, self.units // APART)
        blocks = np.pad(found, (0, -len(found) % width), constant_values=-inf).reshape(-1, width)
        loads = np.arange(len(blocks)) * width + blocks.argmax(1)
        values = blocks.max(1)
        chosen = [i for i in np.argsort(-values)[:SETS] if values[i] >= NEAR * values.max()]
        return float(values.max()), [self._set(layers, int(loads[i])) for i in chosen]

    def _set(self, layers: pricing.Layers, load: int) -> Flags:
        flags = np.zeros(self.c.count, np.uint8)
        pricing.trace(layers, self.room, load, flags)
        inside = np.zeros(self.c.count, np.bool_)
        inside[self.front.order] = flags > 0
        return inside


class Cover:
    """The search for prices, and the sets that it met.

    Args:
        c: classes; precedence is not regarded.
        sets: device per class of known placements, whose sets are a start.
    """

    def __init__(self, c: Classes, front: Frontier, known: list[Index]) -> None:
        self.c, self.front = c, front
        self.sets: list[Flags] = []
        self.loads: list[float] = []
        for where in known:
            for d in range(c.graph.accelerators):
                if (where == d).any():
                    self._add(where == d)
        self.prices: Floats | None = None
        self.last: tuple[Floats, float] | None = None  # the best of the last call, and its proof

    def _add(self, inside: Flags) -> None:
        self.sets.append(inside)
        self.loads.append(set_load(self.c, inside))

    def refutes(
        self, most: float, gap: float, work: Work, close: float = inf, *, exact: bool = False
    ) -> bool | None:
        """Whether no placement has a max-load of at most ``most``: True when proven, False when the
        linear program has a solution, None when time was up.

        Args:
            gap: share of ``most`` that rounding may take some part of.
            close: before False, go on until prices are this near the linear program's value.
            exact: with loads as they are. Rounded down they may make room for sets that are over
                ``most`` by less than rounding; those are listed and left out. None, too, where they
                are too many.
        """
        c, graph = self.c, self.c.graph
        k, pricing = float(graph.accelerators), Pricing(c, self.front, gap)
        duals = _Duals(c, most)
        for inside, load in zip(self.sets, self.loads, strict=True):
            if load <= most:
                duals.row(inside)
        prices = self._start(most) if self.prices is None else self.prices
        best, step = -inf, 0.0  # the prices at hand first
        while work.left:
            if not duals.relaxation.solve(Limits(seconds=work.left, stop=work.stop)):
                return None
            out = duals.prices()
            value = duals.value(out)
            if value <= k * (1 + SURE) and value - best <= close:
                return False
            asked = prices + step * (out - prices)
            highest, sets = pricing.best(asked, most)
            if exact:
                enough = duals.value(asked) / (k * (1 + 2 * SURE))  # this highest price would prove
                highest, sets = self._as_they_are(asked, most, min(highest, enough), highest, work)
                if not sets and step == 1.0 and highest > enough:
                    return None
            for inside in sets:
                self._add(inside)
                duals.row(inside)
            proof = duals.value(asked) / max(highest, 1e-300)
            if proof > k * (1 + SURE):
                self.prices = asked
                return True
            if proof > best:
                best, prices = proof, asked / max(highest, 1e-300)
                self.last = prices, best
            cuts = any(out @ inside > 1 + SURE for inside in sets)
            step = HALF if step == 0.0 or cuts else 1.0
        return None

    def _as_they_are(
        self, prices: Floats, most: float, least: float, highest: float, work: Work
    ) -> tuple[float, list[Flags]]:
        """The highest price of a set of load at most ``most`` if it is ``least`` or more, else
        ``least``; and the highest priced of such sets. ``highest``, and none, where sets are too
        many."""
        listed = priced_sets(self.front, prices, most, least, work)
        if listed is None:
            return highest, []
        kept = [inside for inside in listed if set_load(self.c, inside) <= most]
        kept.sort(key=lambda inside: -float(prices @ inside))
        return max([least, *(float(prices @ inside) for inside in kept[:1])]), kept[:ROWS]

    def _start(self, most: float) -> Floats:
        c, graph = self.c, self.c.graph
        found = balance(c.load, c.slow, c.supported, graph.accelerators, graph.cpus)
        return found.work / most


class _Duals:
    """Prices: maximise sum(p) - l m, with p <= m cpu / T and p(D) <= 1 for the sets met."""

    def __init__(self, c: Classes, most: float) -> None:
        graph = c.graph
        self.cpus = graph.cpus
        slow = c.slow / most
        self.within = (slow <= 1) & (graph.cpus > 0)
        self.slow = slow
        model = Model("prices")
        ceiling = 2.0 * graph.accelerators + 2.0
        for _ in range(c.count):
            model.column(0.0, ceiling, -1.0)
        model.column(0.0, inf, float(graph.cpus))
        for v in np.flatnonzero(self.within).tolist():
            model.row([(v, 1.0), (c.count, -float(slow[v]))], upper=0.0)
        self.model, self.count = model, c.count
        self.relaxation = Relaxation(model)

    def row(self, inside: Flags) -> None:
        self.model.row([(v, 1.0) for v in np.flatnonzero(inside).tolist()], upper=1.0)

    def prices(self) -> Floats:
        """Of the relaxation's last solution."""
        return self.relaxation.point[: self.count].copy()

    def value(self, prices: Floats) -> float:
        """sum(p) - l m for the best m: that where CPUs, filled in the order of p / cpu, are full.

        Prices above m cpu are lowered to it, which breaks no row."""
        if not self.cpus:
            return float(prices.sum())
        p, slow = prices[self.within], self.slow[self.within]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(slow > 0, p / slow, inf)
        order = np.argsort(-ratio)
        filled = np.cumsum(slow[order])
        whole = filled <= self.cpus
        held = float(p[order][whole].sum())
        rest = np.flatnonzero(~whole)
        if rest.size:
            i = order[rest[0]]
            before = float(filled[rest[0]] - slow[i])
            held += float(p[i] / slow[i]) * (self.cpus - before)
        return float(prices.sum()) - held


def set_load(c: Classes, inside: Flags) -> float:
    """Load of an accelerator with these classes."""
    load = float(c.load[inside].sum())
    if not c.nets:
        return load
    start, pins = c.pins
    held = np.add.reduceat(inside[pins].astype(np.int64), start[:-1])
    return load + float(c.weight[(held > 0) & (held < np.diff(start))].sum())


@dataclass(frozen=True, eq=False)
class Raised:
    """A bound, who proved it ("" for the one there was), a better placement that turned up (a
    device per class) or None, and whether more time would not raise it further."""

    bound: float
    by: str
    better: Index | None = None
    ended: bool = False


def raise_bound(c: Classes, value: float, floor: float, known: list[Index], work: Work) -> Raised:
    """A bound between ``floor`` and ``value``: values are tried from below, then by bisection,
    until it is within the work's gap; near the value, all sets of a better placement are listed.

    Args:
        known: placements (device per class) whose sets are a start.
    """
    front = frontier(c)
    if front is None or not c.graph.accelerators:
        return Raised(floor, "", None, True)
    cover, enough = Cover(c, front, known), value * (1 - max(work.gap, SAME))
    targets = [value * (1 - gap) for gap in GAPS]
    state = _climb(cover, Raised(floor, "", None, True), targets, value, work)
    if not state.ended or state.bound >= enough:
        return state
    if cover.refutes(value * (1 - SAME / 2), FINE, work, exact=True):
        return Raised(value, "column generation, loads not rounded", None, True)
    done, better = complete(cover, value, work)
    if done and better is None:
        return Raised(value, "column generation, all sets listed", None, True)
    return replace(state, better=better)


def _climb(cover: Cover, state: Raised, targets: list[float], value: float, work: Work) -> Raised:
    """The highest bound among some targets, then between the last that holds and the first that
    does not."""
    low, by, high = state.bound, state.by, value
    targets = [target for target in targets if target > low]
    while low < value * (1 - work.gap) and (targets or value > high > low + FINE * value):
        target = targets.pop(0) if targets else (low + high) / 2
        refuted = cover.refutes(target, 1 - target / value, work)
        if refuted is None:
            return Raised(low, by)
        if refuted:
            low, by = target, "column generation"
            work.progress(value, low, "columns")
        else:
            high, targets = target, []
    return Raised(low, by, None, True)


def complete(cover: Cover, value: float, work: Work) -> tuple[bool, Index | None]:
    """Whether it is decided if a placement is better than ``value``, and one that is.

    Tried where the linear program, at that value, is nearly as good as no better placement."""
    c, most = cover.c, value * (1 - SAME / 2)
    refuted = cover.refutes(most, CLOSE, work, CLOSE)
    if refuted:
        return True, None
    k = c.graph.accelerators
    if refuted is None or cover.last is None or cover.last[1] <= k - 1 + WORTH:
        return False, None
    prices, proof = cover.last
    sets = priced_sets(cover.front, prices, most, proof - (k - 1), work)
    if sets is None:
        return False, None
    fits = [
        inside
        for inside in sets
        if set_load(c, inside) <= most and float(c.size[inside].sum()) <= c.graph.memory
    ]
    return assembled(c, fits, most, work)
