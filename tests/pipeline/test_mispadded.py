"""Poolings of which onnxruntime's own optimization changes what they compute."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.mispadded import mispadded
from onnxremat.pipeline.prepare import Settings, prepare
from tests.toolbox import parse


def net(before: str = "Neg", value: str = "") -> onnx.ModelProto:
    return parse(
        f"g (float[1,1,2,2] x) => (float[1,1,2,2] y) <int64[8] p = {{0,0,1,1,0,0,1,1}}, "
        f"float z = {{{value or '0'}}}> {{ a = {before}(x) b = Pad(a, p{', z' * bool(value)}) "
        "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b) }"
    )


def run(model: onnx.ModelProto, **options: object) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), **options)
    return session.run(None, {"x": np.ones((1, 1, 2, 2), np.float32)})[0]


@pytest.mark.parametrize("value", ["", "0"])
def test_zeros_that_count_as_minus_infinity_are_told(value: str) -> None:
    model = net(value=value)
    told = mispadded(build_graph(model))
    by_file = run(model, disabled_optimizers=["Pad_Fusion"])
    assert not by_file.any()
    assert bool(told) == bool(run(model).any()), "onnxruntime does as the file says by now"
    assert told[0] in prepare(model, Settings()).notes


@pytest.mark.parametrize("model", [net("Relu"), net(value="-1e9")])
def test_others_are_as_the_file_says(model: onnx.ModelProto) -> None:
    assert not mispadded(build_graph(model))
    assert np.array_equal(run(model), run(model, disabled_optimizers=["Pad_Fusion"]))
