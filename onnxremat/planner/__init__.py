"""Planner: which values to store, which to recompute, and in what order, within a budget."""

from __future__ import annotations

from onnxremat.planner.ladder import solve
from onnxremat.planner.minimum import smallest_budget
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.problem import Problem, Rows
from onnxremat.planner.schedule import Schedule, Step
from onnxremat.planner.semantics import occupancy, peak, peaks, seconds
from onnxremat.planner.solution import Certificate, Solution, Status

__all__ = [
    "Certificate",
    "PlanOptions",
    "Problem",
    "Rows",
    "Schedule",
    "Solution",
    "Status",
    "Step",
    "occupancy",
    "peak",
    "peaks",
    "seconds",
    "smallest_budget",
    "solve",
]
