"""Cuts that hold for every order: what they prove is true of each, and what they find fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from onnxremat.planner import ladder, peak
from onnxremat.planner.any_order import AnyOrder
from onnxremat.planner.bounds import largest_need
from onnxremat.planner.chain_cuts import ChainCuts, Tuning
from onnxremat.planner.formulations.cuts import build
from onnxremat.planner.formulations.extract import late_schedule
from onnxremat.planner.formulations.spans import free_spans
from onnxremat.planner.incumbent import Incumbent
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.order import late_order
from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import peaks
from onnxremat.planner.solution import Status
from onnxremat.planner.solvers import Limits, minimise
from tests.limits import LONG
from tests.planner.device_oracle import optimum as device_optimum
from tests.planner.device_oracle import random_device_problem, random_schedule
from tests.planner.graphs import late_weights
from tests.planner.oracle import optimum, random_problem

EPS = 1e-6
WORK = PlanOptions(work=3000, threads=1, gap=1e-6)


def middle(problem: Problem) -> int:
    """A budget between the least need and the peak of storing all."""
    low, high = largest_need(ProblemLists(problem)).bytes, peak(problem, problem.store_all())
    return (2 * low + high) // 3


def cuts_of(problem: Problem, budget: int, loose: float = 1.0) -> ChainCuts:
    return ChainCuts(ProblemLists(problem), np.asarray([budget]), tuning=Tuning(loose=loose))


def begun(problem: Problem, budgets: int | list[int]) -> Incumbent:
    """What cuts that hold for every order find and prove, however many ops they leave free."""
    made = Incumbent.of(problem, budgets, WORK)
    anyhow = AnyOrder(made, WORK)
    anyhow.portfolio.lazy.places.tuning = Tuning(loose=1.0)
    anyhow.begin()
    return made


@pytest.mark.parametrize("seed", range(60))
def test_what_is_proven_is_true_of_every_order(seed: int, warm: None) -> None:
    """However many ops the cuts leave free: the exact optimum over all orders is no less."""
    problem = random_problem(seed, 7, plain=bool(seed % 2))
    budget = middle(problem)
    exact = optimum(problem, budget, fixed_order=False)
    made = begun(problem, budget)
    assert made.free.seconds <= exact * (1 + EPS)
    assert made.value >= exact * (1 - EPS)
    assert made.ordered.kind == "store-all"


@pytest.mark.parametrize("seed", range(40))
def test_cuts_stay_on_a_chain(seed: int) -> None:
    problem = random_problem(seed, 14, plain=True)
    places = cuts_of(problem, middle(problem))
    first = places.first()
    if first is None:
        assert peak(problem, problem.store_all()) <= middle(problem)
        return
    places.cuts.append(first)
    for _ in range(4):
        if not places.add(Schedule.of(problem, problem.store_all()), 2, True):
            break
    assert len(set(places.cuts)) == len(places.cuts)
    assert free_spans(places.lists, places.cuts) is not None
    assert places.spans().any_order
    assert not places.give_order()


def test_a_cut_that_frees_too_many_is_not_made() -> None:
    problem = late_weights(6)
    places = cuts_of(problem, middle(problem))
    first = places.first()
    assert first is not None
    spans = free_spans(places.lists, [first])
    assert spans is not None
    free = sum(a < b for a, b in zip(spans.earliest, spans.latest, strict=True)) / problem.ops
    assert cuts_of(problem, middle(problem), free - EPS).first() != first
    assert cuts_of(problem, middle(problem), free + EPS).first() == first


@pytest.mark.parametrize("seed", range(40))
def test_ops_that_run_as_soon_as_they_can_run_once_and_behind_what_they_read(seed: int) -> None:
    problem = random_problem(seed, 14, plain=True)
    lists, budget = ProblemLists(problem), middle(problem)
    places = cuts_of(problem, budget)
    first = places.first()
    if first is None:
        return
    made = build(lists, free_spans(lists, [first]), [budget])
    result, _ = minimise(made.model, Limits(seconds=LONG))
    if result.point is None:
        return
    rows = made.first_runs(result.point, soon=True)
    plain = made.first_runs(result.point)
    assert [sorted(row) for row in rows] == [sorted(row) for row in plain]
    assert rows[0][-1] == first
    seen = set[int]()
    for op in (op for row in rows for op in row):
        assert seen.issuperset(lists.before[op])
        seen.add(op)
    schedule = late_schedule(made, result.point, soon=True)
    assert schedule is not None
    peak(problem, schedule)  # valid, or it raises


def test_weights_gradients_at_the_end_are_moved_and_that_is_proven(warm: None) -> None:
    """A step whose file has all gradients of weights behind those of rows: what they read is made
    once where they run in time, which no cut in the order of the file can say."""
    problem = late_weights(16)
    budget = middle(problem)
    base = ladder.solve(problem, budget, replace(WORK, fixed_order=True))
    found = ladder.solve(problem, budget, WORK)
    assert found.status is Status.OPTIMAL
    assert found.certificate.any_order
    assert found.time < base.certificate.bound - EPS


# ---- several devices -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_what_is_proven_on_several_devices_is_true_of_every_order(seed: int, warm: None) -> None:
    problem = random_device_problem(seed, 4, plain=bool(seed % 3), kept=0.1)
    schedule = random_schedule(problem, seed)
    if schedule is None:
        return
    budgets = [max(1, int(0.85 * most)) for most in peaks(problem, schedule)]
    exact = device_optimum(problem, budgets, fixed_order=False)
    made = begun(problem, budgets)
    assert made.free.seconds <= exact * (1 + EPS)
    assert made.value >= exact * (1 - EPS)


@pytest.mark.parametrize("seed", range(30))
def test_ops_are_put_off(seed: int) -> None:
    """Each op once, behind what it reads."""
    problem = random_problem(seed, 14, plain=bool(seed % 2))
    order = late_order(ProblemLists(problem))
    assert sorted(order) == problem.store_all()
    assert peak(problem, order) > 0  # the simulator refuses an order that reads what is not there


def test_a_large_value_is_made_when_it_is_read() -> None:
    problem = Problem.plain([1, 9, 5, 1, 1], [1.0] * 5, [[], [0], [0], [2], [1, 3]])
    assert late_order(ProblemLists(problem)) == [0, 2, 3, 1, 4]
