"""XEngine's model over several devices from end to end: solved, judged, bounded, refused."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import pytest

from onnxremat.errors import UsageError
from onnxremat.pipeline.model_files import write_device_formulation
from onnxremat.planner.exact import _point, solve_formulation
from onnxremat.planner.formulate import formulate
from onnxremat.planner.incumbent import Incumbent
from onnxremat.planner.ladder import solve
from onnxremat.planner.options import DEVICE_FORMULATIONS, Method
from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.semantics import peaks, seconds
from onnxremat.planner.solution import Status
from onnxremat.planner.solvers import Limits
from onnxremat.planner.solvers.scip import Scip
from tests.limits import LONG, work
from tests.planner.asking import asked
from tests.planner.device_oracle import random_device_problem, staged_optimum
from tests.planner.readers import LINEAR, QUADRATIC
from tests.planner.test_formulations import budgets_of


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("name", DEVICE_FORMULATIONS)
@pytest.mark.parametrize("seed", range(6))
def test_solved_is_the_best_staged_schedule(seed: int, name: str, warm: bool) -> None:
    """Or a schedule of the ladder's that is as good, where the solver has nothing left to do."""
    problem = random_device_problem(seed, 4, kept=0.3)
    budgets = budgets_of(problem, seed)
    exact = staged_optimum(problem, budgets)
    found = solve_formulation(
        problem, budgets, asked(method=Method(formulation=name, warm_start=warm), time_limit=LONG)
    )
    if exact == inf:
        assert found.schedule is None
        return
    assert found.schedule is not None
    assert found.status is Status.OPTIMAL
    assert found.time == pytest.approx(exact, abs=1e-3)
    assert found.time == seconds(problem, found.schedule)
    assert tuple(peaks(problem, found.schedule)) == found.peaks
    assert (np.asarray(found.peaks) <= budgets).all()
    assert found.certificate.bound <= found.time <= found.makespan + found.time
    assert found.planner == name


def test_a_bound_of_staged_schedules_is_called_that() -> None:
    """A problem whose best staged schedule is worse than the best of all in its order."""
    problem = random_device_problem(196, 7)
    budgets = budgets_of(problem, 0)
    found = solve_formulation(
        problem, budgets, asked(method=Method(formulation="xengine-linear"), time_limit=LONG)
    )
    assert found.certificate.staged
    assert not found.certificate.any_order
    assert found.status is Status.OPTIMAL
    free = solve(problem, budgets, asked(time_limit=LONG, fixed_order=True))
    assert found.certificate.bound > free.time + 1
    said = " ".join(found.notes)
    assert "holds for staged schedules" in said
    assert "a quicker plan" in said


def small() -> tuple[Problem, list[int]]:
    """An optimum with copies and second runs, in fewer columns than Gurobi's free licence takes."""
    problem = random_device_problem(30, 4, plain=True)
    return problem, budgets_of(problem, 2)


def test_impossible_budgets_are_proven_so() -> None:
    problem = random_device_problem(3, 4, plain=True)
    found = solve_formulation(
        problem, [1, 1], asked(method=Method(formulation="xengine-miqp"), time_limit=LONG)
    )
    assert found.status is Status.INFEASIBLE
    assert "more than the budget of each" in found.notes[0]


@pytest.mark.parametrize("name", ["checkmate", "cuts"])
def test_other_formulations_are_refused(name: str) -> None:
    problem = random_device_problem(3, 4, plain=True)
    with pytest.raises(UsageError, match="not for several devices") as refused:
        solve_formulation(problem, [99, 99], asked(method=Method(formulation=name)))
    assert "xengine-miqp or xengine-linear" in refused.value.hint


def test_large_models_are_refused_before_they_are_built() -> None:
    problem = random_device_problem(0, 150, plain=True)
    with (
        work(2.0),
        pytest.raises(UsageError, match=r"on 2 devices has [0-9,]{7,} columns") as refused,
    ):
        formulate(ProblemLists(problem), [300, 300], "xengine-miqp", most_columns=100_000)
    assert "n = 150 ops" in refused.value.why
    assert "--max-columns" in refused.value.hint


@pytest.mark.parametrize("name", DEVICE_FORMULATIONS)
def test_written_models_have_the_same_optimum_elsewhere(name: str, tmp_path: Path) -> None:
    problem, budgets = small()
    exact = staged_optimum(problem, budgets)
    assert problem.cost.min(axis=0).sum() < exact < inf
    readers = QUADRATIC if name == "xengine-miqp" else LINEAR
    for suffix in (".mps", ".lp"):
        path = tmp_path / f"model{suffix}"
        facts = write_device_formulation(problem, budgets, Method(formulation=name), path)
        assert (facts["products"] > 0) == (name == "xengine-miqp")
        assert ("QUADOBJ" in path.read_text() or "QMATRIX" in path.read_text()) == (
            name == "xengine-miqp" and suffix == ".mps"
        )
        for reader in ("scip", "gurobi"):
            seen = readers[reader](path, tmp_path / "plan.sol")
            assert seen.objective * facts["seconds_per_objective_unit"] == pytest.approx(
                exact, abs=1e-3
            )


def test_a_warm_point_with_products_is_taken_by_scip() -> None:
    """A schedule as a point of the model: a solver without time has it, or nothing."""
    problem = random_device_problem(30, 14, plain=True)
    budgets = [int(1.2 * bytes_) for bytes_ in budgets_of(problem, 3)]
    quick = solve(problem, budgets, asked(time_limit=LONG, fixed_order=True))
    made = formulate(ProblemLists(problem), budgets, "xengine-miqp")
    record = Incumbent(problem, tuple(budgets), LONG, 1e-5)
    point = _point(made, record, quick, asked())
    assert point is not None
    assert made.model.violation(point) < 1e-6
    objective = made.model.objective(point)
    assert objective * made.unit <= quick.time + 1e-6
    with_it, without = (Scip().solve(made.model, Limits(0.0, warm=w)) for w in (point, None))
    assert with_it.objective == pytest.approx(objective, abs=1e-3)
    assert without.point is None
