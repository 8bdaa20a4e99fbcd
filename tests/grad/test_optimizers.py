"""Optimizers against their definitions, and the order of updates in place."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxremat.errors import ModelError
from onnxremat.grad import Lamb, differentiate, training_of
from onnxremat.grad.optimizers import OPTIMIZERS, STEP
from onnxremat.grad.ordering import Readers
from onnxremat.graph.onnx_io import to_ops
from onnxremat.ort.infer import build_graph
from onnxremat.training.trainer import Trainer
from tests.grad.two_layers import RATE, RNG, W1, W2, X, Z, net, same, trained
from tests.toolbox import parse


def test_adam_equals_its_definition() -> None:
    """The recurrence in numpy, with gradients from the emitted graph."""
    gradients = differentiate(net(), loss="mse", optimizer=None)
    session = ort.InferenceSession(
        gradients.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    values = {"w1": W1.copy(), "w2": W2.copy()}
    m = {k: np.zeros_like(v) for k, v in values.items()}
    v = {k: np.zeros_like(w) for k, w in values.items()}
    for step in range(1, 7):
        results = session.run(None, {"x": X, "labels": Z, **values})
        found = dict(zip([o.name for o in session.get_outputs()], results, strict=True))
        for name in values:
            g = found[f"{name}.grad"]
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g * g
            root = np.sqrt(v[name] / (1 - 0.999**step)) + 1e-8
            values[name] = values[name] - np.float32(RATE) * m[name] / (1 - 0.9**step) / root
    same(trained("adam"), values)


def test_lamb_equals_its_definition() -> None:
    lamb = Lamb(weight_decay=0.1)
    gradients = differentiate(net(), loss="mse", optimizer=None)
    session = ort.InferenceSession(
        gradients.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    found = dict(
        zip(names, session.run(None, {"x": X, "labels": Z, "w1": W1, "w2": W2}), strict=True)
    )
    expected = {}
    for name, value in (("w1", W1), ("w2", W2)):
        g = found[f"{name}.grad"]
        direction = g / (np.abs(g) + 1e-6) + 0.1 * value
        trust = np.linalg.norm(value) / np.linalg.norm(direction)
        expected[name] = value - RATE * trust * direction
    same(trained(lamb, steps=1), expected)


def test_accumulated_halves_equal_the_whole_batch() -> None:
    def run(rows: int, steps: int, accumulate: int, parts: list[slice]) -> dict[str, np.ndarray]:
        model = net()
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = rows
        model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = rows
        graph = differentiate(model, loss="mse", optimizer="adam", accumulate=accumulate)
        trainer = Trainer(graph, model, rate=RATE, threads=1)
        for _ in range(steps):
            for part in parts:
                trainer.step({"x": X[part], "labels": Z[part]})
        return {name: trainer.values()[name] for name in ("w1", "w2", "optimizer.step")}

    whole = run(8, 3, 1, [slice(0, 8)])
    halves = run(4, 3, 2, [slice(0, 4), slice(4, 8)])
    assert int(halves["optimizer.step"]) == 3
    same(halves, whole)


@pytest.mark.parametrize(
    "optimizer", ["sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "lamb"]
)
def test_every_optimizer_lowers_the_loss(optimizer: str) -> None:
    graph = differentiate(net(), loss="mse", optimizer=optimizer)
    onnx.checker.check_model(graph)
    trainer = Trainer(graph, net(), rate=0.02, threads=1)
    losses = [trainer.step({"x": X, "labels": Z}) for _ in range(30)]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "adagrad", "lamb"])
def test_numbers_have_the_axes_of_filters(optimizer: str) -> None:
    """Where the last axis has length 1, onnxruntime scales element by element by a number with
    fewer axes."""
    model = parse(
        "g (float[1,64,2,2] x) => (float[1,64] y)"
        "{ a = Conv(x, w) b = GlobalAveragePool(a) y = Flatten(b) }"
    )
    filters = RNG.standard_normal((64, 64, 1, 1)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(filters, "w"))
    graph = build_graph(differentiate(model, loss="mse", optimizer=optimizer))
    seen = 0
    for op in graph.ops:
        shapes = [graph.tensors[name].shape for name in op.inputs]
        if op.op_type in ("Add", "Div", "Max", "Mul", "Sub") and filters.shape in shapes:
            assert {len(shape or ()) for shape in shapes} == {4}, op.name
            seen += (1, 1, 1, 1) in shapes
    assert seen


def test_updates_wait_for_the_last_reader() -> None:
    """w2 is read by dx after its own gradient may be done: without a gate, an order exists in
    which the new value is read."""
    free = differentiate(net(), loss="mse", optimizer="sgd", in_place=False)
    assert _late(free)
    with pytest.raises(ModelError, match="'w2' after its new value"):
        Trainer(free, net())
    assert not _late(differentiate(net(), loss="mse", optimizer="sgd"))


def _late(model: onnx.ModelProto) -> list[str]:
    """Readers of w2 that may run after it is overwritten."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return Readers(to_ops(model), constants).late("w2", "w2.next")


@pytest.mark.parametrize("kind", ["Div", "Mul"])
def test_updates_wait_for_readers_of_a_scaled_weight(kind: str) -> None:
    """onnxruntime fuses a scale into the products that read it, the gradient's too, which then read
    the weight itself; also where the scale is known only once sizes are computed, as in files of
    PyTorch's older exporter."""
    model = net()
    scale = numpy_helper.from_array(np.array(2.0, np.float32))
    sizes = numpy_helper.from_array(np.array(W2.shape, np.int64))
    model.graph.node[2].input[1] = "sized"
    made = (
        helper.make_node("Constant", [], ["scale"], value=scale),
        helper.make_node("Constant", [], ["sizes"], value=sizes),
        helper.make_node("Equal", ["sizes", "sizes"], ["same"]),
        helper.make_node("Where", ["same", "sizes", "sizes"], ["shape"]),
        helper.make_node(kind, ["w2", "scale"], ["scaled"]),
        helper.make_node("Reshape", ["scaled", "shape"], ["sized"]),
    )
    for node in reversed(made):
        model.graph.node.insert(0, node)
    assert _late(differentiate(model, loss="mse", optimizer="sgd", in_place=False))
    assert not _late(differentiate(model, loss="mse", optimizer="sgd"))


def test_updates_wait_for_readers_of_a_weight_scaled_by_a_size() -> None:
    """onnxruntime knows sizes, and folds what follows from them."""
    model = net()
    model.graph.node[2].input[1] = "scaled"
    made = (
        helper.make_node("Size", ["x"], ["size"]),
        helper.make_node("Cast", ["size"], ["scale"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Div", ["w2", "scale"], ["scaled"]),
    )
    for node in reversed(made):
        model.graph.node.insert(0, node)
    assert _late(differentiate(model, loss="mse", optimizer="sgd", in_place=False))
    assert not _late(differentiate(model, loss="mse", optimizer="sgd"))


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("order", ["DEFAULT", "PRIORITY_BASED"])
def test_in_place_equals_out_of_place(level: str, order: str) -> None:
    graph = differentiate(net(), loss="mse", optimizer="adamw")
    about = training_of(graph)
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.execution_order = getattr(ort.ExecutionOrder, order)
    session = ort.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    shapes = {i.name: i.shape for i in session.get_inputs()}
    state = {v.input: {"w1": W1, "w2": W2}.get(v.input) for v in about.variables}
    for name, value in state.items():
        kind = np.int64 if name == "optimizer.step" else np.float32
        state[name] = np.zeros(shapes[name], kind) if value is None else value
    names = [o.name for o in session.get_outputs()]
    for _ in range(4):
        feeds = {"x": X, "labels": Z, about.rate: np.array(RATE, np.float32), **state}
        results = dict(zip(names, session.run(None, feeds), strict=True))
        state = {v.input: results[v.output] for v in about.variables}
    same(trained("adamw", steps=4), {"w1": state["w1"], "w2": state["w2"]})


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_norms_of_numbers_and_matrices_of_any_type(kind: str, accumulate: int) -> None:
    """Of a single number, and of gradients whose squares float32 cannot hold."""
    w = np.array([[1.5, -0.5, 2.0]])
    text = f"""g ({kind}[1,3] x) => ({kind}[1,3] y) <{kind} gain = {{1.0}},
        {kind}[1,3] w = {{1.5, -0.5, 2.0}}> {{ a = Mul(x, w) y = Mul(a, gain) }}"""
    step = differentiate(
        parse(text), loss="l1", clip_norm=0.5, trainable=["w", "gain"], accumulate=accumulate
    )
    size = 3e25 if kind == "double" else 3.0
    trainer = Trainer(step, parse(text), rate=1.0)
    x = np.full((1, 3), size, trainer.types["x"][1])
    for _ in range(accumulate):
        trainer.step({"x": x, "labels": np.zeros_like(x)})
    gradient = np.sign(x * w) * x / 3
    number = np.sum(gradient * w)
    share = 0.5 / np.sqrt(np.sum(gradient**2) + number**2)
    np.testing.assert_allclose(trainer.state["w"], w - share * gradient, rtol=1e-5)
    np.testing.assert_allclose(trainer.state["gain"], 1.0 - share * number, rtol=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_parameters_of_16_bits_are_updated_as_those_of_32(optimizer: str, accumulate: int) -> None:
    """In 16 bits the square of a small gradient is 0, and what keeps a division from 0 / 0 too."""
    found = {}
    for kind in ("float", "float16"):
        model = parse(f"g ({kind}[4, 2] x) => ({kind}[4, 3] y) {{ y = MatMul(x, w) }}")
        w = np.array([[0.5, -0.25, 1]] * 2, {"float": np.float32}.get(kind, np.float16))
        model.graph.initializer.append(numpy_helper.from_array(w, "w"))
        step = differentiate(
            model, loss="mse", optimizer=optimizer, accumulate=accumulate, initializers=True
        )
        trainer = Trainer(step, rate=0.01, threads=1)
        dtype = trainer.state["w"].dtype
        x = np.array(
            [[0.5, 0], [1, 0], [-0.25, 0], [0.75, 0]], dtype
        )  # its second row learns nothing
        for _ in range(4 * accumulate):
            trainer.step({"x": x, "labels": np.full((4, 3), 0.375, dtype)})
        found[kind] = trainer.state["w"].astype(np.float32)
        kinds = {value.dtype for name, value in trainer.state.items() if name not in ("w", STEP)}
        assert kinds <= {np.dtype(np.float32)}
    np.testing.assert_allclose(found["float16"], found["float"], rtol=2e-3, atol=1e-3)


def test_gradients_of_16_bits_are_clipped_in_32() -> None:
    """By onnx's reference, which multiplies in 16 bits where a graph says so; onnxruntime has no
    such kernel on the processor. In them the factor is 0."""
    model = parse("g (float16[4, 2] x) => (float16[4, 3] y) { y = MatMul(x, w) }")
    w = np.array([[0.5, -0.25, 1]] * 2, np.float16)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    step = differentiate(model, loss="mse", optimizer="sgd", clip_norm=1e-8)
    x = np.array([[0.5, 1], [1, 0], [-0.25, 0.5], [0.75, 0]], np.float16)
    feeds = {"x": x, "labels": np.full((4, 3), 0.375, np.float16), "w": w}
    feeds["learning_rate"] = np.array(1e7, np.float32)
    names = [output.name for output in step.graph.output]
    made = ReferenceEvaluator(step).run(None, feeds)
    moved = dict(zip(names, made, strict=True))["w.next"].astype(np.float32) - w
    np.testing.assert_allclose(np.linalg.norm(moved), 0.1, rtol=1e-2)
