"""Functions of a model mean what onnxruntime takes them for."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxremat.grad import differentiate
from onnxremat.ort.functions import inline_functions
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import named_outputs
from onnxremat.rewrite.split_batch import split_batch
from tests.toolbox import parse

HEAD = '<ir_version: 10, opset_import: ["" : 21, "my" : 1, "com.microsoft" : 1]>\n'
CALLS = {
    "defaults": """
        g (float[4, 8] x) => (float[4, 8] y) { a = my.F(x) y = my.F<alpha = 0.9>(a) }
        <domain: "my", opset_import: ["" : 21]> F <alpha: float = 0.5> (a) => (b)
        { b = LeakyRelu<alpha: float = @alpha>(a) }""",
    "defaults in functions and bodies": """
        g (float[4, 8] x) => (float[4, 8] y) { c = Constant<value = bool {1}>()
            y = If(c) <then_branch = t () => (u) { u = my.G(x) },
                       else_branch = e () => (v) { v = Sin(x) }> }
        <domain: "my", opset_import: ["" : 21, "my" : 1]> G (a) => (b)
        { c = Constant<value = bool {1}>()
          b = If(c) <then_branch = t () => (u) { u = my.F(a) },
                     else_branch = e () => (v) { v = Sin(a) }> }
        <domain: "my", opset_import: ["" : 21]> F <alpha: float = 0.5> (a) => (b)
        { b = LeakyRelu<alpha: float = @alpha>(a) }""",
    "defaults of another function": """
        g (float[4, 8] x) => (float[4, 8] y) { y = my.G(x) }
        <domain: "my", opset_import: ["" : 21, "my" : 1]> G <beta: float = 0.3> (a) => (b)
        { b = my.F<alpha: float = @beta>(a) }
        <domain: "my", opset_import: ["" : 21]> F <alpha: float = 0.5> (a) => (b)
        { b = LeakyRelu<alpha: float = @alpha>(a) }""",
    "not given to the function that hands it on": """
        g (float[4, 8] x) => (float[4, 8] y) { y = my.G(x) }
        <domain: "my", opset_import: ["" : 21, "my" : 1]> G <beta> (a) => (b)
        { b = my.F<alpha: float = @beta>(a) }
        <domain: "my", opset_import: ["" : 21]> F <alpha: float = 0.5> (a) => (b)
        { b = LeakyRelu<alpha: float = @alpha>(a) }""",
    "no default": """
        g (float[4, 8] x) => (float[4, 8] y) { y = my.F(x) }
        <domain: "my", opset_import: ["" : 21]> F <alpha> (a) => (b)
        { b = LeakyRelu<alpha: float = @alpha>(a) }""",
    "named as an operator": """
        g (float[4, 8] x) => (float[4, 8] y) { a = Neg(x) y = Relu(a) }
        <domain: "", opset_import: ["" : 21]> Relu (a) => (b) { b = Neg(a) }""",
    "named as an operator, elsewhere": """
        g (float[4, 8] x) => (float[4, 8] y) { a = Neg(x) y = my.Relu(a) }
        <domain: "my", opset_import: ["" : 21]> Relu (a) => (b) { b = Neg(a) }""",
    "named as an operator of onnxruntime": """
        g (float[4, 8] x) => (float[4, 8] y) { a = com.microsoft.Gelu(x)
            y = com.microsoft.Own(a) }
        <domain: "com.microsoft", opset_import: ["" : 21]> Gelu (a) => (b) { b = Neg(a) }
        <domain: "com.microsoft", opset_import: ["" : 21]> Own (a) => (b) { b = Sin(a) }""",
    "outputs and inputs left out": """
        g (float[4, 8] x) => (float[4, 8] y) { y, _ = my.F(x) }
        <domain: "my", opset_import: ["" : 21]> F (a, low, high) => (b, c)
        { b = Clip(a, low, high) c = Cos(b) }""",
}
X = np.random.default_rng(0).standard_normal((4, 8), dtype=np.float32)


def _called(name: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + CALLS[name])


@pytest.mark.parametrize("name", CALLS)
def test_functions_written_out_compute_the_same(name: str) -> None:
    model = _called(name)
    plain = inline_functions(model)
    assert not plain.functions
    wanted = named_outputs(model, {"x": X}, None)["y"]
    np.testing.assert_array_equal(named_outputs(plain, {"x": X}, None)["y"], wanted)


def test_a_step_has_the_defaults_of_functions() -> None:
    model = _called("defaults")
    weight = helper.make_tensor("w", 1, [8, 8], np.eye(8, dtype=np.float32))
    model.graph.node[0].input[0] = "m"
    model.graph.node.insert(0, helper.make_node("MatMul", ["x", "w"], ["m"]))
    model.graph.initializer.append(weight)
    slopes = [
        {entry.name: round(entry.f, 3) for entry in node.attribute}
        for node in differentiate(model).graph.node
        if node.op_type == "LeakyRelu"
    ]
    assert slopes == [{"alpha": 0.5}, {"alpha": 0.9}]


@pytest.mark.parametrize("opsets", [{"ai.onnx": 20, "com.microsoft": 1}, {"com.microsoft": 1}])
def test_operators_of_onnx_by_their_long_name_or_none_at_all(opsets: dict[str, int]) -> None:
    """The version stays; what is added for rows in parts (Slice) finds one in either file."""
    model = parse("g (float[4, 8] x) => (float[4, 8] y) { a = Sin(x) y = Cos(a) }", opset=20)
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(*entry) for entry in opsets.items())
    for node in model.graph.node:
        node.domain, node.op_type = ("ai.onnx", node.op_type) if "ai.onnx" in opsets else (
            "com.microsoft", "QuickGelu")  # fmt: skip
    before = model.SerializeToString()
    found = inline_functions(model)
    assert model.SerializeToString() == before
    assert {entry.domain: entry.version for entry in found.opset_import}[""] in (17, 20)
    graph = build_graph(found)
    parts = split_batch(graph, [2])
    wanted = named_outputs(model, {"x": X}, None)["y"]
    np.testing.assert_array_equal(named_outputs(parts, {"x": X}, None)["y"], wanted)
