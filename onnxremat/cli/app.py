"""The command line. Exit codes: see ``onnxremat.errors``; 0 done, 130 interrupted.

Imports little, so that Ctrl-C is answered from the first moment on.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
import traceback
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

from onnxremat.cli.crash import LAST_WORD
from onnxremat.cli.exhausted import out_of_memory
from onnxremat.cli.interrupt import WATCH, leave
from onnxremat.errors import (
    USED_UP,
    ExhaustedError,
    MissingComponentError,
    OnnxrematError,
    PressedError,
    TrainingWarning,
    UsageError,
    printable,
)

COLLECTING = (50_000, 20, 100)  # looking for rings among a graph's objects is a fifth of all time
UNREAD = 128 + 13  # nobody reads on: as a shell says it of a program that SIGPIPE ends


def main() -> None:
    """Entry point: errors become one message and their exit code."""
    gc.set_threshold(*COLLECTING)
    before = threading.enumerate()
    code = _code()
    left = set(threading.enumerate()) - set(before)
    # A solver still runs, or a run was given up: leave without waiting, and deaf to more signals.
    if WATCH.leaving or (left and _abandoned(left)):
        sys.stdout.flush()
        sys.stderr.flush()
        leave(code)
    sys.exit(code)


def _abandoned(threads: set[threading.Thread]) -> bool:
    """A solver is among them; where none was loaded none can be, and none is loaded for it."""
    solvers = sys.modules.get("onnxremat.planner.solvers.base")
    return getattr(solvers, "ABANDONED", None) in {thread.name for thread in threads}


def _code() -> int:
    """Run; the exit code."""
    _show_warnings()
    for name in ("stdout", "stderr"):  # None where the caller has closed it
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    _write_whole()
    try:
        try:
            _run()
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer ends with 1
            _drop_output()
            return UNREAD
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (KeyboardInterrupt, PressedError):
        sys.stderr.write("error: interrupted\n")
        return 130
    except BrokenPipeError:
        _drop_output()
        return UNREAD
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None:
            _drop_output()  # it may be what could not be written, and would be tried again
        told = _told(error)
        _report(told)
        return told.exit_code
    return 0


def _write_whole() -> None:
    """Unbuffered (``python -u``), Python takes a write that a full disk cuts short for done."""
    text = sys.stdout
    if isinstance(raw := getattr(text, "buffer", None), io.RawIOBase):
        # Another file object of the same descriptor: who has the first may go on with it.
        whole = io.BufferedWriter(io.FileIO(raw.fileno(), "wb", closefd=False))
        sys.stdout = io.TextIOWrapper(whole, text.encoding, text.errors, line_buffering=True)


def _drop_output() -> None:
    """Nobody reads on, or it cannot be kept."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(error: Exception) -> OnnxrematError:
    """An error as it is shown."""
    if short := out_of_memory(error):
        return short
    if isinstance(error, OnnxrematError):
        return error
    if isinstance(error, OSError):  # a full disk, a path no file system takes
        kind = ExhaustedError if error.errno in USED_UP else UsageError
        if isinstance(error, FileNotFoundError) and error.filename is None and not _somewhere():
            what = "the folder that this command was called in is gone"
            return kind(what, hint="call it in one that is there")
        if error.filename is None and kind is ExhaustedError:
            what = f"cannot write what this command says: {error.strerror}"
            return kind(what, hint="make room where it goes, or send it elsewhere")
        return kind(f"{error.strerror or error}", where=str(error.filename or ""))
    if isinstance(error, ImportError) and error.name == "onnxruntime":
        from onnxremat.ort.session import no_runtime  # the package leaves it to the user to choose

        return no_runtime(error)
    if isinstance(error, ModuleNotFoundError) and not f"{error.name}.".startswith("onnxremat."):
        what = f"the package '{error.name}' is not installed for {sys.executable}"
        return MissingComponentError(what, hint="install onnxremat for this Python: pip install .")
    return _unexpected(error)


def _somewhere() -> bool:
    """Whether the working folder is there."""
    try:
        return bool(Path.cwd())
    except FileNotFoundError:
        return False


def _unexpected(error: Exception) -> OnnxrematError:
    """A mistake of ours, in one message."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    said = str(error).splitlines()[0][:200] if str(error) else ""
    return OnnxrematError(
        "onnxremat made a mistake",
        where=f"{os.path.basename(place.filename)}:{place.lineno}",  # noqa: PTH119
        why=f"{type(error).__name__}: {said}",
        hint="please report this with the model, or what makes it, and the traceback that "
        "ONNXREMAT_DEBUG=1 shows",
    )


def _show_warnings() -> None:
    """Ours as a line for people; quiet or not, they are about what is not as it seems."""
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if issubclass(category, TrainingWarning):
            sys.stderr.write(printable(f"warning: {message}\n"))
        else:
            others(message, category, *where)

    warnings.showwarning = show  # type: ignore[assignment]  # the rest is passed on


def _run() -> None:
    """Load the commands and run the one asked for.

    An interrupt while modules are being loaded may surface as any error: it ends the process.
    """
    before = signal.signal(signal.SIGINT, _leave)
    sys.unraisablehook = _lost
    try:
        from onnxremat.cli.commands import app

        signal.signal(signal.SIGINT, _stop)
        LAST_WORD.wanted = True
        with WATCH.watching():
            app()
    finally:
        signal.signal(signal.SIGINT, _stop if WATCH.leaving else before)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.stderr.write("error: interrupted\n")
    sys.stderr.flush()
    leave(130)


def _stop(number: int, frame: FrameType | None) -> None:
    """Not KeyboardInterrupt, which typer would answer for us, and without a word."""
    if _loading(frame):
        _leave(number, frame)
    if not WATCH.leaving:
        WATCH.leaving = True
        raise PressedError


def _lost(found: sys.UnraisableHookArgs) -> None:
    """What was raised where Python drops it (an object goes just then): an answer to Ctrl-C is
    given here instead."""
    if issubclass(found.exc_type, PressedError | KeyboardInterrupt):
        _leave(signal.SIGINT, None)
    sys.__unraisablehook__(found)


def _loading(frame: FrameType | None) -> bool:
    """Whether a module is being imported: an error raised there may surface as any other."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _report(error: OnnxrematError) -> None:
    sys.stderr.write(printable(f"error: {error}\n"))
    if "-vv" in sys.argv or os.environ.get("ONNXREMAT_DEBUG"):
        traceback.print_exc()
