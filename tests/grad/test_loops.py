"""Loops of known length are written out, and their gradient is that of the runs."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from onnxremat.errors import OnnxrematError
from onnxremat.grad import differentiate, training_of

TRIPS = "int64 trips = {3}, bool start = {1}"
# h' = h * w + x[i]; also returns every h, and the loop ends by its count.
COUNTED = f"""
<ir_version: 10, opset_import: ["" : 18]>
net (float[5,2] x, float[2] h0) => (float[1] y) <{TRIPS}, float[2] w> {{
  h, rows = Loop(trips, start, h0) <body = run (int64 i, bool c, float[2] a)
      => (bool d, float[2] b, float[2] e) {{
    d = Identity(c)
    row = Gather(x, i)
    scaled = Mul(a, w)
    b = Add(scaled, row)
    e = Identity(b)
  }}>
  all = Mul(rows, rows)
  total = ReduceSum <keepdims = 0> (all)
  last = ReduceSum <keepdims = 0> (h)
  sum = Add(total, last)
  one = Constant <value_ints = [1]> ()
  y = Reshape(sum, one)
}}
"""
# The same while i < 3, with i as a state and a branch in the body.
WHILE = """
<ir_version: 10, opset_import: ["" : 18]>
net (float[5,2] x, float[2] h0) => (float[1] y)
<bool start = {1}, int64 zero = {0}, int64 unit = {1}, int64 end = {3}, float[2] w> {
  i9, h, rows = Loop("", start, zero, h0) <body = run (int64 k, bool c, int64 i, float[2] a)
      => (bool d, int64 j, float[2] b, float[2] e) {
    j = Add(i, unit)
    d = Less(j, end)
    row = Gather(x, i)
    scaled = Mul(a, w)
    first = Equal(i, zero)
    b = If(first) <then_branch = yes () => (float[2] p) { p = Add(scaled, row) },
                   else_branch = no () => (float[2] q) { q = Add(row, scaled) }>
    e = Identity(b)
  }>
  all = Mul(rows, rows)
  total = ReduceSum <keepdims = 0> (all)
  last = ReduceSum <keepdims = 0> (h)
  sum = Add(total, last)
  one = Constant <value_ints = [1]> ()
  y = Reshape(sum, one)
}
"""
X = np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)
H = np.array([0.5, -1.0], np.float32)
W = np.array([0.8, 1.2], np.float32)


def net(text: str) -> onnx.ModelProto:
    model = parser.parse_model(text)
    stored = {t.name for t in model.graph.initializer}
    if "w" in stored:
        del model.graph.initializer[[t.name for t in model.graph.initializer].index("w")]
    model.graph.initializer.append(numpy_helper.from_array(W, "w"))
    onnx.checker.check_model(model)
    return model


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def value(x: np.ndarray, h: np.ndarray, w: np.ndarray) -> float:
    total = 0.0
    for i in range(3):
        h = h * w + x[i]
        total += float((h * h).sum())
    return total + float(h.sum())


@pytest.mark.parametrize("text", [COUNTED, WHILE], ids=["counted", "while"])
def test_gradients_are_those_of_the_runs(text: str) -> None:
    model = net(text)
    np.testing.assert_allclose(run(model, {"x": X, "h0": H})[0], [value(X, H, W)], rtol=1e-5)
    step = differentiate(model, loss_output="y", optimizer=None, trainable=["w", "x", "h0"])
    assert not {"Loop", "If"} & {node.op_type for node in step.graph.node}
    names = [value.name for value in step.graph.output]
    found = dict(zip(names, run(step, {"x": X, "h0": H, "w": W}), strict=True))
    point = {n: a.astype(np.float64) for n, a in (("x", X), ("h0", H), ("w", W))}
    for name, gradient in training_of(step).gradients:
        want = np.zeros(point[name].shape)
        for place in np.ndindex(want.shape):
            for sign in (1, -1):
                moved = {n: a.copy() for n, a in point.items()}
                moved[name][place] += sign * 1e-5
                want[place] += sign * value(moved["x"], moved["h0"], moved["w"]) / 2e-5
        np.testing.assert_allclose(found[gradient], want, rtol=1e-4, atol=1e-5)


def test_a_loop_of_unknown_length_stays_a_loop() -> None:
    model = net(COUNTED.replace("float[2] h0)", "float[2] h0, int64 trips)").replace(
        "int64 trips = {3}, ", ""
    ))  # fmt: skip
    known = differentiate(net(COUNTED), loss_output="y", optimizer=None, trainable=["w", "x"])
    step = differentiate(model, loss_output="y", optimizer=None, trainable=["w", "x"])
    assert [node.op_type for node in step.graph.node].count("Loop") == 2
    feeds = {"x": X, "h0": H, "w": W}
    found = run(step, {**feeds, "trips": np.array(3)})
    for ours, wanted in zip(found, run(known, feeds), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5)


# The sum of each bag's rows of a table, as PyTorch's older exporter writes EmbeddingBag.
BAGS = """
<ir_version: 10, opset_import: ["" : 18]>
net (int64[7] words, int64[3] begin) => (float[3,2] y)
<int64 trips = {3}, bool go = {1}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {7},
 int64[1] far = {9223372036854775807}, float[5,2] w> {
  all = Concat <axis = 0> (begin, end)
  rest = Slice(all, one, far, zero)
  y = Loop(trips, go) <body = run (int64 i, bool c) => (bool d, float[2] total) {
    first = Gather(all, i)
    last = Gather(rest, i)
    from = Unsqueeze(first, zero)
    to = Unsqueeze(last, zero)
    bag = Slice(words, from, to, zero)
    rows = Gather(w, bag)
    total = ReduceSum <keepdims = 0> (rows, zero)
    d = Identity(c)
  }>
}
"""
WORDS, BEGIN = np.array([1, 4, 4, 0, 2, 4, 3]), np.array([0, 3, 3])  # the second bag is empty


TABLE = np.arange(10, dtype=np.float32).reshape(5, 2)


def with_table(text: str) -> onnx.ModelProto:
    model = parser.parse_model(text.replace(", float[5,2] w>", ">"))
    model.graph.initializer.append(numpy_helper.from_array(TABLE, "w"))
    onnx.checker.check_model(model)
    return model


def test_bags_whose_sizes_are_inputs() -> None:
    text = BAGS.replace("total = ReduceSum", "sum = ReduceSum")
    step = differentiate(with_table(BAGS), optimizer=None, loss="mse")
    target = np.ones((3, 2), np.float32)
    loss, slope = run(step, {"words": WORDS, "begin": BEGIN, "w": TABLE, "labels": target})
    bag = np.array([0, 0, 0, 2, 2, 2, 2])
    total = np.zeros((3, 2))
    np.add.at(total, bag, TABLE[WORDS])
    want = np.zeros((5, 2))
    np.add.at(want, WORDS, (2 * (total - target) / 6)[bag])
    np.testing.assert_allclose(loss, np.square(total - target).mean(), rtol=1e-6)
    np.testing.assert_allclose(slope, want, rtol=1e-6)
    # What is no EmbeddingBag is not taken for one.
    other = text.replace("d = Iden", "n = Cast <to = 1> (i)\n    total = Sub(sum, n)\n    d = Iden")
    with pytest.raises(OnnxrematError, match="is not known"):
        differentiate(with_table(other), optimizer=None, loss="mse")
