"""Bounds that need no large model: what each op needs at once, the time of running all ops, and
what no makespan is below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxremat.planner.formulations.cuts import build
from onnxremat.planner.formulations.spans import fixed_spans
from onnxremat.planner.incumbent import NO_LIMIT
from onnxremat.planner.makespan import critical_path
from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.reasons import Reason
from onnxremat.planner.solvers import Limits, Outcome, minimise
from onnxremat.units import format_bytes

LOAD_TURNS = 30  # of the weights of devices


@dataclass(frozen=True)
class Need:
    """Bytes that must be in memory at once while ``op`` runs, in any sequence.

    Attributes:
        others: ops that may run in its place, where one of several has to: ``op`` needs least.
    """

    bytes: int
    op: int
    why: str
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class Misfit:
    """An op (or -1: the results) that fits on no device, with the reason."""

    op: int
    why: str


def misfit(
    lists: ProblemLists, budgets: Sequence[int], *, fixed_order: bool = False
) -> Misfit | None:
    """The op that needs most of those no device has room for at any time, or results that do not
    fit at the end.

    On one device every value that an op finds in memory counts (:func:`largest_need`); on several
    it may lie elsewhere, and an op needs its inputs, outputs, workspace and weights at once, with
    what is always resident and the weights of all ops that run on no other device, less the largest
    takeover. The latter holds in every order.
    """
    problem = lists.problem
    if problem.devices == 1:
        need = largest_need(lists, fixed_order=fixed_order)
        return Misfit(need.op, need.why) if need.bytes > budgets[0] else None
    worst, most = -1, -1
    for op, able in enumerate(lists.able):
        needs_ = [(_need(lists, op, d), budgets[d]) for d in able]
        if all(need > budget for need, budget in needs_) and min(needs_)[0] > most:
            worst, most = op, min(needs_)[0]
    if worst >= 0:
        names = problem.names
        parts = ", ".join(
            f"{format_bytes(_need(lists, worst, d))} on {names[d]}" for d in lists.able[worst]
        )
        others = any(lists.tied[d][0] - set(lists.uses[worst]) for d in lists.able[worst])
        held = ", with the weights of all that runs there alone," if others else ","
        why = Reason(f"{{op}} needs at once {parts}{held} more than the budget of each", worst)
        return Misfit(worst, why)
    for d in lists.devices:
        kept = sum(lists.size[d][u] for u, where in enumerate(lists.required) if where == d)
        kept += int(problem.fixed[d])
        if kept > budgets[d]:
            name = problem.names[d]
            return Misfit(-1, f"results that must end on {name} take {format_bytes(kept)} there")
    return None


def least_budgets(problem: Problem) -> list[int]:
    """Bytes per device below which it cannot run, by itself, the op that needs most of those it can
    run: inputs, outputs, workspace and weights, with what is always resident and the weights of ops
    that run nowhere else; in any order and with any recomputation."""
    lists = ProblemLists(problem)
    return [
        max((_need(lists, op, d) for op, able in enumerate(lists.able) if d in able), default=0)
        for d in lists.devices
    ]


def _need(lists: ProblemLists, op: int, device: int) -> int:
    weight, (tied, bytes_) = lists.problem.weight[device], lists.tied[device]
    weights = bytes_ + sum(int(weight[w]) for w in set(lists.uses[op]) - tied)
    return int(lists.problem.fixed[device]) + weights + lists.least_run(device, op)


def needs(lists: ProblemLists, *, fixed_order: bool = False) -> list[int]:
    """Bytes the first run of each op takes in every valid sequence, shape (ops,).

    Its inputs, outputs and workspace, the weights, and the values that must be in memory besides:
    kept values made before, and values that cannot be remade, were made before and are read later.
    Before and later mean by dependency, or in the base order when first runs keep it. The largest
    takeover that could apply is taken off.
    """
    size, resident = lists.size[0], lists.problem.resident
    beside = _beside(lists, fixed_order)
    needed = []
    for op, (reads, writes) in enumerate(zip(lists.reads, lists.writes, strict=True)):
        present = sum(size[value] for value in reads) + sum(size[value] for value in writes)
        takeover = _takeover(lists, op, fixed_order)
        needed.append(resident + lists.work[0][op] + present + beside[op] - takeover)
    return needed


def largest_need(lists: ProblemLists, *, fixed_order: bool = False) -> Need:
    """The op that needs most at once: no budget below it is feasible."""
    needed = needs(lists, fixed_order=fixed_order)
    if not needed:
        resident = lists.problem.resident
        return Need(resident, -1, f"{format_bytes(resident)} are always resident")
    op = max(range(len(needed)), key=needed.__getitem__)
    together = _all_results(lists, fixed_order)
    if together is not None and together.bytes > needed[op]:
        return together
    size = lists.size[0]
    parts = {
        "inputs": sum(size[value] for value in lists.reads[op]),
        "outputs": sum(size[value] for value in lists.writes[op]),
        "workspace": lists.work[0][op],
        "always resident": lists.problem.resident,
    }
    takeover = _takeover(lists, op, fixed_order)
    parts["results and values that cannot be remade"] = needed[op] - sum(parts.values()) + takeover
    text = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    if takeover:
        text += f", less {format_bytes(takeover)} that its output takes over in place"
    words = f"{{op}} needs {format_bytes(needed[op])} at once ({text})"
    return Need(needed[op], op, Reason(words, op))


def _all_results(lists: ProblemLists, fixed_order: bool) -> Need | None:
    """Bytes at the step that makes the last of the kept values: all of them, and what it needs."""
    size, keep = lists.size[0], lists.keep
    makers = sorted({lists.producer[value] for value, flag in enumerate(keep) if flag})
    if not makers:
        return None
    kept = sum(bytes_ for bytes_, flag in zip(size, keep, strict=True) if flag)

    def total(op: int) -> int:
        around = {*lists.reads[op], *lists.writes[op]}
        besides = sum(size[value] for value in around if not keep[value])
        takeover = _takeover(lists, op, fixed_order)
        return lists.problem.resident + kept + besides + lists.work[0][op] - takeover

    last = makers[-1] if fixed_order else min(makers, key=total)
    why = (
        f"all kept results are in memory at the end: {format_bytes(total(last))} with what {{op}}, "
        "the cheapest to make the last of them, needs besides"
    )
    others = () if fixed_order else tuple(op for op in makers if op != last)
    return Need(total(last), last, Reason(why, last), others)


def _takeover(lists: ProblemLists, op: int, fixed_order: bool) -> int:
    """Bytes the output of ``op`` can take over at most at its first run."""
    free = [v for v in lists.inplace[op] if not _read_later(lists, v, op, fixed_order)]
    return max((lists.size[0][value] for value in free), default=0)


def _read_later(lists: ProblemLists, value: int, op: int, fixed_order: bool) -> bool:
    """True when ``value`` cannot be remade and is read after ``op`` in every sequence."""
    if lists.recomputable[lists.producer[value]]:
        return False
    others = [reader for reader in lists.readers[value] if reader != op]
    if fixed_order:
        return any(reader > op for reader in others)
    return bool(others) and not lists.descendant_ops(op).isdisjoint(others)


def _beside(lists: ProblemLists, fixed_order: bool) -> list[int]:
    """Bytes in memory at the first run of each op besides its inputs and outputs."""
    total = [0] * lists.problem.ops
    for value, size in enumerate(lists.size[0]):
        readers = set(lists.readers[value])
        for op in _spanned(lists, value, fixed_order):
            if op not in readers:
                total[op] += size
    return total


def _spanned(lists: ProblemLists, value: int, fixed_order: bool) -> Iterable[int]:
    """Ops at whose first run ``value`` must be in memory whatever is recomputed."""
    maker, readers, ops = lists.producer[value], lists.readers[value], lists.problem.ops
    if lists.keep[value]:
        return range(maker + 1, ops) if fixed_order else lists.descendant_ops(maker)
    if lists.recomputable[maker] or not readers:
        return ()
    if fixed_order:
        return range(maker + 1, readers[-1] + 1)
    if len(readers) == 1 and lists.before[readers[0]] == [maker]:
        return ()
    above = set[int]().union(*(lists.ancestor_ops(reader) for reader in readers))
    return above & lists.descendant_ops(maker)


def makespan_bound(lists: ProblemLists, limits: Limits, solver: str = "auto") -> tuple[float, str]:
    """Seconds that no makespan is below, in any order and with any memory, and why.

    The larger of the critical path and the least load of the busiest device or link over
    fractional placements (a linear program).
    """
    simple = quick_makespan_bound(lists.problem)
    spans = fixed_spans(lists.problem.ops, ())
    made = build(lists, spans, [NO_LIMIT] * lists.problem.devices, makespan=True)
    made.model.integer = [False] * made.model.columns
    result, _ = minimise(made.model, limits, solver)
    solved = result.outcome is Outcome.OPTIMAL  # else its value is no bound
    load = made.seconds(result.bound) * (1 - 1e-7) if solved else 0.0
    return max(simple, (load, "load"))


def quick_makespan_bound(problem: Problem) -> tuple[float, str]:
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
