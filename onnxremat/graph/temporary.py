"""Temporary folders, and what is said when the disk that they are on is full: who writes there
mostly only says that what was written cannot be read.

A process that is killed cannot remove its folders. The next one that needs one does: a folder is
locked as long as a process has it, and the system takes a lock back with the process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from onnxremat.errors import ExhaustedError

try:
    import fcntl
except ImportError:  # on Windows folders of killed processes stay
    fcntl = None  # type: ignore[assignment]

PREFIX = "onnxremat-held-"
NEW = 60.0  # seconds for which a folder may be there and not be locked yet
_HELD: dict[str, tuple[int, int]] = {}  # by folder: the process that made it, file of its lock

LEAST = 64 << 10  # free bytes below which a failure is put down to the folder being full


def make_folder() -> str:
    """A new, empty folder of this process in the system's folder for temporary files (``TMPDIR``);
    the first one that a process makes removes what killed ones have left there.

    Raises:
        OSError: it cannot be made.
    """
    _remove_left()
    folder = tempfile.mkdtemp(prefix=PREFIX)
    lock = os.open(folder, os.O_RDONLY) if fcntl else -1
    _HELD[folder] = os.getpid(), lock
    _lock(lock)
    return folder


def remove_folder(folder: str) -> None:
    """Remove one of :func:`make_folder`; in a forked process, which knows of it, too, nothing."""
    owner, lock = _HELD.pop(folder, (0, -1))
    if owner != os.getpid():
        return
    shutil.rmtree(folder, ignore_errors=True)
    if lock >= 0:
        os.close(lock)


def remove_folders() -> None:
    """Remove all that there still are, for a process that ends without saying goodbye."""
    for folder in list(_HELD):
        remove_folder(folder)


@contextmanager
def scratch_folder() -> Iterator[str]:
    """One that is there for as long as the block runs."""
    folder = make_folder()
    try:
        yield folder
    finally:
        remove_folder(folder)


@cache
def _remove_left() -> None:
    """Remove folders that no process holds, once."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if fcntl else ():
        try:
            if time.time() - folder.stat().st_mtime < NEW:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # it is gone, or another user's
            continue
        if _lock(lock):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _lock(lock: int) -> bool:
    """Whether this process has the lock of a folder now; False where the file system has none."""
    if lock < 0:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def no_room(what: str, why: str) -> ExhaustedError:
    """The error for what could not be written to the temporary folder."""
    folder = tempfile.gettempdir()
    return ExhaustedError(
        what, why=why, hint=f"make room in {folder}, or set TMPDIR to a folder with more"
    )


def reason(error: Exception) -> Exception:
    """What to raise for an error that a full folder may be behind: that, or the error itself."""
    free = _free()
    if free >= LEAST:
        return error
    return no_room("the folder for temporary files is full", f"{free} bytes are left")


def cut_short(what: str) -> ExhaustedError:
    """The error for what onnxruntime wrote to a temporary file and nobody can read."""
    what, most = f"{what} cannot be read back", _largest_file()
    if most is None:
        return no_room(what, f"it is cut short; {_free()} bytes are left for more")
    return ExhaustedError(
        what,
        why=f"it is cut short; this process may write no file of more than {most} bytes",
        hint="raise that limit (ulimit -f)",
    )


def _largest_file() -> int | None:
    """Bytes of the largest file that this process may write, None without a limit."""
    if fcntl is None:
        return None
    import resource  # is where fcntl is

    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if most == resource.RLIM_INFINITY else most


def _free() -> int:
    """Bytes in the folder for temporary files."""
    try:
        return shutil.disk_usage(tempfile.gettempdir()).free
    except OSError:  # there is no such folder any more
        return 0
