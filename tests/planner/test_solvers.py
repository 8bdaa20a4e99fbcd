"""Back ends share one vocabulary, agree with each other, and stand in for one another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from math import inf
from random import Random
from threading import Event, Thread
from threading import enumerate as enumerate_threads

import numpy as np
import pytest

from onnxremat.planner.model import Model
from onnxremat.planner.solvers import (
    SOLVERS,
    Limits,
    Outcome,
    Relaxation,
    Result,
    base,
    highs,
    minimise,
    refused,
)
from onnxremat.planner.solvers.base import ABANDONED, run_apart
from tests.limits import LONG

UNKNOWN = 1e19  # solvers write numbers beyond this for none


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
    result = SOLVERS[name].solve(knapsack(), Limits(seconds=LONG))
    assert result.outcome is Outcome.OPTIMAL
    assert result.objective == pytest.approx(-8)
    assert result.bound == pytest.approx(-8)
    assert result.point is not None
    assert result.point.round().tolist() == [1, 1, 0]


@pytest.mark.parametrize("name", list(SOLVERS))
def test_what_a_solver_does_not_take_is_not_solved(name: str) -> None:
    """HiGHS leaves out a model with such numbers, and called the empty one optimal."""
    model = Model()
    model.row([(model.binary(1.0), 1e16)], lower=1.0)
    usable(name, model)
    result = SOLVERS[name].solve(model, Limits(seconds=LONG))
    assert result.outcome is Outcome.REFUSED or result.objective == pytest.approx(1.0)
    rest = Relaxation(knapsack())
    assert rest.solve(Limits(seconds=LONG))
    rest.model.row([(0, 1e16)], lower=1.0)
    for relaxation in (rest, Relaxation(model)):
        assert not relaxation.solve(Limits(seconds=LONG))


@pytest.mark.parametrize("name", list(SOLVERS))
def test_rows_without_columns_may_be_infeasible(name: str) -> None:
    for limit, outcome in ((-1.0, Outcome.INFEASIBLE), (0.0, Outcome.OPTIMAL)):
        model = Model(offset=2.0)
        model.row([], upper=limit)
        usable(name, model)
        assert SOLVERS[name].solve(model, Limits(seconds=LONG)).outcome is outcome


def test_highs_prints_nothing() -> None:
    """What commands print is read by programs. Compiled code prints when the process ends."""
    made = "from onnxremat.planner.solvers.highs import silent; silent().run()"
    done = subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=True)
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["scip", "gurobi"])
def test_product_in_the_objective(name: str) -> None:
    model = knapsack(products=True)
    usable(name, model)
    result = SOLVERS[name].solve(model, Limits(seconds=LONG))
    assert result.objective == pytest.approx(-7)
    assert result.point is not None
    assert result.point.round().tolist() == [1, 0, 1]


@pytest.mark.parametrize("name", list(SOLVERS))
def test_infeasible(name: str) -> None:
    model = knapsack()
    model.row([(0, 1.0), (1, 1.0)], upper=0.0)
    usable(name, model)
    result = SOLVERS[name].solve(model, Limits(seconds=LONG))
    assert result.outcome is Outcome.INFEASIBLE
    assert result.bound == inf


@pytest.mark.parametrize("name", list(SOLVERS))
def test_warm_start_and_stop_are_accepted(name: str) -> None:
    model = knapsack()
    usable(name, model)
    limits = Limits(seconds=LONG, warm=np.asarray([1.0, 0.0, 1.0]), stop=lambda: False)
    assert SOLVERS[name].solve(model, limits).objective == pytest.approx(-8)
    stopped = SOLVERS[name].solve(model, Limits(seconds=LONG, stop=lambda: True))
    assert stopped.outcome is not Outcome.REFUSED


@pytest.mark.parametrize("name", list(SOLVERS))
def test_the_number_of_threads_may_change(name: str) -> None:
    """HiGHS refuses another number than its first run had, unless its scheduler is reset."""
    usable(name, knapsack())
    for threads in (2, 1, 3):
        found = SOLVERS[name].solve(knapsack(), Limits(seconds=LONG, threads=threads))
        assert (found.outcome, found.objective) == (Outcome.OPTIMAL, pytest.approx(-8))


def hard() -> Model:
    """A knapsack with sixty rows that no solver finishes in seconds."""
    draw = Random(1)
    model = Model("hard")
    for _ in range(200):
        model.binary(-float(draw.randint(1, 99)))
    for _ in range(60):
        model.row([(column, float(draw.randint(1, 99))) for column in range(200)], upper=3000.0)
    return model


@pytest.mark.parametrize("name", list(SOLVERS))
def test_interrupts_reach_the_caller(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gurobi would keep them to itself, and say so on stdout."""
    model, asked, told = hard(), list[int](), Event()
    usable(name, model)
    monkeypatch.setattr(base, "PATIENCE", LONG)  # a solver that hears, however slowly
    before = signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    limits = Limits(
        seconds=LONG, stop=lambda: bool(asked),
        progress=lambda objective, _: told.set() if abs(objective) < UNKNOWN else None,
    )  # fmt: skip
    # As soon as it has something to keep.
    sender = Thread(target=lambda: told.wait(LONG) and os.kill(os.getpid(), signal.SIGINT))
    sender.start()
    begin = time.monotonic()
    try:
        result = SOLVERS[name].solve(model, limits)
    finally:
        told.set()
        sender.join()
        signal.signal(signal.SIGINT, before)
    assert len(asked) == 1
    assert time.monotonic() - begin < LONG / 2  # it was the interrupt that ended it
    assert result.outcome is Outcome.FEASIBLE
    assert capfd.readouterr().out == ""


def test_a_solver_that_hears_nothing_is_left_behind() -> None:
    """Presolve and long relaxations poll nobody."""
    release, before = Event(), set(enumerate_threads())
    asked: list[bool] = []
    ended = run_apart(
        lambda: release.wait(LONG) and None, Limits(stop=lambda: True), lambda: asked.append(True)
    )
    assert not ended
    assert asked == [True]
    left = [t for t in set(enumerate_threads()) - before if t.name == ABANDONED]
    assert len(left) == 1
    release.set()
    left[0].join()
    assert run_apart(lambda: None, Limits(stop=lambda: True), lambda: None)
    with pytest.raises(ZeroDivisionError):
        run_apart(lambda: 1 / 0 and None, Limits(), lambda: None)


def test_a_relaxation_that_was_left_behind_is_not_touched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread still runs it: a second run beside that one would be of the same HiGHS."""
    runs: list[object] = []
    monkeypatch.setattr(highs, "run_apart", lambda run, *_: bool(runs.append(run)))
    model = Model("line")
    model.row([(model.column(0.0, 9.0, 1.0), 1.0)], lower=2.0)
    relaxation = Relaxation(model)
    assert not relaxation.solve(Limits(seconds=LONG))
    assert not relaxation.solve(Limits(seconds=LONG))
    assert len(runs) == 1


def test_a_failing_solver_falls_back_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Model, limits: Limits) -> Result:
        return refused("HiGHS failed: boom")

    monkeypatch.setattr(SOLVERS["highs"], "solve", broken)
    result, notes = minimise(knapsack(), Limits(seconds=LONG), "highs")
    assert result.objective == pytest.approx(-8)
    assert notes == ["HiGHS failed: boom"]


def test_unknown_solver_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown solver"):
        minimise(knapsack(), Limits(), "cplex")


def test_gurobi_says_why_a_model_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxremat.planner.solvers import gurobi

    monkeypatch.setattr(gurobi, "_unlimited", lambda: False)
    model = Model()
    for _ in range(2500):
        model.binary()
    assert "2000 columns" in (SOLVERS["gurobi"].unfit(model) or "")
