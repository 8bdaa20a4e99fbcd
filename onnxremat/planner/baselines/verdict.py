"""What baselines share: judging candidate sequences against the budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from math import inf

from onnxremat.planner.problem import Certificate, Problem, Solution, Status, peak, seconds
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
        sequence=None if best is None else tuple(best),
        time=took,
        peak=0 if best is None else peak(problem, best),
        certificate=Certificate(total, "store-all", any_order=True),
        planner=planner,
        plan_seconds=time.monotonic() - begin,
        notes=notes,
    )
