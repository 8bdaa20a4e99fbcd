"""The command line as a process of its own: interrupts, and memory of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.graph.onnx_io import to_model
from onnxremat.planner import peak
from tests.cli.conftest import listing
from tests.conftest import ROOT
from tests.limits import LONG
from tests.planner.graphs import graph_file, small_transformer
from tests.toolbox import training_chain

RUN = """
import atexit, pathlib, sys
status = pathlib.Path("/proc/self/status")
if status.exists():
    atexit.register(lambda: sys.stderr.write(status.read_text()))
from onnxremat.cli.app import main; main()
"""
# With a line as soon as there is a plan, which else only a terminal shows.
TOLD = """
import math, sys
from onnxremat.cli.console import Voice
def planning(self, best, bound, stage):
    if math.isfinite(best):
        print("- found a plan", file=sys.stderr, flush=True)
Voice.planning = planning
"""
# Ctrl-C as a stage begins, once or more.
INTERRUPTED = """
import os, signal, sys
from onnxremat.cli.console import Voice
say = Voice.say
def interrupted(self, stage):
    say(self, stage)
    for _ in range({times}):
        if stage.startswith("{stage}"):
            os.kill(os.getpid(), signal.SIGINT)
Voice.say = interrupted
"""
FOR_EVER = ("--gap", 0, "--time-limit", 10 * LONG)  # until it is interrupted
GIB = 1 << 30


def start(folder: Path, *args: object, code: str = RUN) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    pytest.fail(f"never said {words!r}")


@pytest.fixture(scope="module")
def long_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model on which planning without a gap lasts as long as it may."""
    path = tmp_path_factory.mktemp("long") / "in.onnx"
    onnx.save(to_model(training_chain(40, 32, 512)), path)
    return path


def test_interrupt_keeps_the_best_plan(tmp_path: Path, long_plan: Path, warm: None) -> None:
    process = start(
        tmp_path, "optimize", long_plan, "out.onnx", "-b", "0.35x", "--gap", 0, "--time-limit",
        LONG, "--no-measure", "--json", code=TOLD + RUN,
    )  # fmt: skip
    read_until(process, "- found a plan")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=5 * LONG)
    assert process.returncode == 0, err
    facts = json.loads(out)
    assert facts["recomputed_ops"] > 0
    assert facts["peak_predicted_bytes"] <= facts["budget_bytes"]
    assert listing(tmp_path) == ["out.onnx", "out.onnx.options.json"]
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)


def test_interrupt_before_any_plan(tmp_path: Path, long_plan: Path) -> None:
    process = start(
        tmp_path, "optimize", long_plan, "out.onnx", "-b", "0.25x", *FOR_EVER, "--json",
        code=INTERRUPTED.format(stage="reading", times=1) + RUN,
    )  # fmt: skip
    out, err = process.communicate(timeout=5 * LONG)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert "interrupted" in err
    assert listing(tmp_path) == []


def test_second_interrupt_gives_up_at_once(tmp_path: Path, long_plan: Path, warm: None) -> None:
    process = start(
        tmp_path, "optimize", long_plan, "out.onnx", "-b", "0.35x", *FOR_EVER,
        code=INTERRUPTED.format(stage="measuring the original", times=2) + RUN,
    )  # fmt: skip
    out, err = process.communicate(timeout=LONG)
    assert process.returncode == 130, err
    assert (out, "Traceback" in err) == ("", False)
    assert listing(tmp_path) == []


@pytest.mark.parametrize("options", [(), ("--formulation", "checkmate", "--solver", "highs")])
@pytest.mark.parametrize("seed", range(3))
def test_interrupts_at_any_moment(
    seed: int, options: tuple[str, ...], tmp_path: Path, warm: None
) -> None:
    """A plan with its bound, or one line that there was none yet; never a traceback or half of
    one."""
    problem = small_transformer(12)
    graph = graph_file(problem, tmp_path / "graph.json")
    process = start(
        tmp_path, "plan", graph, "-b", "0.35x", *FOR_EVER, "-o", "plan.json", "--json", *options,
    )  # fmt: skip
    time.sleep(Random(seed).uniform(0.0, 3.0))  # whatever it is at by then
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=5 * LONG)  # half of its limit
    assert "Traceback" not in err or process.returncode == -signal.SIGINT
    if process.returncode == 0:
        facts = json.loads(out)
        assert peak(problem, facts["sequence"]) <= facts["budget_bytes"]
        assert 0 <= facts["bound"] <= facts["overhead_planned"]
        assert listing(tmp_path) == ["graph.json", "plan.json"]
    else:
        assert process.returncode in (130, -signal.SIGINT)  # the latter before Python was up
        assert out == ""
        assert listing(tmp_path) == ["graph.json"]


def test_closed_pipe_is_no_traceback(tmp_path: Path, long_plan: Path) -> None:
    process = start(tmp_path, "inspect", long_plan, "--json")
    process.stdout.close()  # type: ignore[union-attr]
    err = process.stderr.read()  # type: ignore[union-attr]
    assert process.wait(timeout=LONG) in (0, 141)
    assert "Traceback" not in err


def giant(folder: Path, layers: int = 12, width: int = 8192) -> Path:
    """A network with 3 GiB of weights in a sparse file that takes no room on disk."""
    size = 4 * width * width
    weights, nodes = [], []
    for i in range(layers):
        weight = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=(width, width))
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "in.bin"), ("offset", i * size), ("length", size)):
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
        source = f"h{i - 1}" if i else "x"
        nodes.append(helper.make_node("MatMul", [source, f"w{i}"], [f"p{i}"]))
        nodes.append(helper.make_node("Tanh", [f"p{i}"], [f"h{i}"]))
    last = f"h{layers - 1}"
    skips = [last, *(f"h{i}" for i in range(0, layers - 1, 3))]
    nodes.append(helper.make_node("Sum", skips, ["s"]))
    nodes.append(helper.make_node("Add", ["s", "b"], ["y"]))
    weights.append(numpy_helper.from_array(np.ones(width, np.float32), "b"))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (64, width)) for n in "xy"]
    graph = helper.make_graph(nodes, "giant", values[:1], values[1:], weights)
    opsets = [helper.make_opsetid("", 18)]
    path = folder / "in.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    )
    with (folder / "in.bin").open("wb") as file:
        file.truncate(layers * size)
    return path


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the resident size is read from /proc"
)
def test_three_gib_of_weights_stay_on_disk(tmp_path: Path, warm: None) -> None:
    path = giant(tmp_path)
    weights = (tmp_path / "in.bin").stat()
    assert weights.st_size == 3 * GIB
    if weights.st_blocks * 512 > GIB:
        pytest.skip("this file system has no sparse files")
    process = start(
        tmp_path, "optimize", path, "out.onnx", "-b", "1x", "--no-measure", "--time-limit", 5,
        "--json",
    )  # fmt: skip
    out, err = process.communicate(timeout=5 * LONG)
    assert process.returncode == 0, err
    assert json.loads(out)["weight_bytes"] >= 3 * GIB
    # Not ru_maxrss: it counts the parent's pages from before the child's exec.
    kilobytes = next(int(line.split()[1]) for line in err.splitlines() if "VmHWM" in line)
    assert kilobytes * 1024 < GIB
    # The weights are referred to where they are: nothing of their size was written.
    assert listing(tmp_path) == [
        "in.bin", "in.onnx", "out.onnx", "out.onnx.options.json"
    ]  # fmt: skip
    assert (tmp_path / "out.onnx").stat().st_size < 1 << 20
    made = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    places = {
        e.value for t in made.graph.initializer for e in t.external_data if e.key == "location"
    }
    assert places == {"in.bin"}
