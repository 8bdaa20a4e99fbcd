"""The memory-time curve: one answer per budget, from the store-all peak down to the minimum.

A sequence for a budget is within every larger one, and a bound for a budget holds for every smaller
one. So budgets are planned from the smallest up, each from the best sequence known, and the points
that come out are tightened by each other until the curve is monotone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from onnxremat.planner.options import Stop
from onnxremat.planner.solution import Certificate, Solution, Status, unsolved
from onnxremat.planner.workers import Failure, run_tasks


@dataclass(frozen=True)
class Point:
    """One budget in bytes and the planner's answer."""

    budget: int
    solution: Solution


class Answer(Protocol):
    """The planner for one budget; picklable when several processes share the work."""

    def __call__(self, budget: int, warm: Sequence[int] | None, stop: Stop | None) -> Solution:
        """The best sequence within ``budget`` bytes, started from ``warm``."""


def budgets_between(low: int, high: int, count: int) -> list[int]:
    """``count`` budgets from ``high`` down to ``low``, evenly spread."""
    if count < 2 or high <= low:
        return [high]
    return [high - (high - low) * k // (count - 1) for k in range(count)]


def sweep(
    answer: Answer,
    budgets: Sequence[int],
    *,
    known: Sequence[Point] = (),
    jobs: int = 1,
    stop: Stop | None = None,
    done: Callable[[Point], None] | None = None,
) -> list[Point]:
    """The points, to be :func:`tightened`; those done by then when stopped.

    Args:
        answer: plans one budget.
        known: points known before; they start and tighten the others, and are part of the curve.
        jobs: budgets planned at the same time; from two on in processes of their own, where a
            budget that brings its process down becomes a point with a note instead of a plan.
        done: told of each point as it comes.
    """
    points = list(known)
    wanted = sorted(set(budgets) - {point.budget for point in points})
    for budget, solution in _answers(answer, wanted, points, jobs, stop):
        point = Point(budget, solution)
        points.append(point)
        if done is not None:
            done(point)
    return points


def _answers(
    answer: Answer, budgets: list[int], points: list[Point], jobs: int, stop: Stop | None
) -> Iterator[tuple[int, Solution]]:
    """(budget, answer), each from the fastest sequence that ``points`` hold by then."""

    def tasks() -> Iterator[tuple[int, Sequence[int] | None]]:
        for budget in budgets:
            yield budget, _fastest_below(points, budget)

    if jobs > 1:
        for (budget, _), found in run_tasks(_Remote(answer), tasks(), jobs=jobs, stop=stop):
            yield budget, _nothing(found.why) if isinstance(found, Failure) else found
        return
    for budget, warm in tasks():
        if stop is not None and stop():
            return
        yield budget, answer(budget, warm, stop)


@dataclass(frozen=True)
class _Remote:
    """The planner as a function of one task."""

    answer: Answer

    def __call__(self, task: tuple[int, Sequence[int] | None], stop: Stop) -> Solution:
        from onnxremat.planner.search import warm_up

        warm_up()  # loading compiled code is no part of planning
        return self.answer(*task, stop)


def _fastest_below(points: Sequence[Point], budget: int) -> Sequence[int] | None:
    fit = [point.solution for point in points if point.budget <= budget]
    return min(fit, key=lambda found: found.time).sequence if fit else None


def _nothing(why: str) -> Solution:
    proof = Certificate(0.0, "none", any_order=True)
    return unsolved(Status.UNKNOWN, proof, (why,))


def tightened(points: Sequence[Point], close: float = 0.0) -> list[Point]:
    """The points with what their neighbours prove and found, largest budget first.

    A bound for one order of first runs is passed on only to sequences in that order, and one for
    staged sequences not at all.

    Args:
        close: seconds within which a changed answer counts as optimal.
    """
    falling = sorted(points, key=lambda point: -point.budget)
    quick: list[Solution] = []
    for point in reversed(falling):  # sequences go up
        best = quick[-1] if quick else point.solution
        faster = best.time < point.solution.time
        quick.append(_with_sequence(point.solution, best) if faster else point.solution)
    result: list[Point] = []
    for point, solution in zip(falling, reversed(quick), strict=True):  # bounds go down
        for above in result:
            solution = _with_bound(solution, above.solution)
        if solution is not point.solution and solution.sequence is not None:
            closed = solution.time - solution.certificate.bound <= close
            solution = replace(solution, status=Status.OPTIMAL if closed else Status.FEASIBLE)
        result.append(Point(point.budget, solution))
    return result


def _with_sequence(solution: Solution, found: Solution) -> Solution:
    """The answer with the sequence of a smaller budget's, and its own bound where that applies."""
    nothing = Certificate(0.0, "none", any_order=True)
    proof = solution.proof_of(found.schedule, nothing)
    if proof.bound == inf:
        proof = nothing
    note = "the plan of a smaller budget is the fastest known"
    return replace(
        found, certificate=replace(proof, bound=min(proof.bound, found.time)), trace=solution.trace,
        plan_seconds=solution.plan_seconds, notes=(*solution.notes, note),
    )  # fmt: skip


def _with_bound(solution: Solution, above: Solution) -> Solution:
    """The answer with the bound of a larger budget's, where that is stronger and applies."""
    proof = above.certificate
    if proof.staged or not above.proves_of(solution.schedule):
        return solution
    if proof.bound <= solution.certificate.bound:
        return solution
    if proof.bound == inf:
        if solution.sequence is not None:
            return solution
        return replace(solution, certificate=proof, status=Status.INFEASIBLE)
    return replace(solution, certificate=replace(proof, bound=min(proof.bound, solution.time)))
