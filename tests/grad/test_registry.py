"""Rules that are registered wrongly, or return too little, are refused: no gradient vanishes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.errors import OnnxrematError, UsageError
from onnxremat.grad import differentiate, registry
from onnxremat.grad.call import Call
from onnxremat.grad.registry import vjp


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    """Domain of an operator of two inputs whose rules are forgotten after the test."""
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    return "test.own"


def model(domain: str) -> onnx.ModelProto:
    """y = Own(x a, b), a and b trained."""
    stored = [numpy_helper.from_array(np.eye(3, dtype=np.float32) + 0.1, n) for n in ("a", "b")]
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Own", ["h", "b"], ["t"], name="the_Own", domain=domain),
        helper.make_node("Add", ["t", "h"], ["y"]),
    ]
    shape = value("t", TensorProto.FLOAT, [3, 3])
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [3, 3])],
        [value("y", TensorProto.FLOAT, [3, 3])], stored, value_info=[shape],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def gradients(domain: str) -> list[str]:
    step = differentiate(model(domain), loss="mse", optimizer=None)
    return [value.name for value in step.graph.output if value.name.endswith(".grad")]


@pytest.mark.parametrize(
    ("returned", "part"),
    [
        (lambda call: [call.dy], "1 cotangents for 2 inputs"),
        (lambda call: [call.dy, call.dy, call.dy], "3 cotangents for 2 inputs"),
        (lambda call: [call.dy, None], "no cotangent for input 1, b"),
        (lambda call: [None, call.dy], "no cotangent for input 0, h"),
    ],
)
def test_a_rule_that_leaves_out_a_cotangent_is_refused_by_name(
    own: str, returned: registry.RuleFunction, part: str
) -> None:
    vjp("Own", domain=own, variant="short")(returned)
    with pytest.raises(OnnxrematError) as caught:
        gradients(own)
    for word in (part, "'short' of test.own.Own", "the_Own", "flat="):
        assert word in str(caught.value)


def test_inputs_without_a_gradient_by_nature_are_declared(own: str) -> None:
    @vjp("Own", domain=own, flat="x1")
    def first(call: Call) -> registry.Cotangents:
        return call.only(call.dy)

    assert gradients(own) == ["a.grad"]


@pytest.mark.parametrize("text", ["x", "x0,y0", "0", "z0", "X0", "x0 y", "x-1"])
def test_what_a_rule_reads_is_checked(own: str, text: str) -> None:
    with pytest.raises(UsageError, match="of the rule of Own is not understood"):
        vjp("Own", domain=own, reads=text)
    with pytest.raises(UsageError, match="of the rule of Own is not understood"):
        vjp("Own", domain=own, flat=text)


def test_versions_the_wrong_way_round_are_refused(own: str) -> None:
    with pytest.raises(UsageError, match="from opset 14 to 13"):
        vjp("Own", domain=own, since=14, until=13)
