"""Planners side by side on a model or a graph file, as figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from onnxremat.limits import at_least
from onnxremat.pipeline.refusal import Refusal
from onnxremat.pipeline.study_problem import Subject
from onnxremat.planner import smallest_budget
from onnxremat.planner.baselines import BASELINES
from onnxremat.planner.lineup import Entry, beaten, line_up, method_of
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.solution import Status
from onnxremat.units import Budget, format_bytes

OURS = "auto"
STANDARD = (OURS, *BASELINES)


@dataclass(frozen=True)
class Standing:
    """One planner at one budget: sizes in bytes, shares of the store-all time, wall seconds.

    ``budget`` and ``process`` are of the process (at most, of a plan that is not rewritten),
    ``limit`` and ``peak`` what of these is for weights and values. ``overhead``, ``process`` and
    ``peak`` are None without a plan, and ``why`` says the reason. ``bound`` and ``gap`` are what is
    proven about our planner's answer, None for planners that prove nothing.
    """

    planner: str
    budget: int
    limit: int
    process: int | None
    peak: int | None
    overhead: float | None
    seconds: float | None
    bound: float | None
    gap: float | None
    any_order: bool
    status: str
    why: str


@dataclass(frozen=True)
class Comparison:
    """All standings, and the sentences that say where another planner beat ours (a defect)."""

    subject: Subject
    standings: list[Standing]
    defects: list[str]

    def require_a_plan(self) -> None:
        """Raises:
        InfeasibleError: proven that no budget has a plan.
        NoPlanError: no planner found one for any budget.
        """
        if any(row.overhead is not None for row in self.standings):
            return
        budgets = {row.budget for row in self.standings}
        proven = {
            row.budget
            for row in self.standings
            if row.status == Status.INFEASIBLE.value and (row.any_order or self.subject.fixed_order)
        }
        what = f"no planner has a plan for {self.subject.name} at " + ", ".join(
            format_bytes(budget) for budget in sorted(budgets)
        )
        hint = "onnxremat compare IN --budget min: the least that works"
        if budgets == proven:
            raise Refusal(what, "proven by at least one of them", proven=True, first=hint).error()
        raise Refusal(what, "", proven=False, first=f"a longer --time-limit; or {hint}").error()


def compare_planners(
    subject: Subject,
    budgets: Sequence[Budget],
    options: PlanOptions,
    *,
    planners: Sequence[str] = STANDARD,
    jobs: int = 1,
    say: Callable[[str], None] | None = None,
) -> Comparison:
    """Plan with every planner at every budget, on the planner's numbers; nothing is rewritten.

    Args:
        planners: names of planners and formulations; ours is added.
        jobs: planners running at the same time.

    Raises:
        UsageError: unknown planner.
    """
    at_least(jobs, 1, "jobs")
    say = say or (lambda _: None)
    names = line_of(planners, options)
    totals = dict(_limit(subject, budget, options) for budget in budgets)
    asked = replace(options, fixed_order=subject.fixed_order)

    def done(entry: Entry) -> None:
        say(f"{entry.planner} at {format_bytes(totals[entry.budget])}")

    entries = line_up(subject.problem, list(totals), names, asked, jobs=jobs, done=done)
    total = subject.store_all_seconds
    noise = max(options.gap, 1e-6) * total
    defects = [_defect(subject, better, ours) for better, ours in beaten(entries, OURS, noise)]
    return Comparison(subject, [_standing(subject, e, totals[e.budget]) for e in entries], defects)


def line_of(planners: Sequence[str], options: PlanOptions) -> list[str]:
    """Names of planners and formulations, ours first.

    Raises:
        UsageError: unknown planner, or a limit of columns that none of them heeds.
    """
    names = list(dict.fromkeys((OURS, *planners)))
    methods = [method_of(name, options.method.most_columns) for name in names]
    if not any(method.formulation for method in methods):
        options.method.heeded()
    return names


def _limit(subject: Subject, budget: Budget, options: PlanOptions) -> tuple[int, int]:
    """Bytes of the problem within a budget, and of the process."""
    limit = subject.limit(budget)
    if limit is not None:
        return limit.planned, limit.asked(subject.beside)
    found, sequence, _, _ = smallest_budget(
        subject.problem,
        replace(options.lasting(options.time_limit / 2), fixed_order=subject.fixed_order),
    )
    return found, found + subject.beside_of(sequence)


def _standing(subject: Subject, entry: Entry, budget: int) -> Standing:
    found, total = entry.solution, subject.store_all_seconds or 1.0
    if found is None:
        return Standing(
            entry.planner, budget, entry.budget, None, None, None, None, None, None, False,
            "failed", entry.why,
        )  # fmt: skip
    proof = found.certificate
    proven = entry.planner not in BASELINES and proof.bound < inf
    bound = max(0.0, proof.bound / total - 1) if proven else None
    overhead = found.time / total - 1 if entry.found else None
    gap = None if bound is None or overhead is None else max(0.0, overhead - bound)
    status = found.status.value
    if not entry.found and found.status is not Status.INFEASIBLE:
        status = "no plan"
    peak = found.peak if entry.found else None
    process = None if peak is None else peak + subject.beside_of(found.sequence or ())
    return Standing(
        entry.planner, budget, entry.budget, process, peak, overhead, found.plan_seconds, bound,
        gap, proof.any_order, status, subject.said(found.notes),
    )  # fmt: skip


def _defect(subject: Subject, better: Entry, ours: Entry) -> str:
    at = f"{better.planner} beats {ours.planner} at {format_bytes(better.budget + subject.beside)}"
    assert better.solution is not None
    total = subject.store_all_seconds or 1.0
    words = f"{better.solution.time / total - 1:+.4%}"
    if ours.solution is None or not ours.found:
        return f"{at}: {words} against no plan"
    return f"{at}: {words} against {ours.solution.time / total - 1:+.4%}"
