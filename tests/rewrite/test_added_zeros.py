"""A result that is a value plus zeros is that value, and is there once."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from tests.toolbox import parse

WIDE = 1 << 14


def prepared(body: str, bias: np.ndarray, outputs: str = "y") -> Prepared:
    results = ", ".join(f"float[1, 4, {WIDE}] {name}" for name in outputs.split())
    model = parse(f"g (float[1, 4, 64] x, float[64, {WIDE}] w) => ({results}) {{ {body} }}")
    model.graph.initializer.append(numpy_helper.from_array(bias, "b"))
    return prepare(model, Settings(threads=1))


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return open_session(model, session_options(Options(threads=1))).run(None, feeds)


ZEROS = np.zeros((1, WIDE), np.float32)


@pytest.mark.parametrize(
    "body", ["p = MatMul(x, w) y = Add(p, b)", "p = MatMul(x, w) y = Add(b, p)"]
)
def test_logits_are_there_once(body: str) -> None:
    found = prepared(body, ZEROS)
    assert [op.op_type for op in found.graph.ops] == ["MatMul"]
    assert found.store_all_peak - found.weights < 1.1 * 4 * WIDE * 4
    feeds = seeded_feeds(found.graph)
    (y,) = run(to_model(found.graph), feeds)
    np.testing.assert_array_equal(y, run(found.original, feeds)[0])


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("p = MatMul(x, w) y = Add(p, b) z = Neg(y)", "y z"),  # read elsewhere, takes over a buffer
        ("p = MatMul(x, w) y = Add(p, b) z = Neg(p)", "y z"),  # so is what it is made of
        ("p = MatMul(x, w) y = Add(p, b)", "y p"),  # a result itself
    ],
)
def test_other_sums_stay(body: str, outputs: str) -> None:
    assert "Add" in [op.op_type for op in prepared(body, ZEROS, outputs).graph.ops]


def test_what_is_not_zero_is_added() -> None:
    bias = ZEROS.copy()
    bias[0, -1] = 1e-30
    kinds = [op.op_type for op in prepared("p = MatMul(x, w) y = Add(p, b)", bias).graph.ops]
    assert kinds != ["MatMul"]
