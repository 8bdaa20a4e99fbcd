"""Classifiers that return labels beside what a loss compares."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from onnxremat.errors import UsageError
from onnxremat.grad import differentiate, training_of
from onnxremat.training.trainer import Trainer

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 3)).astype(np.float32)
ENDS = {
    "labels": helper.make_tensor_value_info("labels", 7, None),
    "p": helper.make_tensor_value_info("p", 1, [4, 2]),
}


def _classifier(*ends: str) -> onnx.ModelProto:
    """As skl2onnx writes one: the size of what ArrayFeatureExtractor makes is not inferred."""
    ml = {"domain": "ai.onnx.ml"}
    nodes = [
        helper.make_node("MatMul", ["x", "layer.weight"], ["h"]),
        helper.make_node("Softmax", ["h"], ["p"]),
        helper.make_node("ArgMax", ["p"], ["k"], axis=1, keepdims=0),
        helper.make_node("ArrayFeatureExtractor", ["classes", "k"], ["labels"], **ml),
    ]
    stored = {
        "layer.weight": RNG.standard_normal((3, 2)).astype(np.float32),
        "classes": np.array([3, 7], np.int64),
    }
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", 1, X.shape)], [ENDS[e] for e in ends],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("ends", [("labels", "p"), ("p", "labels")])
def test_labels_are_left_out_of_a_step(ends: tuple[str, str]) -> None:
    model = _classifier(*ends)
    prediction = None if ends[0] == "p" else "p"
    step = differentiate(model, prediction=prediction)
    assert training_of(step).prediction in ("p", "h")
    assert not any(node.op_type == "ArrayFeatureExtractor" for node in step.graph.node)
    trainer = Trainer(step, model, rate=0.5, threads=1)
    losses = [trainer.step({"x": X, "labels": np.array([0, 1, 1, 0])}) for _ in range(5)]
    assert losses[-1] < losses[0]
    session = ort.InferenceSession(trainer.export(model).SerializeToString())
    assert session.run(["labels"], {"x": X})[0].size == 4


def test_labels_that_are_asked_for_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        differentiate(_classifier("labels", "p"))
    assert "--prediction" in caught.value.hint
