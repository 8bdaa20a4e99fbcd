"""Arrays in ``.npz`` files: those that others wrote, and ours."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np

from onnxremat.device.host import memory_bytes
from onnxremat.errors import UsageError
from onnxremat.limits import regular
from onnxremat.units import format_bytes

# What numpy raises on files that are damaged, or say that they hold more than there can be.
BROKEN = (
    OSError, ValueError, TypeError, KeyError, EOFError, OverflowError, MemoryError, SyntaxError,
    RuntimeError, zipfile.BadZipFile, zlib.error, TokenError,
)  # fmt: skip


def read_arrays(path: Path, what: str, hint: str = "") -> dict[str, np.ndarray]:
    """All arrays of an ``.npz`` file, by name.

    Args:
        what: the file is for, for the message: ``inputs``.

    Raises:
        UsageError: missing, damaged, another kind of file, or larger than this machine's memory.
    """
    try:
        size = _bytes(regular(path))
        if size > memory_bytes():
            raise ValueError(f"it holds {format_bytes(size)}, more than this machine's memory")
        # Opened here: NumPy leaves an archive that was cut short open.
        with path.open("rb") as file, np.load(file) as archive:
            found = {name: archive[name] for name in archive.files}
    except BROKEN as error:
        raise UsageError(
            f"cannot read {what} from {path}",
            why=_why(path, error),
            hint=hint or "write it with numpy.savez",
        ) from error
    for name, array in found.items():
        if not isinstance(array, np.ndarray):
            raise UsageError(
                f"cannot read {what} from {path}",
                why=f"its member '{name}' is no array",
                hint=hint or "write it with numpy.savez",
            )
    return found


def write_arrays(file: Path | IO[bytes], arrays: Mapping[str, Any]) -> None:
    """Write arrays of any names; ``numpy.savez`` has two of its own, ``file`` and
    ``allow_pickle``. Strings are written as strings: objects, as onnxruntime has them, are not
    read again."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _of_strings(np.asanyarray(array)))


def _of_strings(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "O":
        return array
    texts = [each.decode() if isinstance(each, bytes) else str(each) for each in array.flat]
    return np.array(texts, np.str_).reshape(array.shape)


def _bytes(path: Path) -> int:
    """Of all members, unpacked; 0 for what is no archive."""
    if not zipfile.is_zipfile(path):
        return 0
    with zipfile.ZipFile(path) as archive:
        return sum(member.file_size for member in archive.infolist())


def _why(path: Path, error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if not zipfile.is_zipfile(path):
        return "it is no .npz file"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
