"""Versions of what a run depends on."""

from __future__ import annotations

from collections.abc import Sequence

VERSION = "0.1.0"  # of the package; said nowhere else
# What plans, runs and solves; the first of the runtimes is the one that is here.
COMPONENTS = (
    "onnxruntime-gpu", "onnxruntime", "onnx", "onnx-graphsurgeon", "numpy", "numba", "highspy",
    "pyscipopt", "gurobipy", "matplotlib", "torch",
)  # fmt: skip


def versions(names: Sequence[str] = COMPONENTS) -> dict[str, str]:
    """Version by name: onnxremat, Python, and those of the packages that are installed; none of
    them is loaded."""
    # `import onnxremat` reads this file, and stays instant.
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"onnxremat": VERSION, "Python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
