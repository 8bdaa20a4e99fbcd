"""Planner: which values to store, which to recompute, and in what order, within a budget."""

from __future__ import annotations

from onnxremat.plan.ladder import solve
from onnxremat.plan.minimum import smallest_budget
from onnxremat.plan.problem import (
    Certificate,
    Problem,
    Rows,
    Solution,
    Status,
    occupancy,
    peak,
    seconds,
)

__all__ = [
    "Certificate",
    "Problem",
    "Rows",
    "Solution",
    "Status",
    "occupancy",
    "peak",
    "seconds",
    "smallest_budget",
    "solve",
]
