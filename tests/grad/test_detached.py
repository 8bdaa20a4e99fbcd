"""Gradients stop where PyTorch's module stops them, as far as its exporter says so."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.errors import TrainingWarning
from onnxremat.grad import differentiate, training_of
from onnxremat.grad.exported.left_out import left_out_sums
from onnxremat.ort.session import Options, open_session, session_options

X = np.array([[0.5, -1.0, 2.0]], np.float32)
W = np.array([0.3, 0.7, -0.4], np.float32)


def said(node: onnx.NodeProto, target: str, made: str, taken: Sequence[str]) -> onnx.NodeProto:
    """A node as PyTorch's exporter describes it."""
    names = ", ".join(f"%{name}" for name in taken)
    call = f"%{made} : [num_users=1] = call_function[target=torch.ops.aten.{target}]"
    about = (("fx_node", f"{call}(args = ({names}), kwargs = {{}})"), ("name_scopes", "['', 'a']"))
    for key, value in about:
        node.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    return node


def node(kind: str, inputs: Sequence[str], output: str) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], name=output)


def net(nodes: Sequence[onnx.NodeProto], opset: int = 20) -> onnx.ModelProto:
    """From ``x`` to ``y`` by way of a weight ``w``."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, X.shape)],
        [numpy_helper.from_array(W, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def gradient(model: onnx.ModelProto) -> np.ndarray:
    """Of ``w``, for a mean squared error against zeros."""
    step = differentiate(model, optimizer=None, loss="mse")
    session = open_session(step, session_options(Options(threads=1, pattern=False)))
    feeds = {"x": X, "w": W, training_of(step).target: np.zeros_like(X)}
    return np.asarray(session.run(["w.grad"], feeds)[0])


def product(detached: str) -> np.ndarray:
    """By hand, of y = w x tanh(w x): ``detached`` is the factor that counts as a number."""
    h = X[0] * W
    parts = {"tanh": X[0] * np.tanh(h), "mul": h * X[0] * (1 - np.tanh(h) ** 2)}
    share = parts[detached] if detached else parts["tanh"] + parts["mul"]
    found: np.ndarray = 2 * h * np.tanh(h) * share / 3
    return found


def two_factors(reads: Sequence[str], last: Sequence[str], extra: Sequence[onnx.NodeProto] = (),
                opset: int = 20) -> onnx.ModelProto:  # fmt: skip
    """y = w x tanh(w x), the last product as PyTorch's graph and as the file has it."""
    return net([
        said(node("Mul", ["x", "w"], "mul"), "mul.Tensor", "mul", ["x", "p_w"]),
        said(node("Tanh", ["mul"], "tanh"), "tanh.default", "tanh", ["mul"]),
        *extra,
        said(node("Mul", last, "y"), "mul.Tensor", "mul_1", reads),
    ], opset)  # fmt: skip


@pytest.mark.parametrize("opset", [18, 20])  # onnx's converter drops what nodes say
@pytest.mark.parametrize(
    ("reads", "stopped"),
    [(["mul", "tanh"], ""), (["mul", "detach"], "tanh"), (["detach", "tanh"], "mul")],
)
def test_what_a_node_read_detached_gets_no_gradient(
    reads: list[str], stopped: str, opset: int
) -> None:
    model = two_factors(reads, ["mul", "tanh"], opset=opset)
    np.testing.assert_allclose(gradient(model), product(stopped), rtol=1e-6)


@pytest.mark.parametrize("opset", [18, 20])
def test_an_identity_that_detaches_is_kept(opset: int) -> None:
    stop = said(node("Identity", ["tanh"], "detach"), "detach.default", "detach", ["tanh"])
    model = two_factors(["mul", "detach"], ["mul", "detach"], [stop], opset)
    np.testing.assert_allclose(gradient(model), product("tanh"), rtol=1e-6)


def test_one_tensor_read_with_and_without() -> None:
    """x + (y - x).detach(), and x * x.detach()."""
    squared = net([
        said(node("Mul", ["x", "w"], "mul"), "mul.Tensor", "mul", ["x", "p_w"]),
        said(node("Mul", ["mul", "mul"], "y"), "mul.Tensor", "mul_1", ["mul", "detach"]),
    ])  # fmt: skip
    h = X[0] * W
    np.testing.assert_allclose(gradient(squared), 2 * h * h * h * X[0] / 3, rtol=1e-6)


def _straight_through(reads: Sequence[str]) -> onnx.ModelProto:
    return net([
        said(node("Mul", ["x", "w"], "mul"), "mul.Tensor", "mul", ["x", "p_w"]),
        said(node("Round", ["mul"], "round"), "round.default", "round_1", ["mul"]),
        said(node("Sub", ["round", "mul"], "sub"), "sub.Tensor", "sub", ["round_1", "mul"]),
        said(node("Add", ["mul", "sub"], "y"), "add.Tensor", "add", reads),
    ])  # fmt: skip


def test_rounding_passes_gradients_where_the_file_says_so() -> None:
    expected = 2 * np.round(X[0] * W) * X[0] / 3
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        np.testing.assert_allclose(
            gradient(_straight_through(["mul", "detach"])), expected, rtol=1e-6
        )


def test_a_file_that_does_not_say_so_is_warned_of() -> None:
    with pytest.warns(TrainingWarning, match="add what was subtracted just before"):
        gradient(_straight_through(["mul", "sub"]))


def test_an_input_that_cannot_be_told_is_warned_of() -> None:
    """PyTorch's node read a view as well, which the file left out too."""
    model = two_factors(["view", "detach"], ["mul", "tanh"])
    model.graph.node[-1].input[:] = ["mul", "tanh"]
    del model.graph.node[0].metadata_props[:]
    with pytest.warns(TrainingWarning, match="stops gradients"):
        gradient(model)


def _two_distances(stopped: str) -> onnx.ModelProto:
    """d(h, t.detach()) + d(h.detach(), t) / 2, as a codebook is trained, of whose two equal
    distances the exporter made one; ``stopped``: what PyTorch's name for the second factor is."""
    model = net([
        said(node("Mul", ["x", "w"], "mul"), "mul.Tensor", "mul", ["x", "p_w"]),
        said(node("Tanh", ["mul"], "tanh"), "tanh.default", "tanh", ["mul"]),
        said(node("Mul", ["mul", "tanh"], "dist"), "dist.default", "dist", ["mul", stopped]),
        said(node("Add", ["dist", "dist"], "y"), "add.Tensor", "add", ["dist", "dist_1"]),
    ])  # fmt: skip
    listed = "# inputs\n  p_w: PARAMETER target='w'\n# outputs\n  add: USER_OUTPUT"
    model.graph.metadata_props.add(
        key="pkg.torch.export.ExportedProgram.graph_signature", value=listed
    )
    placed = {"key": "pkg.torch.onnx.original_node_name", "value": "p_w"}
    model.graph.initializer[0].metadata_props.add(**placed)
    return model


def test_one_of_two_equal_results_may_have_been_stopped() -> None:
    with pytest.warns(TrainingWarning, match=r"one of two equal results: .* those of w are wrong"):
        gradient(_two_distances("detach"))


def test_equal_results_of_a_module_that_stops_nothing_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the module stops", TrainingWarning)
        gradient(_two_distances("tanh"))


@pytest.mark.parametrize(
    ("sums", "reader", "told"),
    [
        ("a b", "add_1", True),  # x / (a + b + 1e-9)
        ("a b", "add", False),
        ("s", "add", True),  # x / (s + 1e-9).sum()
    ],
)
def test_a_small_number_that_was_added_to_a_sum_is_told(sums: str, reader: str, told: bool) -> None:
    """The node says that it reads a sum, and no node says so of the one that is left."""
    first = ["x", "w"] if sums == "a b" else ["x"]
    nodes = [
        said(node("Add" if sums == "a b" else "Relu", first, "a"), "op", "add" if sums == "a b"
             else "relu", ["x", "p_w"]),
        said(node("ReduceMean", ["a"], "r"), "sum", "sum_1", [reader]),
        said(node("Div", ["x", "r"], "y"), "div", "div", ["x", "sum_1"]),
    ]  # fmt: skip
    assert bool(left_out_sums(net(nodes))) is told
