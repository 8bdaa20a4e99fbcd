"""Why there is no plan for a budget, as an error that says what would work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from onnxremat.errors import InfeasibleError, NoPlanError, OnnxrematError
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


@dataclass(frozen=True)
class Least:
    """What would work.

    Attributes:
        works: smallest budget with a plan, in bytes.
        lower: proven lower bound on every budget in bytes, ``why`` its reason.
        how: what the smallest budget takes.
    """

    works: int
    lower: int
    why: str
    how: str = ""


def unproven(error: InfeasibleError, untried: str) -> NoPlanError:
    """The refusal of a whole, where parts may do with less: no proof.

    Args:
        untried: why it is not known what they take.
    """
    why = "; ".join(filter(None, (f"no plan of the whole is possible: {error.why}", untried)))
    return NoPlanError(error.what, why=why, hint=error.hint, smallest=error.smallest)


def refusal(
    name: str,
    limit: int,
    solution: Solution,
    least: Least,
    *,
    all_ways: bool,
    notes: Sequence[str] = (),
) -> InfeasibleError | NoPlanError:
    """Proven, with the smallest budget that works; or not found in time.

    A proof for one order of first runs counts only when that order is asked for.

    Args:
        name: of the model.
        limit: the budget in bytes.
        solution: the planner's answer without a sequence.
        all_ways: the answer is about all that may be done; no other order or way is left.
        notes: further things to try.
    """
    best = "the smallest budget that a plan was found for" + (f", {least.how}" if least.how else "")
    hint = f"--budget {least.works} ({format_bytes(least.works)}, {best})"
    hint = "; ".join([hint, *notes])
    need = f"at least {format_bytes(least.lower)} ({least.lower} B) are needed: {least.why}"
    if limit < least.lower or (solution.status is Status.INFEASIBLE and all_ways):
        if limit >= least.lower:
            need = f"proven by {solution.certificate.kind}; {need}"
        above = max(least.lower, min(limit + 1, least.works))
        return InfeasibleError(
            f"no plan for {name} fits {format_bytes(limit)} ({limit} B)",
            why=need,
            hint=hint,
            smallest=least.works,
            lower_bound=above if limit >= least.lower else least.lower,
        )
    return NoPlanError(
        f"no plan for {name} within {format_bytes(limit)} ({limit} B) found in time",
        why=f"not proven impossible in every order; {need}",
        hint=f"raise --time-limit, or {hint}",
        smallest=least.works,
    )


def or_as_it_is(error: OnnxrematError, takes: int, opens: bool) -> OnnxrematError:
    """A refusal whose hint is no budget beyond what the original takes: that is kept by it.

    Args:
        takes: bytes of the original, of what budgets count.
        opens: opening it takes no more for certain; else a share is what keeps it.
    """
    works = getattr(error, "smallest", None)
    if works is not None and takes < works:
        as_it_is = f"--budget {takes if opens else '1.0x'} ({format_bytes(takes)}, what the "
        error.hint = _BUDGET.sub(
            as_it_is + "original takes: it is written as it is then)", error.hint, count=1
        )
        if opens and isinstance(error, InfeasibleError | NoPlanError):
            error.smallest = takes
    return error


_BUDGET = re.compile(r"--budget \d+ \([^()]*\)")
