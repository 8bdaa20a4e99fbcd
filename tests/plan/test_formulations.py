"""Every formulation has the same optimum, and it is the exact one."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from onnxremat.plan import peak, seconds
from onnxremat.plan.bounds import largest_need
from onnxremat.plan.formulations import checkmate, retention, xengine
from onnxremat.plan.formulations.stages import StageModel
from onnxremat.plan.problem import Problem
from onnxremat.plan.solvers import SOLVERS, Limits, Outcome
from onnxremat.plan.wiring import Wiring
from tests.plan.oracle import optimum, random_problem, staged_optimum


def all_formulations(wiring: Wiring, budget: int) -> dict[str, StageModel]:
    fleet = xengine.Fleet.single(wiring, budget)
    return {
        "checkmate": checkmate.build(wiring, budget),
        "retention": retention.build(wiring, budget, intervals=wiring.problem.ops),
        "xengine": xengine.build(wiring, fleet),
        "xengine-linear": xengine.build(wiring, fleet, linear=True),
    }


def budget_of(problem: Problem, seed: int) -> int:
    low, high = largest_need(Wiring(problem)).bytes, peak(problem, problem.store_all())
    return low + (high - low) * (seed % 4) // 4


@pytest.mark.parametrize("seed", range(60))
def test_formulations_agree_with_the_exact_optimum(seed: int) -> None:
    problem = random_problem(seed, 5 + seed % 2)
    wiring, budget = Wiring(problem), budget_of(problem, seed)
    exact = staged_optimum(problem, budget)
    assert optimum(problem, budget, fixed_order=True) <= exact
    for name, made in all_formulations(wiring, budget).items():
        result = SOLVERS["highs"].solve(made.model, Limits(seconds=10))
        if exact == inf:
            assert result.outcome is Outcome.INFEASIBLE, name
            continue
        assert made.seconds(result.objective) == pytest.approx(exact, abs=1e-4), name
        assert result.point is not None
        sequence = made.sequence(result.point)
        assert peak(problem, sequence) <= budget, name
        assert seconds(problem, sequence) == pytest.approx(exact, abs=1e-4), name


def two_devices(wiring: Wiring, budget: int, seed: int) -> xengine.Fleet:
    draw = np.random.default_rng(seed)
    one = np.asarray(wiring.cost)
    cost = np.asarray([one, one * draw.uniform(0.5, 3.0, len(one))])
    copy = np.asarray(wiring.size) * 0.3 * np.ones((2, 2, 1))
    return xengine.Fleet(cost, copy, np.asarray([budget, budget]))


@pytest.mark.parametrize("seed", range(6))
def test_two_devices_products_and_linear_form_agree(seed: int) -> None:
    problem = random_problem(seed, 4, plain=seed % 2 == 0)
    wiring, budget = Wiring(problem), budget_of(problem, seed)
    fleet = two_devices(wiring, budget, seed)
    plain = SOLVERS["highs"].solve(xengine.build(wiring, fleet, linear=True).model, Limits(20))
    products = SOLVERS["scip"].solve(xengine.build(wiring, fleet).model, Limits(20))
    assert plain.outcome is products.outcome
    assert plain.objective == pytest.approx(products.objective, abs=1e-3)
    single = SOLVERS["highs"].solve(checkmate.build(wiring, budget).model, Limits(20))
    assert plain.objective <= single.objective + 1e-3
