"""Folders that cannot be used: no home, caches and temporary folders that are read-only, full, a
file, or gone. Each is made in the process that is to meet it."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

_NEW_MOUNTS, _NEW_USER, _READ_ONLY = 0x00020000, 0x10000000, 1


class NotTriedError(Exception):
    """This machine lets nobody make such a folder."""


def _mounted(size: str, flags: int = 0) -> Path:
    """A file system of its own, seen by this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = Path.cwd().parent / "mounted"
    place.mkdir()
    options = f"size={size}".encode()
    for spaces in (_NEW_MOUNTS, _NEW_MOUNTS | _NEW_USER):
        given = (b"tmpfs", str(place).encode(), b"tmpfs", flags, options)
        if libc.unshare(spaces) == 0 and libc.mount(*given) == 0:
            return place
    raise NotTriedError(os.strerror(ctypes.get_errno()))


def _full() -> Path:
    place = _mounted("16k")
    try:
        (place / "fill").write_bytes(bytes(1 << 20))
    except OSError:
        return place
    raise AssertionError("the disk is not full")


def _temporary(place: Path) -> None:
    os.environ["TMPDIR"] = str(place)
    tempfile.tempdir = None  # looked for anew


def _cache(place: Path | str) -> None:
    os.environ["ONNXREMAT_CACHE"] = str(place)


def _no_home() -> None:
    for name in ("HOME", "ONNXREMAT_CACHE", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)


def _home_nowhere() -> None:
    _no_home()
    os.environ["HOME"] = "/proc/nowhere"


def _cache_is_a_file() -> None:
    (Path.cwd().parent / "file").write_text("")
    _cache(Path.cwd().parent / "file")


# What a command may answer beside 0 where only that folder is amiss.
PLACES: tuple[tuple[str, Callable[[], None], tuple[int, ...]], ...] = (
    ("no home", _no_home, ()),
    ("a home that is nowhere", _home_nowhere, ()),
    ("a cache that is a file", _cache_is_a_file, ()),
    ("a cache that cannot be made", lambda: _cache("/proc/nowhere"), ()),
    ("a read-only cache", lambda: _cache(_mounted("1m", _READ_ONLY)), ()),
    ("a cache on a full disk", lambda: _cache(_full()), ()),
    ("a temporary folder that is gone", lambda: _temporary(Path("gone")), ()),
    ("a full temporary folder", lambda: _temporary(_full()), (9,)),
)
