"""Losses: the emitted gradient against finite differences of the emitted value."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from onnxremat.errors import UsageError
from onnxremat.grad import (
    SGD,
    AbsoluteError,
    Adagrad,
    Adam,
    BinaryCrossEntropy,
    CrossEntropy,
    Dice,
    Huber,
    Lamb,
    Loss,
    MeanSquaredError,
    differentiate,
    training_of,
)
from tests.grad.loss_values import CROSS, RNG, WEIGHTS, cross_data, evaluate, identity
from tests.toolbox import parse

PLAIN = [BinaryCrossEntropy(), MeanSquaredError(), AbsoluteError(), Huber(0.7), Dice()]


def differences(loss: Loss, x: np.ndarray, target: np.ndarray) -> None:
    _, gradient = evaluate(loss, x, target)
    for _ in range(3):
        direction = RNG.standard_normal(x.shape)
        sides = [evaluate(loss, x + s * 1e-6 * direction, target)[0] for s in (1, -1)]
        expected = (sides[0] - sides[1]) / 2e-6
        assert float((gradient * direction).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("loss", CROSS, ids=str)
@pytest.mark.parametrize(("shape", "axis"), [((5, 4), 1), ((2, 3, 4), 2), ((2, 4, 3, 2), 1)])
def test_cross_entropy_gradient(loss: CrossEntropy, shape: tuple[int, ...], axis: int) -> None:
    differences(loss, *cross_data(shape, axis, loss.ignore_index))


@pytest.mark.parametrize("loss", PLAIN, ids=str)
def test_elementwise_gradient(loss: Loss) -> None:
    differences(loss, RNG.standard_normal((2, 3, 4)), RNG.random((2, 3, 4)))


def test_large_logits_stay_finite() -> None:
    x = np.array([[300.0, -300.0, 3.0]])
    assert np.isfinite(evaluate(BinaryCrossEntropy(), x, np.array([[0.0, 1.0, 1.0]]))[0])
    assert np.isfinite(evaluate(CrossEntropy(), x, np.array([1]))[0])


def test_final_softmax_belongs_to_cross_entropy() -> None:
    with_softmax = differentiate(identity((2, 4), "Softmax"), optimizer=None, trainable=["x"])
    assert "Softmax" not in {node.op_type for node in with_softmax.graph.node}
    x, labels = RNG.standard_normal((2, 4)), np.array([1, 3])
    plain = evaluate(CrossEntropy(), x, labels)
    value, gradient = ReferenceEvaluator(with_softmax).run(None, {"x": x, "labels": labels})
    assert float(value) == pytest.approx(plain[0])
    np.testing.assert_allclose(gradient, plain[1])


def test_unknown_loss_names_the_known() -> None:
    with pytest.raises(UsageError, match="cross-entropy"):
        differentiate(identity((2, 4)), loss="crossentropy", trainable=["x"])


def test_scale_multiplies_and_is_undone() -> None:
    scaled = differentiate(identity((2, 4)), optimizer=None, trainable=["x"], loss_scale=True)
    assert training_of(scaled).loss_scale == "loss_scale"
    x, labels = RNG.standard_normal((2, 4)), np.array([1, 3])
    feeds = {"x": x, "labels": labels, "loss_scale": np.array(512.0, np.float32)}
    _, gradient = ReferenceEvaluator(scaled).run(None, feeds)
    np.testing.assert_allclose(gradient, evaluate(CrossEntropy(), x, labels)[1], rtol=1e-12)


@pytest.mark.parametrize("made", ["loss", "other"])
def test_a_model_may_have_a_tensor_named_loss(made: str) -> None:
    ops = f"{made} = MatMul(x, w) y = Tanh({made})"
    text = f"g (float[2,3] x, float[3,3] w) => (float[2,3] y) {{ {ops} }}"
    step = differentiate(parse(text), loss="mse", optimizer=None, trainable=["w"])
    about = training_of(step)
    x, w, target = (
        RNG.standard_normal(shape).astype(np.float32) for shape in [(2, 3), (3, 3), (2, 3)]
    )
    found = ReferenceEvaluator(step).run([about.loss], {"x": x, "w": w, about.target: target})[0]
    assert found == pytest.approx(((np.tanh(x @ w) - target) ** 2).mean(), rel=1e-5)
    assert (about.loss == "loss") == (made != "loss")


def test_the_output_that_a_loss_is_of_holds_numbers() -> None:
    made = parse("g (float[2, 4] x) => (int64[2, 1] k, float[2, 4] y) { k = ArgMax(x) y = Sin(x) }")
    with pytest.raises(UsageError, match="--prediction: y") as refused:
        differentiate(made, trainable=["x"])
    assert "INT64" in refused.value.why
    step = differentiate(made, trainable=["x"], prediction="y", loss="mse")
    assert training_of(step).prediction == "y"
    none = parse("g (float[2, 0] x) => (float[2, 0] y) { y = Sin(x) }")
    with pytest.raises(UsageError, match="no loss can be made") as refused:
        differentiate(none, trainable=["x"], loss="mse")
    assert "no elements" in refused.value.why


@pytest.mark.parametrize("loss", [loss for loss in CROSS if loss.ignore_index is not None], ids=str)
def test_labels_of_which_none_counts_change_no_parameter(loss: CrossEntropy) -> None:
    """As in PyTorch: the mean of nothing is no number, and its gradient is 0."""
    with np.errstate(all="ignore"):
        value, gradient = evaluate(loss, RNG.standard_normal((3, 4)), np.full(3, loss.ignore_index))
    assert np.isnan(value)
    np.testing.assert_array_equal(gradient, np.zeros((3, 4)))


@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_labels_of_which_none_counts_in_a_loss_of_the_models_own(op: str) -> None:
    text = f"""g (double[3,4] x, int64[3] t) => (double l)
        <double[4] c = {{1.0, 2.0, 3.0, 4.0}}> {{ l = {op} <ignore_index = -1> (x, t, c) }}"""
    step = differentiate(parse(text), loss_output="l", optimizer=None, trainable=["x"])
    feeds = {"x": RNG.standard_normal((3, 4)), "t": np.full(3, -1)}
    names = [value.name for value in step.graph.output]
    with np.errstate(all="ignore"):
        found = dict(zip(names, ReferenceEvaluator(step).run(None, feeds), strict=True))
    np.testing.assert_array_equal(found["x.grad"], np.zeros((3, 4)))


WRONG = {
    "smoothing": lambda: CrossEntropy(label_smoothing=1.5),
    "weights that are too few": lambda: CrossEntropy(class_weights=[1.0, 2.0]),
    "weights that are too many": lambda: CrossEntropy(class_weights=np.ones(5)),
    "a weight": lambda: CrossEntropy(class_weights=[1.0, 2.0, float("nan"), 1.0]),
    "axis": lambda: CrossEntropy(axis=2),
    "axis between two": lambda: CrossEntropy(axis=0.5),  # type: ignore[arg-type]
    "label": lambda: CrossEntropy(ignore_index=1.5),  # type: ignore[arg-type]
    "delta": lambda: Huber(delta=0.0),
    "smooth": lambda: Dice(smooth=-1.0),
    "momentum": lambda: SGD(momentum=-0.9),
    "nesterov": lambda: SGD(nesterov=True),
    "decay": lambda: Adagrad(weight_decay=-0.1),
    "beta1": lambda: Adam(beta1=1.0),
    "beta2": lambda: Lamb(beta2=float("nan")),
    "epsilon": lambda: Adam(epsilon=-1e-8),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_settings_that_make_no_sense_are_refused(wrong: str) -> None:
    with pytest.raises(UsageError):
        differentiate(identity((2, 4)), loss=WRONG[wrong](), trainable=["x"])


def test_class_weights_may_be_an_array() -> None:
    x, labels = RNG.standard_normal((2, 4)), np.array([1, 3])
    found = evaluate(CrossEntropy(class_weights=np.array(WEIGHTS), label_smoothing=0.2), x, labels)
    want = evaluate(CrossEntropy(class_weights=WEIGHTS, label_smoothing=0.2), x, labels)
    np.testing.assert_array_equal(found[1], want[1])


@pytest.mark.parametrize("loss", ["cross-entropy", "mse", "dice"])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_loss_of_halves_is_computed_in_single_precision(loss: str, scaled: bool) -> None:
    """Its sum of many elements is infinite in float16, and so is a scale of 2**17."""
    x = (4 * RNG.standard_normal((1, 2, 200, 150))).astype(np.float16)
    labels = (x > 0).astype(np.float16) if loss != "cross-entropy" else (x[:, 0] > 0).astype(int)
    found = []
    for kind in ("float16", "float"):
        model = parse(
            f"g ({kind}[1, 2, 200, 150] x) => ({kind}[1, 2, 200, 150] y) {{ y = Neg(x) }}"
        )
        step = differentiate(model, loss=loss, optimizer=None, trainable=["x"], loss_scale=scaled)
        feeds = {v.name: {"x": x, "labels": labels}.get(v.name) for v in step.graph.input}
        if kind == "float":
            feeds = {n: v.astype(np.float32) if v is x or loss != "cross-entropy" else v
                     for n, v in feeds.items() if v is not None}  # fmt: skip
        if scaled:
            feeds["loss_scale"] = np.array(2**17, np.float32)
        found.append(ReferenceEvaluator(step).run(None, feeds))
    half, single = found
    assert half[0] == pytest.approx(single[0], rel=1e-3)
    assert half[1].dtype == np.float16
    # Unscaled gradients are below what float16 has of digits, not of zeros.
    np.testing.assert_allclose(half[1], single[1], rtol=1e-2, atol=6e-8)
