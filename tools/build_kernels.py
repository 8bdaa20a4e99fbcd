"""Kernels compiled beside their modules where a wheel is built, all of them or an error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SEARCH = "from onnxremat.planner.search import warm_up; warm_up(); warm_up(2)"
OTHERS = (
    "from onnxremat.placement.kernels import warm_up; warm_up(); "
    "from onnxremat.fission.kernels import warm_up; warm_up(); "
    "import onnxremat.workers.pipelines.kernels"
)
LATER = "ONNXREMAT_KERNELS"  # set to ``later``: a build without them
DECORATED = re.compile(r"^@compiled\(", re.MULTILINE)


def compile_kernels(package: Path) -> None:
    """Compile the kernels of a package that is being built.

    The modules are imported in processes of their own, which Numba keeps the compiled code of. What
    an earlier build left there goes first: it may be of other sources, or a part.

    Args:
        package: the folder ``onnxremat`` of the build.

    Raises:
        SystemExit: not all of them could be compiled; says why, and what to do.
    """
    if os.environ.get(LATER) == "later":
        return
    for old in package.rglob("kernels-*"):
        shutil.rmtree(old)
    run([SEARCH, OTHERS], package.parent)
    if missing(package):  # one after the other takes half of the memory
        run([SEARCH], package.parent)
        run([OTHERS], package.parent)
    lacking = missing(package)
    if lacking:
        raise SystemExit(
            f"error: {sum(lacking.values())} kernels of the search were not compiled ("
            f"{', '.join(f'{count} of {name}' for name, count in lacking.items())}); what stopped "
            "it is said above (pip shows it with -v). Try again with more free memory, or build "
            f"without them: {LATER}=later pip install . (the first run then takes minutes longer)"
        )


def run(codes: list[str], folder: Path) -> None:
    """Run pieces of Python side by side, each in a process that imports from ``folder``. One that
    ends early is not judged by that: what it did not compile is missing."""
    env = environment(folder, os.environ)
    running = [
        subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=env) for code in codes
    ]
    for child in running:
        if status := child.wait():
            print(f"compiling kernels ended with {status}", file=sys.stderr)


def environment(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """That of a process that compiles: it imports what is built before anything else, and finds
    what this process finds. pip's isolated builds have Numba in a folder that only ``PYTHONPATH``
    names."""
    paths = [str(folder), *filter(None, [given.get("PYTHONPATH")])]
    made = {**given, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    made.pop("NUMBA_CACHE_DIR", None)
    return made


def missing(package: Path) -> dict[str, int]:
    """How many kernels each folder of a package lacks; folders that have all of them left out."""
    found = {}
    for folder in sorted({file.parent for file in package.rglob("*.py")}):
        want = sum(len(DECORATED.findall(file.read_text())) for file in folder.glob("*.py"))
        have = len(list((folder / "__pycache__").rglob("kernels-*/**/*.nbc")))
        if have < want:
            found[folder.name] = want - have
    return found
