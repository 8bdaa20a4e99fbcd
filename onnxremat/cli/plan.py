"""onnxremat plan IN -o plan.json --budget 2GiB: decide only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from onnxremat import api
from onnxremat.cli import args
from onnxremat.cli.console import Voice, percent, size
from onnxremat.graph.onnx_io import atomic, check_writable
from onnxremat.run.closed_loop import Outcome
from onnxremat.run.graph_plan import plan_graph
from onnxremat.units import format_seconds, one_budget

NAME = "plan"


def command(
    source: args.Model,
    budget: args.Budget = "0.6x",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the plan as JSON.")
    ] = None,
    shape: args.Shape = None,
    dim: args.Dim = None,
    target: args.Target = "portable",
    time_limit: args.TimeLimit = 60.0,
    gap: args.Gap = 5e-5,
    solver: args.Solver = "auto",
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    fixed_order: args.FixedOrder = False,
    data: args.Data = None,
    measure: args.Measure = True,
    fresh: args.Fresh = False,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Decide what to store and what to recompute; write plan.json, for apply.

    A graph file of a planner study (.json: nodes with sizes and costs) is planned as it is; a
    share of its budget means the peak of storing everything in the file's order.
    """
    voice = Voice(as_json, quiet)
    if output:
        check_writable(output)
    if source.suffix == ".json":
        with voice.working() as interrupt:
            options = args.make_plan_options(
                time_limit, gap, solver, seed, voice.planning, interrupt
            )
            facts = plan_graph(source, one_budget(budget), options, fixed_order=fixed_order)
        _tell(voice, facts, output, json.dumps(facts), as_json)
        return
    settings = args.make_settings(
        shape, dim, target, threads, seed, data, measure, fresh, fixed_order
    )
    with voice.working() as interrupt:
        options = args.make_plan_options(time_limit, gap, solver, seed, voice.planning, interrupt)
        outcome = api.plan(source, budget=budget, settings=settings, options=options, say=voice.say)
    _tell(voice, _facts(outcome), output, outcome.plan.dumps(), as_json)


def _tell(
    voice: Voice, facts: dict[str, Any], output: Path | None, text: str, as_json: bool
) -> None:
    if output:
        with atomic(output) as temporary:
            temporary.write_text(text + "\n")
        voice.note(f"wrote {output}")
    voice.note(_sentence(facts))
    if as_json:
        voice.result(facts)


def _facts(outcome: Outcome) -> dict[str, Any]:
    facts = outcome.plan.provenance
    return {
        "status": facts.status,
        "budget_bytes": outcome.budget,
        "peak_predicted_bytes": outcome.predicted.peak,
        "peak_measured_bytes": outcome.measured.peak if outcome.measured else None,
        "overhead_planned": facts.overhead,
        "bound": facts.bound_overhead,
        "bound_any_order": facts.any_order,
        "gap": facts.gap,
        "plan_seconds": facts.plan_seconds,
        "recomputed_ops": outcome.plan.recomputations,
        "planner": facts.planner,
        "notes": list(facts.notes),
    }


def _sentence(facts: dict[str, Any]) -> str:
    scope = "any order" if facts["bound_any_order"] else "this order"
    return (
        f"{facts['status']}: peak {size(facts['peak_predicted_bytes'])} of "
        f"{size(facts['budget_bytes'])}, overhead {percent(facts['overhead_planned'])}, bound "
        f"{percent(facts['bound'])} ({scope}), {facts['recomputed_ops']} recomputations, "
        f"planned in {format_seconds(facts['plan_seconds'])}"
    )
