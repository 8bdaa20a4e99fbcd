"""Solver back ends behind one interface, and the choice among them."""

from __future__ import annotations

from onnxremat.planner.model import Model
from onnxremat.planner.solvers.base import Limits, Outcome, Result, Solver, refused
from onnxremat.planner.solvers.gurobi import Gurobi
from onnxremat.planner.solvers.highs import Highs, Relaxation
from onnxremat.planner.solvers.scip import Scip

SOLVERS: dict[str, Solver] = {s.name: s for s in (Highs(), Gurobi(), Scip())}
PREFERENCE = ("gurobi", "highs", "scip")  # measured on the cut models; see docs/planner.md

__all__ = [
    "PREFERENCE",
    "SOLVERS",
    "Limits",
    "Outcome",
    "Relaxation",
    "Result",
    "Solver",
    "confirm_infeasible",
    "minimise",
]


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
            if not _gave_up(result, limits):
                return result, notes
            reason = result.message or f"{name} gave up without an answer"
        if (name == solver or solver == "auto") and not quiet:
            notes.append(reason)
    return refused("no solver could take the model"), notes


def _gave_up(result: Result, limits: Limits) -> bool:
    """True when a run ended with nothing although time was left and nobody stopped it."""
    if result.outcome is Outcome.REFUSED:
        return True
    if result.outcome is not Outcome.UNKNOWN or (limits.stop is not None and limits.stop()):
        return False
    return result.seconds < 0.5 * limits.seconds and result.bound < limits.target


def confirm_infeasible(model: Model, limits: Limits) -> bool:
    """Whether every installed solver that takes the model (two at most) finds it infeasible.

    A wrong verdict would tell a user that a budget cannot be met, so one solver's word is not
    enough where a second one is at hand.
    """
    fit = [s for s in SOLVERS.values() if s.unavailable() is None and s.unfit(model) is None]
    return all(s.solve(model, limits).outcome is Outcome.INFEASIBLE for s in fit[:2])
