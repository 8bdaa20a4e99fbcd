"""Slices that an exporter computed of one parameter are one parameter; settings that are named."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.grad import differentiate, training_of
from onnxremat.training.trainer import Trainer

RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((4, 6)).astype(np.float32)
LONG = RANDOM.standard_normal((5, 6)).astype(np.float32)


def net(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """From ``x`` [4, 6] to ``y`` [4, 6], as by PyTorch's older exporter."""
    made = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, X.shape)],
        [numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in weights.items()],
    )
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10, producer_name="pytorch")


def node(kind: str, inputs: list[str], output: str) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], name=f"/{output}")


def test_two_slices_of_one_table_are_trained_as_one() -> None:
    """x + table[:4], and its middle rows times table[1:4]."""
    model = net(
        [node("Add", ["x", "onnx::Add_1"], "h"), node("Gather", ["h", "rows"], "g"),
         node("Mul", ["g", "onnx::Mul_2"], "m"), node("Gather", ["m", "rows"], "k"),
         node("Gather", ["k", "back"], "b"), node("Add", ["b", "h"], "y")],
        {"onnx::Add_1": LONG[:4], "onnx::Mul_2": LONG[1:4]},
    )  # fmt: skip
    for name, rows in (("rows", [0, 1, 2]), ("back", [0, 1, 2, 1])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(rows), name))
    step = differentiate(model, optimizer="sgd", loss="mse")
    names = {v.input for v in training_of(step).parameters}
    assert "onnx::Add_1" in names
    assert "onnx::Mul_2" not in names
    trainer = Trainer(step, model, rate=0.5)
    trainer.step({"x": X, training_of(step).target: np.zeros_like(X)})
    after = {t.name: numpy_helper.to_array(t) for t in trainer.export(model).graph.initializer}
    np.testing.assert_array_equal(after["onnx::Mul_2"], after["onnx::Add_1"][1:4])
    assert not np.array_equal(after["onnx::Add_1"], LONG[:4])
    assert set(after) == {t.name for t in model.graph.initializer}


@pytest.mark.parametrize("said", [True, False])
def test_few_elements_are_a_slice_whether_or_not_the_file_says_of_what(said: bool) -> None:
    """x + table[:4] and x table[1:2], of two columns of full precision."""
    table = RANDOM.standard_normal((5, 2)).astype(np.float32)
    model = net(
        [node("MatMul", ["x", "w"], "n"), node("Add", ["n", "val_1"], "h"),
         node("Mul", ["h", "val_2"], "m"), node("MatMul", ["m", "v"], "y")],
        {"val_1": table[:4], "val_2": table[1:2], "w": LONG[:2].T, "v": LONG[2:4]},
    )  # fmt: skip
    for tensor in model.graph.initializer[:2] if said else ():
        folded = tensor.metadata_props.add()
        folded.key, folded.value = (
            "pkg.onnxscript.optimizer.folded_from",
            "['net.table', 'slice_1']",
        )
    found = training_of(differentiate(model, optimizer="sgd", loss="mse"))
    assert {v.input for v in found.parameters} == {"val_1", "w", "v"}


@pytest.mark.parametrize(
    ("name", "trained"), [("pool.p", True), ("p", True), ("onnx::Pow_3", False)]
)
def test_an_exponent_is_a_parameter_where_it_has_a_name(name: str, trained: bool) -> None:
    """Generalised mean pooling learns one."""
    nodes = [node("Abs", ["x"], "h"), node("Mul", ["h", "w"], "k"), node("Abs", ["k"], "a"),
             node("Pow", ["a", name], "y")]  # fmt: skip
    model = net(nodes, {"w": X[0], name: np.array([3.0])})
    found = {row.name: row.status for row in training_of(differentiate(model, loss="mse")).weights}
    assert found == {"w": "trained", name: "trained" if trained else "setting"}


def test_zeros_added_to_a_product_are_its_bias() -> None:
    nodes = [node("MatMul", ["x", "onnx::MatMul_1"], "h"), node("Add", ["onnx::Add_2", "h"], "y")]
    model = net(nodes, {"onnx::MatMul_1": np.outer(X[0], X[1]), "onnx::Add_2": np.zeros(6)})
    found = {row.name: row.status for row in training_of(differentiate(model, loss="mse")).weights}
    assert found == dict.fromkeys(["onnx::MatMul_1", "onnx::Add_2"], "trained")
