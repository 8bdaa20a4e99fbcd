"""What a loss compares: logits, wherever the activation stands that it contains."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest

from onnxremat.errors import TrainingWarning
from onnxremat.grad import differentiate, training_of
from onnxremat.grad.evaluation import prediction_graph
from onnxremat.ort.session import Options, open_session, session_options
from tests.toolbox import parse

W = np.array([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]], np.float32)
X = np.array([[1, 2], [-1, 0.5], [0.3, -2], [2, 1]], np.float32)
LOGITS = X @ W
STORED = """<float[2, 3] w = {0.5, -1, 2, 1.5, 0.3, -0.7}, int64[1] flat = {12},
    int64[3] rows = {2, 2, 3}, int64[1] one = {1}, int64[1] two = {2},
    float low = {0.01}, float high = {0.99}>"""


def net(nodes: str, result: str = "float[4, 3] y") -> onnx.ModelProto:
    return parse(f"g (float[4, 2] x) => ({result}) {STORED} {{ h = MatMul(x, w) {nodes} }}")


def step_of(
    model: onnx.ModelProto, loss: str, labels: np.ndarray, **options: str
) -> list[np.ndarray]:
    """Loss and gradient."""
    step = differentiate(model, loss=loss, optimizer=None, trainable=["w"], strict=True, **options)
    onnx.checker.check_model(step, full_check=True)
    return run(step, {"x": X, "w": W, "labels": labels})


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(open_session(model, session_options(Options(threads=1))).run(None, feeds))


MEANT = np.random.default_rng(0).integers(0, 2, (4, 3)).astype(np.float32)
CLASSES = np.array([0, 2, 1, 1])
SIGMOIDS = {
    "s = Sigmoid(h) y = Reshape(s, flat)": ("float[12] y", MEANT.reshape(12)),
    "s = Sigmoid(h) y = Transpose(s)": ("float[3, 4] y", MEANT.T),
    "t = Transpose(h) s = Sigmoid(t) z = Transpose(s) y = Identity(z)": ("float[4, 3] y", MEANT),
}  # fmt: skip
SOFTMAXES = {
    "s = Softmax(h) y = Reshape(s, rows)": ("float[2, 2, 3] y", CLASSES.reshape(2, 2)),
    "s = LogSoftmax(h) y = Reshape(s, rows)": ("float[2, 2, 3] y", CLASSES.reshape(2, 2)),
    "t = Transpose(h) s = Softmax<axis = 0>(t) y = Transpose(s)": ("float[4, 3] y", CLASSES),
    "s = Softmax(h) y = Transpose(s)": ("float[3, 4] y", CLASSES),
    "d = Cast<to = 10>(h) s = Softmax(d) y = Cast<to = 1>(s)": ("float[4, 3] y", CLASSES),
    "d = Cast<to = 11>(h) s = Softmax(d) y = Cast<to = 1>(s)": ("float[4, 3] y", CLASSES),
}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("nodes", SIGMOIDS)
def test_a_sigmoid_before_another_form_belongs_to_the_loss(nodes: str, precision: str) -> None:
    """It was applied twice, in silence."""
    result, labels = SIGMOIDS[nodes]
    plain = step_of(net("y = Identity(h)"), "bce", MEANT)
    for mine, wanted in zip(
        step_of(net(nodes, result), "bce", labels, precision=precision), plain, strict=True
    ):
        np.testing.assert_allclose(mine, wanted, rtol=5e-3 if precision == "fp16" else 1e-5)


@pytest.mark.parametrize("nodes", SOFTMAXES)
def test_a_softmax_before_another_form_belongs_to_the_loss(nodes: str) -> None:
    result, labels = SOFTMAXES[nodes]
    plain = step_of(net("y = Identity(h)"), "cross-entropy", CLASSES)
    for mine, wanted in zip(
        step_of(net(nodes, result), "cross-entropy", labels), plain, strict=True
    ):
        np.testing.assert_allclose(mine, wanted, rtol=5e-3 if "= 10" in nodes else 1e-5)


@pytest.mark.parametrize(
    ("loss", "labels", "op"), [("bce", MEANT, "Sigmoid"), ("cross-entropy", CLASSES, "Softmax")]
)
def test_mixed_precision_sees_logits_too(loss: str, labels: np.ndarray, op: str) -> None:
    """A Cast stands between Sigmoid and output then."""
    plain = step_of(net("y = Identity(h)"), loss, labels)
    for mine, wanted in zip(
        step_of(net(f"y = {op}(h)"), loss, labels, precision="fp16"), plain, strict=True
    ):
        np.testing.assert_allclose(mine, wanted, rtol=5e-3)


def test_classes_are_where_the_softmax_has_them() -> None:
    model = net("z = Reshape(h, rows) y = Softmax<axis = 1>(z)", "float[2, 2, 3] y")
    about = training_of(differentiate(model, trainable=["w"]))
    assert (about.loss_settings["axis"], about.classes) == (1, 2)


def test_other_outputs_stay_as_they_are() -> None:
    model = net("s = Sigmoid(h) y = Reshape(s, flat)", "float[12] y, float[4, 3] s")
    step = differentiate(model, loss="bce", optimizer=None, trainable=["w"], outputs=["y", "s"])
    feeds = {"x": X, "w": W, "labels": MEANT.reshape(12)}
    y, s = run(step, feeds)[-2:]
    np.testing.assert_array_equal(y, s.reshape(12))
    np.testing.assert_allclose(s, 1 / (1 + np.exp(-LOGITS)), rtol=1e-5)


def test_an_evaluation_compares_the_same() -> None:
    nodes = "s = Sigmoid(h) r = Reshape(s, flat) a = Identity(r) y = Identity(r)"
    model = net(nodes, "float[12] a, float[12] y")
    about = training_of(differentiate(model, loss="bce", prediction="y", trainable=["w"]))
    (found,) = run(prediction_graph(model, about.prediction, ["w"]), {"x": X, "w": W})
    np.testing.assert_allclose(found, LOGITS.reshape(12), rtol=1e-6)


@pytest.mark.parametrize(
    ("loss", "nodes", "result"),
    [("cross-entropy", "s = Softmax(h) y = Slice(s, one, two, one)", "float[4, 1] y"),
     ("bce", "s = Sigmoid(h) y = Clip(s, low, high)", "float[4, 3] y"),
     ("bce", "y = Softmax(h)", "float[4, 3] y"),
     ("cross-entropy", "y = Sigmoid(h)", "float[4, 3] y")],
)  # fmt: skip
def test_probabilities_that_are_taken_for_logits_are_named(loss, nodes, result) -> None:
    with pytest.warns(TrainingWarning, match="for logits, and it is what"):
        differentiate(net(nodes, result), loss=loss, trainable=["w"])


def test_what_no_loss_contains_is_no_matter() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        differentiate(net("y = Sigmoid(h)"), loss="mse", trainable=["w"])
