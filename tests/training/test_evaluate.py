"""Validation between steps: the trainer's own arrays, inference mode, every row counted once."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxremat.errors import UsageError
from onnxremat.grad import BinaryCrossEntropy, CrossEntropy, Loss, differentiate
from onnxremat.training.data import Arrays
from onnxremat.training.evaluation import Evaluator
from onnxremat.training.trainer import Trainer
from tests.training.nets import BATCH, arrays, net

RNG = np.random.default_rng(2)


def linear(final: str, rows: int = BATCH) -> onnx.ModelProto:
    """y = final(x w)."""
    w = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node(final, ["h"], ["y"])]
    graph = helper.make_graph(
        nodes, "linear",
        [helper.make_tensor_value_info("x", 1, [rows, 4])],
        [helper.make_tensor_value_info("y", 1, [rows, 3])],
        [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def made(model: onnx.ModelProto, loss: str | Loss) -> tuple[Trainer, Evaluator]:
    run = Trainer(differentiate(model, loss=loss), model, threads=1, rate=0.1)
    return run, Evaluator(run, model, threads=1)


def data(rows: int, labels: np.ndarray) -> Arrays:
    x = RNG.standard_normal((rows, 4)).astype(np.float32)
    return Arrays({"x": x, "labels": labels}, 1, shuffle=False)


def logits(run: Trainer, given: Arrays) -> np.ndarray:
    return given.arrays["x"].astype(np.float64) @ run.values()["w"]


def test_cross_entropy_of_a_model_that_ends_in_softmax() -> None:
    """Twice: parameters are read where they are, so the second score is that of the new ones."""
    run, evaluator = made(linear("Softmax"), "cross-entropy")
    given = data(2 * BATCH + 3, RNG.integers(0, 3, 2 * BATCH + 3))
    labels = given.arrays["labels"]
    scores = []
    for _ in range(2):
        z = logits(run, given)
        logs = z - np.log(np.exp(z).sum(1, keepdims=True))
        scores.append(evaluator.score(given))
        assert scores[-1].loss == pytest.approx(-logs[np.arange(len(z)), labels].mean(), rel=1e-5)
        assert scores[-1].accuracy == pytest.approx((z.argmax(1) == labels).mean())
        assert scores[-1].rows == 2 * BATCH + 3
        run.step({name: array[:BATCH] for name, array in given.arrays.items()})
    assert scores[0] != scores[1]


def test_binary_cross_entropy_of_a_model_that_ends_in_sigmoid() -> None:
    run, evaluator = made(linear("Sigmoid"), "bce")
    given = data(5, RNG.integers(0, 2, (5, 3)).astype(np.float32))
    z, target = logits(run, given), given.arrays["labels"]
    score = evaluator.score(given)
    assert score.loss == pytest.approx((np.log1p(np.exp(z)) - z * target).mean(), rel=1e-5)
    assert score.accuracy == pytest.approx(((z > 0) == (target > 0.5)).mean())


def test_errors_have_no_accuracy() -> None:
    run, evaluator = made(linear("Identity"), "mse")
    given = data(BATCH + 1, RNG.standard_normal((BATCH + 1, 3)).astype(np.float32))
    score = evaluator.score(given)
    wanted = ((logits(run, given) - given.arrays["labels"]) ** 2).mean()
    assert (score.loss, score.accuracy) == (pytest.approx(wanted, rel=1e-5), None)
    assert str(score) == f"loss {score.loss:.4f}"


def test_settings_of_the_loss_are_kept() -> None:
    """Over batches of which some have more labels that count, and one has none."""
    loss = CrossEntropy(ignore_index=-100, class_weights=np.array([1.0, 2.0, 4.0]))
    run, evaluator = made(linear("Identity"), loss)
    labels = np.array([0, 1, 2, -100, 2, -100, 1, 0] + [-100] * (BATCH + 7) + [2, 1, 1, 0])
    rows = len(labels)
    given = data(rows, labels)
    z = logits(run, given)
    logs = z - np.log(np.exp(z).sum(1, keepdims=True))
    counted = labels >= 0
    safe = np.where(counted, labels, 0)
    weights = np.array([1.0, 2.0, 4.0])[safe] * counted
    score = evaluator.score(given)
    wanted = -(logs[np.arange(rows), safe] * weights).sum() / weights.sum()
    assert score.loss == pytest.approx(wanted, rel=1e-5)
    assert score.accuracy == pytest.approx((z.argmax(1) == labels)[counted].mean())


def test_normalisation_and_dropout_are_those_of_inference() -> None:
    run = Trainer(differentiate(net(0.5), optimizer="adamw"), net(), threads=1, rate=0.05)
    values = arrays()
    run.fit(Arrays(values, BATCH), 3)
    found = Evaluator(run, net(0.5), threads=1).score(Arrays(values, BATCH))
    exported = run.export(net())
    right = 0
    for start in range(0, len(values["x"]), BATCH):
        rows = slice(start, start + BATCH)
        (y,) = ReferenceEvaluator(exported).run(None, {"x": values["x"][rows]})
        right += int((y.argmax(1) == values["labels"][rows]).sum())
    assert found.accuracy == pytest.approx(right / len(values["x"]))


def test_a_model_that_computes_its_loss() -> None:
    """Rows that do not fill a batch cannot be scored, and are not counted."""
    model = linear("Identity")
    model.graph.node.append(helper.make_node("ReduceMean", ["y"], ["total"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("total", 1, []))
    run = Trainer(differentiate(model, loss_output="total"), model, threads=1)
    x = RNG.standard_normal((BATCH + 3, 4)).astype(np.float32)
    score = Evaluator(run, model, threads=1).score(Arrays({"x": x}, 1))
    assert score.rows == BATCH
    assert score.loss == pytest.approx((x[:BATCH] @ run.values()["w"]).mean(), rel=1e-4)
    with pytest.raises(UsageError, match="3 rows do not fill a batch of 8"):
        Evaluator(run, model, threads=1).score(Arrays({"x": x[:3]}, 1))


def test_another_model_is_refused() -> None:
    run, _ = made(linear("Identity"), "mse")
    with pytest.raises(UsageError, match="not the one that was differentiated"):
        Evaluator(run, net())


class Own(BinaryCrossEntropy):
    """A loss that only the caller knows."""


def test_a_loss_of_ones_own_has_to_be_given() -> None:
    run = Trainer(differentiate(linear("Identity"), loss=Own()), linear("Identity"), threads=1)
    with pytest.raises(UsageError, match="'Own' is not known here"):
        Evaluator(run, linear("Identity"))
    given = data(4, RNG.integers(0, 2, (4, 3)).astype(np.float32))
    assert Evaluator(run, linear("Identity"), loss=Own()).score(given).accuracy is not None
