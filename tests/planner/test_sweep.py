"""The memory-time curve is monotone, whoever plans it and however many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import pytest

from onnxremat.planner import Certificate, Problem, Solution, Status, peak, seconds, solve
from onnxremat.planner.options import Stop
from onnxremat.planner.schedule import Schedule, Step
from onnxremat.planner.sweep import Point, budgets_between, sweep, tightened
from tests.limits import LONG
from tests.planner.asking import asked
from tests.planner.graphs import skip_chain

PROBLEM = skip_chain(40, 9, skip=0.2)
TOP = peak(PROBLEM, PROBLEM.store_all())


@dataclass(frozen=True)
class Ladder:
    """The planner of a curve."""

    problem: Problem

    def __call__(self, budget: int, warm: Sequence[int] | None, stop: Stop | None) -> Solution:
        return solve(self.problem, budget, asked(time_limit=LONG, stop=stop), warm=warm)


@pytest.mark.parametrize("jobs", [1, 2])
def test_curve_is_monotone_and_within_its_budgets(jobs: int) -> None:
    budgets = budgets_between(int(0.4 * TOP), TOP, 5)
    seen: list[Point] = []
    points = tightened(sweep(Ladder(PROBLEM), budgets, jobs=jobs, done=seen.append))
    assert [point.budget for point in points] == budgets
    assert sorted(point.budget for point in seen) == sorted(budgets)
    times = [point.solution.time for point in points]
    bounds = [point.solution.certificate.bound for point in points]
    assert times == sorted(times)
    assert bounds == sorted(bounds)
    for point in points:
        assert point.solution.sequence is not None
        assert peak(PROBLEM, point.solution.sequence) <= point.budget
        assert seconds(PROBLEM, point.solution.sequence) == point.solution.time
        assert point.solution.certificate.bound <= point.solution.time


def answer(time: float, bound: float, order: tuple[int, ...] = (0, 1), **facts: object) -> Solution:
    """A made-up answer; ``free`` makes its bound hold for any order."""
    proof = Certificate(bound, "cut", bool(facts.get("free", True)), bool(facts.get("staged")))
    status = Status.FEASIBLE if time < inf else Status.UNKNOWN
    status = Status.INFEASIBLE if bound == inf else status
    schedule = Schedule(tuple(Step(op, 0) for op in order), ())
    return Solution(status, schedule if time < inf else None, time, (1,), proof, "test", 0.5)


def curve(*answers: Solution, close: float = 0.0) -> list[Solution]:
    """Tightened answers of budgets 10, 20, .., smallest first."""
    points = [Point(10 * (k + 1), found) for k, found in enumerate(answers)]
    return [point.solution for point in tightened(points, close)][::-1]


def test_plans_go_up_and_bounds_go_down() -> None:
    low, middle, high = curve(answer(5, 1), answer(7, 3), answer(6, 2))
    assert (low.time, middle.time, high.time) == (5, 5, 5)
    assert (low.certificate.bound, middle.certificate.bound) == (3, 3)
    assert high.certificate.bound == 2
    assert "smaller budget" in middle.notes[-1]


def test_what_meets_its_neighbours_bound_is_optimal() -> None:
    low, high = curve(answer(5, 1), answer(9, 5))
    assert high.status is low.status is Status.OPTIMAL
    low, _ = curve(answer(5.01, 1), answer(9, 5), close=0.1)
    assert low.status is Status.OPTIMAL
    low, _ = curve(answer(5.2, 1), answer(9, 5), close=0.1)
    assert low.status is Status.FEASIBLE


def test_a_bound_of_one_order_stays_in_it() -> None:
    other = answer(6, 2, order=(1, 0), free=False)
    low, _ = curve(answer(7, 1, order=(0, 1)), other)
    assert low.certificate.bound == 1
    low, _ = curve(answer(7, 1, order=(1, 0)), other)
    assert low.certificate.bound == 2
    low, high = curve(answer(5, 1, order=(0, 1)), other)  # its own bound no longer applies
    assert high.time == 5
    assert high.certificate.bound == 0


def test_a_bound_of_staged_plans_stays_with_them() -> None:
    low, _ = curve(answer(7, 1), answer(6, 5, staged=True))
    assert low.certificate.bound == 1


def test_infeasible_budgets_make_smaller_ones_infeasible() -> None:
    low, middle, high = curve(answer(inf, 0), answer(inf, inf), answer(9, 2))
    assert low.status is middle.status is Status.INFEASIBLE
    assert high.status is Status.FEASIBLE
    low, high = curve(answer(5, 1), answer(inf, 2))  # a plan for less is one for more
    assert high.time == 5


def test_known_points_are_part_of_the_curve_and_start_others() -> None:
    begun: list[Sequence[int] | None] = []
    plain = Ladder(PROBLEM)

    def planner(budget: int, warm: Sequence[int] | None, stop: Stop | None) -> Solution:
        begun.append(warm)
        return plain(budget, warm, stop)

    budget = int(0.5 * TOP)
    known = Point(budget, plain(budget, None, None))
    points = tightened(sweep(planner, [budget, TOP], known=[known]))
    assert [point.budget for point in points] == [TOP, budget]
    assert begun == [known.solution.sequence]


def test_stopping_keeps_what_is_done() -> None:
    done: list[Point] = []
    points = sweep(
        Ladder(PROBLEM), budgets_between(TOP // 2, TOP, 6), done=done.append,
        stop=lambda: len(done) >= 2,
    )  # fmt: skip
    assert len(points) == 2
    assert points == done


def dies(budget: int, warm: Sequence[int] | None, stop: Stop | None) -> Solution:
    """A planner whose process ends at one budget."""
    if budget == TOP:
        import os

        os._exit(3)
    return replace(Ladder(PROBLEM)(budget, warm, stop), planner="survivor")


def test_a_process_that_dies_is_a_point_without_a_plan_of_its_own() -> None:
    high, low = tightened(sweep(dies, [TOP, int(0.7 * TOP)], jobs=2))
    assert low.solution.planner == "survivor"
    assert high.solution.sequence == low.solution.sequence
    assert any("ended with code 3" in note for note in high.solution.notes)
