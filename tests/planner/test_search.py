"""The compiled search agrees with the reference semantics to the byte."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.search.session import Search
from onnxremat.planner.semantics import bytes_of, ledger, occupancy, seconds
from tests.planner.oracle import random_problem, random_sequence


def searching(problem: Problem, budget: int, **facts: Any) -> Search:
    return Search(ProblemLists(problem), [budget], **facts)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 14), st.integers(0, 10**6), st.booleans())
def test_evaluator_equals_occupancy(seed: int, ops: int, which: int, fixed: bool) -> None:
    problem = random_problem(seed, ops)
    sequence = random_sequence(problem, which, fixed_order=fixed)
    schedule = Schedule.of(problem, sequence)
    use = bytes_of(problem, schedule, ledger(problem, schedule))[0]
    allowed = all(
        problem.recompute[op] and not all(problem.keep[problem.writes[op]])
        for op in set(sequence)
        if sequence.count(op) > 1
    )
    for budget in {20, *use.tolist()}:
        search = searching(problem, budget, free_order=not fixed)
        replay = search.replay(schedule)
        assert (replay is not None) == allowed
        if replay is not None:
            assert replay.seconds == pytest.approx(seconds(problem, sequence))
            assert replay.makespan == replay.seconds
            assert replay.peaks == (use.max(),)
            assert replay.area == np.maximum(use - budget, 0).sum()


def test_evaluator_refuses_bad_sequences() -> None:
    problem = random_problem(3, 6, plain=True)
    search = searching(problem, 10)
    for bad in ([0, 1, 2], [5, 4, 3, 2, 1, 0], [0]):
        assert search.replay(Schedule.of(problem, bad)) is None


@pytest.mark.parametrize("seed", range(12))
def test_greedy_and_annealing_stay_valid_and_within_budget(seed: int) -> None:
    problem = random_problem(seed, 30)
    store_all = Schedule.of(problem, problem.store_all())
    top = int(occupancy(problem, store_all).max())
    for share in (0.9, 0.75):
        search = searching(problem, int(share * top), free_order=bool(seed % 2), seed=seed)
        kept: list[Schedule] = []
        found = search.fit(store_all, time.monotonic() + 1, lambda: False, 2, 1.0)
        if found is not None:
            kept.append(found)
        search.anneal(found or store_all, 0.1, lambda: False, kept.append)
        for schedule in kept:
            assert occupancy(problem, schedule).max() <= share * top


def test_what_cannot_be_mended_leaves_nothing_of_the_last_repair() -> None:
    problem = random_problem(3, 6, plain=True)
    search, end = searching(problem, 1), time.monotonic() + 1
    search.fit(Schedule.of(problem, problem.store_all()), end, lambda: False, 0, 1.0)
    assert search.left is not None
    assert search.fit(Schedule.of(problem, [0, 1]), end, lambda: False, 0, 1.0) is None
    assert search.left is None
