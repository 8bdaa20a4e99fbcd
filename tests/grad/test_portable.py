"""Training steps for providers that lack some kernels of the processor."""

from __future__ import annotations

import numpy as np

import models
from onnxremat.grad import differentiate
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import named_outputs

# Of the operators that rules use, those that CUDA has no kernel of (docs/OperatorKernels.md of
# onnxruntime).
NOT_ON_CUDA = {"MaxUnpool", "Col2Im"}


def test_what_only_the_processor_runs_is_said_otherwise() -> None:
    """Max pooling that tiles, and batch normalization, with the same gradients."""
    model = models.build("unet", batch=1, size=16, width=4, levels=2)
    steps = [
        differentiate(model, optimizer=None, portable=portable, dropout=False)
        for portable in (False, True)
    ]
    kinds = [{node.op_type for node in step.graph.node} for step in steps]
    assert "MaxUnpool" in kinds[0]
    assert not NOT_ON_CUDA & kinds[1]
    feeds = seeded_feeds(build_graph(steps[0]))
    plain, portable = (named_outputs(step, feeds, None) for step in steps)
    assert plain.keys() == portable.keys()
    for name, value in plain.items():
        scale = np.abs(value).max() or 1.0
        np.testing.assert_allclose(portable[name] / scale, value / scale, atol=2e-5, err_msg=name)
