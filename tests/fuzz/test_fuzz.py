"""What was found once stays right; the same few random cases in every test run; and the harness
sees what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import onnx
import pytest

from tests.fuzz import runner
from tests.fuzz.case import Case
from tests.fuzz.cases import KINDS, case
from tests.fuzz.found import FOLDER, keep, kept
from tests.fuzz.mutations import change_json, change_message
from tests.toolbox import parse

ROOT = Path(__file__).resolve().parents[2]
MODEL = parse("g (float[8] x) => (float[8] y) { a = Sin(x) y = Cos(a) }").SerializeToString()


def harness(*arguments: object, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """``python -m tests.fuzz`` in a process of its own: cases are forked from it."""
    command = [sys.executable, "-m", "tests.fuzz", *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_what_was_found_stays_right_and_the_same_few_cases(tmp_path: Path) -> None:
    """Counted cases, not minutes: the same in every run."""
    files = sorted(FOLDER.glob("*.zip"))
    assert files
    done = harness(
        "--again", *files, "--seed", 0, "--cases", 3, "--jobs", 2, "--keep", tmp_path / "found",
        folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": right") == len(files)
    assert "3 cases" in done.stdout
    assert not (tmp_path / "cache").exists()  # of measured costs: in the folders of the cases


def test_equal_draws_are_equal_cases() -> None:
    for number in range(8):
        assert case(3, number) == case(3, number)
    assert {case(3, number).kind for number in range(200)} == set(KINDS)


def test_changes_are_changes() -> None:
    """Most draws change the file, and no draw ends in an error of the harness."""
    changed = 0
    for seed in range(200):
        made = onnx.ModelProto.FromString(MODEL)
        change_message(made, Random(seed), 2)
        changed += made.SerializeToString() != MODEL
        change_json({"a": [1, {"b": "c"}], "d": None}, Random(seed), 3)
    assert changed > 120


def test_findings_are_kept_whole(tmp_path: Path) -> None:
    files = {"in.onnx": MODEL, "a/b": b"\0"}
    made = Case("model", files, ("run", "in.onnx"), ("in.onnx", "o"), (5,))
    keep(made, "why", tmp_path / "f.zip")
    assert kept(tmp_path / "f.zip") == made


def test_files_of_others_are_judged_one_by_one(tmp_path: Path) -> None:
    """Those with sizes of their own, weights beside them, and those that are no models."""
    named = parse("g (float[n, 64] x) => (float[n, 64] y) { a = Sin(x) b = Cos(a) y = Add(a, b) }")
    files = tmp_path / "files" / "of" / "others"
    files.mkdir(parents=True)
    onnx.save(named, files / "named.onnx")
    big = parse(
        "g (float[64] x) => (float[64] y) { a = Sin(x) b = Cos(a) c = Add(a, b) y = Add(c, w) }"
    )
    big.graph.initializer.add(name="w", data_type=1, dims=[64], raw_data=b"\0" * 256)
    onnx.save(
        big, files / "big.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    (files / "none.onnx").write_bytes(b"none")
    done = harness("--folder", tmp_path / "files", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *others = done.stdout.splitlines()
    assert "exit code 0, onnxruntime runs it: done" in first, done.stdout
    assert sum("exit code 2, onnxruntime does not run it" in line for line in others) == 1
    assert sum("exit code" in line for line in others) == len(others) <= 2


# The harness itself: every kind of wrong answer is seen


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """What the runner says of a command that runs some Python."""

    def said(code: str) -> str:
        monkeypatch.setattr(runner, "_command", lambda words: exec(code, {"words": words}))
        command = ("run", "-b", "7")
        return runner.run(Case("model", {"in.onnx": MODEL}, command, ("in.onnx", "out.onnx")))

    monkeypatch.setattr(runner, "SECONDS", 1)
    return said


HINT = """
import sys
if words[-1] != {!r}:
    sys.stderr.write('error: no at least 9 B ({} B) are needed  try --budget 90 (90 B)')
    sys.exit(3)
"""
COPY = "import shutil; shutil.copy('in.onnx', 'out.onnx')"
REFUSE = "import sys; sys.stderr.write('error: no\\n'); sys.exit({})"
CRASHED = """
import sys
sys.stderr.write('error: onnxruntime crashes on this model {}')
sys.exit({})
"""
OTHER = """
import onnx
model = onnx.load('in.onnx')
model.graph.node[0].op_type = 'Exp'
onnx.save(model, 'out.onnx')
"""


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (COPY, ""), (REFUSE.format(2), ""), (REFUSE.format(7), ""),
        (CRASHED.format("onnxruntime by itself crashes on it", 7), ""),
        (CRASHED.format("", 7), "crashes on this"),
        (CRASHED.format("onnxruntime by itself crashes on it", 1), "crashes on this"),
        (REFUSE.format(1), "exit code 1"), (REFUSE.format(5), "exit code 5"),
        ("import sys; sys.exit(2)", "without a message"), ("1 / 0", "traceback"),
        ("import os; os.kill(os.getpid(), 15)", "SIGTERM"), ("while True: pass", "did not end"),
        (f"{COPY}; {REFUSE.format(3)}", "and a file: out.onnx"),
        ("open('.out.onnx.1234', 'w').close()", "partial file"), (OTHER, "'y' is another"),
        ("open('out.onnx', 'w').close()", "cannot be compared"),
        (HINT.format("90", 90), ""), (HINT.format("91", 90), "90, is refused: 3"),
        (HINT.format("90", 91), "a budget of 90, where at least 91"),
    ],
)  # fmt: skip
def test_wrong_answers_are_seen(code: str, word: str, answering: Callable[[str], str]) -> None:
    said = answering(code)
    assert word in said
    assert bool(word) == bool(said)
