"""Weights that a session reads where they lie in a file, made its own. Linux only.

onnxruntime maps weights that lie in files. Kernels that pack theirs let the mapping go; the others
read the file as long as the session lives, and a file that is written over meanwhile changes their
weights or ends the process. So what is still mapped once the session is open is replaced, in place,
by memory with the same bytes: read once, held once.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

MAPS = Path("/proc/self/maps")
CHUNK = 1 << 18  # bytes copied at a time: the most that is held twice
_FIXED = 0x10

Range = tuple[int, int]


def can_own() -> bool:
    """Whether mapped weights can be made a session's own here."""
    return MAPS.exists()


def mapped(path: Path) -> set[Range]:
    """Where this process has mapped a file privately: as onnxruntime does, writable, or no longer
    so (``let_go`` in slab.c)."""
    name, found = str(path.resolve()), set()
    for line in MAPS.read_text().splitlines():
        span, rights, *_, last = line.split(maxsplit=5)
        if last == name and rights in ("rw-p", "r--p"):
            begin, _, end = span.partition("-")
            found.add((int(begin, 16), int(end, 16)))
    return found


def make_own(ranges: set[Range]) -> None:
    """Replace mapped pages by memory with the same bytes.

    Raises:
        MemoryError: the system has none; what is replaced by then is sound.
    """
    if not ranges:
        return
    held = ctypes.create_string_buffer(CHUNK)
    for begin, end in sorted(ranges):
        for at in range(begin, end, CHUNK):
            size = min(CHUNK, end - at)
            ctypes.memmove(held, at, size)
            _replace(at, size, mmap.PROT_READ | mmap.PROT_WRITE)
            ctypes.memmove(at, held, size)


def leave(ranges: set[Range]) -> None:
    """Replace mapped pages that nobody reads again by nothing: their addresses stay taken."""
    for begin, end in ranges:
        _replace(begin, end - begin, 0)


def _replace(at: int, size: int, rights: int) -> None:
    c = ctypes.CDLL(None)
    c.mmap.restype = ctypes.c_void_p
    c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED
    if c.mmap(at, size, rights, kind, -1, 0) != at:
        raise MemoryError(size)
