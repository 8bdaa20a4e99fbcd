"""Poolings of which onnxruntime's own optimization changes what they compute."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.original.mispadded import mispadded
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.settings import Settings
from tests.toolbox import parse


def net(
    pad: str = "b = Pad(a, p)",
    value: str = "0",
    pads: str = "0,0,1,1,0,0,1,1",
    before: str = "Neg",
    pool: str = "",
    opset: int = 18,
) -> onnx.ModelProto:
    stored = f"int64[8] p = {{{pads}}}, float z = {{{value}}}, int64[4] few = {{1,1,1,1}}"
    return parse(
        f"g (float[1,2,4,4] x) => (float[1,2,N,M] y) <{stored}, int64[2] axes = {{2,3}}> "
        f"{{ a = {before}(x) {pad} y = MaxPool<kernel_shape=[2,2], strides=[2,2] {pool}>(b) }}",
        opset,
    )


def run(model: onnx.ModelProto, **options: object) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), **options)
    return session.run(None, {"x": np.ones((1, 2, 4, 4), np.float32)})[0]


@pytest.mark.parametrize(
    "model",
    [
        net(),
        net("b = Pad(a, p, z)"),
        net("b = Pad<pads=[0,0,1,1,0,0,1,1]>(a)", opset=10),
        net("c = Cast<to=11>(a) d = Pad(c, p) b = Cast<to=1>(d)"),
    ],
)
def test_zeros_that_count_as_minus_infinity_are_told(model: onnx.ModelProto) -> None:
    told = mispadded(build_graph(model))
    by_file = run(model, disabled_optimizers=["Pad_Fusion"])
    assert bool(told) == bool((run(model) < by_file).any()), "does as the file says by now"
    assert told[0] in prepare(model, Settings()).notes


@pytest.mark.parametrize(
    "model",
    [
        net(before="Relu"),
        net("b = Pad(a, p, z)", "-1e9"),
        net("b = Pad<pads=[0,0,1,1,0,0,1,1], value=-1000000000.0>(a)", opset=10),
        net('b = Pad(a, few, "", axes)'),
        net(pads="0,0,1,1,0,0,-1,-1"),
        net(pads="0,1,1,1,0,0,1,1"),
        net(pads="0,0,0,0,0,0,0,0"),
        net(pool=', auto_pad="SAME_UPPER"'),
    ],
)
def test_others_are_as_the_file_says(model: onnx.ModelProto) -> None:
    assert not mispadded(build_graph(model))
    assert np.array_equal(run(model), run(model, disabled_optimizers=["Pad_Fusion"]))
