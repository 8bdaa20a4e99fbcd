"""Parameters inside the bodies of branches and loops are seen, trained, and written back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxremat.errors import UnsupportedError
from onnxremat.grad import differentiate, training_of
from onnxremat.ort.profile import named_outputs
from onnxremat.training.trainer import Trainer
from tests.grad import judge
from tests.toolbox import parse

X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
WEIGHT = "{1.5, 2.25, 3, -4, 5, 0.25, 1, 7, -2.5}"
STORED = f"<float[3, 3] w = {WEIGHT}> {{ p = MatMul(x, w) }}"
CONSTANT = f"{{ w = Constant <value = float[3, 3] {WEIGHT}> () p = MatMul(x, w) }}"
LOOP = f"""{{ y = Loop(n, on, x) <body = b (int64 i, bool s, float[2, 3] v)
    => (bool o, float[2, 3] u) <float[3, 3] w = {WEIGHT}>
    {{ o = Identity(s) r = MatMul(v, w) u = Tanh(r) }}> }}"""


def branches(body: str, known: bool) -> onnx.ModelProto:
    """A branch that may be known, with a weight of the same name in both."""
    other = body.replace("1.5", "0.5").replace("p =", "q =")
    inputs, stored = ("", "<bool c = {1}>") if known else (", bool c", "")
    return parse(f"""g (float[2, 3] x{inputs}) => (float[2, 3] y) {stored} {{
        y = If(c) <then_branch = t () => (float[2, 3] p) {body},
            else_branch = e () => (float[2, 3] q) {other}> }}""")


@pytest.mark.parametrize("body", [STORED, CONSTANT], ids=["stored", "constant"])
def test_a_weight_of_a_branch_is_trained_and_written_back(body: str, tmp_path: Path) -> None:
    made = branches(body, known=True)
    with pytest.warns(UserWarning, match="the loss does not depend on it"):
        step = differentiate(made, loss="mse", optimizer="sgd")
    assert len(training_of(step).parameters) == 1
    trainer = Trainer(step, made, rate=0.1, threads=1)
    labels = np.zeros((2, 3), np.float32)
    before = trainer.step({"x": X, "labels": labels})
    trainer.export(made, tmp_path / "out.onnx")
    found = named_outputs(onnx.load(tmp_path / "out.onnx"), {"x": X}, None)["y"]
    assert float(np.mean(found**2)) < float(before)


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "constant"])
def test_a_weight_that_a_branch_returns_is_trained(stored: bool) -> None:
    body = f"<float[3, 3] p = {WEIGHT}> {{ unread = Shape(x) }}"
    if not stored:
        body = f"{{ p = Constant <value = float[3, 3] {WEIGHT}> () }}"
    made = parse(f"""g (float[2, 3] x) => (float[2, 3] y) <bool c = {{1}}> {{
        w = If(c) <then_branch = t () => (float[3, 3] p) {body},
            else_branch = e () => (float[3, 3] q) {{ k = MatMul(z, x) q = MatMul(k, k) }}>
        z = Transpose(x) y = MatMul(x, w) }}""")
    made.graph.node.insert(0, made.graph.node.pop(1))
    step = differentiate(made, loss="mse", optimizer=None)
    assert [name for name, _ in training_of(step).gradients] == ["p__returned"]


@pytest.mark.parametrize("body", [STORED, CONSTANT], ids=["stored", "constant"])
def test_weights_of_branches_that_are_not_known_are_trained(body: str) -> None:
    made = branches(body, known=False)
    step = differentiate(made, loss="mse", optimizer=None)
    assert len(training_of(step).gradients) == 2
    for taken in (True, False):
        told = judge.judged(made, [X, np.array(taken)], stored=False)
        assert judge.verdict(told) == judge.RIGHT


def test_what_a_body_draws_is_named() -> None:
    body = STORED.replace("p = MatMul(x", "n = RandomNormalLike(x) s = Add(x, n) p = MatMul(s")
    made = branches(body, known=False)
    with pytest.raises(UnsupportedError, match="no gradient rule for If") as refused:
        differentiate(made, loss="mse")
    assert "draws random numbers" in refused.value.why
    assert "set-input" in refused.value.hint


def test_a_weight_of_a_loop_is_trained() -> None:
    made = parse(f"g (float[2, 3] x) => (float[2, 3] y) <int64 n = {{2}}, bool on = {{1}}> {LOOP}")
    assert judge.verdict(judge.judged(made, [X], stored=True)) == judge.RIGHT
    step = differentiate(made, loss="mse", optimizer=None)
    assert [name for name, _ in training_of(step).gradients] == ["w"]


def test_constants_of_code_stay_in_bodies() -> None:
    """PyTorch's exporters write them as nodes; parameters are initializers there."""
    made = branches(CONSTANT, known=True)
    made.producer_name = "pytorch"
    made.graph.node.add(op_type="Mul", input=["y", "gain"], output=["z"])
    made.graph.output[0].name = "z"
    gain = np.array([1.5, 2.5, 3.5], np.float32)
    made.graph.initializer.append(numpy_helper.from_array(gain, "gain"))
    step = differentiate(made, loss="mse", optimizer=None)
    assert [name for name, _ in training_of(step).gradients] == ["gain"]


def test_what_stays_as_it_is_in_bodies_is_said() -> None:
    made = parse("""g (float[4, 3] x, bool c) => (float[4, 3] y)
      <float[3] scale = {1.5, 0.5, 2}, float[3] bias = {0.5, 1, 3}, float[3] mean = {0, 1, 2},
       float[3] var = {1, 2, 3}> {
      y = If(c) <then_branch = t () => (float[4, 3] p) {
          [norm] n = BatchNormalization(x, scale, bias, mean, var)
          [drop] d = Dropout(n) p = Sin(d) },
        else_branch = e () => (float[4, 3] q) { q = Mul(x, scale) }> }""")
    step = differentiate(made, loss="mse", optimizer="sgd")
    said = " ".join(training_of(step).warnings)
    assert "1 batch normalizations keep to their running statistics, because they lie in" in said
    assert "1 dropouts drop nothing" in said
    step = differentiate(made, loss="mse", optimizer="sgd", dropout=False, batch_norm="frozen")
    assert "in bodies of" not in " ".join(training_of(step).warnings)
