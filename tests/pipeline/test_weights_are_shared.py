"""Weights are shared by reference through a whole optimisation, and sessions are opened once."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import models
import onnxremat
from onnxremat.graph import light, weights
from onnxremat.graph.light import read_light
from onnxremat.graph.onnx_io import external_files
from onnxremat.ort.session import OPENED, TUNED, open_session, session_options
from onnxremat.pipeline import bench
from tests.limits import LONG

MIB = 1 << 20
SETTINGS = onnxremat.Settings(threads=1)
OPTIONS = onnxremat.PlanOptions(time_limit=LONG)


@dataclass
class Done:
    """An optimisation and what it gave to onnxruntime."""

    result: onnxremat.api.OptimizeResult
    sessions: int
    copied: int


def _optimised(source: Path | onnx.ModelProto, **more: object) -> Done:
    before = OPENED.sessions, OPENED.copied
    settings = onnxremat.Settings(**{"threads": 1, "fresh": True, **more})
    result = onnxremat.optimize(
        source, budget="1.5x", settings=settings, options=OPTIONS, bench_seconds=0
    )
    return Done(result, OPENED.sessions - before[0], OPENED.copied - before[1])


def _convolutions() -> onnx.ModelProto:
    """Normalisations are folded into the first two filters, the last one stays as it is; a product
    reads a transposed weight, another one the weight itself."""
    random, width = np.random.default_rng(0), 48
    stored, nodes, x = [], [], "x"
    for index in range(3):
        filters = random.standard_normal((width, width, 3, 3)).astype(np.float32) / 20
        stored.append(numpy_helper.from_array(filters, f"w{index}"))
        nodes.append(helper.make_node("Conv", [x, f"w{index}"], [f"c{index}"], pads=[1, 1, 1, 1]))
        x = f"c{index}"
        if index == 2:
            continue
        for name in ("scale", "bias", "mean", "spread"):
            values = np.abs(random.standard_normal(width)).astype(np.float32) + 0.1
            stored.append(numpy_helper.from_array(values, f"{name}{index}"))
        inputs = [x, *(f"{name}{index}" for name in ("scale", "bias", "mean", "spread"))]
        nodes.append(helper.make_node("BatchNormalization", inputs, [f"n{index}"]))
        nodes.append(helper.make_node("Relu", [f"n{index}"], [f"r{index}"]))
        x = f"r{index}"
    matrix = random.standard_normal((width, width)).astype(np.float32)
    stored.append(numpy_helper.from_array(matrix, "m"))
    nodes += [
        helper.make_node("Transpose", ["m"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", [x, "t"], ["p"]),
        helper.make_node("MatMul", ["p", "m"], ["y"]),
    ]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, width, width, width])
    graph = helper.make_graph(
        nodes, "g", [value], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], stored
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


NETS = {
    "convolutions": _convolutions,
    "mlp": lambda: models.build("mlp", batch=8, width=128, layers=4),
}


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of 8 KiB are big."""
    for module in (weights, light):
        monkeypatch.setattr(module, "APART", 8 << 10)
        monkeypatch.setattr(module, "LIGHT", 8 << 10)


def _plain(path: Path) -> onnx.ModelProto:
    """A written model less what it says of times."""
    model = onnx.load(path)
    kept = [(e.key, e.value) for e in model.metadata_props if e.key == "onnxremat.options"]
    del model.metadata_props[:]
    for key, value in kept:
        model.metadata_props.add(key=key, value=value)
    return model


@pytest.mark.parametrize("target", ["portable", "host", "auto"])
@pytest.mark.parametrize("net", NETS)
def test_the_written_model_is_the_same(
    net: str, target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = NETS[net]()
    onnx.save(model, tmp_path / "in.onnx")
    inside = _optimised(tmp_path / "in.onnx", target=target)
    inside.result.save(tmp_path / "inside.onnx")
    request.getfixturevalue("apart")
    for name, source in (("file", tmp_path / "in.onnx"), ("memory", model)):
        found = _optimised(source, target=target)
        assert isinstance(found.result.prepared.home, weights.WeightFolder)
        found.result.save(tmp_path / f"{name}.onnx")
        assert not external_files(onnx.load(tmp_path / f"{name}.onnx", load_external_data=False))
        assert _plain(tmp_path / f"{name}.onnx") == _plain(tmp_path / "inside.onnx")
        for about in ("baseline_peak", "store_all_peak", "weights"):
            wanted = getattr(inside.result.prepared, about)
            assert getattr(found.result.prepared, about) == wanted
        assert found.result.facts()["bit_equal"]


def test_weights_in_files_stay_there_or_come_together(apart: None, tmp_path: Path) -> None:
    """Those that the optimiser leaves as they are stay in their file; where it makes new ones, all
    are written into the model."""
    for net, files in (("mlp", {"w.bin"}), ("convolutions", set())):
        onnx.save(
            NETS[net](), tmp_path / "in.onnx", save_as_external_data=True, location="w.bin",
            size_threshold=1024,
        )  # fmt: skip
        found = _optimised(tmp_path / "in.onnx", target="portable")
        found.result.save(tmp_path / "out.onnx")
        written = onnx.load(tmp_path / "out.onnx", load_external_data=False)
        assert set(external_files(written)) == files
        feeds = found.result.prepared.feeds
        session = open_session(tmp_path / "out.onnx", session_options(TUNED))
        wanted = open_session(tmp_path / "in.onnx", session_options(TUNED)).run(None, feeds)
        np.testing.assert_allclose(session.run(None, feeds)[0], wanted[0], rtol=1e-3, atol=1e-4)
        (tmp_path / "w.bin").unlink()


@pytest.mark.parametrize("net", NETS)
def test_no_session_is_given_a_copy_of_the_weights(net: str, apart: None, tmp_path: Path) -> None:
    onnx.save(NETS[net](), tmp_path / "in.onnx")
    size = (tmp_path / "in.onnx").stat().st_size
    done = _optimised(tmp_path / "in.onnx")
    assert done.sessions >= 6
    assert done.copied < size  # all sessions together


def test_sessions_of_one_optimisation() -> None:
    """Raise these numbers only for a session that tells what no other one did:

    shapes of the original; its run; the graph optimised offline; shapes of that; whether and how it
    opens under default options; seconds of a run; seconds and bytes of every op; whether as much is
    fused where no shapes are known; the result under default options, and under those of its plan.
    Timing opens original, result and store-all. Where nothing is run, what a session without
    options makes of the original.
    """
    model = models.build("mlp", batch=8, width=16, layers=4)
    assert _optimised(model, target="portable").sessions == 10
    assert _optimised(model, target="portable", measure=False).sessions <= 7
    # The original keeps the budget: no other result is run, and its run saved what is planned.
    assert _optimised(model).sessions == 6
    before = OPENED.sessions
    settings = onnxremat.Settings(threads=1, target="portable")
    onnxremat.optimize(model, budget="1.5x", settings=settings, options=OPTIONS, bench_seconds=0.01)
    # Costs are known by now: no session for seconds, none for ops, but one for outputs.
    assert OPENED.sessions - before == 9 + 3


def test_one_contender_at_a_time_gives_as_many_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "TOGETHER", 0)
    model = models.build("mlp", batch=8, width=16, layers=4)
    result = onnxremat.optimize(
        model, budget="1.5x", settings=SETTINGS, options=OPTIONS, bench_seconds=LONG
    )
    assert [timing.name for timing in result.timings] == ["store-all", "result", "original"]
    assert result.timings[0].ratio == 1.0
    assert all(timing.rounds >= bench.ROUNDS[0] for timing in result.timings)


def test_a_training_step_is_the_same(apart: None, tmp_path: Path) -> None:
    onnx.save(NETS["mlp"](), tmp_path / "in.onnx")
    onnxremat.differentiate(tmp_path / "in.onnx", tmp_path / "apart.onnx")
    model, folder = read_light(tmp_path / "in.onnx")
    assert isinstance(folder, weights.WeightFolder)
    assert external_files(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(light, "LIGHT", 1 << 30)
        onnxremat.differentiate(tmp_path / "in.onnx", tmp_path / "inside.onnx")
    assert onnx.load(tmp_path / "apart.onnx") == onnx.load(tmp_path / "inside.onnx")


PEAK = """
import json, sys
import onnxremat, onnxremat.api
from onnxremat.planner.search import warm_up
from onnxremat.memory.taken import status
warm_up()
before = status("VmHWM")
result = onnxremat.optimize(
    sys.argv[1], budget="1.5x", settings=onnxremat.Settings(threads=1), bench_seconds=0.01
)
result.save(sys.argv[2])
print(json.dumps([status("VmHWM") - before, result.prepared.weights]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_the_tool_holds_little_more_than_a_run_of_the_model(tmp_path: Path) -> None:
    """One copy for the session that is open, some room; it was 17 times the weights."""
    onnx.save(models.build("mlp", batch=4, width=2048, layers=8), tmp_path / "in.onnx")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")],
        capture_output=True,
        text=True,
        check=True,
    )
    grown, size = json.loads(done.stdout.splitlines()[-1])
    assert size > 96 * MIB
    assert grown < 2.3 * size
