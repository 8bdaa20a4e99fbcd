"""Chain and weight gradients are told apart, in the step and in what becomes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxremat.grad import differentiate
from onnxremat.grad.roles import roles_of
from onnxremat.graph.ir import Graph
from onnxremat.ort.infer import build_graph
from onnxremat.ort.offline import optimise
from tests.training.nets import net


def words() -> onnx.ModelProto:
    """An embedding, a weight that goes through a Transpose and is used twice, a shape of the data
    in the way of a parameter."""
    rng = np.random.default_rng(0)
    weights = {"table": (7, 4), "w": (4, 4), "place": (9, 4), "out": (4, 3)}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("Shape", ["ids"], ["length"], start=1),
        helper.make_node("Slice", ["place", "zero", "length", "zero"], ["p"]),
        helper.make_node("Add", ["e", "p"], ["s"]),
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["s", "wt"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "wt"], ["c"]),
        helper.make_node("MatMul", ["c", "out"], ["y"]),
    ]
    stored = [numpy_helper.from_array(np.zeros(1, np.int64), "zero")]
    for name, shape in weights.items():
        stored.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    graph = helper.make_graph(
        nodes, "words",
        [helper.make_tensor_value_info("ids", 7, [2, 5])],
        [helper.make_tensor_value_info("y", 1, [2, 5, 3])],
        stored,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def graph_of(model: onnx.ModelProto) -> Graph:
    """With all sizes."""
    return build_graph(model, None)


@pytest.mark.parametrize("model", [net(), words()], ids=["net", "words"])
def test_nothing_of_the_chain_waits_for_a_weight_gradient(model: onnx.ModelProto) -> None:
    graph = graph_of(differentiate(model, optimizer="sgd"))
    roles = roles_of(graph)
    for op in graph.ops:
        makers = {roles[graph.ops[graph.producer[n]].name] for n in op.reads if n in graph.producer}
        if roles[op.name] in ("chain", "forward", "loss"):
            assert makers <= {"forward", "loss", "chain"}, op.name
        if roles[op.name] == "weight":
            assert "update" not in makers


def test_which_is_which() -> None:
    """The chain goes back through every layer up to the first value that varies with the data."""
    graph = graph_of(differentiate(words(), optimizer="sgd"))
    roles = roles_of(graph)
    of_layer: dict[str, set[tuple[str, str]]] = {}
    for op in graph.ops:
        if op.name.startswith("grad/"):
            layer = op.name.split("/")[1]
            of_layer.setdefault(layer, set()).add((op.op_type, roles[op.name]))
    matrix = {role for layer, found in of_layer.items() if "MatMul" in layer
              for kind, role in found if kind in ("MatMul", "Gemm")}  # fmt: skip
    assert matrix == {"chain", "weight"}
    for layer, found in of_layer.items():
        kinds = {role for _, role in found}
        if layer.startswith("Tanh"):
            assert kinds == {"chain"}
        if layer.startswith(("Gather", "Slice", "Transpose")):
            assert kinds == {"weight"}, (layer, found)


@pytest.mark.parametrize("target", ["portable", "onnxruntime", "host"])
@pytest.mark.parametrize("model", [net(), words()], ids=["net", "words"])
def test_roles_survive_onnxruntime(model: onnx.ModelProto, target: str) -> None:
    step = differentiate(model, optimizer="adamw")
    before = roles_of(graph_of(step))
    after = roles_of(graph_of(optimise(step, target, None)))
    both = before.keys() & after.keys()
    assert len(both) > len(after) / 2
    assert {name: after[name] for name in both} == {name: before[name] for name in both}


def test_an_op_that_says_nothing_gets_the_role_of_its_place() -> None:
    step = differentiate(words(), optimizer="sgd")
    graph = graph_of(step)
    roles = roles_of(graph)
    for index, op in enumerate(graph.ops):
        before = {roles[graph.ops[graph.producer[n]].name] for n in op.reads if n in graph.producer}
        after = {roles[graph.ops[k].name] for n in op.writes for k in graph.readers.get(n, ())}
        inside = before & {"chain", "weight"} and (roles[op.name] == "weight" or "chain" in after)
        if not inside:
            continue
        bare = onnx.ModelProto()
        bare.CopyFrom(step)
        del bare.graph.node[index].metadata_props[:]
        assert roles_of(graph_of(bare)) == roles


def test_recomputed_ops_are_still_forward() -> None:
    graph = graph_of(differentiate(words(), optimizer="sgd"))
    first = next(op for op in graph.ops if op.op_type == "Tanh")
    late = next(op for op in graph.ops if op.name.startswith("grad/"))
    again = first.renamed(
        "again", {first.outputs[0]: "value", first.inputs[0]: late.outputs[0]}, first.name
    )
    again = replace(again, node=onnx.NodeProto())
    tensors = {**graph.tensors, "value": graph.tensors[first.outputs[0]]}
    assert roles_of(graph.with_ops((*graph.ops, again), tensors))["again"] == "forward"
