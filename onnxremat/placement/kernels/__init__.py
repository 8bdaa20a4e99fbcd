"""Compiled loops of placement: lattice of ideals, chains of pieces, cuts, annealing.

Each module compiles when it is imported, once per machine; :func:`warm_up` imports them all.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from time import monotonic


def warm_up() -> float:
    """Compile all kernels (or load them from the cache); returns the seconds that took."""
    begin = monotonic()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if not file.stem.startswith("_"):
            import_module(f"{__name__}.{file.stem}")
    return monotonic() - begin
