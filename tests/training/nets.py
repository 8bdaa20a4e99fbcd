"""A small classifier, data to train it with, and its trainer."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.grad import differentiate
from onnxremat.training.schedules import Schedule
from onnxremat.training.trainer import Trainer

ROWS, BATCH = 40, 8


def net(dropout: float = 0.0) -> onnx.ModelProto:
    """A small classifier with BatchNormalization, and Dropout if asked for."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) * 0.5, name)

    ones = [numpy_helper.from_array(np.ones(6, np.float32), name) for name in ("scale", "var")]
    zeros = [numpy_helper.from_array(np.zeros(6, np.float32), name) for name in ("shift", "mean")]
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("BatchNormalization", ["h", "scale", "shift", "mean", "var"], ["n"]),
        helper.make_node("Relu", ["n"], ["a"]),
        helper.make_node("Dropout", ["a", "ratio"], ["d"]),
        helper.make_node("Gemm", ["d" if dropout else "a", "w2", "b2"], ["y"]),
    ]
    ratio = numpy_helper.from_array(np.array(dropout, np.float32), "ratio")
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", 1, [BATCH, 4])],
        [helper.make_tensor_value_info("y", 1, [BATCH, 3])],
        [weight("w1", 4, 6), weight("b1", 6), weight("w2", 6, 3), weight("b2", 3), *ones, *zeros,
         ratio],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, 4)).astype(np.float32)
    return {"x": x, "labels": (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5)}


def trainer(dropout: float = 0.0, accumulate: int = 1, **options: Any) -> Trainer:
    graph = differentiate(net(dropout), optimizer="adamw", accumulate=accumulate)
    return Trainer(graph, net(), rate=Schedule(0.02, "cosine", warmup=3), threads=1, **options)
