"""The bound of perfect balance, and the work it is made of.

For any ratio r > 0 give every class the work ``w = min(acc, cpu / r)`` (``cpu / r`` where it may
not run on an accelerator). A device of load T does at most T of work where it is an accelerator and
T / r where it is a CPU, so T >= sum(w) / (accelerators + cpus / r): no placement of any kind has a
smaller largest load. The best r is one of the ratios cpu / acc (the dual of the linear program that
deals classes out in fractions). Where not all bytes fit the accelerators, that program has one row
more, for the bytes of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxremat.placement.classes import Classes
from onnxremat.placement.graph import Flags
from onnxremat.planner.model import Model
from onnxremat.planner.problem import Floats
from onnxremat.planner.solvers import Relaxation
from onnxremat.planner.solvers.base import Limits

LEAST, MOST = 1e-6, 1e6  # ratios
SECONDS = 10.0  # for a linear program of three rows


@dataclass(frozen=True, eq=False)
class Balance:
    """Work of each class, shape (c,), for the best ratio."""

    ratio: float
    work: Floats
    bound: float


def balance(acc: Floats, cpu: Floats, supported: Flags, accelerators: int, cpus: int) -> Balance:
    """The best bound of this kind.

    Args:
        acc, cpu: one load of each class, shape (c,).
    """
    slow = np.where(supported, acc, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.unique(np.clip(cpu[slow > 0] / slow[slow > 0], LEAST, MOST))
    if not cpus or not ratios.size:
        ratios = np.asarray([1.0])
    found = None
    for ratio in ratios.tolist():
        work = np.minimum(slow, cpu / ratio)
        if not cpus:
            work = np.where(supported, acc, 0.0)
        bound = float(work.sum()) / (accelerators + cpus / ratio)
        if found is None or bound > found.bound:
            found = Balance(ratio, work, bound)
    assert found is not None
    return found


def within_memory(c: Classes) -> float:
    """The same bound with the bytes of all accelerators together; 0 where all classes fit."""
    graph, model = c.graph, Model("balance")
    can = c.supported & (c.size <= graph.memory)
    if not graph.cpus or float(c.size[can].sum()) <= graph.accelerators * graph.memory:
        return 0.0
    share = [model.column(0.0, float(fits)) for fits in can]  # of a class, on accelerators
    most = model.column(0.0, float(c.slow.sum()), 1.0)  # all on one CPU is a way
    fast = [(x, float(time)) for x, time in zip(share, c.load, strict=True)]
    slow = [(x, float(time)) for x, time in zip(share, c.slow, strict=True)]
    held = c.size / max(graph.memory, 1.0)
    model.row([*fast, (most, -float(graph.accelerators))], upper=0.0)
    model.row(list(zip(share, held.tolist(), strict=True)), upper=float(graph.accelerators))
    model.row([*slow, (most, float(graph.cpus))], lower=float(c.slow.sum()))
    found = Relaxation(model)
    return max(0.0, found.bound) if found.solve(Limits(seconds=SECONDS)) else 0.0
