"""Plans for graph files of planner studies: no model, only sizes and costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnxremat.errors import ModelError
from onnxremat.plan import peak, seconds, smallest_budget, solve
from onnxremat.plan.graph_files import GraphFileError, read_graph
from onnxremat.run.closed_loop import PlanOptions
from onnxremat.run.refusal import refusal
from onnxremat.units import Budget


def plan_graph(
    path: Path, budget: Budget, options: PlanOptions, *, fixed_order: bool
) -> dict[str, Any]:
    """Plan a graph file; a share of the budget means the store-all peak in the file's order.

    Args:
        fixed_order: keep first executions in the file's order, as the studies do.

    Raises:
        ModelError: not a graph file.
        InfeasibleError, NoPlanError: no plan for the budget.
    """
    try:
        problem = read_graph(path)
    except GraphFileError as error:
        raise ModelError("not a graph file", where=str(path), why=str(error)) from error
    everything = problem.store_all()
    top = peak(problem, everything)
    limit = budget.resolve(device_bytes=top, peak_bytes=top)
    if limit is None:
        limit, _, _, _ = smallest_budget(
            problem, time_limit=options.time_limit / 2, fixed_order=fixed_order, seed=options.seed,
            stop=options.stop,
        )  # fmt: skip
    solution = solve(
        problem, limit, time_limit=options.time_limit, gap=options.gap, seed=options.seed,
        threads=options.threads, solver=options.solver, fixed_order=fixed_order,
        progress=options.progress, stop=options.stop,
    )  # fmt: skip
    if solution.sequence is None:
        works, _, lower, why = smallest_budget(
            problem, time_limit=max(5.0, options.time_limit / 2), fixed_order=fixed_order,
            seed=options.seed, stop=options.stop,
        )  # fmt: skip
        raise refusal(
            path.name, limit, solution, fixed_order=fixed_order, works=works, lower=lower, why=why
        )
    store_all = seconds(problem, everything)
    bound = min(max(solution.certificate.bound, store_all), solution.time)
    return {
        "model": path.name,
        "status": solution.status.value,
        "ops": problem.ops,
        "budget_bytes": limit,
        "baseline_peak_bytes": top,
        "peak_predicted_bytes": solution.peak,
        "peak_measured_bytes": None,
        "overhead_planned": solution.time / store_all - 1,
        "overhead_measured": None,
        "bound": bound / store_all - 1,
        "bound_kind": solution.certificate.kind,
        "bound_any_order": solution.certificate.any_order,
        "gap": (solution.time - bound) / store_all,
        "plan_seconds": solution.plan_seconds,
        "recomputed_ops": len(solution.sequence) - problem.ops,
        "planner": solution.planner,
        "fixed_order": fixed_order,
        "sequence": list(solution.sequence),
        "notes": list(solution.notes),
    }
