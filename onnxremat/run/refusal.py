"""Why there is no plan for a budget, as an error that says what would work."""

from __future__ import annotations

from collections.abc import Sequence

from onnxremat.errors import InfeasibleError, NoPlanError
from onnxremat.plan.problem import Solution, Status
from onnxremat.units import format_bytes


def refusal(
    name: str,
    limit: int,
    solution: Solution,
    *,
    fixed_order: bool,
    works: int,
    lower: int,
    why: str,
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
        notes: further things to try.
    """
    any_order = solution.certificate.any_order or fixed_order
    hint = f"--budget {works} ({format_bytes(works)}, the smallest budget with a plan)"
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
