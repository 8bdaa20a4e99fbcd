"""Losses with all settings, and their value and gradient as emitted."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnxremat.grad import CrossEntropy, Loss, differentiate

RNG = np.random.default_rng(3)
WEIGHTS = [0.5, 1.0, 2.0, 0.7]


def identity(shape: tuple[int, ...], final: str = "Identity") -> onnx.ModelProto:
    """y = final(x); x is what gets the gradient."""
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, shape)
    y = helper.make_tensor_value_info("y", TensorProto.DOUBLE, shape)
    graph = helper.make_graph([helper.make_node(final, ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def evaluate(loss: Loss, x: np.ndarray, target: np.ndarray) -> tuple[float, np.ndarray]:
    graph = differentiate(identity(x.shape), loss=loss, optimizer=None, trainable=["x"])
    onnx.checker.check_model(graph)
    value, gradient = ReferenceEvaluator(graph).run(None, {"x": x, "labels": target})
    return float(value), gradient


CROSS = [
    CrossEntropy(),
    CrossEntropy(ignore_index=1),
    CrossEntropy(label_smoothing=0.1),
    CrossEntropy(class_weights=WEIGHTS),
    CrossEntropy(class_weights=WEIGHTS, label_smoothing=0.2),
    CrossEntropy(class_weights=WEIGHTS, label_smoothing=0.2, ignore_index=2),
    CrossEntropy(label_smoothing=0.3, ignore_index=-100),
]


def cross_data(shape: tuple[int, ...], axis: int, ignored: int | None):
    labels = RNG.integers(0, 4, (*shape[:axis], *shape[axis + 1 :]))
    labels.flat[0] = 3
    if ignored is not None:
        labels.flat[1] = ignored
    return RNG.standard_normal(shape), labels
