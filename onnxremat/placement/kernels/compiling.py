"""How these kernels are compiled: as those of :mod:`onnxremat.planner.search.compiled`, with a
cache folder of their own, named by the content of the files of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

from onnxremat.planner.search.compiled import cache_folder

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def entry(signature: Any) -> Callable[[Kernel], Kernel]:
    """Compile a kernel that Python calls, for one signature, without the interpreter lock.

    It makes no arrays: all of its work space is passed to it.
    """
    decorator: Callable[[Kernel], Kernel] = numba.njit(
        signature, cache=True, nogil=True, error_model="numpy", _nrt=False, no_cfunc_wrapper=True
    )

    def with_cache(function: Kernel) -> Kernel:
        asked = numba.config.CACHE_DIR  # of other kernels in this process: left as it is
        numba.config.CACHE_DIR = cache_folder(Path(__file__).parent, asked)
        try:
            return decorator(function)
        finally:
            numba.config.CACHE_DIR = asked

    return with_cache
