"""The compiled loop of fission: bytes of a graph in parts. It compiles when it is imported, once
per machine; :func:`warm_up` imports it."""

from __future__ import annotations

from importlib import import_module
from time import monotonic


def warm_up() -> float:
    """Compile the loop (or load it from the cache); returns the seconds that took."""
    begin = monotonic()
    import_module(f"{__name__}.replay")
    return monotonic() - begin
