"""What baselines share: judging candidate sequences against the budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from math import inf

from onnxremat.planner.problem import Problem
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import peak, seconds
from onnxremat.planner.solution import Certificate, Solution, Status
from onnxremat.units import format_bytes

Baseline = Callable[[Problem, int], Solution]


def fastest_within(
    problem: Problem, budget: int, planner: str, candidates: Iterable[Sequence[int] | None]
) -> Solution:
    """The fastest candidate within the budget; without one, no sequence and a note."""
    begin = time.monotonic()
    best: Sequence[int] | None = None
    least, took = None, inf
    for sequence in candidates:
        if sequence is None:
            continue
        bytes_ = peak(problem, sequence)
        least = bytes_ if least is None else min(least, bytes_)
        if bytes_ <= budget and seconds(problem, sequence) < took:
            best, took = sequence, seconds(problem, sequence)
    total = float(problem.cost.sum())
    notes: tuple[str, ...] = ()
    if best is None:
        reason = "finds no plan" if least is None else f"needs at least {format_bytes(least)}"
        notes = (f"{planner} {reason} here",)
    return Solution(
        status=Status.UNKNOWN if best is None else Status.FEASIBLE,
        schedule=None if best is None else Schedule.of(problem, best),
        time=took,
        peaks=() if best is None else (peak(problem, best),),
        certificate=Certificate(total, "store-all", any_order=True),
        planner=planner,
        plan_seconds=time.monotonic() - begin,
        reference=total,
        makespan=took,
        notes=notes,
    )
