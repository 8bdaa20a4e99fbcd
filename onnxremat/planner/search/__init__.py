"""Compiled search over schedules: exact replay, greedy repair, annealing, list scheduling.

Kernels compile when their modules are imported, and what several devices need is not what one
does: :func:`warm_up` imports what a number of devices needs.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from onnxremat.errors import UsageError

if TYPE_CHECKING:
    from onnxremat.planner.search.session import Search

__all__ = ["Search", "is_compiled", "warm_up"]

ONE = ("session", "incremental", "deletion")  # modules that one device needs
SEVERAL = ("session", "anneal", "lists")


def is_compiled() -> bool:
    """True when kernels of these very files have been compiled before.

    Raises:
        UsageError: Numba does not take its environment variables.
    """
    try:
        import numba
    except ValueError as error:
        names = ", ".join(name for name in os.environ if name.startswith("NUMBA"))
        raise UsageError(
            "Numba, which the search is compiled with, does not start",
            why=str(error),
            hint=f"look at these environment variables: {names}" if names else "install it again",
        ) from error

    from onnxremat.planner.search.compiled import cache_folder

    folder = Path(cache_folder(Path(__file__).parent, numba.config.CACHE_DIR))
    return any(folder.rglob("evaluate.*"))


def warm_up(devices: int = 1) -> float:
    """Compile the search for so many devices (or load it from the cache), before any time limit
    runs; returns the seconds that took."""
    begin = monotonic()
    for module in ONE if devices == 1 else SEVERAL:
        import_module(f"{__name__}.{module}")
    return monotonic() - begin
