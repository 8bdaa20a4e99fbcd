"""What is compiled when the package is built: the allocator, and the search for this processor.
Everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))

from build_kernels import compile_kernels

# Plain C, for ctypes: no header of Python's. Where no compiler is, it is left out, and sessions are
# held within their plan in another way (docs/memory.md).
SOURCES = [
    "onnxremat/memory/slab.c",
    "onnxremat/memory/place.c",
    "onnxremat/memory/crash.c",
    "onnxremat/execute/look.c",
]
# OpenVINO on processors that are not Intel's (docs/devices.md).
PLUGIN, DL = ["onnxremat/ort/any_maker.c"], ["dl"] if sys.platform == "linux" else []


class WithKernels(build_py):
    """Modules with their kernels compiled beside them, so that the first run does not compile.

    Compiled code is of this processor and of this version of Numba: elsewhere it is not taken, and
    kernels are compiled when they are first used.
    """

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # else the modules are those of the checkout
            compile_kernels(Path(self.build_lib).resolve() / "onnxremat")


setup(
    ext_modules=[
        Extension("onnxremat.memory._slab", SOURCES, optional=True),
        Extension("onnxremat.ort._any_maker", PLUGIN, libraries=DL, optional=True),
    ],
    cmdclass={"build_py": WithKernels},
)
