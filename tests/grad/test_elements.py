"""Tensors that an exporter made from elements of a parameter train it, and are written back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from onnxremat.grad import differentiate, training_of
from onnxremat.grad.exported.elements import are_masked, are_shared, elements_of
from onnxremat.training.state import input_types
from onnxremat.training.trainer import Trainer
from tests.toolbox import parse

FRESH = Path(__file__).parent / "exported_fresh"
RANDOM = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.filterwarnings("ignore::onnxremat.errors.TrainingWarning")
@pytest.mark.parametrize(
    "name",
    [
        "folded-mask",
        "folded-mask-legacy",
        "folded-small-table",
        "folded-complex",
        "folded-overlaps",
    ],
)
def test_equal_elements_stay_equal_and_zeros_stay_zeros(name: str, tmp_path: Path) -> None:
    model, kept = onnx.load(FRESH / f"{name}.onnx"), np.load(FRESH / f"{name}.npz")
    step = differentiate(model, optimizer="sgd", loss="mse")
    trainer = Trainer(step, model, rate=0.1, threads=1)
    feeds = {n.split(":", 1)[1]: kept[n] for n in kept.files if n.startswith("feed:")}
    shape = input_types(step)[trainer.training.target][0]
    feeds[trainer.training.target] = kept["target"].reshape(shape)
    for _ in range(3):
        trainer.step(feeds)
    trainer.export(model, tmp_path / "trained.onnx")
    trained = onnx.load(tmp_path / "trained.onnx")
    before, after = (
        {t.name: numpy_helper.to_array(t).reshape(-1) for t in each.graph.initializer}
        for each in (model, trained)
    )
    tensors = [e.tensor for e in training_of(step).restored if e.how in ("share", "pick", "mask")]
    old, new = (np.concatenate([each[t] for t in tensors]) for each in (before, after))
    assert np.abs(new - old).max() > 1e-3
    _, place = np.unique(np.abs(old), return_inverse=True)
    assert max(np.ptp(np.abs(new[place == k])) for k in place) == 0
    if "mask" in name:
        assert not new[old == 0].any()
    assert Trainer(step, trained, threads=1).step(feeds) == trainer.step(feeds)


@pytest.mark.parametrize("signs", [False, True])
def test_elements(signs: bool) -> None:
    x = drawn(3, 4)
    table = np.concatenate([x, np.zeros((3, 4), np.float32), -x if signs else x])
    made = elements_of(table)
    assert len(made.values) == 12
    np.testing.assert_array_equal(
        (made.values[made.places] * made.factors).reshape(table.shape), table
    )


def test_what_is_not_shared() -> None:
    assert are_shared(drawn(9)[RANDOM.integers(0, 9, (4, 4))])
    assert not are_shared(drawn(300, 300))
    assert not are_shared(drawn(300, 300).astype(np.float16).astype(np.float32))
    assert not are_shared(drawn(8, 8) * (drawn(8, 8) > 0))


def test_what_is_not_masked() -> None:
    padded = drawn(8, 8)
    assert are_masked(np.tril(padded))
    assert not are_masked(padded)
    padded[3] = 0
    assert not are_masked(padded)
    assert not are_masked(np.eye(8, dtype=np.float32))


def test_a_slope_of_nothing_is_no_mistake() -> None:
    """onnxruntime opens a Celu of alpha 0, which is 0 by 0."""
    made = parse("g (float[4] x) => (float[4] y) { y = Celu <alpha = 0.0> (x) }")
    assert differentiate(made, loss="mse", trainable=["x"], optimizer=None)


def test_a_normalization_without_gradients_before_what_has_none() -> None:
    """A step of gradients alone: in training mode a BatchNormalization has three outputs, whoever
    reads them."""
    nodes = [
        helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["n"]),
        helper.make_node("QuantizeLinear", ["n", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "other", "zero"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    values = {
        "s": drawn(6), "b": drawn(6), "m": drawn(6), "v": drawn(6) ** 2, "w": drawn(6, 3),
        "scale": np.float32(0.1), "other": np.float32(0.2), "zero": np.uint8(128),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", T.FLOAT, (4, 6))],
        [helper.make_tensor_value_info("y", T.FLOAT, (4, 3))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with pytest.warns(UserWarning, match="operators without a gradient"):
        step = differentiate(model, optimizer=None, loss="mse")
    onnx.checker.check_model(step, full_check=True)
    assert [name for name, _ in training_of(step).gradients] == ["w"]
    norm = next(n for n in step.graph.node if n.op_type == "BatchNormalization")
    assert len(norm.output) == 3
