"""Training steps whose rows go where data say: planned with some data, the same bits with any."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

import onnxremat
from onnxremat.grad import differentiate
from onnxremat.session.process import PARTS
from onnxremat.training.trainer import Trainer
from tests.toolbox import parse

ROWS, WIDTH = 96, 16
ROUTED = f"""g (float[{ROWS}, {WIDTH}] x) => (float[{ROWS}, {WIDTH}] y) {{
    s = ReduceSum<keepdims: int = 0>(x, along) m = Greater(s, none) n = NonZero(m)
    q = Squeeze(n, axis) p = Transpose<perm: ints = [1, 0]>(n) f = Gather<axis: int = 0>(x, q)
    a = MatMul(f, up) b = Sigmoid(a) c = Mul(a, b) d = Tanh(c) e = Mul(d, b) h = MatMul(e, down)
    y = ScatterND<reduction: string = "add">(x, p, h) }}"""


def routed():  # type: ignore[no-untyped-def]
    random = np.random.default_rng(0)
    stored = {
        "along": np.array([1]), "axis": np.array([0]), "none": np.zeros((), np.float32),
        "up": random.standard_normal((WIDTH, 64)).astype(np.float32) / 4,
        "down": random.standard_normal((64, WIDTH)).astype(np.float32) / 8,
    }  # fmt: skip
    made = parse(ROUTED)
    made.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in stored.items())
    return made


@pytest.mark.parametrize("budget", ["0.8x", "min"])
def test_other_rows_than_it_was_planned_with(budget: str, tmp_path: Path) -> None:
    model = routed()
    step = differentiate(model, loss="mse", optimizer="sgd", trainable=["up", "down"])
    settings = onnxremat.Settings(threads=1, not_counted=PARTS)
    result = onnxremat.optimize(
        step, budget=budget, settings=settings,
        options=onnxremat.PlanOptions(work=100, threads=1), bench_seconds=0,
    )  # fmt: skip
    facts = result.facts()
    assert facts["peak_measured_bytes"] < facts["baseline_peak_bytes"]
    notes = " ".join(result.plan.provenance.notes)
    assert "at its largest, everything kept takes" in notes
    result.save(tmp_path / "step.onnx")
    planned, plain = (
        Trainer(each, model, rate=0.1, threads=1) for each in (tmp_path / "step.onnx", step)
    )
    random = np.random.default_rng(1)
    for more in (0.0, -9.0, 9.0, 0.2, -0.2):  # no row, and all rows, among them
        shape = (ROWS, WIDTH)
        x, target = random.standard_normal((2, *shape)).astype(np.float32)
        feeds = {"x": x + np.float32(more), plain.training.target: target}
        assert planned.step(feeds) == plain.step(feeds)
        assert all(np.array_equal(planned.state[n], plain.state[n]) for n in plain.state)
