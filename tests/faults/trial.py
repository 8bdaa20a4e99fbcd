"""A command with something that goes wrong at one of its moments, and what is wrong afterwards."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults import moments
from tests.faults.commands import Written
from tests.fuzz.runner import forked

NEVER = 1 << 60
KINDS = ("kill", "interrupt", "full", "memory")
SIZES = {"full": range(19, 6, -1), "memory": range(29, 18, -1)}  # of limits, powers of 2


def count(command: Written) -> int:
    """Moments of an undisturbed run.

    Raises:
        AssertionError: the command does not work.
    """
    with tempfile.TemporaryDirectory(prefix="onnxremat-fault-") as place:
        work = _folder(command, Path(place))
        code, why = forked(lambda: _counted(command), work)
        assert (code, why) == (0, ""), (work.parent / "err").read_text()
        for name, check in command.outputs.items():
            check(work / name)
        return int((work.parent / "count").read_text())


def _counted(command: Written) -> None:
    seen = moments.at(NEVER, lambda: None)
    before = os.getcwd()  # noqa: PTH109
    try:
        _run(command)
    finally:
        (Path(before).parent / "count").write_text(str(seen()))


def wrong(command: Written, kind: str, number: int) -> str:
    """What is wrong after a fault at a moment, "" where nothing is.

    Args:
        kind: ``kill``, ``interrupt`` (Ctrl-C), ``full``: files of at most ``number`` bytes, or
            ``memory``: so many bytes more than the process has.
    """
    with tempfile.TemporaryDirectory(prefix="onnxremat-fault-") as place:
        work = _folder(command, Path(place))
        before = _listing(work)
        code, why = forked(lambda: _disturbed(command, kind, number), work)
        said = (work.parent / "err").read_text(errors="replace")
        damaged = _damaged(command, work)
        if damaged:
            return damaged
        if kind == "kill":
            return _again(command, work)
        if kind == "memory" and "terminate called" in said:
            return ""  # onnxruntime ends the process where one of its threads runs out of memory
        if why:
            return why
        if "Traceback" in said:
            return "a traceback: " + said.strip().splitlines()[-1]
        good = (0, {"interrupt": 130, "full": 9, "memory": 9}[kind])
        if code not in good:
            return f"exit code {code}: " + " ".join(said.partition("error: ")[2].split())[:300]
        left = [name for name in _listing(work) - before if name.startswith(".")]
        return f"a partial file: {left[0]}" if left else ""


def _folder(command: Written, place: Path) -> Path:
    work = place / "work"
    work.mkdir()
    (place / "tmp").mkdir()
    for name, content in command.files.items():
        (work / name).write_bytes(content)
    return work


def _listing(work: Path) -> set[str]:
    return {path.name for path in work.iterdir()}


def _run(command: Written) -> None:
    from onnxremat.cli.app import main

    os.environ["TMPDIR"] = tempfile.tempdir = str(Path.cwd().parent / "tmp")
    sys.argv = ["onnxremat", *command.arguments]
    main()


def _disturbed(command: Written, kind: str, number: int) -> None:
    if kind == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))
    elif kind == "memory":
        allowed = _data_bytes() + number
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
    else:
        what = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT}[kind]
        moments.at(number, lambda: os.kill(os.getpid(), what))
    _run(command)


def _data_bytes() -> int:
    """What counts against RLIMIT_DATA."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))


def _damaged(command: Written, work: Path) -> str:
    """An output that is there and not whole."""
    for name, check in command.outputs.items():
        path = work / name
        try:
            if path.exists():
                check(path)
        except Exception as error:
            return f"{name} is not whole: {type(error).__name__}: {str(error)[:200]}"
    return ""


def _again(command: Written, work: Path) -> str:
    """What is wrong when the command is given again after a kill: it has to get to its end."""
    code, why = forked(lambda: _run(command), work)
    said = (work.parent / "err").read_text(errors="replace")
    if code or why:
        return f"given again: exit code {code} {why} {said[-300:]}"
    missing = [name for name in command.outputs if not (work / name).exists()]
    return f"given again: no {missing[0]}" if missing else _damaged(command, work)


def search(
    command: Written, kinds: Sequence[str], tell: Callable[[str], None], some: int = 0
) -> tuple[int, int]:
    """Try every moment, or the last ``some`` of each kind.

    Returns:
        how many were tried, and how many ended wrong.
    """
    tried, found, last = 0, 0, count(command)
    for kind in kinds:
        numbers = SIZES.get(kind, range(last))
        for step in numbers[-some:]:
            number = 1 << step if kind in SIZES else step
            tried += 1
            said = wrong(command, kind, number)
            if said:
                found += 1
                tell(f"{kind} at {number} of {last}: {said}")
    return tried, found
