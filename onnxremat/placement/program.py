"""Is there a placement better than a value? An integer program over classes.

Binary x[v, d]: class v is on device d, which cuts a net where one pin is on d and another is not.
Minimise the largest load, between a bound and the value. Accelerators are alike: the i-th heaviest
class is on one of the first i.
"""

from __future__ import annotations

import numpy as np

from onnxremat.placement.answer import SAME, Work
from onnxremat.placement.classes import Classes
from onnxremat.placement.graph import Index
from onnxremat.placement.limits import refuse
from onnxremat.planner.model import Model
from onnxremat.planner.problem import Floats
from onnxremat.planner.solvers import Limits, Outcome, minimise

MOST_CELLS = 6_000  # classes and nets times devices: more than that is not tried
SCALE = 100.0  # the value, in the program: large beside a solver's tolerance


def decide(c: Classes, value: float, bound: float, work: Work) -> tuple[bool, Index | None]:
    """Whether it is decided if a placement has a max-load below ``value``, and the best that was
    found, a device per class."""
    graph = c.graph
    if (c.count + len(c.nets)) * graph.devices > MOST_CELLS:
        return False, None
    model = Model("classes")
    largest = model.column(bound * SCALE / value, SCALE * (1 - SAME / 2), 1.0)
    x = _placed(model, c)
    for d in range(graph.devices):
        fast = d < graph.accelerators
        time = (c.load if fast else c.slow) * (SCALE / value)
        terms = [(x[v][d], float(time[v])) for v in range(c.count)]
        if fast:
            terms += _cut(model, c, x, d, SCALE / value)
            model.row([(x[v][d], float(c.size[v])) for v in range(c.count)], upper=graph.memory)
        model.row([*terms, (largest, -1.0)], upper=0.0)
    result, _ = minimise(model, Limits(seconds=work.left, stop=work.stop), "highs")
    if result.outcome is Outcome.INFEASIBLE or result.point is None:
        return result.outcome is Outcome.INFEASIBLE, None
    return False, _kept(c, result.point, x)


def packing(c: Classes, work: Work) -> Index | None:
    """A device per class that keeps the bytes of every accelerator, if one is found in time.

    Raises:
        InfeasibleError: proven that there is none.
    """
    graph = c.graph
    if c.count * graph.accelerators > MOST_CELLS:
        return None
    model, share = Model("packing"), c.size / max(graph.memory, 1.0)
    x = _placed(model, c)
    for d in range(graph.accelerators):
        model.row([(x[v][d], float(share[v])) for v in range(c.count)], upper=1.0)
    result, _ = minimise(model, Limits(seconds=work.left, stop=work.stop), "highs")
    if result.outcome is Outcome.INFEASIBLE:
        raise refuse(graph, "no way to deal out the nodes keeps every accelerator's bytes")
    return None if result.point is None else _kept(c, result.point, x)


def _kept(c: Classes, point: Floats, x: list[list[int]]) -> Index | None:
    """The device of each class at a point; None where bytes are over the limit there, as solvers
    keep rows within a tolerance only."""
    where = point[np.asarray(x)].argmax(1).astype(np.int64)
    held = np.bincount(where, c.size, c.graph.devices)[: c.graph.accelerators]
    return where if (held <= c.graph.memory).all() else None


def _placed(model: Model, c: Classes) -> list[list[int]]:
    """Every class on one device."""
    graph = c.graph
    rank = np.empty(c.count, np.int64)
    rank[np.argsort(-c.load, kind="stable")] = np.arange(c.count)
    x = []
    for v in range(c.count):
        row = []
        for d in range(graph.devices):
            other = d < graph.accelerators and (d > rank[v] or not c.supported[v])
            row.append(model.column(0.0, 0.0 if other else 1.0, integer=True))
        model.row([(cell, 1.0) for cell in row], 1.0, 1.0)
        x.append(row)
    return x


def _cut(
    model: Model, c: Classes, x: list[list[int]], d: int, scale: float
) -> list[tuple[int, float]]:
    """What an accelerator pays for the nets it cuts."""
    terms = []
    for pins, weight in zip(c.nets, c.weight.tolist(), strict=True):
        paid = model.column(0.0, 1.0)
        for v in pins[1:]:
            for a, b in ((pins[0], v), (v, pins[0])):
                model.row([(paid, 1.0), (x[a][d], -1.0), (x[b][d], 1.0)], lower=0.0)
        terms.append((paid, weight * scale))
    return terms
