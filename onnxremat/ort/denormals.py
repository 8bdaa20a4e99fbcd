"""Denormal numbers taken as zero while a session runs.

Masked attention makes softmax produce them by the million, and x86 handles each ten times slower
than a normal number. onnxruntime's own setting reaches the threads of its pool, but the calling
thread only when the first session of the process asked for it.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_SIZE, _MXCSR = 32, 28  # of glibc's fenv_t on x86-64, and where the SSE control word is in it
_FLUSH = 0x8040  # results and operands


@cache
def _library() -> ctypes.CDLL | None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        return ctypes.CDLL("libm.so.6")
    except OSError:
        return None


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """In this thread, on Linux x86-64; elsewhere nothing changes."""
    library = _library()
    if library is None:
        yield
        return
    before = ctypes.create_string_buffer(_SIZE)
    library.fegetenv(before)
    word = int.from_bytes(before.raw[_MXCSR:], "little") | _FLUSH
    flushing = ctypes.create_string_buffer(before.raw[:_MXCSR] + word.to_bytes(4, "little"), _SIZE)
    library.fesetenv(flushing)
    try:
        yield
    finally:
        library.fesetenv(before)
