"""Every formulation has the same optimum, and it is the exact one."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from onnxremat.planner import peak, seconds
from onnxremat.planner.bounds import largest_need
from onnxremat.planner.formulations import checkmate, retention, xengine
from onnxremat.planner.formulations.stages import StageModel
from onnxremat.planner.on_devices import Devices, on_devices
from onnxremat.planner.problem import OneDevice, Problem, Rows
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.semantics import peaks
from onnxremat.planner.semantics import seconds as seconds_of
from onnxremat.planner.solvers import SOLVERS, Limits, Outcome
from tests.limits import LONG
from tests.planner import oracle
from tests.planner.device_oracle import (
    optimum,
    random_device_problem,
    random_schedule,
    staged_optimum,
)
from tests.planner.oracle import random_problem
from tests.toolbox import seeds


def all_formulations(lists: ProblemLists, budget: int) -> dict[str, StageModel]:
    one = lists.problem
    return {
        "checkmate": checkmate.build(lists, budget),
        "retention": retention.build(lists, budget, intervals=lists.problem.ops),
        "xengine": xengine.build(one, [budget]),
        "xengine-linear": xengine.build(one, [budget], linear=True),
    }


def budget_of(problem: Problem, seed: int) -> int:
    low, high = largest_need(ProblemLists(problem)).bytes, peak(problem, problem.store_all())
    return low + (high - low) * (seed % 4) // 4


@pytest.mark.parametrize("seed", seeds(60, 24))
def test_formulations_agree_with_the_exact_optimum(seed: int) -> None:
    problem = random_problem(seed, 5 + seed % 2)
    lists, budget = ProblemLists(problem), budget_of(problem, seed)
    exact = oracle.staged_optimum(problem, budget)
    assert oracle.optimum(problem, budget, fixed_order=True) <= exact
    for name, made in all_formulations(lists, budget).items():
        result = SOLVERS["highs"].solve(made.model, Limits(seconds=LONG))
        if exact == inf:
            assert result.outcome is Outcome.INFEASIBLE, name
            continue
        assert made.seconds(result.objective) == pytest.approx(exact, abs=1e-4), name
        assert result.point is not None
        sequence = made.sequence(result.point)
        assert peak(problem, sequence) <= budget, name
        assert seconds(problem, sequence) == pytest.approx(exact, abs=1e-4), name


def two_devices(problem: Problem, seed: int) -> Problem:
    draw = np.random.default_rng(seed)
    cost = np.concatenate([problem.cost, problem.cost * draw.uniform(0.5, 3.0, problem.ops)])
    return on_devices(problem, Devices(cost, problem.size * 0.3 * np.ones((2, 2, 1))))


def budgets_of(problem: Problem, seed: int) -> list[int]:
    """Between 0.7 and 1.15 of what some schedule takes on each device, or room for everything."""
    schedules = (random_schedule(problem, draw) for draw in range(8))
    schedule = next((found for found in schedules if found is not None), None)
    if schedule is None:
        return [1000] * problem.devices
    return [max(1, int((0.7 + 0.15 * (seed % 4)) * b)) for b in peaks(problem, schedule)]


FEATURES = range(70)


@pytest.mark.parametrize("seed", seeds(len(FEATURES), 18))
def test_two_devices_products_linear_form_and_brute_force_agree(seed: int) -> None:
    """With workspace, in-place, kept values and their goals, pins, missing links, weights,
    colocation, inputs at home and storage devices."""
    problem = random_device_problem(seed, 3 + seed % 2, plain=seed % 7 == 0, kept=0.3)
    budgets = budgets_of(problem, seed)
    exact = staged_optimum(problem, budgets)
    assert optimum(problem, budgets, fixed_order=True) <= exact + 1e-9
    for linear, solver in ((True, "highs"), (False, "scip")):
        made = xengine.build(problem, budgets, linear=linear)
        assert xengine.columns(problem, budgets, linear=linear) == made.model.columns
        result = SOLVERS[solver].solve(made.model, Limits(seconds=LONG))
        if exact == inf:
            assert result.outcome is Outcome.INFEASIBLE
            continue
        assert made.seconds(result.objective) == pytest.approx(exact, abs=1e-3)
        assert result.point is not None
        schedule = made.schedule(result.point)
        assert seconds_of(problem, schedule) == pytest.approx(exact, abs=1e-3)
        assert (peaks(problem, schedule) <= np.asarray(budgets)).all()


def test_the_random_problems_have_every_feature() -> None:
    problems = [random_device_problem(s, 3 + s % 2, plain=s % 7 == 0, kept=0.3) for s in FEATURES]
    assert any(p.host_inputs for p in problems)
    assert any(p.weight.size for p in problems)
    assert any((p.group >= 0).any() for p in problems)
    assert any((p.required >= 0).any() for p in problems)
    assert any(p.inplace.lists() != [[]] * p.ops for p in problems)
    assert any(not np.isfinite(p.cost).any(axis=1).all() for p in problems)  # storage
    again = 0
    for seed, problem in list(zip(FEATURES, problems, strict=True))[:30]:
        found = staged_optimum(problem, budgets_of(problem, seed))
        again += inf > found > problem.cost.min(axis=0).sum() + 1e-9
    assert again > 5  # memory or links make a difference


@pytest.mark.parametrize("seed", range(8))
def test_three_devices_and_points_of_schedules(seed: int) -> None:
    """The binaries of a schedule are a point of both forms, at that schedule's time or less."""
    problem = random_device_problem(seed, 4, devices=3, plain=seed % 2 == 0)
    budgets = budgets_of(problem, 3)
    objectives = []
    for linear, solver in ((True, "highs"), (False, "scip")):
        made = xengine.build(problem, budgets, linear=linear)
        assert xengine.columns(problem, budgets, linear=linear) == made.model.columns
        result = SOLVERS[solver].solve(made.model, Limits(seconds=LONG))
        if result.point is None:
            assert result.outcome is Outcome.INFEASIBLE
            continue
        objectives.append(made.seconds(result.objective))
        schedule = made.schedule(result.point)
        assert seconds_of(problem, schedule) <= objectives[-1] + 1e-3
        assert (peaks(problem, schedule) <= np.asarray(budgets)).all()
        chosen = made.columns_of(schedule)
        assert chosen is not None
        lower, upper = list(made.model.lower), list(made.model.upper)
        for column in np.flatnonzero(made.model.integer).tolist():
            lower[column] = upper[column] = float(column in chosen)
        fixed = replace(made.model, lower=lower, upper=upper)
        again = SOLVERS[solver].solve(fixed, Limits(seconds=LONG))
        assert made.seconds(again.objective) == pytest.approx(objectives[-1], abs=1e-3)
    assert not objectives or objectives[0] == pytest.approx(objectives[1], abs=1e-3)


def test_memory_is_not_pooled_over_devices() -> None:
    """Two ops of 4 and 3 bytes, the second reads the first: 7 bytes at once. Two devices of 5 bytes
    have 10 together, but no one of them has room for both."""
    base = OneDevice(
        cost=np.ones(2), work=np.zeros(2), reads=Rows.of([[], [0]]), writes=Rows.of([[0], [1]]),
        size=[4, 3], keep=np.zeros(2), inplace=Rows.of([[], []]), recompute=np.ones(2),
    ).problem()  # fmt: skip
    problem = on_devices(base, Devices(np.ones((2, 2)), np.full((2, 2, 2), 0.1)))
    for budgets, outcome in (([5, 5], Outcome.INFEASIBLE), ([5, 7], Outcome.OPTIMAL)):
        made = xengine.build(problem, budgets)
        assert SOLVERS["scip"].solve(made.model, Limits(LONG)).outcome is outcome
