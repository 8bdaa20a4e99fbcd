"""Second runs that the budget does not need go, and no others."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.search import deletion
from onnxremat.planner.search.arrays import arrays_of, pack, unpack
from onnxremat.planner.search.compiled import generator
from onnxremat.planner.search.session import Search
from onnxremat.planner.semantics import InvalidScheduleError, peak, seconds
from tests.planner.oracle import random_problem, random_sequence


def lightened(problem: Problem, sequence: list[int], budget: int) -> list[int] | None:
    arrays = arrays_of(ProblemLists(problem), [budget])
    codes = pack(Schedule.of(problem, sequence).steps)
    found = deletion.lightened(arrays, codes, generator(0))
    return None if found is None else [step.item for step in unpack(found)]


def without(sequence: list[int], step: int) -> list[int]:
    return [*sequence[:step], *sequence[step + 1 :]]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(0, 10**6), st.floats(0, 1))
def test_what_is_left_is_needed(seed: int, ops: int, which: int, share: float) -> None:
    problem = random_problem(seed, ops)
    sequence = random_sequence(problem, which, fixed_order=False)
    try:
        least = peak(problem, sequence)
    except InvalidScheduleError:
        assume(False)
    budget = least + int(10 * share)
    found = lightened(problem, sequence, budget)
    assert found is not None
    assert peak(problem, found) <= budget
    assert seconds(problem, found) <= seconds(problem, sequence)
    seen = set[int]()
    for step, op in enumerate(found):
        if op in seen:
            with pytest.raises((InvalidScheduleError, AssertionError)):
                assert peak(problem, without(found, step)) <= budget
        seen.add(op)
    assert lightened(problem, sequence, least - 1) is None


def test_the_best_of_several_orders_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of several second runs goes first decides what the others can spare."""
    quicker = 0
    for seed in (5, 13, 14, 22, 28):
        problem, took = random_problem(seed, 120), list[float]()
        full = Schedule.of(problem, problem.store_all())
        for tries in (1, deletion.TUNING.tries):
            monkeypatch.setattr(deletion, "TUNING", deletion.TUNING._replace(tries=tries))
            search = Search(ProblemLists(problem), [int(0.7 * peak(problem, full.sequence))])
            found = search.fit(full, float("inf"), lambda: False, 2, 1.0)
            assert found is not None
            took.append(seconds(problem, found.sequence))
        monkeypatch.undo()
        assert took[1] <= took[0]
        quicker += took[1] < took[0]
    assert quicker >= 2
