"""The last moments of a command, where its results are written, with every fault."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onnxremat.cli.exhausted import out_of_memory
from onnxremat.errors import ExhaustedError, InfeasibleError, ModelError, UsageError
from tests.faults import presses, trial
from tests.faults.commands import Written

ROOT = Path(__file__).resolve().parents[2]
MOMENTS = """
import os
from pathlib import Path
from tests.faults import moments
ended = []
seen = moments.at(2, lambda: ended.append(seen()))
Path("a").write_text("1")
Path("a").read_text()
os.replace("a", "b")
assert not ended
Path("b").unlink()
os.open("/dev/null", os.O_WRONLY)
print(seen(), ended)
"""


def python(*arguments: object, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, text=True, capture_output=True,
        check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "last"), [pytest.param("plan", 1, marks=pytest.mark.slow), ("train", 1)]
)
def test_faults_at_the_last_moments(name: str, last: int) -> None:
    done = python("-m", "tests.faults", "--only", name, "--last", last)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 wrong ends" in done.stdout


def test_late_answers_to_an_interrupt_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a command that says that it heeds it, and goes on."""

    def deaf(command: Written) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            if command.arguments:
                os.write(2, b"stopping\n")

    monkeypatch.setattr(trial, "_run", deaf)
    monkeypatch.setattr(presses, "ANSWER", 0.1)
    whole = trial.Whole(0, 0, 0.2 * 2 * trial.PIECES)  # pressed when it is deaf
    assert "second Ctrl-C" in trial.wrong(Written({}, ("heed",), {}), "press", 1, whole)
    said = trial.wrong(Written({}, (), {}), "press", 0, whole)
    assert said.startswith("Ctrl-C at")
    assert "not answered in 0.1 s" in said


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (MemoryError(), True),
        (ModelError("not readable", why="Arena alloc failed"), True),
        (InfeasibleError("does not fit", why="std::bad_alloc"), False),
        (ModelError("not readable", why="truncated"), False),
        (OSError(12, "Cannot allocate memory"), True),
    ],
    ids=str,
)
def test_memory_that_runs_out_is_told_from_other_errors(error: Exception, short: bool) -> None:
    told = out_of_memory(error)
    assert isinstance(told, ExhaustedError) if short else told is None


def test_an_error_raised_from_memory_that_ran_out() -> None:
    error = UsageError("not a model")
    error.__context__ = MemoryError()
    assert out_of_memory(error)


def test_moments_are_writes_and_renames(tmp_path: Path) -> None:
    """Counted by a hook of the interpreter, which stays: in a process of its own."""
    done = python("-c", MOMENTS, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "3 [3]\n"), done.stderr
