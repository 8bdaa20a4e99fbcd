"""Mixed precision: it trains as float32 does, keeps less, and gets over overflows."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import models
from onnxremat.errors import ModelError, UsageError
from onnxremat.grad import LossScale, differentiate, training_of
from onnxremat.grad.precision import FOLLOWING, INSIDE, NARROW
from onnxremat.grad.scaling import EXPONENT, GOOD
from onnxremat.ort.infer import build_graph
from onnxremat.schedule.simulate import simulate
from onnxremat.training.trainer import Trainer
from tests.grad.cases import CASES
from tests.grad.checking import Case, build
from tests.toolbox import parse

SIZES: dict[str, dict[str, Any]] = {
    "resnet18": {"batch": 4, "size": 64, "width": 8, "classes": 10},
    "unet": {"batch": 2, "size": 32, "width": 8, "levels": 2},
    "bert": {"batch": 2, "sequence": 8, "hidden": 16, "layers": 1, "heads": 2, "vocab": 32,
             "positions": 16},
    "llama": {"batch": 2, "sequence": 8, "hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1,
              "ffn": 24, "vocab": 32},
}  # fmt: skip


def setting(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A small model and a batch for it."""
    model = models.build(name, **SIZES[name])
    shape = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    axis = 1 if len(shape) == 4 else len(shape) - 1
    sizes = [d for k, d in enumerate(shape) if k != axis]
    labels = np.random.default_rng(0).integers(0, shape[axis], sizes)
    return model, {**models.feeds(model), "labels": labels}


def trained(name: str, steps: int = 6, **options: Any) -> tuple[list[float], Trainer]:
    model, batch = setting(name)
    graph = differentiate(model, dropout=False, **options)
    trainer = Trainer(graph, model, rate=0.01, threads=1)
    return [trainer.step(batch) for _ in range(steps)], trainer


def finite(trainer: Trainer) -> bool:
    return all(np.isfinite(value).all() for value in trainer.values().values())


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("resnet18", "sgd"), ("unet", "momentum"), ("bert", "adamw"), ("llama", "lamb")],
)
def test_half_trains_as_single(name: str, optimizer: str) -> None:
    single, _ = trained(name, optimizer=optimizer)
    scale = LossScale(1024.0)  # the first one overflows on the residual net
    half, trainer = trained(name, optimizer=optimizer, precision="fp16", loss_scale=scale)
    assert half != single, "nothing was computed in 16 bits"
    np.testing.assert_allclose(half, single, rtol=2e-2, atol=1e-3)
    assert finite(trainer)
    kinds = {v.dtype for k, v in trainer.values().items() if k not in (EXPONENT, GOOD)}
    assert kinds <= {np.dtype(np.float32), np.dtype(np.int64)}  # parameters and optimizer state


@pytest.mark.parametrize("name", ["resnet18", "bert"])
def test_types_are_those_of_the_lists(name: str) -> None:
    """Forward products get 16 bits, normalizations, softmax and the loss 32; graphs are valid."""
    model, _ = setting(name)
    graph = differentiate(model, precision="fp16", dropout=False)
    onnx.checker.check_model(graph, full_check=True)
    kinds = {n: t.dtype for n, t in build_graph(graph).tensors.items()}
    found: dict[str, set[int]] = {}
    for node in graph.graph.node:
        if not node.name.startswith(("grad/", "update/")):
            read = [kinds[n] for n in node.input if n]
            floats = {k for k in read if k in (TensorProto.FLOAT, TensorProto.FLOAT16)}
            found.setdefault(node.op_type, set()).update(floats)
    for op, types in found.items():
        if op in NARROW:
            assert types == {TensorProto.FLOAT16}, op
        elif op in INSIDE:
            assert types == {TensorProto.FLOAT}, op
        elif op not in FOLLOWING and op != "Cast":
            assert TensorProto.FLOAT16 not in types, op
    assert kinds["loss"] == TensorProto.FLOAT


@pytest.mark.parametrize("name", ["unet", "bert"])
def test_half_keeps_less(name: str) -> None:
    """Bytes live at once, as the graph is written; onnxruntime's CPU provider adds Casts. In the
    forms that both have: some of single precision alone keep less."""
    larger = {"unet": {"size": 64}, "bert": {"batch": 4, "sequence": 64, "positions": 64,
                                             "hidden": 32, "heads": 4, "layers": 4}}  # fmt: skip
    model = models.build(name, **(SIZES[name] | larger[name]))
    peaks = []
    for precision in ("fp32", "fp16"):
        step = differentiate(model, optimizer=None, precision=precision, portable=True)
        graph = build_graph(step)
        peaks.append(simulate(graph, weight_bytes=0).peak)
    assert peaks[1] < 0.8 * peaks[0]


def test_overflow_skips_the_update_and_halves_the_scale() -> None:
    """A scale of 2**40 overflows float16 whatever the gradients are."""
    model, batch = setting("bert")
    scale = LossScale(2.0**40, patience=3)
    graph = differentiate(model, optimizer="adamw", precision="fp16", loss_scale=scale)
    trainer = Trainer(graph, model, rate=0.01, threads=1)
    before = trainer.values()
    losses = [trainer.step(batch)]
    after = trainer.values()
    changed = {k for k, v in after.items() if not np.array_equal(v, before[k])}
    assert changed == {EXPONENT}
    assert after[EXPONENT] == -1
    while trainer.values()[GOOD] == 0 and len(losses) < 60:
        losses.append(trainer.step(batch))
        assert finite(trainer)
    skipped = len(losses) - 1
    assert 10 < skipped < 59
    assert int(trainer.values()["optimizer.step"]) == 1
    assert trainer.values()[EXPONENT] == -skipped
    losses += [trainer.step(batch) for _ in range(6)]
    assert losses[-1] < losses[0] - 0.01
    assert finite(trainer)


def test_scale_grows_after_good_updates() -> None:
    _, trainer = trained("bert", 7, precision="fp16", loss_scale=LossScale(4.0, patience=3))
    values = trainer.values()
    assert (values[EXPONENT], values[GOOD]) == (2, 1)


def test_accumulated_gradients_are_scaled_and_checked() -> None:
    model, batch = setting("bert")

    def run(**options: Any) -> Trainer:
        graph = differentiate(model, optimizer="sgd", accumulate=2, dropout=False, **options)
        trainer = Trainer(graph, model, rate=0.05, threads=1)
        for _ in range(8):
            trainer.step(batch)
        return trainer

    single, half = run().values(), run(precision="fp16")
    values = half.values()
    assert values[GOOD] == 4
    names = [v.input for v in half.training.parameters]
    for name in names:
        np.testing.assert_allclose(values[name], single[name], atol=2e-3)
    wild = run(precision="fp16", loss_scale=LossScale(2.0**60))
    first = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert wild.values()[EXPONENT] == -4
    assert all(np.array_equal(wild.values()[name], first[name]) for name in names)
    assert finite(wild)


def test_scale_from_outside_is_divided_out() -> None:
    model, batch = setting("bert")
    graph = differentiate(model, optimizer=None, precision="fp16", loss_scale=True, dropout=False)
    plain = differentiate(model, optimizer=None, dropout=False)
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    results = []
    for each, extra in ((plain, {}), (graph, {"loss_scale": np.array(1024, np.float32)})):
        session = _session(each)
        feeds = {**batch, **extra, **stored}
        names = [value.name for value in session.get_inputs()]
        found = session.run(None, {name: feeds[name] for name in names})
        results.append(dict(zip([o.name for o in session.get_outputs()], found, strict=True)))
    for name, value in results[0].items():
        largest = np.abs(value).max()
        assert np.abs(results[1][name] - value).max() <= 2e-2 * largest + 1e-5, name


def _session(model: onnx.ModelProto) -> Any:
    from onnxremat.ort.session import Options, open_session, session_options

    return open_session(model, session_options(Options(threads=1)))


def after_products(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[str]]:
    """A case whose inputs come out of products with unit matrices, so in 16 bits where they may."""
    model, values = build(case, 18, np.dtype(np.float32))
    graph, nodes = model.graph, []
    names = [name for name, value in values.items() if value.size]
    for name in names:
        value, parts = values[name], [f"{name}_{k}" for k in range(6)]
        stored = [np.array([1, value.size]), np.eye(value.size, dtype=np.float32), value.shape]
        graph.initializer.extend(
            numpy_helper.from_array(np.array(v), n) for v, n in zip(stored, parts, strict=False)
        )
        nodes += [
            helper.make_node("Reshape", [name, parts[0]], [parts[3]]),
            helper.make_node("MatMul", [parts[3], parts[1]], [parts[4]]),
            helper.make_node("Reshape", [parts[4], parts[2]], [parts[5]]),
        ]
    rest = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    for node in rest:
        if node.name == "node":
            node.input[:] = [f"{name}_5" if name in names else name for name in node.input]
    del graph.node[:]
    graph.node.extend(nodes + rest)
    return model, values, names


# The first case of every operator; those of versions that are brought to 18 in another form apart.
FIRST = {(c.domain, c.op): c for c in reversed(CASES) if 18 in c.opsets}


@pytest.mark.parametrize("case", FIRST.values(), ids=[op for _, op in FIRST])
def test_every_operator_in_half(case: Case) -> None:
    model, values, names = after_products(case)
    results = []
    for precision in ("fp32", "fp16"):
        graph = differentiate(
            model, loss_output="total", optimizer=None, trainable=names, precision=precision,
            dropout=False, batch_norm="frozen",
        )  # fmt: skip
        if case.valid:
            onnx.checker.check_model(graph)
        session = _session(graph)
        found = session.run(None, values)
        results.append(dict(zip([o.name for o in session.get_outputs()], found, strict=True)))
    for name, value in results[0].items():
        error = np.abs(results[1][name] - value).max(initial=0.0)
        assert error <= 0.05 * np.abs(value).max(initial=0.0) + 1e-4, name


@pytest.mark.parametrize("number", [1e5, 1e-7])
@pytest.mark.parametrize("op", ["Add", "Div", "Mul"])
def test_constants_that_float16_does_not_hold_stay_as_they_are(op: str, number: float) -> None:
    """A divisor of 1e5 was taken for one of 60000, what hides a score at most."""
    model = parse(f"""g (float[4, 2] x) => (float[4, 2] y)
        <float[2, 2] w = {{1, 2, 3, 4}}, float c = {{{number}}}> {{
        h = MatMul(x, w) y = {op}(h, c) }}""")
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    feeds = {"x": x, "w": numpy_helper.to_array(model.graph.initializer[0]), "labels": x}
    single, half = (
        _session(
            differentiate(model, loss="mse", optimizer=None, trainable=["w"], precision=each,
                          outputs=["y"])
        ).run(["y"], feeds)[0]
        for each in ("fp32", "fp16")
    )  # fmt: skip
    np.testing.assert_allclose(half, single, rtol=1e-2)


def test_what_hides_scores_is_added_in_16_bits() -> None:
    model = parse("""g (float[4, 2] x) => (float[4, 2] y)
        <float[2, 2] w = {1, 2, 3, 4}, float[2] m = {0, -3.4e38}, float k = {0.5}> {
        h = MatMul(x, w) s = Mul(h, k) a = Add(s, m) y = Softmax(a) }""")
    graph = differentiate(model, precision="fp16", trainable=["w"])
    kinds = {n: t.dtype for n, t in build_graph(graph).tensors.items()}
    added = next(node for node in graph.graph.node if node.op_type == "Add")
    assert kinds[added.output[0]] == TensorProto.FLOAT16


def perceptron() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gemm", ["x", "a", "b"], ["h"]), helper.make_node("Gelu", ["h"], ["g"]),
        helper.make_node("Gemm", ["g", "c"], ["y"]),
    ]  # fmt: skip
    stored = {
        n: rng.standard_normal(s).astype(np.float32)
        for n, s in (("a", (6, 8)), ("b", (8,)), ("c", (8, 4)))
    }
    graph = helper.make_graph(
        nodes, "perceptron", [helper.make_tensor_value_info("x", 1, [5, 6])],
        [helper.make_tensor_value_info("y", 1, [5, 4])],
        [numpy_helper.from_array(v, n) for n, v in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def test_bfloat16_computes_the_same_and_is_refused_on_the_cpu() -> None:
    model, rng = perceptron(), np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((5, 6)).astype(np.float32), "labels": rng.integers(0, 4, 5)}
    feeds |= {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    results = []
    for precision in ("fp32", "bf16"):
        graph = differentiate(model, optimizer=None, precision=precision)
        onnx.checker.check_model(graph, full_check=True)
        results.append(ReferenceEvaluator(graph).run(None, feeds))
    for single, half in zip(*results, strict=True):
        assert half.dtype == np.float32
        assert 0 < np.abs(half - single).max() <= 3e-2 * np.abs(single).max()
    graph = differentiate(model, precision="bf16")
    assert not training_of(graph).states  # as wide a range as float32: nothing to scale
    with pytest.raises(ModelError, match="has a kernel of Gemm"):
        Trainer(graph, model)


@pytest.mark.parametrize(
    ("options", "part"),
    [({"precision": "fp8"}, "unknown precision 'fp8'"),
     ({"loss_scale": LossScale(), "optimizer": None}, "needs an optimizer")],
)  # fmt: skip
def test_wrong_options_are_named(options: dict, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        differentiate(perceptron(), **options)


def test_wrong_scales_and_weights_are_named() -> None:
    with pytest.raises(UsageError, match="power of two"):
        LossScale(1000.0)
    half = perceptron()
    for tensor in half.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*half.graph.input, *half.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    with pytest.raises(UsageError, match="float32 weights"):
        differentiate(half, precision="fp16")
