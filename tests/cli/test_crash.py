"""A library that crashes ends the process: it is told all the same, with a documented exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from onnxremat.memory.compiled import compiled
from tests.conftest import ROOT
from tests.toolbox import parse

# In a thread, as those of onnxruntime do. Some models make it read beyond a buffer.
CRASH = """
import ctypes, resource, threading
import onnxremat.pipeline.prepare, onnxremat.ort.profile as profile
from onnxremat.cli.app import main
def crash(*_):
    thread = threading.Thread(target={crash})
    thread.start()
    thread.join()
profile.open_session = crash
main()
"""
READS, ABORTS = "lambda: ctypes.string_at(8)", "ctypes.CDLL(None).abort"
FILLS = "lambda: (resource.setrlimit(resource.RLIMIT_AS, (1, 1)), ctypes.pythonapi.abort())"


@pytest.mark.skipif(not hasattr(compiled(), "last_word"), reason="it is compiled code that tells")
@pytest.mark.parametrize(
    ("how", "more", "code", "said"),
    [
        (
            READS,
            [],
            7,
            "onnxruntime crashes on this model (SIGSEGV)\n  where measuring the original",
        ),
        (ABORTS, ["--train"], 1, "a library crashed (SIGABRT)\n  where measuring the original"),
        (FILLS, [], 9, "out of memory on this machine"),
    ],
)
def test_a_crash_is_told(tmp_path: Path, how: str, more: list[str], code: int, said: str) -> None:
    net = parse("g (float[4, 3] x) => (float[4, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {"
                "y = MatMul(x, w) }")  # fmt: skip
    onnx.save(net, tmp_path / "in.onnx")
    run = subprocess.run(
        [sys.executable, "-c", CRASH.format(crash=how), "optimize", "in.onnx", "out.onnx",
         "-b", "0.9x", *more],
        capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert run.returncode == code, run.stderr
    assert f"error: {said}" in run.stderr
    assert "  try   " in run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]
