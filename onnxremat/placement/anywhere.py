"""Placements of any shape: annealing for values, joining and column generation for bounds."""

from __future__ import annotations

from math import inf

import numpy as np

from onnxremat.errors import InfeasibleError
from onnxremat.placement import contiguous, limits
from onnxremat.placement.annealing import Annealing
from onnxremat.placement.answer import Answer, Work
from onnxremat.placement.balance import balance
from onnxremat.placement.classes import Classes, condense
from onnxremat.placement.columns import raise_bound
from onnxremat.placement.graph import Index, PlacementGraph
from onnxremat.placement.parting import part
from onnxremat.placement.reduce import free_ends

METHOD = "annealing"
SEARCH = 0.15  # share of the time that goes into a first search


def solve(graph: PlacementGraph, work: Work) -> Answer:
    """The least max-load of any placement that is found, and what is proven of it.

    Raises:
        InfeasibleError: proven that nothing fits.
    """
    raw = condense(graph, chain=False)
    why = limits.reason(raw)
    if why:
        raise limits.refuse(graph, why)
    c = free_ends(raw)
    floor = balance(c.load, c.slow, c.supported, graph.accelerators, graph.cpus).bound
    starts = [by_class(c, where) for where in _starts(graph, c, work)]
    if not starts:
        return Answer(METHOD, inf, floor, "balance", None, seconds=work.taken)
    search = Annealing(c, two=False, seed=work.seed)
    value, best = search.improve(starts, work.share(SEARCH * work.seconds), floor)
    bound, by = floor, "balance"
    if value > floor * (1 + work.gap):
        small = part(c, value, work.share(work.seconds / 4))
        better, proof = raise_bound(small, value, floor, [by_class(small, c.nodes(best))], work)
        if proof:
            bound, by = better, proof
    if work.left and value > bound * (1 + work.gap):
        value, best = search.improve([best], work, bound)
    return Answer(
        METHOD, value, min(bound, value), by, c.nodes(best), seconds=work.taken,
    )  # fmt: skip


def by_class(c: Classes, where: Index) -> Index:
    """A device per class from a device per node."""
    found = np.zeros(c.count, np.int64)
    found[c.of] = where
    return found


def _starts(graph: PlacementGraph, c: Classes, work: Work) -> list[Index]:
    """Placements that keep all limits, a device per node: the best chain, and all on CPUs."""
    found = []
    try:
        chain = contiguous.solve(graph, work.share(work.seconds / 10))
    except InfeasibleError:  # no chain, which says nothing of other placements
        chain = None
    if chain is not None and chain.where is not None:
        found.append(chain.where)
    if graph.cpus:
        found.append(np.full(graph.count, graph.accelerators, np.int64))
    packed = _packed(c)
    return found if packed is None else [*found, c.nodes(packed)]


def _packed(c: Classes) -> Index | None:
    """Classes put on accelerators by falling size, each where most bytes are free; None where that
    does not fit."""
    graph = c.graph
    if not graph.accelerators or not c.supported.all():
        return None
    free = np.full(graph.accelerators, graph.memory)
    where = np.zeros(c.count, np.int64)
    for v in np.argsort(-c.size, kind="stable").tolist():
        d = int(np.argmax(free))
        if free[d] < c.size[v]:
            return None
        free[d] -= c.size[v]
        where[v] = d
    return where
