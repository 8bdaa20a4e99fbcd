"""Tensors that an exporter computed of a parameter which the file has too (`1 - mix` of RWKV)."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from onnxremat.grad import differentiate, training_of
from onnxremat.training.trainer import Trainer

RNG = np.random.default_rng(3)
X, Z = (RNG.standard_normal((4, 4, 8)).astype(np.float32) for _ in range(2))
MIX = RNG.uniform(0.2, 0.9, (4, 8)).astype(np.float32)
FORMS = {
    "1 - p": ("Sub", True, 1.0), "1 + p": ("Add", False, 1.0), "-p": ("Mul", False, -1.0),
    "p / sqrt(24)": ("Div", False, 24**0.5), "0.3 p": ("Mul", False, 0.3),
    "2 / p": ("Div", True, 2.0), "p": ("Add", False, 0.0),
}  # fmt: skip


def _net(
    form: str, folded: bool, *, name: str = "layer.mix", value: np.ndarray = MIX
) -> onnx.ModelProto:
    """z = x p + tanh(x c), c a function of p that is a node, or folded as exporters do it."""
    kind, first, number = FORMS[form]
    inputs = ["/number_output_0", name] if first else [name, "/number_output_0"]
    how = helper.make_node(kind, inputs, ["onnx::Mul_7"])
    constants = {"/number_output_0": np.array(number, np.float32), name: value}
    if folded:
        made = {"Sub": np.subtract, "Add": np.add, "Mul": np.multiply, "Div": np.divide}[kind]
        constants["onnx::Mul_7"] = made(*(constants[each] for each in inputs))
        del constants["/number_output_0"]
    nodes = [
        *([] if folded else [how]),
        helper.make_node("Mul", ["x", name], ["a"], name="/layer/Mul"),
        helper.make_node("Mul", ["x", "onnx::Mul_7"], ["b"], name="/layer/Mul_1"),
        helper.make_node("Tanh", ["b"], ["c"]),
        helper.make_node("Add", ["a", "c"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", 1, X.shape)],
        [helper.make_tensor_value_info("z", 1, Z.shape)],
        [numpy_helper.from_array(value, each) for each, value in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="pytorch")


def _after(model: onnx.ModelProto) -> tuple[Trainer, onnx.ModelProto]:
    trainer = Trainer(differentiate(model, loss="mse", optimizer="sgd"), model, rate=0.5, threads=1)
    for _ in range(3):
        trainer.step({"x": X, "labels": Z})
    return trainer, trainer.export(model)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "p"])
def test_what_was_computed_of_a_parameter_is_trained_with_it(form: str) -> None:
    (whole, exported), (ours, made) = _after(_net(form, False)), _after(_net(form, True))
    assert [v.input for v in ours.training.parameters] == ["layer.mix"]
    np.testing.assert_allclose(ours.state["layer.mix"], whole.state["layer.mix"], rtol=1e-5)
    assert {t.name for t in made.graph.initializer} == {"layer.mix", "onnx::Mul_7"}
    assert [node.op_type for node in made.graph.node] == ["Mul", "Mul", "Tanh", "Add"]
    predictions = [
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
        .run(None, {"x": X})[0]
        for m in (exported, made)
    ]  # fmt: skip
    np.testing.assert_allclose(predictions[0], predictions[1], rtol=1e-4, atol=1e-5)


def test_of_two_equal_parameters_that_of_the_same_module_is_meant() -> None:
    model = _net("1 - p", True)
    model.graph.initializer.append(numpy_helper.from_array(MIX, "other.mix"))
    model.graph.node[3].input[1] = "d"
    model.graph.node.insert(
        3, helper.make_node("Mul", ["c", "other.mix"], ["d"], name="/other/Mul")
    )
    step = differentiate(model, loss="mse", optimizer="sgd", tie=False)
    entry = next(e for e in training_of(step).restored if e.how == "computed")
    assert (entry.parameter, entry.tensor) == ("layer.mix", "onnx::Mul_7")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("onnx::Mul_5", MIX, "neither has a name of its own"),
        ("layer.mix", np.tile(np.linspace(0, 1, 8, dtype=np.float32), (4, 1)), "made by code"),
    ],
)
def test_tensors_that_only_look_computed_stay_apart(name: str, value: np.ndarray, why: str) -> None:
    step = differentiate(_net("1 - p", True, name=name, value=value), loss="mse", optimizer="sgd",
                         trainable=[name, "onnx::Mul_7"])  # fmt: skip
    assert not training_of(step).restored, why


def test_equal_tensors_are_two_where_that_is_asked_for() -> None:
    step = differentiate(_net("p", True), loss="mse", optimizer="sgd", tie=False)
    assert {v.input for v in training_of(step).parameters} == {"layer.mix", "onnx::Mul_7"}


def test_what_may_have_been_computed_is_told() -> None:
    """One less a parameter that the file does not have by its name: it may as well be a view."""
    model = _net("1 - p", True, name="onnx::Mul_5")
    found = training_of(differentiate(model, loss="mse", optimizer="sgd"))
    assert any("stored 2 tensors that it made of parameters" in text for text in found.warnings)
    names = ["onnx::Mul_5", "onnx::Mul_7"]
    listed = differentiate(model, loss="mse", optimizer="sgd", parameters=names)
    assert not training_of(listed).warnings
    whole = differentiate(_net("1 - p", True), loss="mse", optimizer="sgd")
    assert not training_of(whole).warnings


@pytest.mark.parametrize("ir_version", [3, 9])
def test_files_that_list_what_they_store_as_inputs(ir_version: int) -> None:
    """What is computed of a parameter from now on is no input."""
    model, plain = _net("1 - p", True), _net("1 - p", True)
    model.ir_version = ir_version
    for tensor in model.graph.initializer:
        listed = helper.make_tensor_value_info(tensor.name, 1, tensor.dims)
        model.graph.input.append(listed)
    (ours, made), (other, _) = _after(model), _after(plain)
    np.testing.assert_array_equal(ours.state["layer.mix"], other.state["layer.mix"])
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": X})[0].shape == Z.shape
    onnx.checker.check_model(made)
