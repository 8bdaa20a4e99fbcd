"""Running statistics of modules that are called twice, and of files in training mode."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxremat.grad import differentiate, training_of
from onnxremat.grad.exported.at_rest import at_rest
from onnxremat.training.trainer import Trainer

ROWS, WIDTH, KEEP = 8, 3, 0.9


def norm(node: str, source: str, tensors: tuple[str, ...], **attributes: int) -> onnx.NodeProto:
    return helper.make_node(
        "BatchNormalization", [source, *tensors], [f"{node} y"], name=node, **attributes
    )


def net(nodes: list[onnx.NodeProto], stored: dict[str, np.ndarray]) -> onnx.ModelProto:
    """y = product of two normalised inputs."""
    last = [node.output[0] for node in nodes if node.op_type == "BatchNormalization"]
    nodes = [*nodes, helper.make_node("Mul", last, ["y"], name="/Mul")]
    values = [helper.make_tensor_value_info(name, T.FLOAT, (ROWS, WIDTH)) for name in "aby"]
    tensors = [numpy_helper.from_array(v.astype(np.float32), name) for name, v in stored.items()]
    graph = helper.make_graph(nodes, "net", values[:2], values[2:], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    made.producer_name = "pytorch"
    onnx.checker.check_model(made)
    return made


def tensors(module: str, seed: int | None = None) -> dict[str, np.ndarray]:
    """Scale, shift, mean and variance: those of a fresh module without a seed."""
    names = ("weight", "bias", "running_mean", "running_var")
    if seed is None:
        fresh = (np.ones(WIDTH), np.zeros(WIDTH), np.zeros(WIDTH), np.ones(WIDTH))
        return {f"{module}.{name}": value for name, value in zip(names, fresh, strict=True)}
    random = np.random.default_rng(seed)
    return {f"{module}.{name}": random.uniform(0.5, 1.5, WIDTH) for name in names}


def batches(count: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(7)
    return [
        {name: random.normal(1, 2, (ROWS, WIDTH)).astype(np.float32) for name in "ab"}
        for _ in range(count)
    ]


def trained(model: onnx.ModelProto, count: int = 2) -> Trainer:
    step = differentiate(model, optimizer="sgd", loss="mse")
    run, target = Trainer(step, model, threads=1, rate=0.0), training_of(step).target
    for batch in batches(count):
        run.step({**batch, target: np.zeros((ROWS, WIDTH), np.float32)})
    return run


@pytest.mark.parametrize("seed", [None, 1])
def test_statistics_of_a_module_move_with_each_of_its_calls(seed: int | None) -> None:
    held = tensors("bn", seed)
    model = net(
        [norm("/bn/BN", "a", tuple(held)), norm("/bn_1/BN", "b", tuple(held))], held
    )  # fmt: skip
    run = trained(model)
    mean, spread = held["bn.running_mean"], held["bn.running_var"]
    for batch in batches(2):
        for x in (batch["a"], batch["b"]):
            mean = KEEP * mean + (1 - KEEP) * x.mean(0)
            spread = KEEP * spread + (1 - KEEP) * x.var(0, ddof=1)
    assert run.values()["bn.running_mean"] == pytest.approx(mean, rel=1e-5)
    assert run.values()["bn.running_var"] == pytest.approx(spread, rel=1e-5)


def test_a_module_with_a_number_in_its_name_has_statistics_of_its_own() -> None:
    """Merged by PyTorch's older exporter as those of another fresh module, and told apart."""
    held = tensors("bn")
    nodes = [
        *(helper.make_node("Identity", [name], [name.replace("bn", "bn_1")], name=f"Identity_{k}")
          for k, name in enumerate(held)),
        norm("/bn/BN", "a", tuple(held)),
        norm("/bn_1/BN", "b", tuple(name.replace("bn", "bn_1") for name in held)),
    ]  # fmt: skip
    state = trained(net(nodes, held), 1).values()
    (batch,) = batches(1)
    for module, x in (("bn", batch["a"]), ("bn_1", batch["b"])):
        wanted = (1 - KEEP) * x.mean(0)
        assert state[f"{module}.running_mean"] == pytest.approx(wanted, rel=1e-5)


def test_what_is_not_in_training_mode_is_left_alone() -> None:
    held = tensors("bn", 1)
    model = net([norm("p", "a", tuple(held)), norm("q", "b", tuple(held))], held)
    assert at_rest(model) is model


def test_draws_that_no_mode_ends_are_told_of() -> None:
    """A dropout of channels, as an exporter writes it in training mode."""
    w = np.eye(3, dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["h"], name="lin"),
        helper.make_node("RandomUniformLike", ["h"], ["u"], name="drop/u"),
        helper.make_node("Mul", ["h", "u"], ["y"], name="drop/mul"),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("a", 1, [4, 3])],
        [helper.make_tensor_value_info("y", 1, [4, 3])],
        [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    said = training_of(differentiate(model, optimizer="sgd", loss="mse")).warnings
    assert any("1 nodes draw random numbers (drop/u)" in text for text in said)
    del model.graph.node[1:]
    model.graph.node[0].output[0] = "y"
    said = training_of(differentiate(model, optimizer="sgd", loss="mse")).warnings
    assert not any("random" in text for text in said)


def test_exported_models_are_out_of_training_mode() -> None:
    held = tensors("bn", 1)
    nodes = [
        norm("p", "a", tuple(held), training_mode=1),
        norm("q", "b", tuple(held), training_mode=1),
        helper.make_node("Add", ["p mean", "q mean"], ["unused"], name="sum"),
    ]
    nodes[0].output.extend(["p mean", "p var"])
    nodes[1].output.extend(["q mean", "q var"])
    model = net(nodes, held)
    exported = trained(model).export(model)
    onnx.checker.check_model(exported)
    (batch,) = batches(1)
    (found,) = ReferenceEvaluator(exported).run(None, batch)
    values = {t.name: numpy_helper.to_array(t) for t in exported.graph.initializer}

    reads = {node.name: node.input[1:] for node in exported.graph.node}

    def normed(node: str, x: np.ndarray) -> np.ndarray:
        scale, shift, mean, spread = (values[name] for name in reads[node])
        return (x - mean) / np.sqrt(spread + 1e-5) * scale + shift

    wanted = normed("p", batch["a"]) * normed("q", batch["b"])
    assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5)
