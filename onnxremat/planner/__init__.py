"""Planner: which values to store, which to recompute, and in what order, within a budget."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "ladder": ("solve",),
    "minimum": ("smallest_budget",),
    "options": ("PlanOptions",),
    "problem": ("Problem", "Rows"),
    "schedule": ("Schedule", "Step"),
    "semantics": ("occupancy", "peak", "peaks", "seconds"),
    "solution": ("Certificate", "Solution", "Status"),
}


def __getattr__(name: str) -> Any:
    """Import on first use: the command line asks for the names of planners alone."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
