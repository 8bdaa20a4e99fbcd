"""Training steps with bodies are planned, run and verified; a body is one op of known bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

import onnxremat
from onnxremat.grad import differentiate
from onnxremat.pipeline.verify import verify
from tests.toolbox import parse

X, W = "float[32, 64]", "float[64, 64]"
BRANCH = f"""g ({X} x, bool c) => ({X} y) {{
  a = MatMul(x, w) h = Tanh(a)
  z = If(c) <then_branch = t () => ({X} p) {{ m = MatMul(h, v) n = Tanh(m) p = MatMul(n, v) }},
    else_branch = e () => ({X} q) {{ k = MatMul(h, u) q = Sigmoid(k) }}>
  s = Add(z, h) o = Tanh(s) y = MatMul(o, u) }}"""
SCANNED = f"""g (float[32, 8, 64] x, {X} h0) => ({X} y) {{
  r = MatMul(x, v)
  h, rows = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
      body = b ({X} a, {X} s) => ({X} c, {X} d) {{
    m = MatMul(a, w) e = Add(m, s) c = Tanh(e) d = Identity(c) }}>(h0, r)
  t = ReduceSum <keepdims = 0> (rows, one) o = Add(t, h) y = MatMul(o, u) }}"""
REPEATED = f"""g ({X} x, int64 n) => ({X} y) <bool go = {{1}}> {{
  r = MatMul(x, v)
  h = Loop(n, go, r) <body = b (int64 i, bool k, {X} a) => (bool l, {X} c) {{
    l = Identity(k) m = MatMul(a, w) e = Add(m, r) c = Tanh(e) }}>
  y = MatMul(h, u) }}"""


@pytest.mark.parametrize("text", [BRANCH, SCANNED, REPEATED], ids=["if", "scan", "loop"])
def test_steps_with_bodies_keep_a_budget(text: str, tmp_path: Path) -> None:
    model, draw = parse(text), np.random.default_rng(0)
    for name in "wvu":
        value = (draw.standard_normal((64, 64)) / 8).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    step = differentiate(model, loss="mse", optimizer="sgd")
    result = onnxremat.optimize(
        step, budget="min", bench_seconds=0, settings=onnxremat.Settings(threads=1),
        options=onnxremat.PlanOptions(work=100, threads=1),
    )  # fmt: skip
    found = result.facts()
    assert found["bit_equal"]
    assert found["difference_to_original"] == 0
    # But for what finds shapes as it runs, a few integers.
    assert abs(found["peak_predicted_bytes"] - found["peak_measured_bytes"]) < 64
    result.save(tmp_path / "out.onnx")
    assert verify(step, tmp_path / "out.onnx").ok


def test_weights_of_bodies_count_where_costs_are_known() -> None:
    """A run alone tells how they are held: the second command makes one, too."""
    weight = np.arange(2048, dtype=np.float32).reshape(32, 64) / 2048
    model = parse("""g (float[4, 32] x, bool on) => (float[4, 64] y) {
        y = If(on) <then_branch = t () => (float[4, 64] p) { p = MatMul(x, w) },
                    else_branch = e () => (float[4, 64] q) { m = MatMul(x, v) q = Cos(m) }> }""")
    for attribute, name in zip(model.graph.node[0].attribute, "wv", strict=True):
        attribute.g.initializer.append(numpy_helper.from_array(weight, name))
    settings = onnxremat.Settings(threads=1, target="portable")
    for _ in range(2):
        found = onnxremat.optimize(model, budget="4MiB", bench_seconds=0, settings=settings).facts()
        assert found["weight_bytes"] >= weight.nbytes
        assert abs(found["peak_predicted_bytes"] - found["peak_measured_bytes"]) < 64
    assert found["cost_source"] == "cached"
