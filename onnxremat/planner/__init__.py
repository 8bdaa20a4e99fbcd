"""Planner: which values to store, which to recompute, and in what order, within a budget."""

from __future__ import annotations

from onnxremat.planner.ladder import solve
from onnxremat.planner.minimum import smallest_budget
from onnxremat.planner.problem import (
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
