"""What is compiled when the package is built: the allocator, and the search for this processor.
Everything else is in pyproject.toml."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

# Plain C, for ctypes: no header of Python's. Where no compiler is, it is left out, and sessions are
# held within their plan in another way (docs/memory.md).
SOURCES = ["onnxremat/memory/slab.c", "onnxremat/memory/place.c"]
KERNELS = [  # one process each, side by side
    "from onnxremat.planner.search import warm_up; warm_up(); warm_up(2)",
    "from onnxremat.placement.kernels import warm_up; warm_up(); import onnxremat.workers.kernels",
]


class WithKernels(build_py):
    """Modules with their kernels compiled beside them, so that the first run does not compile.

    Compiled code is of this processor and of this version of Numba: elsewhere it is not taken, and
    kernels are compiled when they are first used, as they are where that fails here.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # the modules are those of the checkout
            return
        folder = str(Path(self.build_lib).resolve())
        env = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        env.pop("NUMBA_CACHE_DIR", None)
        running = [
            subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=env) for code in KERNELS
        ]
        codes = [child.wait() for child in running]  # all of them, before any is judged
        if any(codes):
            print("kernels are left to be compiled when they are first used")  # noqa: T201


setup(
    ext_modules=[Extension("onnxremat.memory._slab", SOURCES, optional=True)],
    cmdclass={"build_py": WithKernels},
)
