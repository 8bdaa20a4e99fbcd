"""Why there is no plan for a budget, as an error that says what would work."""

from __future__ import annotations

from collections.abc import Sequence

from onnxremat.errors import InfeasibleError, NoPlanError
from onnxremat.planner.solution import Solution, Status
from onnxremat.units import format_bytes


def given_up(method: str, name: str, limit: int, solution: Solution) -> NoPlanError:
    """A planner or formulation of the user's choice has no plan; others may have."""
    return NoPlanError(
        f"{method} has no plan for {name} within {format_bytes(limit)} ({limit} B)",
        why="; ".join(solution.notes) or "none was found in time",
        hint="--planner auto, a longer --time-limit, or a larger --budget",
    )


def unexplained(
    name: str, limit: int, solution: Solution, fixed_order: bool
) -> InfeasibleError | NoPlanError:
    """No plan, when nobody asked what would work."""
    what = f"no plan for {name} fits {format_bytes(limit)} ({limit} B)"
    why = "; ".join(solution.notes)
    any_order = solution.certificate.any_order or fixed_order
    if solution.status is Status.INFEASIBLE and any_order:
        return InfeasibleError(what, why=why, lower_bound=limit + 1)
    return NoPlanError(what, why=why)


def refusal(
    name: str,
    limit: int,
    solution: Solution,
    *,
    fixed_order: bool,
    works: int,
    lower: int,
    why: str,
    counts: bool = True,
    how: str = "",
    notes: Sequence[str] = (),
) -> InfeasibleError | NoPlanError:
    """Proven, with the smallest budget that works; or not found in time.

    A proof for one order of first runs counts only when that order is asked for.

    Args:
        name: of the model.
        limit: the budget in bytes.
        solution: the planner's answer without a sequence.
        works: smallest budget with a plan, in bytes.
        lower: proven lower bound on every budget in bytes, ``why`` its reason.
        counts: whether the answer is about all that can be done; there may be another way.
        how: what the smallest budget takes.
        notes: further things to try.
    """
    any_order = counts and (solution.certificate.any_order or fixed_order)
    best = "the smallest budget that a plan was found for" + (f", {how}" if how else "")
    hint = f"--budget {works} ({format_bytes(works)}, {best})"
    hint = "; ".join([hint, *notes])
    need = f"at least {format_bytes(lower)} ({lower} B) are needed: {why}"
    if limit < lower or (solution.status is Status.INFEASIBLE and any_order):
        if limit >= lower:
            need = f"proven by {solution.certificate.kind}; {need}"
        return InfeasibleError(
            f"no plan for {name} fits {format_bytes(limit)} ({limit} B)",
            why=need,
            hint=hint,
            smallest=works,
            lower_bound=max(lower, min(limit + 1, works)) if limit >= lower else lower,
        )
    return NoPlanError(
        f"no plan for {name} within {format_bytes(limit)} ({limit} B) found in time",
        why=f"not proven impossible in every order; {need}",
        hint=f"raise --time-limit, or {hint}",
        smallest=works,
    )
