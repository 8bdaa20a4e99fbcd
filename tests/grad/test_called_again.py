"""Modules that are called twice, in files of PyTorch's older exporter: what it folds of their
parameters is there once per call, and is one parameter all the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.grad import differentiate, training_of
from onnxremat.grad.exported.parameters import take_inventory


def twice(second: str, value: np.ndarray, *names: str) -> onnx.ModelProto:
    """y = (x w + b) w + b: of a fresh net, where ``b`` is another tensor of zeros, too.

    Args:
        second: the scope of the second call.
        value: of the bias.
        names: more tensors of the file.
    """
    nodes = [
        helper.make_node("Identity", ["other.bias"], ["onnx::Add_5"], name="Identity_0"),
        helper.make_node("Identity", ["onnx::Add_5"], ["onnx::Add_9"], name="Identity_1"),
        helper.make_node("MatMul", ["x", "attn.weight"], ["a"], name="/attn/MatMul"),
        helper.make_node("Add", ["onnx::Add_5", "a"], ["b"], name="/attn/Add"),
        helper.make_node("MatMul", ["b", "attn.weight"], ["c"], name=f"{second}MatMul"),
        helper.make_node("Add", ["onnx::Add_9", "c"], ["d"], name=f"{second}Add"),
        helper.make_node("Add", ["d", "other.bias"], ["y"], name="/other/Add"),
    ]
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    stored = {"attn.weight": weight, "other.bias": value, **dict.fromkeys(names, weight[0])}
    nodes += [helper.make_node("Add", ["y", name], [f"y_{name}"], name=name) for name in names]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, 4))],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, (3, 4))],
        [numpy_helper.from_array(each.astype(np.float32), name) for name, each in stored.items()],
    )
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10, producer_name="pytorch")


@pytest.mark.parametrize(
    ("second", "names", "biases"),
    [
        ("/attn_1/", (), 1),  # the second call of /attn/
        ("/attn_1/", ("attn_1.weight",), 2),  # a module attn_1
        ("/last/", (), 2),
    ],
)
def test_a_folded_bias_of_zeros_is_one_for_all_calls(
    second: str, names: tuple[str, ...], biases: int
) -> None:
    step = differentiate(twice(second, np.zeros(4), *names), optimizer=None, loss="mse")
    found = [name for name, _ in training_of(step).gradients if name.startswith("onnx::Add")]
    assert len(found) == biases


def test_what_is_folded_for_two_calls_is_stored_once() -> None:
    """Where the first call's is the initializer that the second call's is an Identity of."""
    model = twice("/attn_1/", np.zeros(4))
    del model.graph.node[0]
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(4, np.float32), "onnx::Add_5"))
    stock = take_inventory(model, None)
    names = [tensor.name for tensor in stock.model.graph.initializer]
    assert sorted(names) == ["attn.weight", "onnx::Add_5", "other.bias"]
    onnx.checker.check_model(stock.model)


def two_modules(*tensors: str) -> onnx.ModelProto:
    """y = x a + b + x c + d, where what is given of the second pair is an Identity of the first;
    weights have no names, where ``folded`` is given."""
    random = np.random.default_rng(0)
    first, second = (
        {each: f"{module}.{each}" for each in ("weight", "bias")} for module in ("on", "tg")
    )
    if "folded" in tensors:
        first["weight"], second["weight"] = "onnx::MatMul_5", "onnx::MatMul_6"
    value = {"weight": random.standard_normal((4, 4)), "bias": random.standard_normal(4)}
    stored = {first[each]: value[each] for each in value}
    stored |= {second[each]: value[each] + 1 for each in value if each not in tensors}
    held = [each for each in value if each in tensors]
    nodes = [helper.make_node("Identity", [first[e]], [second[e]], name=e) for e in held]
    for name, names in (("on", first), ("tg", second)):
        nodes += [
            helper.make_node("MatMul", ["x", names["weight"]], [name], name=f"/{name}/MatMul"),
            helper.make_node("Add", [name, names["bias"]], [f"{name}_y"], name=f"/{name}/Add"),
        ]
    nodes.append(helper.make_node("Add", ["on_y", "tg_y"], ["y"], name="/Add"))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 4))],
        [numpy_helper.from_array(each.astype(np.float32), name) for name, each in stored.items()],
    )
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10, producer_name="pytorch")


@pytest.mark.parametrize(
    ("tensors", "trained", "said"),
    [
        (("weight",), 4, "1 tensors of 'tg' begin as those of 'on' and are trained by themselves"),
        (("weight", "bias"), 4, "2 tensors of 'tg'"),
        (("folded", "weight", "bias"), 4, "2 tensors of 'tg'"),
        (("folded", "weight"), 3, "'tg' reads a tensor of 'on'"),
    ],
)
def test_what_has_two_names_is_two_parameters(
    tensors: tuple[str, ...], trained: int, said: str
) -> None:
    """And what has none is one, unless more of the module is a copy."""
    about = training_of(differentiate(two_modules(*tensors), loss="mse", optimizer=None))
    assert len(about.gradients) == trained
    assert any(text.startswith(said) for text in about.warnings)


def test_copies_are_trained_apart_on_request() -> None:
    step = differentiate(two_modules("folded", "weight"), loss="mse", optimizer=None, tie=False)
    assert len(training_of(step).gradients) == 4
    assert not training_of(step).warnings
