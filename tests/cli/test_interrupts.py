"""Ctrl-C while onnxruntime runs something that never ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxremat import api
from onnxremat.cli import app
from onnxremat.errors import PressedError, StoppedError
from onnxremat.ort.binding import BoundSession, BoundState
from onnxremat.ort.session import TUNED, open_session, session_options
from tests.toolbox import parse

ROOT = Path(__file__).resolve().parents[2]
# The Loop stands for a run that takes long: 2^60 rounds of one addition, where n is positive.
ENDLESS = """g (float[4, 3] x, int64 n) => (float[4, 2] y)
    <float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64 rounds = {1152921504606846976}, bool go = {1},
     float zero = {0}, float waited> {
    many = Mul(n, rounds)
    waited = Loop(many, go, zero) <body = b (int64 i, bool on, float seen)
        => (bool still, float more) {
        still = Identity(on)
        one = Constant<value_float: float = 1.0>()
        more = Mul(seen, one)
    }>
    h = Add(x, waited)
    y = MatMul(h, w)
}"""


def start(*arguments: object) -> subprocess.Popen[str]:
    code = "from onnxremat.cli.app import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def interrupted(process: subprocess.Popen[str], at: str) -> str:
    """Press Ctrl-C when a line is printed; what the process said besides."""
    assert process.stderr is not None
    for line in process.stderr:
        if at in line:
            break
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    return err


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(ENDLESS), "net.onnx")
    np.savez(
        "slow.npz", x=np.zeros((8, 3), np.float32), n=np.ones(8, np.int64),
        labels=np.zeros(8, np.int64),
    )  # fmt: skip
    np.savez("one.npz", x=np.zeros((4, 3), np.float32), n=np.array(1))
    return tmp_path


def test_a_run_is_abandoned_from_another_thread() -> None:
    session = open_session(parse(ENDLESS), session_options(TUNED))
    bound = BoundSession(session, BoundState({}), {}, ["y"])
    feeds = {"x": np.zeros((4, 3), np.float32), "n": np.array(0)}
    assert bound.run(feeds)["y"].shape == (4, 2)
    timer = threading.Timer(0.2, bound.abandon)
    timer.start()
    with pytest.raises(StoppedError, match="interrupted"):
        bound.run({**feeds, "n": np.array(1)})
    timer.join()


def test_a_press_while_a_session_is_opened_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.WATCH, "leaving", False)
    monkeypatch.setattr("onnxruntime.InferenceSession", lambda *_, **__: app._stop(2, None))
    with pytest.raises(PressedError):
        open_session(parse(ENDLESS), session_options(TUNED))


def test_a_press_while_an_object_goes_is_answered() -> None:
    """Python drops what is raised then."""
    code = """
import sys
from onnxremat.cli import app, commands
class Goes:
    def __del__(self):
        app._stop(2, None)
def held():
    Goes()
    print("went on")
commands.app = held
app.main()
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "error: interrupted\n")


def test_optimize_ends_while_the_model_runs(endless: Path) -> None:
    process = start("optimize", "net.onnx", "out.onnx", "--data", "one.npz")
    assert "error: interrupted" in interrupted(process, "- measuring the original")
    assert not Path("out.onnx").exists()


def test_train_ends_in_the_middle_of_a_step(endless: Path) -> None:
    """Half a step is not kept: there is no checkpoint yet."""
    body = ENDLESS.replace("int64 n)", "int64[4] n)").replace("Mul(n,", "Mul(first,")
    body = body.replace("many =", "first = ReduceMax<keepdims: int = 0>(n)  many =")
    onnx.save(parse(body), "net.onnx")
    api.differentiate("net.onnx", "step.onnx")
    process = start(
        "train", "step.onnx", "--weights", "net.onnx", "--data", "slow.npz",
        "--checkpoint", "kept.safetensors",
    )  # fmt: skip
    err = interrupted(process, "- training from step 0")
    assert "error: interrupted in the middle of a step" in err
    assert "--resume goes on from the last checkpoint" in err
    assert not Path("kept.safetensors").exists()


WRITING = f"""
import threading
import numpy as np
from pathlib import Path
from onnxremat.cli.console import Voice
from onnxremat.cli.interrupt import WATCH
from onnxremat.graph.atomic import atomic
from onnxremat.ort.session import TUNED, open_session, session_options
from tests.toolbox import parse
session = open_session(parse({ENDLESS!r}), session_options(TUNED))
feeds = {{"x": np.zeros((4, 3), np.float32), "n": np.array(1)}}
with WATCH.watching(), Voice().working() as interrupt, atomic(Path("out.onnx")) as half:
    half.write_text("half")
    interrupt()  # somebody looks whether to stop: the first Ctrl-C may wait
    threading.Timer(1, print, ["ready"], {{"flush": True}}).start()  # when compiled code runs
    session.run(None, feeds)
"""


def test_the_second_ends_compiled_code_and_leaves_no_half_written_file(tmp_path: Path) -> None:
    """The first is acknowledged, though no Python code runs that could see it."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout
    assert process.stderr
    try:
        assert process.stdout.readline() == "ready\n"
        assert [path.name[:9] for path in tmp_path.iterdir()] == [".out.onnx"]
        process.send_signal(signal.SIGINT)
        assert "Ctrl-C again ends at once" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "error: interrupted\n")
    finally:
        process.kill()
    assert process.returncode == 130
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "module", ["graph.temporary", "graph.atomic", "planner.solvers.base"], ids=str
)
def test_an_end_while_a_module_is_imported(module: str) -> None:
    """A module that is being imported is in ``sys.modules`` and has nothing yet."""
    code = f"""
import sys, threading, types
from onnxremat.cli import app, interrupt
sys.modules["onnxremat.{module}"] = types.ModuleType("half")
assert not app._abandoned({{threading.current_thread()}})
interrupt.leave(130)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")
