"""The last step of a proof: all sets of which a better placement could be made, and whether one is.

With prices p at which no set of load at most T is above 1, and a proof value P = sum(p) less what
CPUs can hold (see :mod:`onnxremat.placement.columns`), every placement of max-load at most T has k
sets of total price at least P, so each has a price of at least P - (k - 1). Where these sets are
few, they are listed, and an integer program says whether k of them and the CPUs hold every class
once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxremat.placement.answer import Work
from onnxremat.placement.classes import Classes
from onnxremat.placement.frontier import Frontier
from onnxremat.placement.graph import Flags, Index
from onnxremat.planner.model import Model
from onnxremat.planner.problem import Floats
from onnxremat.planner.solvers import Limits, Outcome, minimise

MOST_SETS = 5_000
MOST_STEPS = 100_000  # of the walk that lists them
MOST_CELLS = 2e8  # states times units that are kept
UNITS = 20_000
ROUNDING = 1e-9  # of prices


def priced_sets(
    front: Frontier, prices: Floats, most: float, least: float, work: Work
) -> list[Flags] | None:
    """All sets of load at most ``most``, rounded down to units, with a price of ``least`` or more;
    None where they are too many. Sets are flags by class."""
    units = int(min(UNITS, MOST_CELLS / max(1, front.states)))
    layers = front.at_scale(units / most)
    profits = _profits(front, layers.load, prices, units)
    n = len(front.order)
    found: list[Flags] = []
    todo: list[tuple[int, int, int, float, tuple[int, ...]]] = [
        (n, 0, int(i), 0.0, ()) for i in np.flatnonzero(profits[n][0] >= least - ROUNDING)
    ]  # fmt: skip
    steps = 0
    while todo:
        v, t, i, above, held = todo.pop()
        steps += 1
        if len(found) > MOST_SETS or steps > MOST_STEPS or not work.left:
            return None
        if not v:
            flags = np.zeros(n, np.bool_)
            flags[list(held)] = True
            found.append(flags)
            continue
        for j in range(int(layers.first[v - 1]), int(layers.first[v])):
            start = i - int(layers.load[j])
            if layers.target[j] != t or start < 0:
                continue
            g = int(front.order[v - 1])
            taken = bool(layers.take[j])
            total = above + (float(prices[g]) if taken else 0.0)
            s = int(layers.source[j])
            if profits[v - 1][s, start] + total >= least - ROUNDING:
                todo.append((v - 1, s, start, total, (*held, g) if taken else held))
    return found


def _profits(front: Frontier, load: NDArray[np.int32], prices: Floats, units: int) -> list[Floats]:
    """Best price of the classes decided so far, by layer: (states, units + 1)."""
    layers = front.layers
    counts = layers.states.tolist()
    profits = [np.full((1, units + 1), -np.inf)]
    profits[0][0, 0] = 0.0
    for v, g in enumerate(front.order.tolist()):
        new = np.full((counts[v + 1], units + 1), -np.inf)
        for j in range(int(layers.first[v]), int(layers.first[v + 1])):
            width = units + 1 - int(load[j])
            if width > 0:
                row = new[layers.target[j], units + 1 - width :]
                gain = float(prices[g]) if layers.take[j] else 0.0
                np.maximum(row, profits[v][layers.source[j], :width] + gain, out=row)
        profits.append(new)
    return profits


def assembled(c: Classes, sets: list[Flags], most: float, work: Work) -> tuple[bool, Index | None]:
    """Whether it is decided, and a device per class where k of the sets and CPUs of load at most
    ``most`` hold every class once."""
    graph = c.graph
    model = Model("sets")
    columns = [model.binary() for _ in sets]
    slow = c.slow
    on_cpu = [
        [model.binary() if slow[v] <= most else -1 for v in range(c.count)]
        for _ in range(graph.cpus)
    ]
    for v in range(c.count):
        terms = [(x, 1.0) for x, inside in zip(columns, sets, strict=True) if inside[v]]
        terms += [(row[v], 1.0) for row in on_cpu if row[v] >= 0]
        if not terms:
            return True, None
        model.row(terms, 1.0, 1.0)
    model.row([(x, 1.0) for x in columns], upper=float(graph.accelerators))
    for row in on_cpu:
        model.row([(x, float(slow[v])) for v, x in enumerate(row) if x >= 0], upper=most)
    result, _ = minimise(model, Limits(seconds=work.left, stop=work.stop), "highs")
    if result.outcome is Outcome.INFEASIBLE:
        return True, None
    if result.point is None:
        return False, None
    where = np.zeros(c.count, np.int64)
    chosen = [inside for x, inside in zip(columns, sets, strict=True) if result.point[x] > 0.5]
    for d, inside in enumerate(chosen):
        where[inside] = d
    for d, row in enumerate(on_cpu):
        for v, x in enumerate(row):
            if x >= 0 and result.point[x] > 0.5:
                where[v] = graph.accelerators + d
    return True, where
