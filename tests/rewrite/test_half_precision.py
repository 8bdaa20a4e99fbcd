"""Pins and gates on values of half precision, which onnxruntime runs Size on as copies."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from onnxremat import api
from onnxremat.cost.analytic import analytic_costs
from onnxremat.pipeline.prepare import Settings
from onnxremat.planner.options import PlanOptions
from onnxremat.session.process import PARTS
from tests.toolbox import parse

NET = """g (float16[64, 256] x) => (float16[64, 256] y, float16[256, 64] z) {
    a = Mul(x, w)  b = Sin(a)  c = Cos(b)  d = Exp(c)  e = Mul(d, b)
    y = Add(e, a)  z = Transpose(e)
}"""


@pytest.mark.parametrize("budget", ["0.7x", "min"])
def test_results_take_what_they_are_predicted_to_take(budget: str) -> None:
    """Both results are 32 KiB; a copy of one as float32 is 64."""
    half = parse(NET, 17)
    half.graph.initializer.append(numpy_helper.from_array(np.ones((64, 256), np.float16), "w"))
    settings = Settings(target="portable", threads=1, costs=analytic_costs, not_counted=PARTS)
    made = api.optimize(
        half, budget=budget, settings=settings, options=PlanOptions(work=2000, threads=1),
        bench_seconds=0,
    )  # fmt: skip
    facts = made.facts()
    assert facts["peak_measured_bytes"] == facts["peak_predicted_bytes"]
    assert facts["bit_equal"]
    assert facts["order_kept"]
