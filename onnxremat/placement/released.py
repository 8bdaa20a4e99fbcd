"""The released integer programs as models, to be written for any solver.

``ip.py``: binary x[u, d] per node and device (CPUs first in the released script, accelerators first
here), colours as equalities, memory rows, contiguity by continuous z with ``z[v] <= z[u]`` and
``z[v] <= x[v] - x[u] + 1`` along forward edges, communication by ``in >= x[v] - x[u]`` and
``out >= x[u] - x[v]``. Constants and rows are theirs; classes are not joined, devices not ordered.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from onnxremat.placement.answer import Answer, Work
from onnxremat.placement.graph import PlacementGraph
from onnxremat.placement.limits import refuse
from onnxremat.planner.model import Model
from onnxremat.planner.solvers import Limits, Outcome, minimise

Terms = list[tuple[int, float]]


def max_load_program(graph: PlacementGraph, *, contiguous: bool, two: bool) -> Model:
    """The program of ``ip.py contig|noncontig [diffmaxima]``; columns are named after ids.

    Args:
        two: minimise the largest forward plus the largest backward load.
    """
    kind = "contiguous" if contiguous else "any"
    model = Model(f"{kind}_{'two_maxima' if two else 'max_load'}")
    devices = range(graph.devices)
    x = [
        [model.binary(label=f"x_{graph.ids[v]}_{name_of(graph, d)}") for d in devices]
        for v in range(graph.count)
    ]
    largest = [model.column(cost=1.0, label=f"largest{side}") for side in range(1 + two)]
    for v in range(graph.count):
        model.row([(column, 1.0) for column in x[v]], 1.0, 1.0)
        for d in range(graph.accelerators):
            if not graph.supported[v]:
                model.row([(x[v][d], 1.0)], upper=0.0)
    for row in graph.members.lists():
        for v in row[1:]:
            for d in devices:
                model.row([(x[v][d], 1.0), (x[row[0]][d], -1.0)], 0.0, 0.0)
    for d in devices:
        _device(model, graph, x, largest, d)
        if contiguous:
            stays_together(model, graph, [row[d] for row in x], name_of(graph, d))
    return model


def name_of(graph: PlacementGraph, device: int) -> str:
    """A device in names of columns."""
    k = graph.accelerators
    return f"acc{device}" if device < k else f"cpu{device - k}"


def _device(
    model: Model, graph: PlacementGraph, x: list[list[int]], largest: list[int], d: int
) -> None:
    """Memory and load of a device."""
    on_accelerator = d < graph.accelerators
    loads: list[Terms] = [[], []]
    for v in range(graph.count):
        time = float(graph.acc[v] if on_accelerator else graph.cpu[v])
        loads[int(graph.backward[v])].append((x[v][d], time))
    if on_accelerator:
        sizes = [(x[v][d], float(graph.size[v])) for v in range(graph.count) if graph.size[v]]
        model.row(sizes, upper=graph.memory)
        for u, readers in enumerate(graph.readers):
            if not readers or not graph.out[u]:
                continue
            taken = model.column(label=f"in_{graph.ids[u]}_acc{d}")
            sent = model.column(label=f"out_{graph.ids[u]}_acc{d}")
            for v in readers:
                model.row([(taken, 1.0), (x[v][d], -1.0), (x[u][d], 1.0)], lower=0.0)
                model.row([(sent, 1.0), (x[u][d], -1.0), (x[v][d], 1.0)], lower=0.0)
            cost = float(graph.out[u])
            loads[int(graph.backward[u])] += [(taken, cost), (sent, cost)]
    rows = loads if len(largest) == 2 else [loads[0] + loads[1]]
    for column, terms in zip(largest, rows, strict=True):
        model.row([(column, 1.0), *((c, -a) for c, a in terms if a)], lower=0.0)


def stays_together(model: Model, graph: PlacementGraph, here: list[int], name: str) -> None:
    """No path of forward nodes leaves a device and comes back.

    Args:
        here: a column per node: it is on the device.
        name: of the device, for labels.
    """
    z = {
        v: model.column(0.0, 1.0, label=f"z_{graph.ids[v]}_{name}")
        for v in range(graph.count)
        if not graph.backward[v]
    }
    for v, column in z.items():
        model.row([(column, 1.0), (here[v], -1.0)], lower=0.0)
    for u, readers in enumerate(graph.readers):
        for v in readers:
            if u in z and v in z:
                model.row([(z[v], 1.0), (z[u], -1.0)], upper=0.0)
                model.row([(z[v], 1.0), (here[v], -1.0), (here[u], 1.0)], upper=1.0)


def solve(graph: PlacementGraph, work: Work, *, contiguous: bool, two: bool = False) -> Answer:
    """The program solved by HiGHS, or SCIP where that gives up, within the time left.

    Raises:
        InfeasibleError: proven that nothing keeps its rows.
    """
    model = max_load_program(graph, contiguous=contiguous, two=two)
    limits = Limits(seconds=max(work.left, 0.01), seed=work.seed, stop=work.stop)
    result, notes = minimise(model, limits, "highs")
    if result.outcome is Outcome.INFEASIBLE:
        raise refuse(graph, "the released integer program has no solution")
    answer = Answer(
        "ip", inf, max(0.0, result.bound), result.outcome.value, None, seconds=work.taken,
        notes=tuple(notes),
    )  # fmt: skip
    if result.point is None:
        return answer
    d = graph.devices
    where = result.point[: graph.count * d].reshape(graph.count, d).argmax(1)
    return replace(answer, value=result.objective, where=where.astype(np.int64))
