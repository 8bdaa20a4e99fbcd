"""Points of a memory-time curve."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SweepPoint:
    """The answer for one budget; overhead and bound are fractions of the store-all time, sizes
    are bytes. ``budget`` and ``process`` are of the process, ``limit`` and ``peak`` what of these
    is for weights and values. ``process``, ``peak`` and ``overhead`` are None where no plan was
    found, ``bound`` where the budget is proven infeasible."""

    budget: int
    limit: int
    process: int | None
    peak: int | None
    overhead: float | None
    bound: float | None
    any_order: bool
    status: str
    planner: str
    plan_seconds: float
