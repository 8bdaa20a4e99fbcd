"""Solver back ends behind one interface, and the choice among them."""

from __future__ import annotations

from onnxremat.plan.model import Model
from onnxremat.plan.solvers.base import Limits, Outcome, Result, Solver, refused
from onnxremat.plan.solvers.gurobi import Gurobi
from onnxremat.plan.solvers.highs import Highs
from onnxremat.plan.solvers.scip import Scip

SOLVERS: dict[str, Solver] = {s.name: s for s in (Highs(), Gurobi(), Scip())}
PREFERENCE = ("gurobi", "highs", "scip")  # measured on the cut models; see docs/planner.md

__all__ = ["PREFERENCE", "SOLVERS", "Limits", "Outcome", "Result", "Solver", "minimise"]


def minimise(model: Model, limits: Limits, solver: str = "auto") -> tuple[Result, list[str]]:
    """Solve with the solver asked for, falling back to the others with a note for each.

    Args:
        solver: ``auto`` or a name in :data:`SOLVERS`.

    Returns:
        The result and one sentence per fall-back. ``REFUSED`` only when no solver took the model.

    Raises:
        ValueError: unknown solver name.
    """
    if solver != "auto" and solver not in SOLVERS:
        raise ValueError(f"unknown solver {solver!r}: choose from auto, {', '.join(SOLVERS)}")
    order = list(PREFERENCE)
    if solver != "auto":
        order = [solver] + [name for name in order if name != solver]
    notes: list[str] = []
    for name in order:
        quiet = solver == "auto" and name == "gurobi"
        back_end = SOLVERS[name]
        reason = back_end.unavailable() or back_end.unfit(model)
        if reason is None:
            result = back_end.solve(model, limits)
            if result.outcome is not Outcome.REFUSED:
                return result, notes
            reason = result.message
        if (name == solver or solver == "auto") and not quiet:
            notes.append(reason)
    return refused("no solver could take the model"), notes
