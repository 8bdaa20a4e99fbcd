"""Files that are there whole or not at all, whatever ends the process meanwhile."""

from __future__ import annotations

import ctypes
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onnxremat.errors import USED_UP, ExhaustedError, UsageError

LONGEST = 200  # bytes of a file's name in that of its temporary file: file systems take 255
_UNFINISHED: set[Path] = set()  # temporary files that are being written


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place when the block ends well; a link stays
    one, and the file that it leads to is replaced.

    Raises:
        UsageError: the folder is missing or not writable.
        ExhaustedError: the disk is full.
    """
    path = _target(path)
    start = path.name.encode()[:LONGEST].decode(errors="ignore")
    temporary = path.with_name(f".{start}.{secrets.token_hex(4)}")
    _UNFINISHED.add(temporary)  # before it is there: an interrupt comes between any two steps
    try:
        _create(temporary, path)
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        kept = "; the file before is untouched" if path.exists() else ""
        raise _unwritten(error)(
            f"cannot write {path}",
            why=(error.strerror or str(error)) + kept,
            hint="make room, or choose another folder",
        ) from error
    finally:
        with suppress(OSError):  # of the folder, which was said
            temporary.unlink(missing_ok=True)
        _UNFINISHED.discard(temporary)


@contextmanager
def not_left_empty(folder: Path) -> Iterator[None]:
    """A folder that was not there before the block goes again where nothing is in it at the end."""
    before = folder.exists()
    try:
        yield
    finally:
        if not before:
            with suppress(OSError):  # it holds what was written
                folder.rmdir()


def _target(path: Path) -> Path:
    """The file that is written: where a link leads to."""
    try:
        return path.resolve() if path.is_symlink() else path
    except (OSError, RuntimeError) as error:  # links that lead to each other
        raise _not_created(path, error) from error


def _create(temporary: Path, path: Path) -> None:
    """A new file that nobody else may read, for what will be ``path``."""
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        raise _not_created(path, error) from error


def _not_created(path: Path, error: Exception) -> UsageError | ExhaustedError:
    return _unwritten(error)(
        f"cannot write {path}",
        why=getattr(error, "strerror", "") or str(error),
        hint="choose a folder that exists and that you may write to",
    )


def remove_unfinished() -> None:
    """Remove what :func:`atomic` has not finished, for a process that ends without goodbye.

    Another thread that got to run meanwhile might open such a file anew: these calls keep Python's
    lock, where there is such a way.
    """
    for temporary in list(_UNFINISHED):
        with suppress(OSError, AttributeError, TypeError):
            ctypes.PyDLL(None).unlink(os.fsencode(temporary))
            continue
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _unwritten(error: Exception) -> type[UsageError | ExhaustedError]:
    return ExhaustedError if getattr(error, "errno", 0) in USED_UP else UsageError


def check_writable(path: Path) -> None:
    """Fail early, before minutes of planning, when ``path`` cannot be written.

    Raises:
        UsageError: the folder is missing or not writable, or the path is a folder.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="give a file name")
    if path.exists() and not path.is_file():  # writing would replace a device by a file
        raise UsageError(f"{path} is no regular file", hint="give another file name")
    folder = path.parent if not path.is_symlink() else Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise UsageError(
            f"cannot write {path}",
            why=f"there is no folder {folder}",
            hint="make it first",
        )
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write {path}", why=error.strerror or str(error), hint="choose another folder"
        ) from error
