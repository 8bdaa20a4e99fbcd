"""Numba with explicit signatures and an on-disk cache: no compiler and no build step for users.

Kernels take named tuples of flat arrays, so that each has one signature and compiles once per
machine, when its module is imported. What keeps that short: only *entries*, called from Python, get
a wrapper that unpacks arguments; functions used in one place are *parts*, compiled as lines of the
kernel that uses them; and no kernel makes an array, sorts or assigns slices with NumPy, which would
compile thousands of lines of Numba's own. A kernel that makes no arrays needs no reference counts
either: taking an array out of a named tuple counts twice, atomically, and left in, counting takes
five sixths of the time of the search.

Numba takes a compiled kernel from its cache when the kernel's own file is as it was, though what it
calls may have changed. So the cache lies in a folder named by the content of all files beside it
and beside this module, whose pieces kernels of other folders use. Where the package lies does not
matter: what was compiled when it was built (setup.py) is taken where it is installed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba import types
from numba.core import caching
from numpy.typing import NDArray

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

I32 = types.Array(types.int32, 1, "C")
I64 = types.Array(types.int64, 1, "C")
F64 = types.Array(types.float64, 1, "C")
U8 = types.Array(types.uint8, 1, "C")
U64 = types.Array(types.uint64, 1, "C")
I32_2D = types.Array(types.int32, 2, "C")
I64_2D = types.Array(types.int64, 2, "C")
F64_2D = types.Array(types.float64, 2, "C")
U8_2D = types.Array(types.uint8, 2, "C")
F64_3D = types.Array(types.float64, 3, "C")

Random = NDArray[np.uint64]


def compiled(signature: Any, *, entry: bool = False) -> Callable[[Kernel], Kernel]:
    """Compile a kernel for one signature, cached on disk, without the interpreter lock.

    Args:
        entry: Python calls it. Others are for kernels only: called from Python, they crash.
    """

    def decorator(*, kept: bool) -> Callable[[Kernel], Kernel]:
        made: Callable[[Kernel], Kernel] = numba.njit(
            signature, cache=kept, nogil=True, error_model="numpy", _nrt=False,
            no_cpython_wrapper=not entry, no_cfunc_wrapper=True,
        )  # fmt: skip
        return made

    def with_cache(function: Kernel) -> Kernel:
        settings = numba.config  # of other kernels in this process: left as they are
        asked, others = settings.CACHE_DIR, getattr(settings, "CACHE_LOCATOR_CLASSES", "")
        settings.CACHE_DIR = cache_folder(Path(function.__code__.co_filename).parent, asked)
        settings.CACHE_LOCATOR_CLASSES = ",".join(LOCATORS)
        try:
            return decorator(kept=True)(function)
        except Exception:  # there is no room to keep it, or what was kept is cut short
            _forget(function, Path(settings.CACHE_DIR))
            return decorator(kept=False)(function)
        finally:
            settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = asked, others

    return with_cache


def _forget(function: Callable[..., Any], folder: Path) -> None:
    """Let a kernel be compiled anew the next time, where its files can be removed."""
    name = f"{Path(function.__code__.co_filename).stem}.{function.__qualname__}-*.nbi"
    for index in folder.glob(name):
        with suppress(OSError):
            index.unlink()


class Here(getattr(caching, "InTreeCacheLocator", object)):  # type: ignore[misc]
    """Kernels lie in the very folder that is asked for, readable at least; Numba itself puts the
    path of the module's file below it. Older versions of Numba do not ask for this class."""

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)
        self._cache_path = numba.config.CACHE_DIR

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        """None where the folder is not there and cannot be made."""
        made = cls(function, file)
        try:
            made.ensure_cache_path()
        except OSError:
            return made if Path(made.get_cache_path()).is_dir() else None
        return made


LOCATORS = (f"{__name__}.{Here.__name__}", "UserWideCacheLocator")


@cache
def cache_folder(kernels: Path, asked: str = "") -> str:
    """Where the kernels of a folder are kept compiled: another place whenever one of them changes,
    or one of this folder, which they may use.

    Args:
        asked: ``NUMBA_CACHE_DIR``, "" for beside the kernels. Where that cannot be written, Numba
            takes the user's cache.
    """
    content = hashlib.sha256()
    for folder in dict.fromkeys((kernels, Path(__file__).parent)):
        for file in sorted(folder.glob("*.py")):
            content.update(file.read_bytes())
    inside = Path(asked) if asked else kernels / "__pycache__"
    return str(inside / f"kernels-{content.hexdigest()[:16]}")


def part(function: Kernel) -> Kernel:
    """A part of the one kernel (or the few) that uses it: compiled as if it stood there."""
    inlined: Kernel = numba.njit(inline="always", error_model="numpy", _nrt=False)(function)
    return inlined


@compiled(types.int64(U64, types.int64))
def below(random: Random, limit: int) -> int:
    """Random integer in [0, limit) (xorshift64); ``random`` holds the state."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return int((x >> np.uint64(11)) % np.uint64(limit))


@compiled(types.float64(U64))
def uniform(random: Random) -> float:
    """Random number in [0, 1)."""
    return below(random, 1 << 53) / 9007199254740992.0


def generator(seed: int) -> Random:
    """State of the random generator of one search."""
    return np.asarray([(seed * 2654435761 + 88172645463325252) % (1 << 64)], np.uint64)
