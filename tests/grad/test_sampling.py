"""Sampled images and transforms: the same bits with any number of threads, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.errors import UnsupportedError
from onnxremat.grad import differentiate


def _model(op: str, shape: list[int], *stored: Any, **attributes: Any) -> onnx.ModelProto:
    """total = sum of squares of a node of x and of stored values."""
    names = ["x", *(f"s{k}" if value is not None else "" for k, value in enumerate(stored))]
    nodes = [helper.make_node(op, names, ["y"], name="node", **attributes),
             helper.make_node("ReduceSumSquare", ["y"], ["total"], keepdims=0)]  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    total = helper.make_tensor_value_info("total", TensorProto.FLOAT, [])
    weights = [numpy_helper.from_array(np.asarray(value), f"s{k}")
               for k, value in enumerate(stored) if value is not None]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [x], [total], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _gradient(model: onnx.ModelProto) -> onnx.ModelProto:
    return differentiate(model, loss_output="total", optimizer=None, trainable=["x"])


def test_many_points_on_few_elements_add_up_to_the_same_bits() -> None:
    """All 40,000 points lie around 4 elements; a kernel that races loses some of them."""
    draw = np.random.default_rng(0)
    grid = draw.uniform(-0.05, 0.05, (2, 200, 100, 2)).astype(np.float32)
    graph = _gradient(_model("GridSample", [2, 8, 16, 16], grid))
    x = draw.standard_normal((2, 8, 16, 16)).astype(np.float32)
    found = []
    for threads in (1, 4, 4, 4, 4):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(graph.SerializeToString(), options)
        found.append(session.run(["x.grad"], {"x": x})[0])
    assert np.count_nonzero(found[0]) == 2 * 8 * 4
    assert all(np.array_equal(found[0], each) for each in found)


@pytest.mark.parametrize(
    ("model", "why"),
    [(_model("DFT", [2, 6, 2], np.int64(8), np.int64(1), inverse=1, onesided=1), "one side"),
     (_model("AffineGrid", [1, 2, 3], np.array([1, 1, 1, 4]), align_corners=1), "one element")],
    ids=["spectrum that is cut", "aligned single element"],
)  # fmt: skip
def test_what_runtimes_do_not_agree_on_is_refused(model: onnx.ModelProto, why: str) -> None:
    with pytest.raises(UnsupportedError, match="no gradient rule for") as caught:
        _gradient(model)
    assert why in str(caught.value)
