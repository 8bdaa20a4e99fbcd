"""The last moments of a command, where its results are written, with every fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("name", "last"), [("plan", 1), ("train", 2)])
def test_faults_at_the_last_moments(name: str, last: int) -> None:
    done = python("-m", "tests.faults", "--only", name, "--last", last)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{name}: {3 * last} faults, 0 wrong ends\n"


def test_moments_are_writes_and_renames(tmp_path: Path) -> None:
    """Counted by a hook of the interpreter, which stays: in a process of its own."""
    done = python("-c", MOMENTS, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "3 [3]\n"), done.stderr
