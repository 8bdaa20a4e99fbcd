"""A command with something that goes wrong at one of its moments, and what is wrong afterwards."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults import moments
from tests.faults.commands import Written
from tests.faults.places import PLACES, NotTriedError
from tests.faults.presses import Presses
from tests.fuzz.runner import forked

NEVER = 1 << 60
# At a write, or as a phase begins; after a piece of the work; limits; folders; two of it at once.
KINDS = ("kill", "interrupt", "phase", "cut", "press", "full", "memory", "place", "writers")
SIZES = {"full": range(19, 6, -1), "memory": range(29, 18, -1)}  # of limits, powers of 2
PIECES = 24  # of the work of a command, at the end of each of which it is cut off or interrupted
LEAST = 0.02  # seconds of a processor that a command takes at least, for a timer
NOT_TRIED = 77  # exit code of a fault that this machine does not let anybody make


@dataclass(frozen=True)
class Whole:
    """An undisturbed run.

    Attributes:
        writes: how often it opens a file to write, renames or removes one.
        phases: how often it begins something that it tells of or counts.
        seconds: of a processor.
    """

    writes: int
    phases: int
    seconds: float

    def numbers(self, kind: str) -> range:
        """Of the faults of a kind."""
        if kind in SIZES:
            return SIZES[kind]
        several = {
            "phase": self.phases, "cut": PIECES, "press": 2 * PIECES, "place": len(PLACES),
            "writers": 1,
        }  # fmt: skip
        return range(several.get(kind, self.writes))


def undisturbed(command: Written) -> Whole:
    """What a run takes.

    Raises:
        AssertionError: the command does not work.
    """
    with tempfile.TemporaryDirectory(prefix="onnxremat-fault-") as place:
        work = _folder(command, Path(place))
        code, why = forked(lambda: _counted(command), work)
        assert (code, why) == (0, ""), (work.parent / "err").read_text()
        for name, check in command.outputs.items():
            check(work / name)
        writes, phases, seconds = (work.parent / "count").read_text().split()
        return Whole(int(writes), int(phases), float(seconds))


def _counted(command: Written) -> None:
    _settle()
    seen, phases = moments.at(NEVER, lambda: None), moments.at_phase(NEVER, lambda: None)
    begin = time.process_time()
    before = os.getcwd()  # noqa: PTH109
    try:
        _run(command)
    finally:
        seconds = time.process_time() - begin
        (Path(before).parent / "count").write_text(f"{seen()} {phases()} {seconds}")


def wrong(command: Written, kind: str, number: int, whole: Whole) -> str:
    """What is wrong after a fault, "" where nothing is.

    Args:
        kind: ``kill`` or ``interrupt`` (Ctrl-C) at a write, or that as a ``phase`` begins; ``cut``
            or ``press``: ended at once, or Ctrl-C (odd numbers: twice), after a piece of its work;
            ``full``: files of at most
            2^``number`` bytes, ``memory``: so many bytes more than the process has; ``place``: a
            folder that cannot be used; ``writers``: two at once.
    """
    with tempfile.TemporaryDirectory(prefix="onnxremat-fault-") as place:
        work = _folder(command, Path(place))
        before = _listing(work)
        said_in = work.parent / "err"
        presses = None
        if kind == "press":
            at = whole.seconds * (number // 2 + 0.5) / PIECES
            presses = Presses(at, bool(number % 2), said_in)
        code, why = forked(
            lambda: _disturbed(command, kind, number, whole), work, presses and presses.look
        )
        said = said_in.read_text(errors="replace")
        damaged = _damaged(command, work)
        if damaged:
            return damaged
        if kind in ("kill", "cut"):
            return _again(command, work)
        if kind == "place" and code == NOT_TRIED:
            raise NotTriedError(f"{PLACES[number][0]}: {said.strip()}")
        if kind == "memory" and "terminate called" in said:
            return ""  # onnxruntime ends the process where one of its threads runs out of memory
        if why or (presses and presses.late):
            return (presses.late if presses else "") or why
        return _judged(code, said, _allowed(kind, number)) or _partial(work, before)


def _allowed(kind: str, number: int) -> tuple[int, ...]:
    """Exit codes beside 0."""
    if kind == "place":
        return PLACES[number][2]
    codes = {"interrupt": 130, "phase": 130, "press": 130, "full": 9, "memory": 9}
    return (codes[kind],) if kind in codes else ()


def _judged(code: int, said: str, allowed: tuple[int, ...]) -> str:
    if "Traceback" in said:
        return "a traceback: " + said.strip().splitlines()[-1]
    if code in (0, *allowed):
        return ""
    return f"exit code {code}: " + " ".join(said.partition("error: ")[2].split())[:300]


def _partial(work: Path, before: set[str]) -> str:
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


def _settle() -> None:
    """Temporary files go to a folder of this trial."""
    os.environ["TMPDIR"] = tempfile.tempdir = str(Path.cwd().parent / "tmp")


def _run(command: Written) -> None:
    from onnxremat.cli.app import main

    sys.argv = ["onnxremat", *command.arguments]
    main()


def _disturbed(command: Written, kind: str, number: int, whole: Whole) -> None:
    _settle()
    if kind == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << number, 1 << number))
    elif kind == "memory":
        allowed = _data_bytes() + (1 << number)
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
    elif kind == "cut":  # the signal of the timer is not handled: it ends the process
        after = whole.seconds * (number + 0.5) / PIECES
        signal.setitimer(signal.ITIMER_PROF, max(LEAST, after))
    elif kind == "place":
        try:
            PLACES[number][1]()
        except NotTriedError as error:
            sys.stderr.write(str(error))
            sys.exit(NOT_TRIED)
    elif kind == "writers":
        _twice(command)
    elif kind == "phase":
        moments.at_phase(number, lambda: os.kill(os.getpid(), signal.SIGINT))
    elif kind != "press":
        what = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT}[kind]
        moments.at(number, lambda: os.kill(os.getpid(), what))
    _run(command)


def _twice(command: Written) -> None:
    """Two of it at once."""
    other = os.fork()
    try:
        _run(command)
    finally:
        if other and (status := os.waitpid(other, 0)[1]):
            sys.exit(os.waitstatus_to_exitcode(status))


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
    code, why = forked(lambda: (_settle(), _run(command)), work)
    said = (work.parent / "err").read_text(errors="replace")
    if code or why:
        return f"given again: exit code {code} {why} {said[-300:]}"
    missing = [name for name in command.outputs if not (work / name).exists()]
    return f"given again: no {missing[0]}" if missing else _damaged(command, work)


def search(
    command: Written, kinds: Sequence[str], tell: Callable[[str], None], some: int = 0
) -> tuple[int, int]:
    """Try every fault, or the last ``some`` of each kind.

    Returns:
        how many were tried, and how many ended wrong.
    """
    tried, found, whole = 0, 0, undisturbed(command)
    for kind in kinds:
        numbers = whole.numbers(kind)
        for number in numbers[-some:]:
            try:
                said = wrong(command, kind, number, whole)
            except NotTriedError as error:
                tell(f"not tried: {error}")
                continue
            tried += 1
            if said:
                found += 1
                tell(f"{kind} {number} of {len(numbers)}: {said}")
    return tried, found
