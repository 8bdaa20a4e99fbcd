"""Adapters of a model that a library freezes, which a file does not say."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxremat.grad import differentiate

BASE, ADDED = "proj.base_layer.weight", ("proj.lora_A.default.weight", "proj.lora_B.default.weight")


def adapted(
    base: str = BASE, added: tuple[str, str] = ADDED, rank: int = 2, merged: bool = False
) -> onnx.ModelProto:
    """y = x W + x A B, or x (W + A B)."""
    random = np.random.default_rng(0)
    shapes = {base: (6, 5), added[0]: (6, rank), added[1]: (rank, 5)}
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", base], ["a"]),
        helper.make_node("MatMul", ["x", added[0]], ["b"]),
        helper.make_node("Dropout", ["b"], ["d"]),
        helper.make_node("MatMul", ["d", added[1]], ["c"]),
        helper.make_node("Add", ["a", "c"], ["y"]),
    ]
    if merged:
        nodes = [
            helper.make_node("MatMul", [*added], ["a"]),
            helper.make_node("Add", [base, "a"], ["b"]),
            helper.make_node("MatMul", ["x", "b"], ["y"]),
        ]
    x, y = (helper.make_tensor_value_info(n, 1, [3, k]) for n, k in (("x", 6), ("y", 5)))
    graph = helper.make_graph(nodes, "adapted", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize(
    ("base", "settings", "named"),
    [
        (BASE, {}, True),
        (BASE, {"trainable": ["*lora_*"]}, False),
        (BASE, {"freeze": [BASE]}, False),
        (BASE, {"parameters": [BASE, *ADDED]}, False),
        ("head.modules_to_save.default.weight", {}, False),
    ],
)
def test_what_an_adapter_is_added_to_may_be_frozen(base: str, settings: dict, named: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        differentiate(adapted(base), optimizer="sgd", loss="mse", **settings)
    told = [str(each.message) for each in caught if "adapters" in str(each.message)]
    assert bool(told) == named
    assert all(BASE in text and ADDED[0] in text for text in told)


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(("rank", "told"), [(2, True), (3, False)])
def test_adapters_are_known_by_what_they_do(rank: int, told: bool, merged: bool) -> None:
    """Of half the rank and more they are a layer like others."""
    model = adapted("proj.weight", ("proj.a", "proj.b"), rank, merged)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        differentiate(model, optimizer="sgd", loss="mse")
    said = [str(each.message) for each in caught if "adapters" in str(each.message)]
    assert bool(said) == told
    assert all("--trainable 'proj.a' --trainable 'proj.b'" in text for text in said)
