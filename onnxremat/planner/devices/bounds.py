"""Bounds that need no large model: what each op needs at once, and what no makespan is below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxremat.planner.devices.cuts import build
from onnxremat.planner.devices.layout import Layout
from onnxremat.planner.devices.makespan import critical_path
from onnxremat.planner.devices.problem import DeviceProblem
from onnxremat.planner.formulations.cuts import fixed_spans
from onnxremat.planner.reasons import Reason
from onnxremat.planner.solvers import Limits, Outcome, minimise

LOAD_TURNS = 30  # of the weights of devices
NO_LIMIT = 1 << 62  # bytes of a device without a limit


@dataclass(frozen=True)
class Misfit:
    """An op (or -1: the results) that fits on no device, with the reason."""

    op: int
    why: str


def misfit(layout: Layout, budgets: Sequence[int]) -> Misfit | None:
    """The op that needs most of those no device has room for at any time, or results that do not
    fit at the end.

    An op needs its inputs, outputs, workspace and weights at once, with what is always resident,
    less the largest takeover; this holds in every order.
    """
    worst, most = -1, -1
    for op, able in enumerate(layout.able):
        needs = [(_need(layout, op, d), budgets[d]) for d in able]
        if all(need > budget for need, budget in needs) and min(needs)[0] > most:
            worst, most = op, min(needs)[0]
    if worst >= 0:
        names = layout.problem.names
        parts = ", ".join(
            f"{_need(layout, worst, d)} bytes on {names[d]}" for d in layout.able[worst]
        )
        why = Reason(f"{{op}} needs at once {parts}, more than the budget of each", worst)
        return Misfit(worst, why)
    for d in layout.devices:
        kept = sum(layout.size[d][u] for u, goal in enumerate(layout.goal) if goal == d)
        kept += int(layout.problem.fixed[d])
        if kept > budgets[d]:
            name = layout.problem.names[d]
            return Misfit(-1, f"results that must end on {name} take {kept} bytes there")
    return None


def least_budgets(problem: DeviceProblem) -> list[int]:
    """Bytes per device below which it cannot run, by itself, the op that needs most of those it can
    run: inputs, outputs, workspace and weights, with what is always resident; in any order and with
    any recomputation."""
    layout = Layout(problem)
    return [
        max((_need(layout, op, d) for op, able in enumerate(layout.able) if d in able), default=0)
        for d in layout.devices
    ]


def _need(layout: Layout, op: int, device: int) -> int:
    size, wiring, problem = layout.size[device], layout.wiring, layout.problem
    present = sum(size[u] for u in {*wiring.reads[op], *wiring.writes[op]})
    weights = sum(int(problem.weight[w]) for w in set(layout.uses[op]))
    takeover = max((size[u] for u in wiring.inplace[op]), default=0)
    return int(problem.fixed[device]) + weights + present + layout.work[device][op] - takeover


def makespan_bound(layout: Layout, limits: Limits, solver: str = "auto") -> tuple[float, str]:
    """Seconds that no makespan is below, in any order and with any memory, and why.

    The larger of the critical path and the least load of the busiest device or link over
    fractional placements (a linear program).
    """
    simple = quick_makespan_bound(layout.problem)
    spans = fixed_spans(layout.problem.ops, ())
    made = build(layout, spans, [NO_LIMIT] * layout.problem.devices, makespan=True)
    made.model.integer = [False] * made.model.columns
    result, _ = minimise(made.model, limits, solver)
    solved = result.outcome is Outcome.OPTIMAL  # else its value is no bound
    load = made.seconds(result.bound) * (1 - 1e-7) if solved else 0.0
    return max(simple, (load, "load"))


def quick_makespan_bound(problem: DeviceProblem) -> tuple[float, str]:
    """What :func:`makespan_bound` says without the linear program: copies are free in its loads.

    For any weights of the devices that sum to 1, the busiest device is at work for at least the
    weighted sum of all loads, and each op adds at least its least weighted cost to that. The
    weights rise where the load is above the mean.
    """
    path = critical_path(problem)
    computing = np.flatnonzero(np.isfinite(problem.cost).any(axis=1))
    if not len(computing):
        return path, "critical path"
    cost = problem.cost[computing]
    weight, load = np.full(len(computing), 1 / max(1, len(computing))), 0.0
    for turn in range(LOAD_TURNS):
        weighted = weight[:, None] * cost
        least = weighted.min(axis=0)
        load = max(load, float(least.sum()))
        chosen = weighted <= least * (1 + 1e-12)
        busy = np.where(chosen, cost / chosen.sum(axis=0), 0.0).sum(axis=1)
        weight = weight * np.exp((busy / max(1e-300, busy.max()) - 1) / (1 + turn))
        weight /= weight.sum()
    return max((path, "critical path"), (load * (1 - 1e-9), "load"))
