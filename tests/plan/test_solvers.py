"""Back ends share one vocabulary, agree with each other, and stand in for one another."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from onnxremat.plan.model import Model
from onnxremat.plan.solvers import SOLVERS, Limits, Outcome, Result, minimise, refused


def knapsack(products: bool = False) -> Model:
    """min -5a - 4b - 3c (+ 2ab), 2a + 3b + c <= 5, a + b >= 1; optimum -9 (with ab: -8)."""
    model = Model("knapsack", offset=1.0)
    a, b, c = (model.binary(cost) for cost in (-5.0, -4.0, -3.0))
    model.row([(a, 2.0), (b, 3.0), (c, 1.0)], upper=5.0)
    model.row([(a, 1.0), (b, 1.0)], lower=1.0)
    if products:
        model.quadratic_cost = [(a, b, 2.0)]
    return model


def usable(name: str, model: Model) -> None:
    reason = SOLVERS[name].unavailable() or SOLVERS[name].unfit(model)
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize("name", list(SOLVERS))
def test_linear_optimum(name: str) -> None:
    usable(name, knapsack())
    result = SOLVERS[name].solve(knapsack(), Limits(seconds=10))
    assert result.outcome is Outcome.OPTIMAL
    assert result.objective == pytest.approx(-8)
    assert result.bound == pytest.approx(-8)
    assert result.point is not None
    assert result.point.round().tolist() == [1, 1, 0]


@pytest.mark.parametrize("name", ["scip", "gurobi"])
def test_product_in_the_objective(name: str) -> None:
    model = knapsack(products=True)
    usable(name, model)
    result = SOLVERS[name].solve(model, Limits(seconds=10))
    assert result.objective == pytest.approx(-7)
    assert result.point is not None
    assert result.point.round().tolist() == [1, 0, 1]


@pytest.mark.parametrize("name", ["scip", "gurobi"])
def test_product_in_a_row(name: str) -> None:
    model = Model()
    a, b = model.binary(-1.0), model.binary(-1.0)
    model.row([(a, 1.0)], upper=1.0, quadratic=[(a, b, 1.0)])
    usable(name, model)
    result = SOLVERS[name].solve(model, Limits(seconds=10))
    assert result.objective == pytest.approx(-1)


@pytest.mark.parametrize("name", list(SOLVERS))
def test_infeasible(name: str) -> None:
    model = knapsack()
    model.row([(0, 1.0), (1, 1.0)], upper=0.0)
    usable(name, model)
    result = SOLVERS[name].solve(model, Limits(seconds=10))
    assert result.outcome is Outcome.INFEASIBLE
    assert result.bound == inf


@pytest.mark.parametrize("name", list(SOLVERS))
def test_warm_start_and_stop_are_accepted(name: str) -> None:
    model = knapsack()
    usable(name, model)
    limits = Limits(seconds=10, warm=np.asarray([1.0, 0.0, 1.0]), stop=lambda: False)
    assert SOLVERS[name].solve(model, limits).objective == pytest.approx(-8)
    stopped = SOLVERS[name].solve(model, Limits(seconds=10, stop=lambda: True))
    assert stopped.outcome is not Outcome.REFUSED


def test_a_failing_solver_falls_back_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Model, limits: Limits) -> Result:
        return refused("HiGHS failed: boom")

    monkeypatch.setattr(SOLVERS["highs"], "solve", broken)
    result, notes = minimise(knapsack(), Limits(seconds=10), "highs")
    assert result.objective == pytest.approx(-8)
    assert notes == ["HiGHS failed: boom"]


def test_unknown_solver_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown solver"):
        minimise(knapsack(), Limits(), "cplex")


def test_gurobi_says_why_a_model_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxremat.plan.solvers import gurobi

    monkeypatch.setattr(gurobi, "_unlimited", lambda: False)
    model = Model()
    for _ in range(2500):
        model.binary()
    assert "2000 columns" in (SOLVERS["gurobi"].unfit(model) or "")
