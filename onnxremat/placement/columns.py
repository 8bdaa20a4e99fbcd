"""Bounds for placements of any shape: can sets of load at most T cover all classes?

For a value T let prices be any numbers p >= 0 on the classes, and z the most that a set of load at
most T is priced on an accelerator. If a placement has a max-load of at most T, its k accelerators
hold sets of price at most z each; and with any m >= 0 and p <= m cpu (for classes that a CPU can
run within T) its l CPUs hold at most m T each. So sum(p) <= k z + l m T, and prices with more prove
that no placement has a max-load of T. The best prices are the dual of the linear program that
covers the classes by such sets (column generation, Gilmore and Gomory 1961), found by cutting
planes, one row ``p(D) <= 1`` per set, in a box around the best prices so far that is widened where
it holds no better ones (Marsten, Hogan and Blankenship 1975). Sets are priced exactly over a narrow
frontier of classes (:mod:`onnxremat.placement.frontier`), with loads rounded down to units: z is
never too small. One pricing tells the highest price below every load, so that the same prices
prove some value even where they do not prove T. Between proofs, rows come from a pricing with few
units.
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
BUDGET = 2e8  # loads times transitions of one pricing
MEMORY = 4e8  # bytes of the transitions that are kept
FINEST, COARSEST = 1 << 18, 512  # units of a load
FINER = 8.0  # units per class of a set, in the gap that is looked at
GAPS = (0.05, 0.02, 0.01, 0.005, 0.002, 1e-3, 5e-4, 2e-4, 1e-4, 2e-5, 5e-6)  # tried in turn
FINE = 1e-4  # of the value: nearer than this no value is tried
SETS, APART, NEAR = 10, 400, 0.97  # sets of one pricing: how many, how far apart, how good
CLOSE = 0.002  # prices and the linear program, in sets, before sets are listed
ROWS = 40  # listed sets that become rows at once
WORTH = 0.5  # sets of a lower price than this are too many to list
ROUGH = 0.1  # gap of pricing between proofs
PROVEN = 10  # turns between proofs of what the prices at hand are worth
NARROW, NARROWEST, WIDER = 0.02, 0.002, 4.0  # half the width of a box, as a share of prices
PATIENCE = 20  # turns without a better proof after which a box is halved


class Pricing:
    """Sets of most price within a load.

    Args:
        gap: share of a load that is to be told apart: rounding takes some part of it.

    Attributes:
        units: of the load that is asked for.
        curve: of the last call, the highest price of a set of at most so many units.
    """

    def __init__(self, c: Classes, front: Frontier, gap: float) -> None:
        self.c, self.front = c, front
        most = min(BUDGET / max(1, len(front.added)), MEMORY / max(1, front.states), FINEST)
        wanted = FINER * c.count / (c.graph.accelerators + 1) / gap
        self.units = int(max(COARSEST, min(wanted, most)))
        self.curve = np.zeros(self.units + 1)
        widest = int(front.layers.states.max())
        self.room = pricing.Room(
            np.zeros((2, widest, self.units + 1)), np.zeros((2, widest), np.int64),
            np.zeros((front.states + 1) * (self.units + 1), np.uint8),
        )  # fmt: skip

    def best(self, prices: Floats, most: float) -> tuple[float, list[Flags]]:
        """The highest price of a set of load at most ``most`` (never too low); the classes of that
        set, then of the best ones of some other loads."""
        layers = self.front.at_scale(self.units / most)
        found = self._filled(layers, prices)
        return float(found.max()), self._sets(layers, found)

    def likely(self, prices: Floats, most: float) -> list[Flags]:
        """Sets of a high price whose load is at most ``most``, found with rounding."""
        layers = self.front.at_scale(self.units / most, nearest=True)
        sets = self._sets(layers, self._filled(layers, prices))
        return [inside for inside in sets if set_load(self.c, inside) <= most]

    def _filled(self, layers: pricing.Layers, prices: Floats) -> Floats:
        """The highest price of every load."""
        half = pricing.fill(layers, self.front.gains(prices), self.room)
        found = self.room.profit[half, 0]
        self.curve = np.maximum.accumulate(found)
        return found

    def _sets(self, layers: pricing.Layers, found: Floats) -> list[Flags]:
        width = max(1, self.units // APART)
        blocks = np.pad(found, (0, -len(found) % width), constant_values=-inf).reshape(-1, width)
        loads = np.arange(len(blocks)) * width + blocks.argmax(1)
        values = blocks.max(1)
        chosen = [i for i in np.argsort(-values)[:SETS] if values[i] >= NEAR * values.max()]
        return [self._set(layers, int(loads[i])) for i in chosen]

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
        self.proven = 0.0  # no placement has less

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
        enough = self.c.graph.accelerators * (1 + SURE)
        duals = _Duals(self.c, most)
        for inside, load in zip(self.sets, self.loads, strict=True):
            if load <= most:
                duals.row(inside)
        prices = self._start(most) if self.prices is None else self.prices
        highest = max((float(prices @ inside) for inside in self.sets), default=0.0)
        box = _Box(duals, prices / max(1.0, highest))
        rough, fine = Pricing(self.c, self.front, ROUGH), Pricing(self.c, self.front, gap)
        asked, best, turn, due = box.centre, -inf, 0, True  # the prices at hand first
        while work.left:
            rows = [] if due else rough.likely(asked, most)
            highest = max((float(asked @ inside) for inside in rows), default=0.0)
            if highest <= 1 + SURE or duals.value(asked) > enough * highest:
                highest, rows = self._priced(fine, asked, most, duals, work, exact=exact)
                proof = duals.value(asked) / max(highest, 1e-300)
                if proof > enough:
                    self.prices = asked
                    return True
                if not rows and turn:
                    return None
                if proof > best:
                    best, self.last = proof, (asked / max(highest, 1e-300), proof)
            for inside in rows:
                self._add(inside)
                duals.row(inside)
            box.saw(asked / max(highest, 1e-300), duals.value(asked) / max(highest, 1e-300), rows)
            while (solved := box.solve(work)) and box.value <= min(enough, best + close):
                if not box.widen():
                    return False
            if not solved:
                return None
            asked, turn = box.prices, turn + 1
            due = turn % PROVEN == 0
        return None

    def _priced(
        self, fine: Pricing, prices: Floats, most: float, duals: _Duals, work: Work, *, exact: bool
    ) -> tuple[float, list[Flags]]:
        """The highest price of a set, never too low, and sets of such a price. What the prices
        prove of lower loads is noted."""
        highest, sets = fine.best(prices, most)
        if exact:
            least = duals.value(prices) / (self.c.graph.accelerators * (1 + 2 * SURE))
            return self._as_they_are(prices, most, min(highest, least), highest, work)
        low, high = 0, fine.units  # of these, the first is proven
        while high - low > 1:
            units = (low + high) // 2
            value = dual_value(self.c, prices, most * units / fine.units)
            proves = value > self.c.graph.accelerators * (1 + SURE) * float(fine.curve[units])
            low, high = (units, high) if proves else (low, units)
        self.proven = max(self.proven, most * low / fine.units)
        return highest, sets

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
        self.c, self.most, self.count = c, most, c.count
        cpus, slow = c.graph.cpus, c.slow / most
        model = Model("prices")
        self.ceiling = 2.0 * c.graph.accelerators + 2.0
        for _ in range(c.count):
            model.column(0.0, self.ceiling, -1.0)
        model.column(0.0, inf, float(cpus))
        for v in np.flatnonzero((slow <= 1) & (cpus > 0)).tolist():
            model.row([(v, 1.0), (c.count, -float(slow[v]))], upper=0.0)
        self.model = model
        self.relaxation = Relaxation(model)

    def row(self, inside: Flags) -> None:
        self.model.row([(v, 1.0) for v in np.flatnonzero(inside).tolist()], upper=1.0)

    def prices(self) -> Floats:
        """Of the relaxation's last solution."""
        return self.relaxation.point[: self.count].copy()

    def value(self, prices: Floats) -> float:
        """See :func:`dual_value`."""
        return dual_value(self.c, prices, self.most)


def dual_value(c: Classes, prices: Floats, most: float) -> float:
    """sum(p) - l m for the best m: that where CPUs of load ``most``, filled in the order of
    p / cpu, are full.

    Prices above m cpu are lowered to it, which breaks no row."""
    cpus = c.graph.cpus
    if not cpus:
        return float(prices.sum())
    slow = c.slow / most
    within = slow <= 1
    p, slow = prices[within], slow[within]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(slow > 0, p / slow, inf)
    order = np.argsort(-ratio)
    filled = np.cumsum(slow[order])
    whole = filled <= cpus
    held = float(p[order][whole].sum())
    rest = np.flatnonzero(~whole)
    if rest.size:
        i = order[rest[0]]
        before = float(filled[rest[0]] - slow[i])
        held += float(p[i] / slow[i]) * (cpus - before)
    return float(prices.sum()) - held


class _Box:
    """The linear program of prices, within a box around the best prices so far.

    Attributes:
        centre: of the box.
        prices, value: of the last solution.
    """

    def __init__(self, duals: _Duals, centre: Floats) -> None:
        self.duals, self.centre = duals, centre
        self.prices, self.value = centre, inf
        self._half, self._seen, self._stale = NARROW, -inf, 0
        self._move()

    def saw(self, prices: Floats, proof: float, rows: list[Flags]) -> None:
        """Prices, scaled to where no known set is above 1, what they seem to prove, and new sets:
        the centre stays a solution, so that there always is one."""
        self._stale += 1
        self.centre = self.centre / max([1.0, *(float(self.centre @ inside) for inside in rows)])
        if proof > self._seen:
            self.centre, self._seen, self._stale = prices, proof, 0
        if self._stale == PATIENCE and self._half < inf:
            self._half, self._stale = max(NARROWEST, self._half / 2), 0
        self._move()

    def widen(self) -> bool:
        """Make the box wider; False where it holds all prices."""
        if self._half == inf:
            return False
        self._half = WIDER * self._half if self._half < 1 else inf
        self._stale = 0
        self._move()
        return True

    def solve(self, work: Work) -> bool:
        """Find the best prices for the sets met; False when time was up."""
        if not self.duals.relaxation.solve(Limits(seconds=work.left, stop=work.stop)):
            return False
        self.prices = self.duals.prices()
        self.value = self.duals.value(self.prices)
        return True

    def _move(self) -> None:
        ceiling = self.duals.ceiling
        around = self._half * np.maximum(self.centre, self.centre.mean())
        lower = np.maximum(0.0, self.centre - around)
        self.duals.relaxation.limit(lower, np.minimum(ceiling, self.centre + around))


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
    cover = Cover(c, front, known)
    targets = [value * (1 - gap) for gap in GAPS]
    state = _climb(cover, Raised(floor, "", None, True), targets, value, work)
    if not state.ended or work.met(value, state.bound, SAME):
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
    low, by, high, ended = state.bound, state.by, value, True
    while ended and not work.met(value, low):
        targets = [target for target in targets if target > low]
        if not targets and not high - low > FINE * value:
            break
        target = targets.pop(0) if targets else (low + high) / 2
        refuted = cover.refutes(target, 1 - target / value, work)
        proven = max(cover.proven, target if refuted else 0.0)
        if proven > low:
            low, by = proven, "column generation"
            work.progress(value, low, "columns")
        if refuted:
            targets = targets[1:] or targets  # the next but one: most of the time is the last one's
        elif refuted is False:
            high, targets = target, []
        ended = refuted is not None
    return Raised(low, by, None, ended)


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
