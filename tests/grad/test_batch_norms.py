"""Batch normalizations of one net do not disturb each other."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from onnxremat.grad import differentiate, training_of
from onnxremat.grad.description import Variable
from onnxremat.ort.session import open_session, session_options
from onnxremat.training.sessions import UNPLANNED
from onnxremat.training.state import FirstValues, input_types
from tests.toolbox import parse


def net(statistics: dict[str, np.ndarray], names: tuple[str, ...]) -> onnx.ModelProto:
    """Normalise, rectify, normalise, normalise; with the statistics of the given names."""
    random, nodes = np.random.default_rng(1), []
    weights = {"w": random.standard_normal((6, 6)).astype(np.float32), **statistics}
    nodes.append(helper.make_node("MatMul", ["x", "w"], ["h0"], name="first"))
    for k, name in enumerate(names):
        weights[f"n{k}.scale"] = random.standard_normal(6).astype(np.float32)
        weights[f"n{k}.bias"] = random.standard_normal(6).astype(np.float32)
        inputs = [f"h{k}", f"n{k}.scale", f"n{k}.bias", f"{name}.mean", f"{name}.var"]
        nodes.append(helper.make_node("BatchNormalization", inputs, [f"b{k}"], name=f"norm{k}"))
        nodes.append(helper.make_node("LeakyRelu", [f"b{k}"], [f"h{k + 1}"], name=f"relu{k}"))
    nodes[-1].output[0] = "y"
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", T.FLOAT, (8, 6))],
        [helper.make_tensor_value_info("y", T.FLOAT, (8, 6))],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(made)
    return made


def results(model: onnx.ModelProto, optimizer: str | None) -> dict[str, np.ndarray]:
    """What a step returns about each parameter: its gradient, or its new value."""
    random = np.random.default_rng(2)
    step = differentiate(model, optimizer=optimizer, loss="mse")
    about, types, first = training_of(step), input_types(step), FirstValues(model, step)
    feeds = {
        name: random.standard_normal((8, 6)).astype(np.float32) for name in ("x", about.target)
    }
    variables = [*about.variables, *(Variable(name, "", "model") for name, _ in about.gradients)]
    feeds |= {v.input: first.of(v, *types[v.input]) for v in variables}
    if about.rate:
        feeds[about.rate] = np.full(types[about.rate][0], 0.1, np.float32)
    session = open_session(step, session_options(UNPLANNED))
    found = dict(
        zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True)
    )
    named = about.gradients or [(v.input, v.output) for v in about.parameters]
    return {name: found[output] for name, output in named}


def fresh(*names: str) -> dict[str, np.ndarray]:
    parts = {f"{name}.mean": np.zeros(6, np.float32) for name in names}
    return parts | {f"{name}.var": np.ones(6, np.float32) for name in names}


@pytest.mark.parametrize("optimizer", [None, "sgd"])
@pytest.mark.parametrize("names", [("a", "b", "c"), ("a", "a", "a")])
def test_statistics_do_not_matter_to_gradients(
    optimizer: str | None, names: tuple[str, ...]
) -> None:
    """Equal ones, which onnxruntime merges, and those of a module that is called again: the kernel
    overwrites what it is given, and must not reach those of another op."""
    random = np.random.default_rng(3)
    apart = {
        name: value + random.random(6).astype(np.float32) for name, value in fresh(*"abc").items()
    }
    want = results(net(apart, ("a", "b", "c")), optimizer)
    found = results(net(fresh(*set(names)), names), optimizer)
    assert len(want) == 7
    assert found.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_statistics_are_read_where_they_belong() -> None:
    """A stage of a pipeline that ends between two batch normalizations has its own statistics."""
    apart = {
        f"{name}.{kind}": np.full(6, value, np.float32)
        for name in "abc"
        for kind, value in (("mean", 0), ("var", 1))
    }
    nodes = differentiate(net(apart, ("a", "b", "c")), optimizer="sgd", loss="mse").graph.node
    norms = [k for k, node in enumerate(nodes) if node.op_type == "BatchNormalization"]
    assert len(norms) == 3
    for before, at in zip([0, *norms], norms, strict=False):
        made = [k for k, n in enumerate(nodes) if set(n.output) & set(nodes[at].input[3:5])]
        assert len(made) == 2
        assert all(before < k < at for k in made)


def plain(frozen: bool) -> onnx.ModelProto:
    """y = norm(x w): without scale and bias, as PyTorch's exporters write affine=False."""
    model = net(fresh("a"), ("a",))
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, value in (("n0.scale", np.ones(6)), ("n0.bias", np.zeros(6))):
        tensors[name].CopyFrom(numpy_helper.from_array(value.astype(np.float32), f"val_{name}"))
        model.graph.node[1].input[1 + name.endswith("bias")] = f"val_{name}"
    if frozen:
        model.graph.initializer.append(numpy_helper.from_array(np.ones(6, np.float32), "last"))
        model.graph.node.append(helper.make_node("Mul", ["y", "last"], ["z"], name="mul"))
        model.graph.output[0].name = "z"
    return model


@pytest.mark.parametrize("frozen", [False, True])
def test_a_norm_without_parameters_uses_the_batch_where_something_before_it_is_trained(
    frozen: bool,
) -> None:
    step = differentiate(
        plain(frozen), optimizer="sgd", loss="mse", trainable=["last"] if frozen else None
    )
    states = {state.input for state in training_of(step).states}
    assert states == (set() if frozen else {"a.mean", "a.var"})


@pytest.mark.parametrize(("momentum", "told"), [(1.0, True), (0.9, False)])
def test_statistics_that_never_move_are_told(momentum: float, told: bool) -> None:
    """As PyTorch's exporters write momentum=None, the mean of all batches."""
    model = net(fresh("a", "b"), ("a", "b"))
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            node.attribute.append(helper.make_attribute("momentum", momentum))
    found = training_of(differentiate(model, optimizer="sgd", loss="mse")).warnings
    assert any("4 running statistics stay as they are" in text for text in found) == told
    assert not training_of(differentiate(model, optimizer=None, loss="mse")).warnings


@pytest.mark.parametrize(
    ("shape", "batch_norm", "told"),
    [((1, 3), "train", True), ((1, 3), "frozen", False), ((2, 3), "train", False),
     ((1, 3, 2, 1), "train", False), ((1, 3, 1, 1), "train", True)],
)  # fmt: skip
def test_one_value_per_channel_is_no_batch(
    shape: tuple[int, ...], batch_norm: str, told: bool
) -> None:
    """PyTorch raises an error; here the result is the bias, and nothing before it learns."""
    sizes = ", ".join(map(str, shape))
    model = parse(f"""g (float[{sizes}] x) => (float[{sizes}] y) {{
        h = Mul(x, w)  y = BatchNormalization(h, scale, bias, mean, var) }}""")
    shapes = {"w": shape, **dict.fromkeys(("scale", "bias", "mean", "var"), shape[1:2])}
    for name, each in shapes.items():
        model.graph.initializer.append(numpy_helper.from_array(np.ones(each, np.float32), name))
    step = differentiate(model, optimizer="sgd", loss="mse", batch_norm=batch_norm)
    text = "1 batch normalizations get one value per channel (mean)"
    assert any(text in each for each in training_of(step).warnings) == told


@pytest.mark.parametrize("frozen", [True, False])
def test_a_norm_that_is_arithmetic_with_its_statistics_is_frozen(frozen: bool) -> None:
    """As torchvision's FrozenBatchNorm2d, of which PyTorch's older exporter keeps names alone."""
    names = ("running_mean", "running_var") if frozen else ("mean", "var")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("Sub", ["h", f"norm.{names[0]}"], ["a"], name="minus"),
        helper.make_node("Div", ["a", f"norm.{names[1]}"], ["b"], name="over"),
        helper.make_node("Mul", ["b", "norm.weight"], ["c"], name="times"),
        helper.make_node("Add", ["c", "norm.bias"], ["y"], name="plus"),
    ]
    random = np.random.default_rng(0)
    shapes = {"w": (6, 6)} | {f"norm.{part}": (6,) for part in (*names, "weight", "bias")}
    values = {name: random.random(shape).astype(np.float32) for name, shape in shapes.items()}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", T.FLOAT, (8, 6))],
        [helper.make_tensor_value_info("y", T.FLOAT, (8, 6))],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    trained = {name for name, _ in training_of(differentiate(model, optimizer=None)).gradients}
    assert trained == ({"w"} if frozen else set(values))
