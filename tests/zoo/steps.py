"""Training steps of the zoo's nets, and the same within less memory."""

from __future__ import annotations

from pathlib import Path

import onnx

import onnxremat
from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import InfeasibleError, NoPlanError
from onnxremat.grad import differentiate
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.options import PlanOptions

PLANNING, GAP = 2.0, 0.02  # seconds, and a plan that is good enough


def step_of(model: onnx.ModelProto, optimizer: str | None, loss: str) -> onnx.ModelProto:
    """The step that is compared with a module out of training mode: without dropout, whose layers
    files of onnxremat.export hold."""
    return differentiate(model, optimizer=optimizer, loss=loss, dropout=False)


def optimised(step: onnx.ModelProto, path: Path) -> float:
    """Write a step within 0.6 of what it takes, or the least that goes, and give that share.

    Raises:
        OnnxrematError: there is no such step.
    """
    settings = Settings(threads=1, costs=analytic_costs)  # what is right does not hang on times
    options = PlanOptions(time_limit=PLANNING, gap=GAP)

    def within(budget: str | int) -> onnxremat.OptimizeResult:
        return onnxremat.optimize(
            step, budget=budget, settings=settings, options=options, bench_seconds=0
        )

    try:
        made = within("0.6x")
    except (InfeasibleError, NoPlanError) as error:
        if error.smallest is None:
            raise
        made = within(error.smallest)
    made.save(path)
    return made.candidate.limit / made.prepared.baseline_peak
