"""Compiled search over schedules: exact replay, greedy repair, annealing, list scheduling.

Kernels compile when their modules are imported, and what several devices need is not what one
does: :func:`warm_up` imports what a number of devices needs.
"""

from __future__ import annotations

from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxremat.planner.search.session import Search

__all__ = ["Search", "warm_up"]

ONE = ("session", "incremental")  # modules that one device needs
SEVERAL = ("session", "anneal", "lists")


def warm_up(devices: int = 1) -> float:
    """Compile the search for so many devices (or load it from the cache), before any time limit
    runs; returns the seconds that took."""
    begin = monotonic()
    for module in ONE if devices == 1 else SEVERAL:
        import_module(f"{__name__}.{module}")
    return monotonic() - begin
