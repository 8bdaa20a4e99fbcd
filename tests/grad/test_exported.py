"""Parameters of exported models: found whatever the exporter did to them, and only they."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from onnxremat.errors import ModelError, TrainingWarning, UsageError
from onnxremat.grad import differentiate, training_of
from onnxremat.grad.exported.listed import KEY, Parameters
from onnxremat.grad.exported.parameters import take_inventory
from onnxremat.grad.exported.twins import _LIKELY, doubts_of
from onnxremat.grad.exported.unfold import apply_restored, fold_restored
from onnxremat.ort.session import open_session, session_options
from onnxremat.report.weights import unsaid_note
from onnxremat.training.sessions import UNPLANNED
from onnxremat.training.trainer import Trainer

KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
PLACEHOLDER = "pkg.torch.onnx.original_node_name"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
RNG = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def node(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(
        kind, inputs, [output], name=attributes.pop("name", output), **attributes
    )


def model(
    nodes: Sequence[onnx.NodeProto],
    weights: Mapping[str, np.ndarray],
    x: Sequence[int] = (4, 6),
    marks: Mapping[str, Mapping[str, str]] | None = None,
) -> onnx.ModelProto:
    """A net from ``x`` to ``y`` [4, 3]."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", T.FLOAT, x)],
        [helper.make_tensor_value_info("y", T.FLOAT, (4, 3))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    for name, entries in (marks or {}).items():
        value = weights[name]
        info = helper.make_tensor_value_info(name, T.FLOAT, value.shape)
        for key, text in entries.items():
            info.metadata_props.add(key=key, value=text)
        graph.value_info.append(info)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(made)
    return made


def statuses(step: onnx.ModelProto) -> dict[str, str]:
    return {weight.name: weight.status for weight in training_of(step).weights}


def run(found: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(found.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def reads(call: str, scope: str, *tensors: str) -> dict[str, str]:
    """What PyTorch's exporter writes at a node."""
    arguments = ", ".join(f"%{name}" for name in tensors)
    return {
        "pkg.torch.onnx.fx_node": f"%{call} : call_function[target=op](args = (%x, {arguments})",
        "pkg.torch.onnx.name_scopes": str(["", scope, call]),
    }


def marked(made: onnx.NodeProto, entries: Mapping[str, str]) -> onnx.NodeProto:
    for key, text in entries.items():
        made.metadata_props.add(key=key, value=text)
    return made


# ---- whatever the exporter put before it --------------------------------------------------------


def test_a_folded_weight_trains_under_the_name_it_had() -> None:
    weights = {"val_3": draw(6, 3), "fc.bias": draw(3)}
    marks = {"val_3": {FOLDED: "['fc.weight', 'val_1']"}, "fc.bias": {KIND: "PARAMETER"}}
    net = model([node("MatMul", ["x", "val_3"], "a"), node("Add", ["a", "fc.bias"], "y")], weights,
                marks=marks)  # fmt: skip
    step = differentiate(net, optimizer=None)
    assert statuses(step) == {"val_3": "trained", "fc.bias": "trained"}
    assert training_of(step).weights[0].label == "fc.weight"
    chosen = differentiate(net, optimizer=None, freeze=["fc.weight"])
    assert statuses(chosen) == {"val_3": "frozen", "fc.bias": "trained"}


def test_a_folded_weight_without_a_mark_is_named_by_its_reader() -> None:
    nodes = [
        node("MatMul", ["x", "onnx::MatMul_7"], "a", name="/head/fc/MatMul"),
        node("Relu", ["a"], "y"),
    ]
    step = differentiate(model(nodes, {"onnx::MatMul_7": draw(6, 3)}), optimizer=None)
    assert training_of(step).weights[0].label == "head.fc.weight"
    assert training_of(step).weights[0].status == "trained"


def test_a_small_parameter_before_an_unknown_shape_is_not_folded() -> None:
    """A shape that needs a constant made the reader fold all small values, parameters too."""
    nodes = [
        node("Transpose", ["table"], "turned", perm=[1, 0]),
        node("Add", ["x", "turned"], "a"),
        node("Floor", ["limit"], "floor"),
        node("Cast", ["floor"], "n", to=T.INT64),
        node("Slice", ["a", "zero", "n", "two"], "b"),
        node("Flatten", ["b"], "c"),
        node("MatMul", ["c", "w"], "y"),
    ]
    weights = {
        "table": draw(8, 2), "w": draw(16, 3), "limit": np.array([8.5], np.float32),
        "zero": np.array([0]), "two": np.array([2]),
    }  # fmt: skip
    step = differentiate(model(nodes, weights, x=(4, 2, 8)), optimizer=None, trainable=["table"])
    assert dict(training_of(step).gradients) == {"table": "table.grad"}
    assert statuses(differentiate(model(nodes, weights, x=(4, 2, 8))))["table"] == "trained"


def test_weights_in_constant_nodes_train() -> None:
    value = draw(6, 3)
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(value))
    net = model([constant, node("MatMul", ["x", "w"], "y")], {})
    step = differentiate(net, optimizer="sgd", loss="mse")
    trainer = Trainer(step, net, rate=0.1)
    np.testing.assert_array_equal(trainer.state["w"], value)
    trainer.step({"x": draw(4, 6), "labels": draw(4, 3)})
    after = trainer.export(net)
    held = {t.name: numpy_helper.to_array(t) for t in after.graph.initializer}
    np.testing.assert_array_equal(held["w"], trainer.state["w"])
    assert np.abs(held["w"] - value).max() > 0


# ---- merged, tied, expanded, gathered -----------------------------------------------------------


def norm(name: str, source: str, output: str, *statistics: str) -> onnx.NodeProto:
    mean, variance = statistics or (f"{name}.mean", f"{name}.var")
    return node(
        "BatchNormalization", [source, f"{name}.weight", f"{name}.bias", mean, variance], output
    )


def test_merged_statistics_become_one_each() -> None:
    """PyTorch's older exporter keeps equal tensors once and the others as Identity of it."""
    nodes = [
        node("Identity", ["a.var"], "b.var"), node("Identity", ["a.mean"], "b.mean"),
        node("Identity", ["a.var"], "b.weight"), node("Identity", ["a.mean"], "b.bias"),
        norm("a", "x", "h"), norm("b", "h", "k"), node("MatMul", ["k", "w"], "y"),
    ]  # fmt: skip
    weights = {
        "a.weight": draw(6), "a.bias": draw(6), "a.mean": np.zeros(6, np.float32),
        "a.var": np.ones(6, np.float32), "w": draw(6, 3),
    }  # fmt: skip
    net = model(nodes, weights)
    step = differentiate(net, optimizer="sgd", loss="mse")
    about = training_of(step)
    assert {v.input for v in about.states} == {"a.mean", "a.var", "b.mean", "b.var"}
    assert {v.input for v in about.parameters} == {
        "a.weight", "a.bias", "b.weight", "b.bias", "w"
    }  # fmt: skip
    kinds = [n.op_type for n in step.graph.node]
    assert kinds.count("BatchNormalization") >= 2
    trainer = Trainer(step, net, rate=0.1)
    trainer.step({"x": draw(4, 6), "labels": draw(4, 3)})
    after = trainer.export(net)
    x = draw(4, 6)
    assert np.abs(trainer.state["a.mean"] - trainer.state["b.mean"]).max() > 1e-3
    held = {t.name: numpy_helper.to_array(t) for t in after.graph.initializer}
    for name in ("a.mean", "b.mean", "b.weight"):
        np.testing.assert_array_equal(held[name], trainer.state[name])
    assert np.isfinite(run(after, x)).all()


def test_merged_parameters_are_told_apart_by_what_the_exporter_says() -> None:
    """PyTorch's exporter keeps equal tensors once; each node still says what it read."""
    one = np.ones(6, np.float32)
    nodes = [
        marked(node("Mul", ["x", "a.scale"], "h"), reads("mul", "a", "p_a_scale")),
        marked(node("Mul", ["h", "a.scale"], "k"), reads("mul_1", "b", "p_b_scale")),
        marked(node("Mul", ["k", "a.scale"], "l"), reads("mul_2", "a", "p_a_scale")),
        node("MatMul", ["l", "w"], "y"),
    ]
    marks = {"a.scale": {KIND: "PARAMETER", PLACEHOLDER: "p_a_scale"}}
    net = model(nodes, {"a.scale": one, "w": draw(6, 3)}, marks=marks)
    step = differentiate(net, optimizer=None)
    assert {n for n, _ in training_of(step).gradients} == {"a.scale", "b.scale", "w"}
    assert not training_of(step).warnings


def test_merged_parameters_of_modules_with_capitals_in_their_names() -> None:
    """PyTorch's graph has no capitals; what one module reads twice is one parameter."""
    one = np.ones(6, np.float32)
    nodes = [
        marked(node("Mul", ["x", "a.scale"], "h"), reads("mul", "a", "p_a_scale")),
        marked(node("Mul", ["h", "a.scale"], "k"), reads("mul_1", "b.Norm", "p_b_norm_scale")),
        marked(node("Mul", ["k", "a.scale"], "l"), reads("mul_2", "b.Norm", "p_b_norm_scale")),
        marked(node("Mul", ["l", "a.scale"], "m"), reads("mul_3", "b", "p_elsewhere")),
        marked(node("Mul", ["m", "a.scale"], "n"), reads("mul_4", "b", "b_b_table")),
        node("MatMul", ["n", "w"], "y"),
    ]
    marks = {"a.scale": {KIND: "PARAMETER", PLACEHOLDER: "p_a_scale"}}
    net = model(nodes, {"a.scale": one, "w": draw(6, 3)}, marks=marks)
    step = differentiate(net, optimizer=None)
    trained = {"a.scale", "b.Norm.scale", "p_elsewhere", "w"}
    assert {n for n, _ in training_of(step).gradients} == trained
    assert statuses(step)["b.table"] == "buffer"


def linear(call: str, scope: str, *tensors: str) -> dict[str, str]:
    """What PyTorch's exporter writes at a Gemm whose bias of zeros it left out."""
    arguments = ", ".join(f"%{name}" for name in tensors)
    called = f"call_function[target=torch.ops.aten.linear.default](args = ({arguments})"
    return {
        **reads(call, scope),
        "pkg.torch.onnx.fx_node": f"%{call} : [num_users=1] = {called}, kwargs = {{}})",
        "pkg.onnxscript.rewriter.rule_name": "RemoveOptionalBiasFromGemm",
    }


def test_biases_of_zeros_that_the_exporter_left_out_are_trained() -> None:
    """A fresh net has many; one that two calls read is one parameter."""
    both = ("p_a_weight", "p_a_bias")
    nodes = [
        marked(node("Gemm", ["x", "a.weight"], "h", transB=1), linear("l", "a", "x", *both)),
        marked(node("Gemm", ["h", "a.weight"], "k", transB=1), linear("l_1", "a", "l", *both)),
        marked(node("Gemm", ["k", "b.weight"], "y"), linear("l_2", "b", "l_1", "p_b_weight")),
    ]
    marks = {
        name: {KIND: "PARAMETER", PLACEHOLDER: f"p_{name.replace('.', '_')}"}
        for name in ("a.weight", "b.weight")
    }
    weights = {"a.weight": draw(6, 6), "b.weight": draw(6, 3)}
    step = differentiate(model(nodes, weights, marks=marks), optimizer=None)
    gradients = dict(training_of(step).gradients)
    assert set(gradients) == {"a.weight", "a.bias", "b.weight"}
    session = ort.InferenceSession(step.SerializeToString(), providers=["CPUExecutionProvider"])
    x, labels = draw(4, 6), np.array([0, 1, 2, 0])
    feeds = {"x": x, "labels": labels, "a.bias": np.zeros(6, np.float32), **weights}
    found = session.run([gradients["a.bias"], gradients["b.weight"]], feeds)
    shown = torchless_gradients(x, labels, **{k.replace(".", "_"): v for k, v in weights.items()})
    for mine, wanted in zip(found, shown, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6)


def torchless_gradients(
    x: np.ndarray, labels: np.ndarray, a_weight: np.ndarray, b_weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of the bias and of the second weight, by hand."""
    h = x @ a_weight.T
    k = h @ a_weight.T
    y = k @ b_weight
    dy = np.exp(y - y.max(1, keepdims=True))
    dy /= dy.sum(1, keepdims=True)
    dy[np.arange(len(labels)), labels] -= 1
    dy /= len(labels)
    dk = dy @ b_weight.T
    return (dk + dk @ a_weight).sum(0), k.T @ dy


def test_merged_parameters_that_nothing_tells_apart_are_warned_about() -> None:
    nodes = [
        node("Mul", ["x", "a.scale"], "h"), node("Mul", ["h", "a.scale"], "k"),
        node("MatMul", ["k", "w"], "y"),
    ]  # fmt: skip
    net = model(nodes, {"a.scale": np.ones(6, np.float32), "w": draw(6, 3)})
    with pytest.warns(TrainingWarning, match=r"'a\.scale' is read by several operators"):
        differentiate(net, optimizer=None)
    with pytest.raises(UsageError, match="--strict"):
        differentiate(net, optimizer=None, strict=True)


def test_a_weight_that_the_older_exporter_may_have_computed_is_noted() -> None:
    nodes = [node("MatMul", ["x", "onnx::MatMul_9"], "h"), node("MatMul", ["h", "w"], "y")]
    net = model(nodes, {"onnx::MatMul_9": draw(6, 6), "w": draw(6, 3)})
    note = unsaid_note(training_of(differentiate(net, optimizer=None)).weights)
    assert "1 (onnx::MatMul_9)" in note
    assert "check_export" in note
    net = model([node("MatMul", ["x", "w"], "y")], {"w": draw(6, 3)})
    assert not unsaid_note(training_of(differentiate(net, optimizer=None)).weights)


@pytest.mark.parametrize("kind", ["round", "mirrored", "symmetric"])
def test_filters_and_tables_of_code_that_may_be_buffers_are_warned_of(kind: str) -> None:
    """The older exporter has parameters and buffers under the names of the module."""
    blur = np.outer([1, 2, 1, 0, 0, 1], [1, 2, 1, 3, 1, 0]).astype(np.float32) / 16
    half = draw(6, 3)
    mirrored = np.concatenate([half, half[:, ::-1]], 1)
    made = {"round": blur, "mirrored": mirrored, "symmetric": half @ half.T}[kind]
    made = np.maximum(made, made.T) if kind == "symmetric" else made
    nodes = [node("MatMul", ["x", "k"], "h"), node("MatMul", ["h", "w"], "y")]
    net = model(nodes, {"k": made, "w": draw(6, 3)})
    with pytest.warns(TrainingWarning, match=r"^k: trained, though round .*--freeze"):
        differentiate(net, optimizer=None)
    for wanted in ({"freeze": ["k"]}, {"trainable": ["*"]}, {"parameters": ["k", "w"]}):
        differentiate(net, optimizer=None, strict=True, **wanted)


@pytest.mark.parametrize("rises", [False, True])
def test_vectors_in_order_that_may_be_buffers_are_warned_of(rises: bool) -> None:
    """How much noise each step of a diffusion adds; what is learned goes up and down."""
    noise = np.cos(np.linspace(0.02, 1.5, 10)).astype(np.float32) ** 2
    made = noise[::-1].copy() if rises else noise
    nodes = [
        node("MatMul", ["x", "w"], "h"), node("Mul", ["h", "k"], "m"),
        node("MatMul", ["m", "v"], "y"),
    ]  # fmt: skip
    others = {"w": draw(6, 10), "v": draw(10, 3)}
    with pytest.warns(TrainingWarning, match=r"^k: trained, though round numbers, in order"):
        differentiate(model(nodes, {"k": made, **others}), optimizer=None)
    differentiate(model(nodes, {"k": draw(10), **others}), optimizer=None, strict=True)


@pytest.mark.parametrize("turned", [False, True])
def test_equal_weights_are_tied_again(turned: bool) -> None:
    table = draw(6, 6)
    copy = table.T.copy() if turned else table
    nodes = [
        node("MatMul", ["x", "emb.weight"], "h"), node("MatMul", ["h", "onnx::MatMul_9"], "k"),
        node("MatMul", ["k", "w"], "y"),
    ]  # fmt: skip
    net = model(nodes, {"emb.weight": table, "onnx::MatMul_9": copy, "w": draw(6, 3)})
    step = differentiate(net, optimizer="sgd", loss="mse")
    about = training_of(step)
    assert {v.input for v in about.parameters} == {"emb.weight", "w"}
    assert about.weights[0].tied == ("onnx::MatMul_9",)
    trainer = Trainer(step, net, rate=0.1)
    trainer.step({"x": draw(4, 6), "labels": draw(4, 3)})
    after = trainer.export(net)
    held = {t.name: numpy_helper.to_array(t) for t in after.graph.initializer}
    again = held["onnx::MatMul_9"].T if turned else held["onnx::MatMul_9"]
    np.testing.assert_array_equal(again, held["emb.weight"])
    assert [n.op_type for n in after.graph.node] == ["MatMul"] * 3
    apart = differentiate(net, optimizer=None, tie=False)
    assert {n for n, _ in training_of(apart).gradients} == {"emb.weight", "onnx::MatMul_9", "w"}


def test_an_expanded_token_is_one_token() -> None:
    token = np.repeat(draw(1, 6), 4, axis=0)
    marks = {"expand": {FOLDED: "['token', 'val_2']"}, "w": {KIND: "PARAMETER"}}
    nodes = [node("Add", ["x", "expand"], "h"), node("MatMul", ["h", "w"], "y")]
    net = model(nodes, {"expand": token, "w": draw(6, 3)}, marks=marks)
    step = differentiate(net, optimizer="sgd", loss="mse")
    shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim)
              for v in step.graph.input}  # fmt: skip
    assert shapes["token.slice"] == (1, 6)
    trainer = Trainer(step, net, rate=0.1)
    np.testing.assert_array_equal(trainer.state["token.slice"], token[:1])
    trainer.step({"x": draw(4, 6), "labels": draw(4, 3)})
    after = {t.name: numpy_helper.to_array(t) for t in trainer.export(net).graph.initializer}
    assert set(after) == {"expand", "w"}
    np.testing.assert_array_equal(after["expand"], np.repeat(trainer.state["token.slice"], 4, 0))


def test_a_gathered_table_has_the_gradient_of_the_table() -> None:
    """A relative-position table that the exporter indexed: elements that were one stay one."""
    table, places = draw(5), np.abs(np.arange(4)[:, None] - np.arange(6)[None]) % 5
    folded = table[places]
    nodes = [node("Add", ["x", "val_5"], "h"), node("MatMul", ["h", "w"], "y")]
    net = model(nodes, {"val_5": folded, "w": draw(6, 3)})
    step = differentiate(net, optimizer=None, loss="mse")
    gradients = dict(training_of(step).gradients)
    assert set(gradients) == {"val_5.elements", "w"}
    x, labels = draw(4, 6), draw(4, 3)
    session = ort.InferenceSession(step.SerializeToString(), providers=["CPUExecutionProvider"])
    w = numpy_helper.to_array(net.graph.initializer[1])
    order = table[list(dict.fromkeys(places.reshape(-1)))]
    found = session.run(
        [gradients["val_5.elements"]],
        {"x": x, "labels": labels, "val_5.elements": order, "w": w},
    )[0]
    dh = 2 / 12 * ((x + folded) @ w - labels) @ w.T
    want = np.array([dh[places == k].sum() for k in dict.fromkeys(places.reshape(-1))])
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_undoing_changes_no_output() -> None:
    table = draw(6, 6)
    nodes = [
        node("Identity", ["one"], "two"), node("Add", ["x", "expand"], "a"),
        node("Mul", ["a", "one"], "b"), node("Mul", ["b", "two"], "c"),
        node("MatMul", ["c", "t"], "d"), node("MatMul", ["d", "val_1"], "e"),
        node("Add", ["e", "val_2"], "f"), node("MatMul", ["f", "w"], "y"),
    ]  # fmt: skip
    weights = {
        "one": np.ones(6, np.float32), "expand": np.repeat(draw(1, 6), 4, 0), "t": table,
        "val_1": table.T.copy(), "val_2": draw(5)[np.arange(24).reshape(4, 6) % 5], "w": draw(6, 3),
    }  # fmt: skip
    net = model(nodes, weights)
    stock = take_inventory(net, None)
    assert {e.how for e in stock.restored} == {"copy", "tie", "share"} or {
        e.how for e in stock.restored
    } == {"copy", "tie", "share", "expand"}
    x = draw(4, 6)
    np.testing.assert_array_equal(run(stock.model, x), run(net, x))
    again = fold_restored(apply_restored(net, stock.restored), stock.restored)
    np.testing.assert_array_equal(run(again, x), run(net, x))
    assert {t.name for t in again.graph.initializer} >= {"val_1", "val_2", "t", "w"}


# ---- what is no parameter -----------------------------------------------------------------------


def sines(rows: int, width: int) -> np.ndarray:
    angles = np.arange(rows)[:, None] / 100 ** (np.arange(width // 2) / width)
    return np.hstack([np.sin(angles), np.cos(angles)]).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("rotary.inv_freq", 1 / 100 ** (np.arange(6) / 6), "named as buffers"),
        ("positions", np.arange(6.0), "progression"),
        ("slopes2", 2.0 ** -np.arange(1, 7), "progression"),
        ("heads.decay", np.array([[0.7], [0.2], [0.5], [0.9]]) ** np.arange(1, 7), "powers of"),
        ("pos", sines(4, 6), "sines and cosines"),
        ("attn.bias", np.triu(np.full((4, 6), -np.inf), 1), "masks"),
        ("low", np.triu(np.full((4, 6), -65504.0), 1), "masks"),
        ("val_8", np.zeros(6), "equal"),
        ("val_9", np.array([1.0, 3, 2, 2, 7, 5]), "whole numbers"),
        ("/Constant_output_0", np.array([0.5, 0.25, 0.5, 0.5, 0.25, 0.25]), "two numbers"),
    ],
)
def test_what_code_makes_is_not_trained(name: str, value: np.ndarray, why: str) -> None:
    net = model([node("Max", ["x", name], "h"), node("MatMul", ["h", "w"], "y")],
                {name: value.astype(np.float32), "w": draw(6, 3)})  # fmt: skip
    found = {w.name: w for w in training_of(differentiate(net, optimizer=None)).weights}
    assert found["w"].status == "trained"
    assert found[name].status in ("constant", "buffer")
    assert why in found[name].why


def test_mean_and_deviation_of_the_data_are_not_trained() -> None:
    nodes = [node("Sub", ["x", "prep.mean"], "a"), node("Div", ["a", "prep.std"], "b"),
             node("MatMul", ["b", "w"], "y")]  # fmt: skip
    values = {"prep.mean": draw(6), "prep.std": draw(6) ** 2 + 1, "w": draw(6, 3)}
    with pytest.warns(TrainingWarning, match="prep.mean, prep.std: taken for a constant"):
        step = differentiate(model(nodes, values), optimizer=None)
    assert statuses(step)["w"] == "trained"
    alone = model(
        [node("Sub", ["x", "code.mean"], "b"), nodes[2]], {"code.mean": draw(6), "w": draw(6, 3)}
    )
    assert statuses(differentiate(alone, optimizer=None))["code.mean"] == "trained"


def test_rotation_tables_in_two_are_recognised() -> None:
    angles = draw(4, 6)
    nodes = [
        node("Mul", ["x", "val_1"], "a"), node("Mul", ["a", "val_2"], "b"),
        node("MatMul", ["b", "w"], "y"),
    ]  # fmt: skip
    net = model(nodes, {"val_1": np.cos(angles), "val_2": np.sin(angles), "w": draw(6, 3)})
    assert statuses(differentiate(net, optimizer=None)) == {
        "val_1": "constant", "val_2": "constant", "w": "trained",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("norm.weight", np.ones(6)), ("norm.bias", np.zeros(6)), ("gate", np.array(0.5)),
        ("block.gain", np.array(0.5)), ("A_log", np.log(np.tile(np.arange(1.0, 7), (4, 1)))),
    ],
)  # fmt: skip
def test_fresh_parameters_with_names_are_trained(name: str, value: np.ndarray) -> None:
    net = model([node("Mul", ["x", name], "h"), node("MatMul", ["h", "w"], "y")],
                {name: value.astype(np.float32), "w": draw(6, 3)})  # fmt: skip
    wanted = "constant" if name == "gate" else "trained"  # one number without a module's name
    assert statuses(differentiate(net, optimizer=None))[name] == wanted


def test_the_exporters_word_counts_more_than_names_and_values() -> None:
    weights = {"inv_freq": draw(6), "table": draw(4, 6), "val_4": draw(6), "w": draw(6, 3)}
    marks = {
        "inv_freq": {KIND: "PARAMETER"}, "table": {KIND: "BUFFER"},
        "val_4": {FOLDED: "['arange', 'cos', 'rot.inv_freq']"}, "w": {KIND: "PARAMETER"},
    }  # fmt: skip
    nodes = [
        node("Mul", ["x", "inv_freq"], "a"), node("Add", ["a", "table"], "b"),
        node("Mul", ["b", "val_4"], "c"), node("MatMul", ["c", "w"], "y"),
    ]  # fmt: skip
    step = differentiate(model(nodes, weights, marks=marks), optimizer=None)
    assert statuses(step) == {
        "inv_freq": "trained", "table": "buffer", "val_4": "constant", "w": "trained",
    }  # fmt: skip
    assert not training_of(step).warnings  # nothing was guessed


def test_a_slice_of_a_frozen_table_is_as_frozen_as_the_table() -> None:
    table = sines(8, 6)
    marks = {"pos": {KIND: "PARAMETER"}, "slice_1": {FOLDED: "['pos', 'val_2']"},
             "val_5": {FOLDED: "['w']"}}  # fmt: skip
    nodes = [node("Add", ["x", "slice_1"], "a"), node("MatMul", ["a", "val_5"], "b"),
             node("MatMul", ["pos", "w"], "c"), node("ReduceSum", ["c"], "d", keepdims=0),
             node("Add", ["b", "d"], "y")]  # fmt: skip
    weights = {"pos": table, "slice_1": table[1:5], "val_5": draw(6, 3), "w": draw(6, 3)}
    with pytest.warns(TrainingWarning, match="pos: taken for a table that is not trained"):
        step = differentiate(model(nodes, weights, marks=marks), optimizer=None)
    found = statuses(step)
    assert {found["pos"], found["slice_1"]} == {"frozen"}
    assert {found["val_5"], found["w"]} == {"trained"}


# ---- what the user says -------------------------------------------------------------------------


def two() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "val_1"], "a"), node("Add", ["a", "b"], "y")]
    return model(nodes, {"val_1": RNG.permuted(draw(6, 3)), "b": draw(3)})


def test_a_list_of_parameters_decides(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("# what we train\nb\n")
    for given in (["b"], names):
        assert statuses(differentiate(two(), optimizer=None, parameters=given)) == {
            "val_1": "constant", "b": "trained",
        }  # fmt: skip
    with pytest.raises(UsageError, match=r"no parameter 'fc\.weight'"):
        differentiate(two(), parameters=["b", "fc.weight"])
    with pytest.raises(UsageError, match="none of the parameters"):
        differentiate(two(), parameters=["fc.weight"])
    with pytest.raises(UsageError, match="no such file"):
        differentiate(two(), parameters=tmp_path / "absent.txt")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ""])
def test_values_of_a_state_dict_tell_what_was_folded(tmp_path: Path, suffix: str) -> None:
    net = two()
    folded, bias = (numpy_helper.to_array(t) for t in net.graph.initializer)
    state = {"fc.weight": folded.T.copy(), "fc.bias": bias, "gone.weight": draw(7)}
    net.graph.initializer[1].name = net.graph.node[1].input[1] = "val_2"
    given: Any = state
    if suffix:
        given = tmp_path / f"state{suffix}"
        if suffix == ".npz":
            np.savez(given, **state)
        else:
            from safetensors.numpy import save_file

            save_file(state, given)
    with pytest.warns(TrainingWarning, match=r"not in the file.*gone\.weight"):
        step = differentiate(net, optimizer=None, parameters=given)
    found = {w.label: w.status for w in training_of(step).weights}
    assert found == {"fc.weight": "trained", "fc.bias": "trained"}


def test_a_module_says_what_it_trains() -> None:
    class Value:
        def __init__(self, array: np.ndarray, requires_grad: bool) -> None:
            self.array, self.requires_grad, self.dtype = array, requires_grad, "torch.float32"

        def detach(self) -> Value:
            return self

        cpu = detach

        def __array__(self, *_: Any, **__: Any) -> np.ndarray:
            return self.array

    class Module:
        def named_parameters(self) -> list[tuple[str, Value]]:
            folded, bias = (numpy_helper.to_array(t) for t in net.graph.initializer)
            return [("fc.weight", Value(folded.T, False)), ("b", Value(bias, True))]

    net = two()
    step = differentiate(net, optimizer=None, parameters=Module())
    assert statuses(step) == {"val_1": "frozen", "b": "trained"}


def test_the_list_in_the_file_decides() -> None:
    net = two()
    listed = {"version": 1, "trained": ["b"], "frozen": [], "buffers": ["val_1"], "tied": {}}
    net.metadata_props.add(key=KEY, value=json.dumps(listed))
    assert statuses(differentiate(net, optimizer=None)) == {"val_1": "buffer", "b": "trained"}
    net.metadata_props[0].value = "{"
    with pytest.raises(ModelError, match="unreadable metadata"):
        differentiate(net)


def test_what_cannot_be_trained_is_refused_with_the_reason() -> None:
    nodes = [
        norm("n", "x", "h"), node("Gather", ["h", "rows"], "g", axis=0),
        node("ArgMax", ["dead"], "i", axis=0, keepdims=0), node("Cast", ["i"], "f", to=T.FLOAT),
        node("Add", ["g", "f"], "k"), node("MatMul", ["k", "w"], "y"),
    ]  # fmt: skip
    weights = {
        "n.weight": draw(6), "n.bias": draw(6), "n.mean": draw(6), "n.var": draw(6) ** 2,
        "rows": np.arange(4), "dead": draw(3, 6), "w": draw(6, 3), "spare": draw(40),
    }  # fmt: skip
    net = model(nodes, weights)
    for name, why in (
        ("n.mean", "running statistics"), ("rows", "floating-point"), ("k", "computed, by node k"),
        ("dead", "without a gradient"), ("spare", "not at all"), ("nothing", "no parameter"),
    ):  # fmt: skip
        with pytest.raises(UsageError) as error:
            differentiate(net, trainable=["w", name])
        assert why in str(error.value), name
    with pytest.warns(TrainingWarning) as warned:
        step = differentiate(net, optimizer=None)
    texts = [str(entry.message) for entry in warned]
    assert any("spare: no gradient: the loss does not depend on it" in text for text in texts)
    assert any("dead: no gradient" in text and "without a gradient" in text for text in texts)
    assert statuses(step)["dead"] == statuses(step)["spare"] == "unreached"


def test_a_pattern_trains_no_data() -> None:
    step = differentiate(two(), optimizer=None, trainable=["*"])
    assert {n for n, _ in training_of(step).gradients} == {"val_1", "b"}
    step = differentiate(two(), optimizer=None, trainable=["x"])
    assert {n for n, _ in training_of(step).gradients} == {"x"}


def convolution(scope: str, bias: str) -> onnx.ModelProto:
    """Of the older exporter, with a weight that it computed."""
    nodes = [
        node("Conv", ["x", "onnx::Conv_3", bias], "a", name=f"/{scope}/Conv"),
        node("GlobalAveragePool", ["a"], "b"), node("Flatten", ["b"], "y"),
    ]  # fmt: skip
    return model(nodes, {"onnx::Conv_3": draw(3, 2, 3, 3), bias: draw(3)}, x=(4, 2, 8, 8))


def test_folded_normalizations_are_told() -> None:
    net = convolution("stem/conv", "onnx::Conv_4")
    with pytest.warns(TrainingWarning, match=r"folded 1 batch normalizations .*stem\.conv"):
        differentiate(net, optimizer=None)
    # What a list gives by name is in the file under a name of the exporter's, other values in it.
    state = {"stem.conv.weight": draw(3, 2, 3, 3), "stem.norm.weight": draw(3)}
    with pytest.warns(TrainingWarning, match=r"1 are not in the file.*: stem\.norm\.weight"):
        step = differentiate(net, optimizer=None, parameters=state)
    assert {n for n, _ in training_of(step).gradients} == {"onnx::Conv_3", "onnx::Conv_4"}
    step = differentiate(net, optimizer=None, parameters=["stem.conv.weight"])
    assert len(training_of(step).gradients) == 2


def test_a_weight_that_was_computed_is_no_folded_normalization() -> None:
    """A mask times the weight: the bias keeps its name, which a normalization would take."""
    net = convolution("conv", "conv.bias")
    net.producer_name = "pytorch"
    with pytest.warns(TrainingWarning) as warned:
        differentiate(net, optimizer=None)
    (text,) = [str(entry.message) for entry in warned]
    assert "stored 1 tensors that it made of parameters" in text
    assert "onnx::Conv_3" in text


def test_what_the_exporter_computed_is_told_in_one_warning_with_every_name() -> None:
    """Of a net with a scale per layer, one line, that nobody has to read once per layer."""
    count = 9
    scales = {f"exp_{i}": draw(6) for i in range(count)}
    marks = {name: {FOLDED: f"['layers.{i}.scale', '{name}']"} for i, name in enumerate(scales)}
    nodes = [
        node("Mul", ["x" if i == 0 else f"h{i - 1}", name], f"h{i}")
        for i, name in enumerate(scales)
    ]
    nodes.append(node("MatMul", [f"h{count - 1}", "w"], "y"))
    marks["w"] = {KIND: "PARAMETER"}
    with pytest.warns(TrainingWarning) as said:
        differentiate(model(nodes, {**scales, "w": draw(6, 3)}, marks=marks), optimizer=None)
    (text,) = [str(each.message) for each in said]
    names, _, why = text.partition(": ")
    assert names.split(", ") == [f"layers.{i}.scale" for i in range(count)]
    assert "the exporter computed with it" in why


@pytest.mark.parametrize("view", ["CastLike", "Reshape", "Unsqueeze"])
def test_a_view_of_a_parameter_is_read_before_the_update(view: str) -> None:
    """PyTorch's exporter writes views whose type or shape follows from data; the update in place
    waits for those who read through them."""
    nodes = [
        node("MatMul", ["x", "v"], "h"),
        {
            "CastLike": node("CastLike", ["scale", "h"], "view"),
            "Reshape": node("Reshape", ["scale", "sizes"], "view"),
            "Unsqueeze": node("Unsqueeze", ["scale", "axes"], "view"),
        }[view],
        node("Shape", ["h"], "shape"), node("Slice", ["shape", "one", "two"], "sizes"),
        node("Sub", ["sizes", "six"], "axes"), node("Mul", ["h", "view"], "k"),
        node("Tanh", ["k"], "l"), node("MatMul", ["l", "w"], "y"),
    ]  # fmt: skip
    order = [0, 2, 3, 4, 1, 5, 6, 7]
    weights = {
        "v": draw(6, 6), "scale": draw(6), "w": draw(6, 3), "one": np.array([1]),
        "two": np.array([2]), "six": np.array([6]),
    }  # fmt: skip
    net = model([nodes[k] for k in order], weights)
    step = differentiate(net, optimizer="sgd", loss="mse")
    trainer = Trainer(step, net, rate=0.5, threads=1)
    feeds = {"x": draw(4, 6), "labels": draw(4, 3)}
    session = open_session(step, session_options(UNPLANNED))
    names = [output.name for output in session.get_outputs()]
    rate = {trainer.training.rate: np.array(0.5, np.float32)}
    apart = dict(zip(names, session.run(None, {**feeds, **rate, **trainer.values()}), strict=True))
    trainer.step(feeds)
    for variable in trainer.training.variables:
        np.testing.assert_array_equal(trainer.state[variable.input], apart[variable.output])


def test_sizes_by_a_square_root_are_known() -> None:
    """Position tables that are resized: the side of the grid is the root of its length."""
    nodes = [
        node("Pow", ["length", "half"], "root"), node("Cast", ["root"], "side", to=T.INT64),
        node("Unsqueeze", ["side", "zero"], "row"), node("Concat", ["row", "row"], "grid", axis=0),
        node("Reshape", ["table", "grid"], "square"), node("Transpose", ["square"], "turned"),
        node("Reshape", ["turned", "flat"], "line"), node("Add", ["x", "line"], "a"),
        node("MatMul", ["a", "w"], "y"),
    ]  # fmt: skip
    weights = {
        "length": np.array(9.0, np.float32), "half": np.array(0.5, np.float32),
        "zero": np.array([0]), "flat": np.array([9]), "table": draw(9), "w": draw(9, 3),
    }  # fmt: skip
    step = differentiate(model(nodes, weights, x=(4, 9)), optimizer=None)
    assert {name for name, _ in training_of(step).gradients} == {"table", "w"}


@pytest.mark.parametrize("name", ["decay", "val_3"])
def test_a_short_progression_is_warned_of_where_the_file_names_it(name: str) -> None:
    """The module's name tells that it is a parameter or a buffer; a number of the code is none."""
    net = model([node("Mul", ["x", name], "h"), node("MatMul", ["h", "w"], "y")],
                {name: np.linspace(-1, -6, 6, dtype=np.float32), "w": draw(6, 3)})  # fmt: skip
    said = training_of(differentiate(net, optimizer=None)).warnings
    assert any("decay: taken for a constant" in text for text in said) == (name == "decay")


def test_one_slope_of_a_rectifier_is_trained() -> None:
    """As PyTorch's older exporter writes nn.PReLU()."""
    nodes = [node("MatMul", ["x", "w"], "h"), node("PRelu", ["h", "onnx::PRelu_21"], "y")]
    net = model(nodes, {"onnx::PRelu_21": np.full((1, 1), 0.25, np.float32), "w": draw(6, 3)})
    step = differentiate(net, optimizer=None)
    assert statuses(step) == {"onnx::PRelu_21": "trained", "w": "trained"}


def test_a_matrix_of_zeros_that_multiplies_is_trained() -> None:
    """The second matrix of a fresh adapter, transposed by PyTorch's older exporter."""
    nodes = [node("MatMul", ["x", "w"], "h"), node("MatMul", ["h", "onnx::MatMul_9"], "y")]
    net = model(nodes, {"onnx::MatMul_9": np.zeros((2, 3), np.float32), "w": draw(6, 2)})
    step = differentiate(net, optimizer=None)
    assert statuses(step) == {"onnx::MatMul_9": "trained", "w": "trained"}


def test_a_short_parameter_without_a_gradient_is_warned_of() -> None:
    nodes = [node("Mul", ["x", "gain"], "h"), node("Round", ["h"], "r"),
             node("Add", ["r", "x"], "s"), node("MatMul", ["s", "w"], "y")]  # fmt: skip
    net = model(nodes, {"gain": draw(6), "w": draw(6, 3)})
    said = training_of(differentiate(net, optimizer=None)).warnings
    assert any(text.startswith("gain: no gradient") for text in said)


def test_parameters_print_as_counts() -> None:
    told = Parameters(trained=("a", "b"), buffers=("mean",))
    assert repr(told) == "Parameters(trained: 2, buffers: 1)"


def test_copies_that_were_likely_left_out_are_one_warning() -> None:
    nodes = [node("Relu", ["x"], "h"), node("Relu", ["h"], "k"), node("MatMul", ["k", "w"], "y")]
    for index, made in enumerate(nodes[:2]):
        made.metadata_props.add(key=_LIKELY, value=f"a{index}.gain beside b.gain")
    (said,) = doubts_of(model(nodes, {"w": draw(6, 3)}))
    assert said.startswith("a0.gain beside b.gain; a1.gain beside b.gain: the exporter seems")
    assert not doubts_of(two())
