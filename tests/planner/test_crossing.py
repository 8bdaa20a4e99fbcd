"""Stretches of schedules in other schedules."""

from __future__ import annotations

from onnxremat.planner.crossing import Crossings, stretch_of
from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.search.session import Search
from onnxremat.planner.semantics import ledger, peak
from tests.planner.oracle import random_problem, random_sequence

MOST = 1 << 40


def searching(problem: Problem, budget: int = MOST) -> Search:
    return Search(ProblemLists(problem), [budget], free_order=True)


def test_what_two_schedules_make_can_be_carried_out() -> None:
    made = 0
    for seed in range(60):
        problem = random_problem(seed, 2 + seed % 15)
        search = searching(problem)
        crossings = Crossings(search, seed)
        for which in range(4):
            sequence = random_sequence(problem, seed + which, fixed_order=seed % 2 == 0)
            crossings.add(Schedule.of(problem, sequence))
        for _ in range(8):
            crossed = crossings.draw()
            if crossed is not None and search.replay(crossed) is not None:
                ledger(problem, crossed)  # refuses what cannot be carried out
                made += crossed not in [known for _, known in crossings.pool]
    assert made > 50, made


def test_a_stretch_goes_from_one_into_the_other() -> None:
    problem = random_problem(5, 12, plain=True)
    store_all = Schedule.of(problem, problem.store_all())
    again = [op for op in range(12) if problem.recompute[op] and op < 8]
    other = Schedule.of(problem, [*range(8), again[-1], *range(8, 12)])
    whole = stretch_of(store_all, other, 6, 9)
    assert whole is not None
    assert whole.sequence == other.sequence
    assert stretch_of(store_all, other, 2, 5) == store_all
    assert stretch_of(store_all, other, 5, 2) is None


def test_the_pool_has_different_schedules_within_budget_alone() -> None:
    problem = random_problem(7, 20, plain=True)
    store_all = Schedule.of(problem, problem.store_all())
    assert Crossings(searching(problem), 0).draw() is None
    crossings = Crossings(searching(problem), 0, most=3)
    for which in range(30):
        crossings.add(Schedule.of(problem, random_sequence(problem, which, fixed_order=True)))
        crossings.add(store_all)
    took = [seconds for seconds, _ in crossings.pool]
    assert len(took) == 3
    assert took == sorted(set(took))
    tight = Crossings(searching(problem, peak(problem, store_all) - 1), 0)
    tight.add(store_all)
    tight.add(None)
    assert not tight.pool
