"""The last moments of a command, where its results are written, with every fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxremat.cli.exhausted import out_of_memory
from onnxremat.errors import ExhaustedError, InfeasibleError, ModelError, UsageError
from tests.faults.commands import commands

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
    assert done.stdout == f"{name}: {4 * last} faults, 0 wrong ends\n"


def test_two_writers_of_one_file(tmp_path: Path) -> None:
    """Each writes the whole; the last one stays."""
    command = commands()["plan"]()
    for name, content in command.files.items():
        (tmp_path / name).write_bytes(content)
    line = [sys.executable, "-m", "onnxremat", *command.arguments]
    both = [
        subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(2)
    ]
    for writer in both:
        said, _ = writer.communicate()
        assert writer.returncode == 0, said
    for name, whole in command.outputs.items():
        whole(tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {*command.files, *command.outputs}


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
