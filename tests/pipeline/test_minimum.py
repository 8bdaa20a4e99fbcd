"""The least memory, and next to no more where that takes far less time."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.pipeline.closed_loop import Candidate
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.within_budget import plan_within
from onnxremat.planner.options import PlanOptions
from onnxremat.units import parse_budget
from tests.devices.plans import BESIDE
from tests.toolbox import parse

# A few numbers that take most of the time are read before the largest step and after it.
FEW = """g (float[256, 256] x) => (float[256, 256] y) <int64[1] k = {1}> {
    a = MatMul(x, w) b = MatMul(a, w) v = ReduceMean<keepdims = 0>(b, k) s = Unsqueeze(v, k)
    c = Add(x, s) d = Cos(c) e = Mul(c, d) f = Mul(e, d) y = Add(f, s)
}"""
MANY = FEW.replace("(x, s)", "(x, b)").replace("(f, s)", "(f, b)")


def _model(text: str) -> onnx.ModelProto:
    model = parse(text)
    weight = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def _planned(model: onnx.ModelProto, budget: str) -> Candidate:
    settings = Settings(threads=1, target="none", not_counted=BESIDE, measure=False)
    return plan_within(prepare(model, settings), parse_budget(budget), PlanOptions(work=4000))


def test_a_little_more_that_saves_much_time_is_taken_and_said() -> None:
    made = _planned(_model(FEW), "min")
    assert made.plan.recomputations == 0
    (note,) = (n for n in made.plan.provenance.notes if "asks for the other" in n)
    least = int(note.rpartition("--budget ")[2].split()[0])
    assert least < made.process <= 1.005 * least
    assert "more and takes +0 %" in note
    other = _planned(_model(FEW), str(least))
    assert other.plan.recomputations > 0
    assert other.process == least


def test_the_least_is_written_where_little_more_saves_little() -> None:
    made = _planned(_model(MANY), "min")
    assert made.plan.recomputations > 0
    assert made.artifact.seconds > 1.05 * made.prepared.costs.total
    assert not any("asks for the other" in note for note in made.plan.provenance.notes)
