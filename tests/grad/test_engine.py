"""The walk: what is pruned, stopped, refused, and what the result says of itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import models
from onnxremat.errors import TrainingWarning, UnsupportedError, UsageError
from onnxremat.grad import differentiate, training_of
from onnxremat.grad.losses import CrossEntropy, Huber, find_loss
from onnxremat.grad.optimizers import SGD, Adam, find_optimizer
from onnxremat.graph.onnx_io import read_model
from onnxremat.ort.session import Options, open_session, session_options
from tests.toolbox import parse

F = TensorProto.FLOAT


def model(nodes: list[onnx.NodeProto], out: list[int], **weights: np.ndarray) -> onnx.ModelProto:
    stored = [numpy_helper.from_array(np.asarray(w), name) for name, w in weights.items()]
    x = helper.make_tensor_value_info("x", F, [2, 3])
    y = helper.make_tensor_value_info("y", F, out)
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"the_{op}", **attributes)


W = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)


def types(graph: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in graph.graph.node]


def test_branches_add_up() -> None:
    """y = w + w * w used three ways: the gradient is the sum."""
    nodes = [node("Mul", "w w", "s"), node("Add", "s w", "t"), node("MatMul", "x t", "y")]
    graph = differentiate(model(nodes, [2, 3], w=W), loss="mse", optimizer=None)
    x, z = (np.random.default_rng(k).standard_normal((2, 3)).astype(np.float32) for k in (1, 2))
    _, gradient = ReferenceEvaluator(graph).run(None, {"x": x, "labels": z, "w": W})
    dt = x.T @ (2 * (x @ (W * W + W) - z) / 6)
    np.testing.assert_allclose(gradient, dt * (2 * W + 1), rtol=1e-4, atol=1e-6)


def test_only_what_a_parameter_needs_is_emitted() -> None:
    """Freezing the first layer leaves no backward op before the second."""
    nodes = [
        node("MatMul", "x a", "h"), node("Tanh", "h", "t"), node("MatMul", "t b", "y")
    ]  # fmt: skip
    frozen = differentiate(model(nodes, [2, 3], a=W, b=W), loss="mse", optimizer=None, freeze=["a"])
    backward = [n.name for n in frozen.graph.node if n.name.startswith("grad/")]
    assert not any("Tanh" in name for name in backward)
    assert [i.name for i in frozen.graph.input] == ["x", "labels", "b"]
    assert [n for n, _ in training_of(frozen).gradients] == ["b"]


def test_dead_forward_ops_are_dropped() -> None:
    nodes = [node("MatMul", "x w", "y"), node("Exp", "y", "unused")]
    assert "Exp" not in types(differentiate(model(nodes, [2, 3], w=W), loss="mse"))


def test_gradients_stop_at_steps_and_integers() -> None:
    nodes = [
        node("MatMul", "x w", "h"), node("Floor", "h", "f"), node("Add", "h f", "y")
    ]  # fmt: skip
    graph = differentiate(model(nodes, [2, 3], w=W), loss="mse", optimizer=None)
    assert not any("Floor" in n.name for n in graph.graph.node if n.name.startswith("grad/"))


def test_nothing_reaches_the_parameters() -> None:
    nodes = [node("MatMul", "x w", "h"), node("Sign", "h", "y")]
    with pytest.raises(UnsupportedError, match="no parameter gets a gradient") as caught:
        differentiate(model(nodes, [2, 3], w=W), loss="mse")
    assert "goes through Sign" in caught.value.why


def test_a_quantised_model_is_told_to_be_trained_before() -> None:
    """Its results, or its weights, are rounded to whole numbers in the model."""
    ends = {"s": np.float32(0.1), "s2": np.float32(0.2), "z": np.int8(0)}
    behind = [
        node("MatMul", "x w", "h"), node("QuantizeLinear", "h s z", "q"),
        node("DequantizeLinear", "q s2 z", "y"),
    ]  # fmt: skip
    before = [
        node("QuantizeLinear", "w s z", "q"), node("DequantizeLinear", "q s2 z", "v"),
        node("MatMul", "x v", "y"),
    ]  # fmt: skip
    for nodes in (behind, before):
        with pytest.raises(UnsupportedError, match="no parameter gets a gradient") as caught:
            differentiate(model(nodes, [2, 3], w=W, **ends), loss="mse")
        assert "is quantised (DequantizeLinear, QuantizeLinear)" in caught.value.why
        assert "before it was quantised" in caught.value.hint


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_what_is_rounded_and_scaled_back_passes_gradients_within_its_range(
    axis: int | None, kind: type[np.integer]
) -> None:
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    zero = np.array([3, 5, 7], kind) if axis is not None else np.array(5, kind)
    scale = np.array([0.5, 0.25, 2], np.float32) if axis is not None else np.array(0.25, np.float32)
    along = {} if axis is None else {"axis": axis}
    weight = (np.random.default_rng(1).standard_normal((3, 3)) * 60).astype(np.float32)
    nodes = [
        node("QuantizeLinear", "w s z", "q", **along),
        node("DequantizeLinear", "q s z", "v", **along), node("MatMul", "x v", "y"),
    ]  # fmt: skip
    graph = differentiate(
        model(nodes, [2, 3], w=weight, s=scale, z=zero), loss="mse", optimizer=None
    )
    feeds = {"x": W[:2], "labels": np.zeros((2, 3), np.float32), "w": weight}
    outputs = [training_of(graph).loss, training_of(graph).gradients[0][1]]
    _, found = open_session(graph, session_options(Options())).run(outputs, feeds)
    if axis == 0:
        scale, zero = scale[:, None], zero[:, None]
    whole = np.round(weight / scale) + zero
    assert ((whole < low) | (whole > high)).any()
    rounded = (np.clip(whole, low, high) - zero) * scale
    want = W[:2].T @ (W[:2] @ rounded * 2 / 6) * ((whole >= low) & (whole <= high))
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-3)


def test_weights_that_are_whole_numbers_are_warned_of() -> None:
    nodes = [
        node("DequantizeLinear", "w8 s z", "w"), node("MatMul", "x w", "h"), node("Add", "h b", "y")
    ]  # fmt: skip
    stored = {"w8": np.ones((3, 2), np.int8), "s": np.float32(0.1), "z": np.int8(0)}
    with pytest.warns(TrainingWarning, match=r"whole numbers \(w8\), which are not"):
        differentiate(model(nodes, [2, 3], b=np.ones(2, np.float32), **stored), loss="mse")


def test_scales_of_whole_numbers_are_no_parameters() -> None:
    """Layers of few bits pass gradients on; their scales are as they are."""
    nodes = [
        node("Mul", "x gain", "g"), node("DequantizeLinear", "w8 s z", "w"),
        node("MatMul", "g w", "h"),
        node("MatMulNBits", "h w4 s4", "y", domain="com.microsoft", K=16, N=2, bits=4,
             block_size=16),
    ]  # fmt: skip
    few = {
        "w8": np.ones((3, 16), np.int8), "s": np.full(16, 0.1, np.float32),
        "z": np.zeros(16, np.int8), "w4": np.arange(16, dtype=np.uint8).reshape(2, 1, 8),
        "s4": np.array([0.2, 0.3], np.float32),
    }  # fmt: skip
    with pytest.warns(TrainingWarning, match="whole numbers"):
        step = differentiate(model(nodes, [2, 2], gain=W[:, 0], **few), loss="mse")
    about = training_of(step)
    assert [variable.input for variable in about.parameters] == ["gain"]
    settings = {row.name: row.why for row in about.weights if row.status == "setting"}
    assert settings == {"s": "a setting of DequantizeLinear", "s4": "a setting of MatMulNBits"}
    nodes[0] = node("Identity", "x", "g")
    with pytest.raises(UsageError, match="nothing to train") as caught:
        differentiate(model(nodes, [2, 2], **few), loss="mse")
    assert "is quantised (DequantizeLinear, MatMulNBits)" in caught.value.why
    assert "before it was quantised" in caught.value.hint


def test_class_weights_are_no_parameters() -> None:
    whole = parse("""g (float[2, 3] x) => (float y) { h = MatMul(x, a)
        i = ArgMax<axis = 1, keepdims = 0>(h) y = SoftmaxCrossEntropyLoss(h, i, w) }""")
    for name, value in (("a", W), ("w", W[0])):
        whole.graph.initializer.append(numpy_helper.from_array(value, name))
    about = training_of(differentiate(whole, loss_output="y"))
    assert [variable.input for variable in about.parameters] == ["a"]


def test_missing_rule_names_op_version_node_and_remedy() -> None:
    nodes = [
        node("MatMul", "x w", "h"), node("Unsqueeze", "h axes", "image"),
        node("MaxRoiPool", "image box", "p", pooled_shape=[2, 3]), node("Squeeze", "p axes", "y"),
    ]  # fmt: skip
    more = {"axes": np.array([0, 1]), "box": np.array([[0, 0, 0, 2, 1]], np.float32)}
    with pytest.raises(UnsupportedError) as caught:
        differentiate(model(nodes, [2, 3], w=W, **more), loss="mse")
    text = str(caught.value)
    for part in (
        "MaxRoiPool",
        "opset 18",
        "the_MaxRoiPool",
        "onnxremat.grad.vjp",
        "--freeze",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("setting", "part"),
    [({"clip": 3.0}, "'clip' = 3.0"), ({"input_forget": 1}, "'input_forget' = 1"),
     ({"activations": ["Sigmoid", "Elu", "Tanh"]}, "'activations' has Elu")],
    ids=["clip", "input_forget", "activations"],
)  # fmt: skip
def test_unknown_setting_of_a_recurrent_layer_is_named(setting: dict, part: str) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((1, 16, 3)), "r": rng.standard_normal((1, 16, 4))}
    nodes = [
        node("Unsqueeze", "x zero", "s"), node("LSTM", "s w r", "o h c", hidden_size=4, **setting),
        node("Squeeze", "h zero", "y"),
    ]  # fmt: skip
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    with pytest.raises(UnsupportedError) as caught:
        differentiate(model(nodes, [2, 4], zero=np.array([0]), **weights), loss="mse")
    assert part in str(caught.value)
    assert "the_LSTM" in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "part"),
    [({"mode": "max", "sampling_ratio": 2}, "'mode' is max"), ({}, "'sampling_ratio' is 0")],
    ids=["max", "points by size"],
)
def test_regions_that_are_not_linear_in_the_image_are_named(setting: dict, part: str) -> None:
    boxes, images = np.array([[0.0, 0, 2, 1]], np.float32), np.array([0])
    nodes = [
        node("MatMul", "x w", "h"), node("Unsqueeze", "h front", "image"),
        node("RoiAlign", "image boxes images", "r", output_height=2, output_width=3, **setting),
        node("Squeeze", "r front", "y"),
    ]  # fmt: skip
    stored = {"front": np.array([0, 1]), "boxes": boxes, "images": images}
    with pytest.raises(UnsupportedError, match=part):
        differentiate(model(nodes, [2, 3], w=W, **stored), loss="mse", trainable=["w"])


def conditional(inner: str, **stored: np.ndarray) -> onnx.ModelProto:
    """h = x w; y = h plus an If that reads ``inner``; it looks at ``yes``."""
    outs = [onnx.ValueInfoProto(name="r")]
    deeper = helper.make_graph([node("Neg", "t", "r")], "deeper", [], outs)
    same = helper.make_graph([node("Identity", "t", "r")], "same", [], outs)
    bodies = [
        helper.make_graph(
            [
                node("Tanh", inner, "t"),
                helper.make_node("If", ["yes"], ["r"], then_branch=same, else_branch=deeper),
            ],
            "body", [], outs,
        ),
        helper.make_graph([node("Sin", inner, "r")], "other", [], outs),
    ]  # fmt: skip
    branch = helper.make_node(
        "If", ["yes"], ["c"], name="the_If", then_branch=bodies[0], else_branch=bodies[1]
    )
    nodes = [node("MatMul", "x w", "h"), branch, node("Add", "h c", "y")]
    made = model(nodes, [2, 3], w=W, **stored)
    if "yes" not in stored:
        made.graph.input.append(helper.make_tensor_value_info("yes", TensorProto.BOOL, []))
    return made


def test_branch_that_needs_no_gradient_is_kept() -> None:
    graph = differentiate(conditional("x"), loss="mse", optimizer=None)
    assert "If" in types(graph)
    onnx.checker.check_model(graph)


def test_branch_that_needs_a_gradient_is_differentiated() -> None:
    graph = differentiate(conditional("h"), loss="mse", optimizer=None)
    assert types(graph).count("If") == 2
    onnx.checker.check_model(graph)


@pytest.mark.parametrize("yes", [True, False])
def test_branch_taken_for_sure_is_differentiated(yes: bool) -> None:
    """y = h + tanh(h), or h + sin(h); an If within the branch too."""
    graph = differentiate(conditional("h", yes=np.array(yes)), loss="mse", optimizer=None)
    assert "If" not in types(graph)
    x, z = (np.random.default_rng(k).standard_normal((2, 3)).astype(np.float32) for k in (1, 2))
    _, gradient = ReferenceEvaluator(graph).run(None, {"x": x, "labels": z, "w": W})
    h = x @ W
    value, slope = (np.tanh(h), 1 - np.tanh(h) ** 2) if yes else (np.sin(h), np.cos(h))
    expected = x.T @ (2 * (h + value - z) / 6 * (1 + slope))
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


def test_attributes_in_a_branch_taken_for_sure_stay_as_they_are() -> None:
    """onnxruntime refuses an attribute with two values, such as an axis with a (empty) graph."""
    outs = [onnx.ValueInfoProto(name="r")]
    body = helper.make_graph([node("Concat", "h h", "r", axis=1)], "body", [], outs)
    other = helper.make_graph([node("Concat", "x h", "r", axis=1)], "other", [], outs)
    branch = helper.make_node("If", ["yes"], ["y"], then_branch=body, else_branch=other)
    made = model([node("MatMul", "x w", "h"), branch], [2, 6], w=W, yes=np.array(True))
    graph = differentiate(made, loss="mse", optimizer=None)
    (axis,) = (n.attribute[0] for n in graph.graph.node if n.op_type == "Concat")
    assert [kind.name for kind, _ in axis.ListFields()] == ["name", "i", "type"]


def scanning(rows: str) -> onnx.ModelProto:
    """h = x w; y = h plus running sums over the rows of ``rows`` by a Scan."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Add", "sum row", "new"), node("Tanh", "new", "out")], "body",
        [info("sum", F, [3]), info("row", F, [3])], [info("new", F, [3]), info("out", F, [3])],
    )  # fmt: skip
    scan = helper.make_node(
        "Scan", ["zeros", rows], ["", "c"], name="the_Scan", body=body, num_scan_inputs=1
    )
    nodes = [node("MatMul", "x w", "h"), scan, node("Add", "h c", "y")]
    return model(nodes, [2, 3], w=W, zeros=np.zeros(3, np.float32))


def test_scan_is_kept_or_differentiated() -> None:
    graph = differentiate(scanning("x"), loss="mse", optimizer=None, trainable=["w"])
    assert "Scan" in types(graph)
    onnx.checker.check_model(graph)
    graph = differentiate(scanning("h"), loss="mse", optimizer=None, trainable=["w"])
    assert types(graph).count("Scan") == 2
    onnx.checker.check_model(graph)


@pytest.mark.parametrize(
    ("options", "part"),
    [({"trainable": ["absent*"]}, "matches no parameter"), ({"freeze": ["*"]}, "nothing to train"),
     ({"prediction": "z"}, "no output 'z'"), ({"loss_output": "z"}, "no output 'z'"),
     ({"optimizer": "sdg"}, "unknown optimizer"),
     ({"optimizer": "adamw:decay=1"}, "optimizer 'adamw' has no setting 'decay'"),
     ({"optimizer": "adamw:beta1"}, "beta1 of optimizer 'adamw' is ''"),
     ({"optimizer": "sgd:momentum=1,momentum=2"}, "only one of them"),
     ({"optimizer": "sgd:nesterov=maybe"}, "true or false"),
     ({"optimizer": "sgd:momentum=-1"}, "momentum"), ({"batch_norm": "on"}, "batch_norm"),
     ({"variants": {"MatMul": "fast"}}, "no rule variant")],
)  # fmt: skip
def test_wrong_options_are_named(options: dict, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        differentiate(model([node("MatMul", "x w", "y")], [2, 3], w=W), loss="mse", **options)


def test_settings_behind_a_name() -> None:
    """As they are given to the classes."""
    assert find_loss("huber:delta=0.5") == Huber(0.5)
    ours = find_loss("cross-entropy:ignore_index=-100,axis=1,class_weights=1/2/0.5")
    assert ours == CrossEntropy(-100, class_weights=(1, 2, 0.5), axis=1)
    assert find_optimizer("momentum:nesterov=true, weight_decay=1e-3") == SGD(0.9, True, 1e-3)
    assert find_optimizer("adamw:beta2=0.95") == Adam(0.9, 0.95, 1e-8, 0.01, True)
    with pytest.raises(UsageError, match="it is mse alone"):
        find_loss("mse:delta=1")


def test_external_weights_stay_outside(tmp_path: Path) -> None:
    source = models.build("mlp", batch=2, features=64, width=64, layers=2)
    onnx.save_model(source, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=256)
    found = read_model(tmp_path / "m.onnx")
    graph = differentiate(found, folder=tmp_path, freeze=["layers.0*"])
    stored = {t.name: t for t in graph.graph.initializer}
    frozen = [t for t in stored.values() if t.name.startswith("layers.0")]
    assert frozen
    assert any(t.data_location == TensorProto.EXTERNAL for t in frozen)
    assert not any(v.input in stored for v in training_of(graph).parameters)


def test_loss_output_of_a_model_with_its_own_loss() -> None:
    nodes = [
        node("MatMul", "x w", "h"), node("ReduceSumSquare", "h", "y", keepdims=0)
    ]  # fmt: skip
    graph = differentiate(model(nodes, [], w=W), loss_output="y", optimizer=None)
    x = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    loss, gradient = ReferenceEvaluator(graph).run(None, {"x": x, "w": W})
    np.testing.assert_allclose(gradient, 2 * x.T @ (x @ W), rtol=1e-5, atol=1e-6)
    assert float(loss) == pytest.approx(float(((x @ W) ** 2).sum()), rel=1e-5)


@pytest.mark.parametrize(
    ("text", "part"),
    [("m, mean = LayerNormalization(h, w) y = Add(m, mean)", "an output other than the first"),
     ("p = Softmax(h) i = ArgMax<axis = 1, keepdims = 0>(p) "
      "v = Exp(w) y = SoftmaxCrossEntropyLoss(h, i, v)", "its class weights are trained"),
     ("y = Einsum<equation = \"ij,kj->ki\">(h, a)", "")],
    ids=["mean", "class weights", "whole"],
)  # fmt: skip
def test_a_gradient_that_a_rule_leaves_out_is_refused(text: str, part: str) -> None:
    whole = parse(f"""g (float[2, 3] x) => (float loss)
        {{ h = MatMul(x, a) {text} loss = ReduceSum<keepdims = 0>(y) }}""")
    for name, value in (("a", W), ("w", W[0])):
        whole.graph.initializer.append(numpy_helper.from_array(value, name))
    if not part:
        differentiate(whole, loss_output="loss", trainable=["a"])
        return
    with pytest.raises(UnsupportedError, match=part):
        differentiate(whole, loss_output="loss")


@pytest.mark.parametrize(
    ("text", "want"),
    [("y = LpNormalization<axis = 1, p = 2>(w)", 0.0),  # a row of zeros, which stays one
     ("z = Div(w, none) y = Where(never, z, w)", np.nan),  # 0 x inf, as PyTorch has it
     ("m = ReduceMean<keepdims = 0>(nothing) n = Add(w, m) y = Where(never, n, w)", 1.0)],
    ids=["norm", "division by 0", "mean of nothing"],
)  # fmt: skip
def test_nothing_is_divided_by_zero_on_the_way_back(text: str, want: float) -> None:
    whole = parse(f"""g (float[1, 3] x) => (float loss)
        <bool never = {{0}}, float none = {{0}}, float[1, 3] w = {{0, 0, 0}}>
        {{ {text} u = Mul(x, y) loss = ReduceSum<keepdims = 0>(u) }}""")
    whole.graph.initializer.append(numpy_helper.from_array(W[:0], "nothing"))
    step = differentiate(whole, loss_output="loss", trainable=["w"], optimizer=None)
    session = open_session(step, session_options(Options(threads=1, pattern=False)))
    (found,) = session.run(["w.grad"], {"x": np.ones((1, 3), np.float32),
                                        "w": np.zeros((1, 3), np.float32)})  # fmt: skip
    np.testing.assert_array_equal(found, np.full((1, 3), want, np.float32))


def test_a_parameter_at_its_bound_can_leave_it() -> None:
    """As in PyTorch; data at a bound pass nothing, as a rectifier's."""
    model = parse("""g (float[3] x) => (float[3] y)
        <float[3] w = {0, 1, 0.5}, float[3] v = {1, 1, 1}, float lo = {0}, float hi = {1}> {
        c = Clip(w, lo, hi) m = Mul(x, v) d = Clip(m, lo, hi) y = Mul(c, d) }""")
    step = differentiate(model, loss="mse", optimizer=None, trainable=["w", "v"])
    feeds = {"x": np.array([0.5, 1, 0.5], np.float32), "labels": np.full(3, 2, np.float32)}
    feeds |= {"w": np.array([0, 1, 0.5], np.float32), "v": np.ones(3, np.float32)}
    results = ReferenceEvaluator(step).run(None, feeds)
    found = dict(zip(["loss", "w.grad", "v.grad"], results, strict=True))
    error = 2 * (feeds["w"] * feeds["x"] - 2) / 3
    np.testing.assert_allclose(found["w.grad"], error * feeds["x"], rtol=1e-6)
    np.testing.assert_allclose(found["v.grad"], error * feeds["w"] * feeds["x"] * [1, 0, 1], 1e-6)


def test_sparse_weights_are_trained_as_dense_ones() -> None:
    model = parse("""g (float[2, 3] x) => (float[2, 3] y) <float[3] w = {1, 2, 3}> {
        h = Mul(x, w) y = Add(h, b) }""")
    values = numpy_helper.from_array(np.array([1.5, 2.5], np.float32), "b")
    places = numpy_helper.from_array(np.array([0, 2]), "places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3]))
    step = differentiate(model, loss="mse", optimizer=None)
    assert {v.name for v in step.graph.output} == {"loss", "w.grad", "b.grad"}


@pytest.mark.parametrize(
    ("text", "options"),
    [("(float[2, 3] x, float learning_rate) => (float[2, 3] y)", {}),
     ("(float[2, 3] x) => (float[2, 3] y)", {"optimizer": "adam"}),
     ("(float[2, 3] x) => (float[2, 3] y)", {"optimizer": "adam", "accumulate": 2})],
)  # fmt: skip
def test_names_that_the_step_needs_are_named(text: str, options: dict) -> None:
    """An input of the model was taken for the learning rate, a parameter for optimizer state."""
    model = parse(f"""g {text} <float[3] w = {{1, 2, 3}}, float[3] w2 = {{1, 2, 3}}>
        {{ h = Mul(x, w) y = Mul(h, {"learning_rate" if "rate" in text else "w2"}) }}""")
    if options:
        model.graph.initializer[1].name = model.graph.node[1].input[1] = "w.exp_avg"
    with pytest.raises(UsageError, match=r"has a tensor '(learning_rate|w.exp_avg)'"):
        differentiate(model, loss="mse", **options)


@pytest.mark.parametrize(
    ("kind", "call", "share"),
    [("Clip(h, lo, hi)", "clamp.Tensor", 1), ("Max(h, lo)", "clamp.Tensor", 1),
     ("Clip(h, lo)", "clamp_min.default", 1), ("Clip(h, lo, hi)", "hardtanh.default", 0),
     ("Clip(h, lo, hi)", "", 0), ("Max(h, lo)", "maximum.default", 0.5)],
)  # fmt: skip
def test_a_layer_of_zeros_behind_a_clamp_learns(kind: str, call: str, share: float) -> None:
    """PyTorch's clamp passes gradients at its bounds, its rectifiers do not."""
    model = parse(f"""g (float[2, 3] x) => (float[2, 3] y)
        <float[3, 3] w = {{0, 0, 0, 0, 0, 0, 0, 0, 0}}, float lo = {{0}}, float hi = {{1}}> {{
        h = MatMul(x, w) y = {kind} }}""")
    said = f"%y : [num_users=1] = call_function[target=torch.ops.aten.{call}](args = (%h, 0, 1))"
    for key, value in (("fx_node", said), ("name_scopes", "['', 'y']")) if call else ():
        model.graph.node[1].metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    model.ir_version = 10
    step = differentiate(model, loss="mse", optimizer=None, trainable=["w"])
    x, ones = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)
    feeds = {"x": x, "labels": ones, "w": np.zeros((3, 3), np.float32)}
    (gradient,) = ReferenceEvaluator(step).run(["w.grad"], feeds)
    np.testing.assert_allclose(gradient, share * x.T @ (-2 * ones / 6), rtol=1e-6)
