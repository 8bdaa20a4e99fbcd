"""Dropout: masks are a function of a counter, uniform, and the same whenever they are computed."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.grad import differentiate, training_of
from onnxremat.grad.dropout import COUNTER, KEY
from tests.rewrite.rewritten import assert_same

ROWS, COLUMNS = 96, 160


def model(shape: tuple[int, ...], *ratios: float) -> onnx.ModelProto:
    """y = dropout(... dropout(x s)) with one Dropout per ratio, s trained."""
    nodes = [helper.make_node("Mul", ["x", "s"], ["h0"])]
    stored = [numpy_helper.from_array(np.ones(shape, np.float32), "s")]
    for k, ratio in enumerate(ratios):
        stored.append(numpy_helper.from_array(np.array(ratio, np.float32), f"r{k}"))
        nodes.append(helper.make_node("Dropout", [f"h{k}", f"r{k}"], [f"h{k + 1}"], seed=7))
    nodes.append(helper.make_node("Identity", [f"h{len(ratios)}"], ["y"]))
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        stored,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


class Net:
    """The gradient graph of a model, run for any value of the counter."""

    def __init__(self, source: onnx.ModelProto) -> None:
        graph = differentiate(source, loss="mse", optimizer=None, trainable=["s"], outputs=["y"])
        onnx.checker.check_model(graph)
        self.about = training_of(graph)
        self.session = ort.InferenceSession(
            graph.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        self.shape = tuple(self.session.get_inputs()[0].shape)

    def __call__(self, count: int) -> dict[str, np.ndarray]:
        feeds = {
            "x": np.ones(self.shape, np.float32), "s": np.ones(self.shape, np.float32),
            "labels": np.zeros(self.shape, np.float32), COUNTER: np.array(count, np.int64),
        }  # fmt: skip
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(None, feeds), strict=True))


@pytest.fixture(scope="module")
def net() -> Net:
    return Net(model((ROWS, COLUMNS), 0.2))


def expected_mask(count: int, rows: int, columns: int, keep: float) -> np.ndarray:
    """The formula of the module in numpy's wrapping integers."""
    with np.errstate(over="ignore"):
        size = 2 * (rows + columns)
        key = np.array(KEY, np.int64).astype(np.uint64)
        x = (np.arange(size, dtype=np.uint64) + np.uint64(count) * np.uint64(size)) * key
        y, z = x, x + key
        for term in (y, z, y):
            x = x * x + term
            x = (x >> np.uint64(32)) | (x << np.uint64(32))
        numbers = ((x * x + z) >> np.uint64(32)).astype(np.uint32)
        a, b, c, d = np.split(numbers, [rows, rows + columns, 2 * rows + columns])
        product = (a[:, None] + b) * (2 * c[:, None] + 1 + 2 * d)
    return product.view(np.int32) < round(keep * 2**32) - 2**31


def test_masks_are_the_documented_formula(net: Net) -> None:
    """And so the kernels wrap around on overflow, as the formula wants."""
    for count in (0, 1, 12345, 2**40, 2**62):
        kept = net(count)["y"] != 0
        np.testing.assert_array_equal(kept, expected_mask(count + 1, ROWS, COLUMNS, 0.8))


def test_the_gradient_is_zero_exactly_where_the_mask_dropped(net: Net) -> None:
    found = net(3)
    kept = found["y"] != 0
    np.testing.assert_allclose(found["y"][kept], 1.25)
    wanted = np.where(kept, 2 * 1.25 * 1.25 / kept.size, 0)
    np.testing.assert_allclose(found["s.grad"], wanted, rtol=1e-6)
    assert int(found[f"{COUNTER}.next"]) == 4


def test_masks_are_uniform_and_independent(net: Net) -> None:
    """Shares kept over all, per row and per column, and products of neighbours, as chance has
    them: the squared z-scores average to 1."""
    keep, deviation = 0.8, 0.4
    centred = np.stack([(net(count)["y"] != 0) - keep for count in range(60)]) / deviation
    scores = {
        "all": centred.sum((1, 2)) / np.sqrt(ROWS * COLUMNS),
        "rows": centred.sum(2) / np.sqrt(COLUMNS),
        "columns": centred.sum(1) / np.sqrt(ROWS),
        "next row": (centred[:, 1:] * centred[:, :-1]).sum((1, 2)) / np.sqrt(95 * COLUMNS),
        "next column": (centred[..., 1:] * centred[..., :-1]).sum((1, 2)) / np.sqrt(ROWS * 159),
        "next step": (centred[1:] * centred[:-1]).sum((1, 2)) / np.sqrt(ROWS * COLUMNS),
        "rectangles": (
            centred[:, 1:, 1:] * centred[:, :-1, :-1] * centred[:, 1:, :-1] * centred[:, :-1, 1:]
        ).sum((1, 2)) / np.sqrt(95 * 159),
    }  # fmt: skip
    for name, score in scores.items():
        spread = np.sqrt(2 / score.size)  # of the mean of squared normal numbers
        assert abs((score**2).mean() - 1) < 4.5 * spread, name


def test_two_dropouts_differ_even_with_one_seed() -> None:
    found = Net(model((64, 64), 0.5, 0.5))(0)
    kept = (found["y"] != 0).mean()
    assert abs(kept - 0.25) < 0.05  # one mask twice would keep half


@pytest.mark.parametrize("shape", [(), (1,), (300,), (2, 3, 4, 5), (1, 1, 700), (4, 1, 1, 9)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    found = [Net(model(shape, 0.5))(count)["y"] for count in range(20)]
    assert {value.shape for value in found} == {shape}
    assert set(np.unique(found)) == {0.0, 2.0}


def test_a_ratio_of_one_drops_everything() -> None:
    found = Net(model((6, 4), 1.0))(0)
    assert not found["y"].any()
    assert not found["s.grad"].any()


def test_switched_off_it_passes_everything() -> None:
    source = model((4, 4), 0.5)
    source.graph.node[1].input.append("on")  # as exported in training mode
    source.graph.initializer.append(numpy_helper.from_array(np.array(True), "on"))
    off = differentiate(source, loss="mse", optimizer="sgd", dropout=False, outputs=["y"])
    assert COUNTER not in {value.name for value in off.graph.input}
    session = ort.InferenceSession(off.SerializeToString(), providers=["CPUExecutionProvider"])
    ones = np.ones((4, 4), np.float32)
    feeds = {"x": ones, "labels": ones, "s": ones, "learning_rate": np.array(0, np.float32)}
    assert (session.run(["y"], feeds)[0] == 1).all()


def test_a_plan_may_compute_masks_again() -> None:
    """Every op of a step recomputed, masks too: the bits stay."""
    step = differentiate(model((8, 48), 0.3, 0.1), loss="mse", optimizer=None, trainable=["s"])
    rewritten = assert_same(step)
    again = [op.op_type for op in rewritten.ops if op.origin]
    assert again.count("Less") >= 2
