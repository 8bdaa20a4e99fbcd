"""The memory-time curve of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from onnxremat.errors import InfeasibleError, NoPlanError, OverBudgetError
from onnxremat.run.closed_loop import PlanOptions, plan_within
from onnxremat.run.prepare import Prepared
from onnxremat.units import Budget, format_bytes


def curve(
    prepared: Prepared,
    budgets: Sequence[Budget] | None,
    points: int,
    options: PlanOptions,
    device_bytes: int,
    say: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Plan at several budgets, largest first, on predicted peaks.

    Args:
        budgets: None for ``points`` budgets from the unoptimised peak to the smallest.

    Returns:
        one row per budget: budget, peak (bytes), overhead, bound (fractions of the store-all
        time), status, plan_seconds.
    """
    unmeasured = replace(prepared, feeds=None)
    rows = []
    if budgets is None:
        low = _row(unmeasured, Budget("min", "min", 0.0), options, device_bytes)
        rows.append(low)
        top = max(prepared.baseline_peak, prepared.store_all_peak)
        step = (top - low["budget"]) / max(1, points - 1)
        sizes = [int(low["budget"] + step * i) for i in range(1, points)]
        budgets = [Budget(str(size), "bytes", size) for size in sizes]
    for budget in budgets:
        if options.stop and options.stop():
            break
        if say:
            say(f"planning for {budget.text}")
        rows.append(_row(unmeasured, budget, options, device_bytes))
    return sorted(rows, key=lambda row: -row["budget"])


def _row(
    prepared: Prepared, budget: Budget, options: PlanOptions, device_bytes: int
) -> dict[str, Any]:
    limit = budget.resolve(device_bytes=device_bytes, peak_bytes=prepared.baseline_peak) or 0
    try:
        outcome = plan_within(prepared, budget, options, device_bytes)
    except InfeasibleError as error:
        why = f"infeasible (at least {format_bytes(error.lower_bound)})"
        return _empty(limit, why)
    except (NoPlanError, OverBudgetError):
        return _empty(limit, "none found")
    facts = outcome.plan.provenance
    return {
        "budget": outcome.budget,
        "peak": outcome.predicted.peak,
        "overhead": facts.overhead,
        "bound": facts.bound_overhead,
        "status": facts.status,
        "plan_seconds": facts.plan_seconds,
    }


def _empty(limit: int, status: str) -> dict[str, Any]:
    return {
        "budget": limit, "peak": None, "overhead": None, "bound": None, "status": status,
        "plan_seconds": 0.0,
    }  # fmt: skip
