"""Two layers, trained for some steps by an optimizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.grad import Optimizer, differentiate
from onnxremat.training.trainer import Trainer

RNG = np.random.default_rng(5)
X, Z = (
    RNG.standard_normal((8, 3)).astype(np.float32),
    RNG.standard_normal((8, 2)).astype(np.float32),
)
W1 = RNG.standard_normal((3, 4)).astype(np.float32)
W2 = RNG.standard_normal((4, 2)).astype(np.float32)
RATE = 0.05


def net() -> onnx.ModelProto:
    """z = tanh(x w1) w2."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Tanh", ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "w2"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", 1, X.shape)],
        [helper.make_tensor_value_info("z", 1, Z.shape)],
        [numpy_helper.from_array(W1, "w1"), numpy_helper.from_array(W2, "w2")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def trained(optimizer: str | Optimizer, steps: int = 6, **options: Any) -> dict[str, np.ndarray]:
    graph = differentiate(net(), loss="mse", optimizer=optimizer, **options)
    trainer = Trainer(graph, net(), rate=RATE, threads=1)
    for _ in range(steps):
        trainer.step({"x": X, "labels": Z})
    return trainer.values()


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6)
