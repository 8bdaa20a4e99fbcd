"""The memory-time curve of a model or a graph file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any

from onnxremat.errors import InfeasibleError, NoPlanError, OverBudgetError, UsageError
from onnxremat.limits import POINTS, at_least, check
from onnxremat.pipeline.closed_loop import PINS, Candidate
from onnxremat.pipeline.limits import Limit, limit_of
from onnxremat.pipeline.study_problem import Subject
from onnxremat.pipeline.within_budget import plan_within
from onnxremat.planner import smallest_budget
from onnxremat.planner.options import PlanOptions, Stop
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import seconds
from onnxremat.planner.solution import Certificate, Solution, Status, unsolved
from onnxremat.planner.sweep import Point, budgets_between, sweep, tightened
from onnxremat.studies.graph_file import plan_problem
from onnxremat.studies.parts_curve import parts_curve
from onnxremat.studies.points import SweepPoint
from onnxremat.units import Budget, format_bytes


@dataclass(frozen=True)
class Curve:
    """The answers at several budgets.

    Attributes:
        subject: what was planned.
        points: largest budget first, planned whole.
        parts: the same with regions in parts, estimated.
        whole: why there are none of these, "" where they were looked for.
        infeasible_below: bytes of the process; no smaller budget has a plan, for the reason in
            ``why``; 0 when that was not asked.
    """

    subject: Subject
    points: list[SweepPoint]
    infeasible_below: int
    why: str
    parts: list[SweepPoint] = field(default_factory=list)
    whole: str = ""

    def facts(self) -> dict[str, Any]:
        """All figures as plain data."""
        return {
            "model": self.subject.name,
            "baseline_peak_bytes": self.subject.baseline_peak,
            "baseline_process_bytes": self.subject.baseline_process,
            "store_all_peak_bytes": self.subject.store_all_peak,
            "infeasible_below_bytes": self.infeasible_below or None,
            "infeasible_why": self.why or None,
            "beside_bytes": self.subject.beside,
            "points": [asdict(point) for point in self.points],
            "in_parts": [asdict(point) for point in self.parts],
            "in_parts_why_not": self.whole or None,
        }


def curve(
    subject: Subject,
    budgets: Sequence[Budget] | None,
    points: int,
    options: PlanOptions,
    jobs: int = 1,
    say: Callable[[str], None] | None = None,
) -> Curve:
    """Plan at several budgets on predicted peaks; what is done by then when stopped.

    Args:
        budgets: None for ``points`` budgets from the unoptimised peak to the smallest one.
        jobs: budgets planned at the same time, in processes of their own.

    Raises:
        UsageError: more points than anybody reads, or fewer than two; a limit of columns that no
            formulation has.
    """
    options.method.heeded()
    at_least(points, 2, "points")
    at_least(jobs, 1, "jobs")
    check(points, POINTS, "points of a curve", hint="fewer --points", kind=UsageError)
    say = say or (lambda _: None)
    known: list[Point] = []
    below, why = 0, ""
    if budgets is None:
        say("looking for the smallest budget")
        low, below, why = _lowest(subject, options)
        known = [low] if options.method.ladder else []
        top = max(subject.baseline_peak, subject.store_all_peak, low.budget)
        wanted = budgets_between(low.budget, top, points)
    else:
        limits = [subject.limit(budget) for budget in budgets]
        wanted = [
            limit.planned if limit else _lowest(subject, options)[0].budget for limit in limits
        ]
    count = len({*wanted} | {point.budget for point in known})
    finished = len(known)

    def done(point: Point) -> None:
        nonlocal finished
        finished += 1
        say(f"{finished} of {count} budgets planned")

    quiet = replace(
        options, stop=None, progress=options.progress if jobs == 1 else None,
        threads=max(1, options.threads // jobs),
    )  # fmt: skip
    totals = _totals(subject, budgets or ())
    answer = _Answer(_light(subject), quiet, totals)
    found = sweep(answer, wanted, known=known, jobs=jobs, stop=options.stop, done=done)
    close = options.gap * subject.store_all_seconds
    rows = [
        _row(subject, point, total)
        for point in tightened(found, close)
        for total in totals.get(point.budget) or [None]
    ]
    parts, whole = parts_curve(subject, rows, options, further=budgets is None, say=say)
    return Curve(subject, rows, below, why, parts, whole)


@dataclass(frozen=True)
class _Carried(Solution):
    """A plan as it was carried out.

    Attributes:
        beside: bytes that its process takes beside weights and values.
    """

    beside: int = 0


@dataclass(frozen=True)
class _Answer:
    """The planner for one budget of a subject."""

    subject: Subject
    options: PlanOptions
    totals: Mapping[int, Sequence[int | None]]  # of the process, where that was asked for

    def __call__(self, budget: int, warm: Sequence[int] | None, stop: Stop | None) -> Solution:
        options = replace(self.options, stop=stop)
        if self.subject.model is None:
            return plan_problem(self.subject, budget, options, warm)
        total = min((size for size in self.totals.get(budget, ()) if size), default=None)
        limit = Limit(budget, total)
        try:
            made = plan_within(self.subject.model, limit, options, warm, explain=False)
        except InfeasibleError as error:
            return _without(Status.INFEASIBLE, error.why)
        except (NoPlanError, OverBudgetError) as error:
            return _without(Status.UNKNOWN, error.why)
        return _as_solution(self.subject, made)


def _without(status: Status, why: str) -> Solution:
    """No plan; every budget of a curve is planned in the same orders, so a proof holds for all."""
    bound = inf if status is Status.INFEASIBLE else 0.0
    proof = Certificate(bound, "none", any_order=True)
    return unsolved(status, proof, (why,) if why else ())


def _as_solution(subject: Subject, made: Candidate) -> Solution:
    """A plan that was carried out, in the planner's terms."""
    assert subject.model is not None
    facts = made.plan.provenance
    proof = Certificate(facts.bound, facts.bound_kind, facts.any_order, facts.staged)
    return _Carried(
        Status(facts.status),
        Schedule.of(subject.problem, subject.model.reduced.project(made.plan.sequence)),
        facts.seconds, (made.peak,), proof, facts.planner, facts.plan_seconds,
        notes=facts.notes, beside=made.artifact.beside,
    )  # fmt: skip


def _totals(subject: Subject, budgets: Sequence[Budget]) -> dict[int, list[int | None]]:
    """Of the bytes for weights and values those of the process that leave them, largest first:
    several that leave none."""
    if subject.model is None:
        return {}
    found: dict[int, set[int | None]] = {}
    for budget in budgets:
        if limit := limit_of(subject.model, budget):
            found.setdefault(limit.planned, set()).add(limit.total)
    return {size: sorted(row, key=lambda one: -(one or 0)) for size, row in found.items()}


def _light(subject: Subject) -> Subject:
    """The subject without what only measuring needs, cheap to hand to another process."""
    if subject.model is None:
        return subject
    return replace(subject, model=subject.model.bare)


def _lowest(subject: Subject, options: PlanOptions) -> tuple[Point, int, str]:
    """The smallest budget with a plan, the largest proven to have none, and why."""
    if subject.model is None:
        found, sequence, lower, why = smallest_budget(
            subject.problem, replace(options, fixed_order=subject.fixed_order)
        )
        solution = plan_problem(subject, found, options, sequence)
        if solution.sequence is None:  # another method than the one that found it
            proof = Certificate(0.0, "none", any_order=True)
            time = seconds(subject.problem, sequence)
            solution = Solution(
                Status.FEASIBLE,
                Schedule.of(subject.problem, sequence),
                time,
                (found,),
                proof,
                "smallest-budget",
            )
        return Point(found, solution), lower, why
    made = plan_within(subject.model.unmeasured, Budget("min", "min", 0.0), options)
    # Run, it may need some pins more than on paper.
    return Point(made.limit + PINS, _as_solution(subject, made)), made.lower, made.why


def _row(subject: Subject, point: Point, total: int | None) -> SweepPoint:
    found, store_all = point.solution, subject.store_all_seconds or 1.0
    beside = found.beside if isinstance(found, _Carried) else subject.beside
    budget = total or point.budget + beside
    proof = found.certificate
    status = found.status.value
    if found.sequence is None:
        proven = found.status is Status.INFEASIBLE and (proof.any_order or subject.fixed_order)
        status = f"infeasible (at least {format_bytes(budget + 1)})" if proven else "none found"
    bound = None if proof.bound == inf else max(0.0, proof.bound / store_all - 1)
    there = found.sequence is not None
    return SweepPoint(
        budget, point.budget, found.peak + beside if there else None,
        found.peak if there else None, found.time / store_all - 1 if there else None, bound,
        proof.any_order, status, found.planner, found.plan_seconds,
    )  # fmt: skip
