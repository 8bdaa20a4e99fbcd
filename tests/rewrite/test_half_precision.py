"""Pins and gates on values of half precision, which onnxruntime runs Size on as copies."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from onnxremat import api
from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import VerificationError
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.options import PlanOptions
from onnxremat.rewrite.gates import add_gates
from onnxremat.schedule.expand import expand
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


def test_a_gate_waits_for_what_onnxruntime_leaves_as_it_is() -> None:
    """Rather for ``s``, which is dead by then, than for ``t``: of half precision it is cast for the
    Size of a gate, and other Casts of it run in another order then."""
    graph = build_graph(parse("""g (float16[8, 8] x) => (float16[8, 8] y, float16[8, 8] z) {
        f = Cast<to = 1>(x)  s = Sin(f)  t = Cast<to = 10>(s)  a = Transpose(x)  y = Transpose(a)
        z = Concat<axis = 1>(t)  }"""))  # fmt: skip
    names = {op.outputs[0]: op.name for op in graph.ops}
    gated = add_gates(expand(graph, [names[name] for name in ("f", "s", "t", "a", "y", "a", "z")]))
    assert [op.inputs for op in gated.ops if op.op_type == "Size"] == [("s",)]


def test_parts_that_run_in_another_order_are_left_out() -> None:
    """Without onnxruntime's optimisation its casts are no part of a plan: what reads them is late,
    and the parts of a batch, which do not wait for each other, change places."""
    half = parse("""g (float16[64, 512] x) => (float16[64, 512] d) {
        a = LayerNormalization(x, s)  b = Sigmoid(a)  c = Mul(a, b)
        d = LayerNormalization(c, s) }""", 17)  # fmt: skip
    half.graph.initializer.append(numpy_helper.from_array(np.ones(512, np.float16), "s"))
    settings = Settings(target="none", threads=1, costs=analytic_costs)
    options = PlanOptions(work=500, threads=1)
    made = api.optimize(half, budget="min", settings=settings, options=options, bench_seconds=0)
    assert made.facts()["order_kept"]
    halves = Settings(target="none", threads=1, costs=analytic_costs, split_batch=(2,))
    with pytest.raises(VerificationError, match="otherwise than planned") as refused:
        api.optimize(half, budget="min", settings=halves, options=options, bench_seconds=0)
    assert "--target portable" in refused.value.hint
