"""The compiled allocator; everything else is in pyproject.toml."""

from setuptools import Extension, setup

# Plain C, for ctypes: no header of Python's. Where no compiler is, it is left out, and sessions are
# held within their plan in another way (docs/memory.md).
SOURCES = ["onnxremat/memory/slab.c", "onnxremat/memory/place.c"]
setup(ext_modules=[Extension("onnxremat.memory._slab", SOURCES, optional=True)])
