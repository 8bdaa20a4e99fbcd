"""Sums that onnxruntime loses between threads are made in one: what is written is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from onnxremat import Settings, load, optimize, verify
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.session import DEFAULT
from onnxremat.pipeline.original.as_it_came import AsItCame
from onnxremat.pipeline.original.lost_sums import may_lose_sums
from onnxremat.planner.options import PlanOptions
from onnxremat.session.measure import profiled, weight_bytes

NODES, EDGES, WIDTH = 20, 4000, 64
TEXT = f"""<ir_version: 10, opset_import: ["" : 18]>
net (float[{NODES}, {WIDTH}] x, float[{EDGES}, {WIDTH}] messages) => (float[{NODES}, {WIDTH}] y) {{
    a = Relu(messages) b = Mul(a, a) c = Mul(b, a) d = Add(c, b)
    s = ScatterND<reduction = "add">(x, places, d)
    y = Sqrt(s) }}"""


def messages() -> tuple[onnx.ModelProto, np.ndarray]:
    """A net that adds messages up at its nodes, and where."""
    model = parser.parse_model(TEXT)
    places = np.random.default_rng(0).integers(0, NODES, (EDGES, 1))
    model.graph.initializer.append(numpy_helper.from_array(places, "places"))
    return model, places


def wanted(places: np.ndarray, feeds: dict[str, np.ndarray]) -> np.ndarray:
    a = np.maximum(feeds["messages"].astype(np.float64), 0)
    total = feeds["x"].astype(np.float64)
    np.add.at(total, places[:, 0], a**3 + a**2)
    return np.sqrt(total)


def test_shares_are_of_the_file_as_it_came(tmp_path: Path) -> None:
    """What adds in one thread takes more: a share of that was more than the whole original."""
    model, _ = messages()
    onnx.save(model, tmp_path / "net.onnx")
    found = optimize(
        tmp_path / "net.onnx", budget="1x", options=PlanOptions(time_limit=5), bench_seconds=0
    )
    graph = build_graph(model)
    ran = profiled(model, seeded_feeds(graph, 0), DEFAULT)
    peak = weight_bytes(graph, ran, level=DEFAULT.level) + ran.live_peak
    assert found.prepared.baseline_peak == peak < found.prepared.unsplit.peak
    assert found.facts()["peak_measured_bytes"] <= peak


def test_what_is_written_is_right_with_two_threads(tmp_path: Path) -> None:
    model, places = messages()
    onnx.save(model, tmp_path / "net.onnx")
    settings = Settings(threads=2)
    options = PlanOptions(time_limit=5)
    found = optimize(
        tmp_path / "net.onnx", budget="20MiB", settings=settings, options=options, bench_seconds=0
    )
    assert "loses sums" in " ".join(found.prepared.notes)
    found.save(tmp_path / "out.onnx")
    random = np.random.default_rng(1)
    feeds = {
        "x": random.random((NODES, WIDTH), np.float32),
        "messages": random.standard_normal((EDGES, WIDTH)).astype(np.float32),
    }
    session = load(tmp_path / "out.onnx")
    runs = [np.asarray(session.run(None, feeds)[0]) for _ in range(10)]
    np.testing.assert_allclose(runs[0], wanted(places, feeds), rtol=1e-5)
    assert len({run.tobytes() for run in runs}) == 1
    checked = verify(tmp_path / "net.onnx", tmp_path / "out.onnx", settings=settings)
    assert all(check.ok for check in checked.checks)


def test_an_original_that_loses_sums_is_run_by_one_thread() -> None:
    model, places = messages()
    assert may_lose_sums(model)
    feeds = {
        "x": np.zeros((NODES, WIDTH), np.float32),
        "messages": np.ones((EDGES, WIDTH), np.float32),
    }
    found = AsItCame.of(model, model, None)
    for _ in range(5):
        np.testing.assert_allclose(found.outputs(feeds)["y"], wanted(places, feeds), rtol=1e-6)
