"""When the folder for temporary files is full: who writes there mostly only says that what was
written cannot be read."""

from __future__ import annotations

import shutil
import tempfile

from onnxremat.errors import ExhaustedError

LEAST = 64 << 10  # free bytes below which a failure is put down to the folder being full


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
    return no_room(
        f"{what} cannot be read back", f"it is cut short; {_free()} bytes are left for more"
    )


def _free() -> int:
    """Bytes in the folder for temporary files."""
    try:
        return shutil.disk_usage(tempfile.gettempdir()).free
    except OSError:  # there is no such folder any more
        return 0
