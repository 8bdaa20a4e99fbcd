"""A plan that was kept of an earlier refusal, carried out where its budget would be refused."""

from __future__ import annotations

from onnxremat.errors import OnnxrematError
from onnxremat.fission.region import Region
from onnxremat.fission.training import StepParts
from onnxremat.pipeline.closed_loop import Candidate
from onnxremat.pipeline.in_parts.divided import prepare_fission, prepare_split
from onnxremat.pipeline.in_parts.step_in_parts import prepare_step
from onnxremat.pipeline.kept_plans import KeptPlan, kept_plan, plan_of
from onnxremat.pipeline.limits import limit_of
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.within_budget import applied, for_limit
from onnxremat.planner.options import PlanOptions
from onnxremat.units import Budget


def plan_again(
    prepared: Prepared, budget: Budget, options: PlanOptions, log: Phases
) -> Candidate | None:
    """The plan that a refusal has named for this model, where it keeps the budget; None where none
    is kept or none was asked for."""
    limit = limit_of(prepared, budget)
    if limit is None or options.work is not None or options.stopped or not options.method.ladder:
        return None
    kept = kept_plan(prepared)
    if kept is None or not kept.keeps(limit):
        return None
    log("taking the plan of an earlier refusal, which keeps this budget")
    try:
        split = _in_its_parts(prepared, kept, log)
        plan = plan_of(split, kept.ops, kept.budget)
        made = applied(split, plan, log)
        if made.held > limit.of(made.artifact.beside):  # by what only default sessions need
            made = applied(split, plan, log, foreseen=True)
    except OnnxrematError:  # of another version, or there is no room to try it
        return None
    if kept.parts and not made.in_order:
        return None
    allowed = limit.of(made.artifact.beside)
    return for_limit(made, allowed) if made.held <= allowed else None


def _in_its_parts(prepared: Prepared, kept: KeptPlan, log: Phases) -> Prepared:
    made = prepared
    for way, said in kept.parts.items():
        if way == "split_batch":
            made = prepare_split(prepared, tuple(said), log)
        elif way == "fission":
            made = prepare_fission(prepared, tuple(Region.from_json(row) for row in said), log)
        else:
            made = prepare_step(prepared, StepParts(*said), log)
    named = ("some of it is computed in parts, as a refusal has named it",) if kept.parts else ()
    return made.noted(*named)
