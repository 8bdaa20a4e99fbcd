"""Exported models mean the same to independent readers, and their solutions come back."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from onnxremat.planner import peak, seconds
from onnxremat.planner.export import write_model
from onnxremat.planner.formulate import Formulated, formulate
from onnxremat.planner.formulations import xengine
from onnxremat.planner.model import Model
from onnxremat.planner.options import FORMULATIONS
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.semantics import peaks
from onnxremat.planner.semantics import seconds as seconds_of
from onnxremat.planner.solution_files import SolutionFileError, read_solution
from onnxremat.planner.solvers import SOLVERS, Limits
from tests.planner.oracle import random_problem
from tests.planner.readers import LINEAR, QUADRATIC, highs
from tests.planner.test_formulations import budget_of, two_devices

SEED, SHARE = 24, 2  # recomputation is needed, and every relaxation is fractional


def made(name: str, ops: int = 5) -> tuple[Formulated, float]:
    """A formulation of a small problem, and its optimum in model units."""
    problem = random_problem(SEED, ops)
    lists = ProblemLists(problem)
    found = formulate(lists, [budget_of(problem, SHARE)], name)
    best = SOLVERS["highs"].solve(found.model, Limits(20)).objective
    assert best < inf
    return found, best


@pytest.mark.parametrize("suffix", [".mps", ".lp"])
@pytest.mark.parametrize("name", FORMULATIONS)
@pytest.mark.parametrize("reader", LINEAR)
def test_what_others_solve_comes_back_as_the_same_plan(
    reader: str, name: str, suffix: str, tmp_path: Path
) -> None:
    """Written, read and solved by another solver, its own solution file read: same optimum."""
    formulated, best = made(name)
    model = formulated.model
    write_model(model, tmp_path / f"model{suffix}")
    seen = LINEAR[reader](tmp_path / f"model{suffix}", tmp_path / "plan.sol")
    constant = suffix == ".lp" and model.offset != 0
    assert seen.columns == model.columns + constant
    assert seen.integers == sum(model.integer) > 0
    assert seen.objective == pytest.approx(best, abs=1e-3)
    point = read_solution(model, tmp_path / "plan.sol")
    assert model.objective(point) == pytest.approx(best, abs=1e-3)
    problem, sequence = random_problem(SEED, 5), formulated.schedule(point)
    assert sequence is not None
    if formulated.staged:
        assert peak(problem, sequence) <= budget_of(problem, SHARE)
        assert seconds(problem, sequence) == pytest.approx(best * formulated.unit, abs=1e-4)


@pytest.mark.parametrize("suffix", [".mps", ".lp"])
@pytest.mark.parametrize("reader", QUADRATIC)
def test_products_of_two_devices_come_back(reader: str, suffix: str, tmp_path: Path) -> None:
    problem = random_problem(1, 4)
    devices, budgets = two_devices(problem, 1), [budget_of(problem, 1)] * 2
    stage = xengine.build(devices, budgets)
    assert stage.model.quadratic_cost
    best = SOLVERS["scip"].solve(stage.model, Limits(20)).objective
    write_model(stage.model, tmp_path / f"model{suffix}")
    seen = QUADRATIC[reader](tmp_path / f"model{suffix}", tmp_path / "plan.sol")
    assert seen.objective == pytest.approx(best, abs=1e-3)
    point = read_solution(stage.model, tmp_path / "plan.sol")
    assert stage.model.objective(point) == pytest.approx(best, abs=1e-3)
    schedule = stage.schedule(point)
    assert seconds_of(devices, schedule) == pytest.approx(stage.seconds(best), abs=1e-3)
    assert (peaks(devices, schedule) <= budgets[0]).all()


def square() -> Model:
    """min -a - 4b + 4ab + 2bb with a <= 1.5: optimum -2 at a = 0, b = 1."""
    model = Model("square")
    a, b = model.binary(-1.0, "a"), model.column(0.0, 2.0, -4.0, label="b")
    model.row([(a, 1.0)], upper=1.5)
    model.quadratic_cost = [(a, b, 4.0), (b, b, 2.0)]
    return model


@pytest.mark.parametrize("suffix", [".mps", ".lp"])
@pytest.mark.parametrize("reader", QUADRATIC)
def test_squares_and_products(reader: str, suffix: str, tmp_path: Path) -> None:
    write_model(square(), tmp_path / f"m{suffix}")
    seen = QUADRATIC[reader](tmp_path / f"m{suffix}", tmp_path / "m.sol")
    assert seen.integers == 1
    assert seen.objective == pytest.approx(-2.0, abs=1e-4)


@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_where_there_is_nothing_to_decide(offset: float, tmp_path: Path) -> None:
    """As where a budget is so large that all is stored."""
    model = Model("empty")
    model.offset = offset
    write_model(model, tmp_path / "m.lp")
    assert LINEAR["highs"](tmp_path / "m.lp", tmp_path / "m.sol").objective == offset
    assert read_solution(model, tmp_path / "m.sol").size == 0


def test_highs_refuses_what_it_cannot_solve(tmp_path: Path) -> None:
    """The claim of the documentation: it reads QMATRIX, and does not solve it."""
    highspy = pytest.importorskip("highspy")
    write_model(square(), tmp_path / "objective.mps")
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    assert solver.readModel(str(tmp_path / "objective.mps")) == highspy.HighsStatus.kOk
    solver.run()
    assert solver.getModelStatus() != highspy.HighsModelStatus.kOptimal


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.mps"):
        write_model(Model(), tmp_path / "model.txt")


# Solution files that are none


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no column"),
        ("y 1\nz 0\n", "names no column"),
        ("solution status: infeasible\nno solution available\n", "says 'infeasible'"),
        ("# Objective value = 3\n", "names no column"),
        ("R_0_0 one\n", "line 1: 'one' is no number"),
        ("R_0_0 1\nR_1_1 nan\n", "line 2"),
        ("R_0_0 1\nR_1_1 inf\n", "line 2"),
        ("R_0_0 0.5\n", "R_0_0 is 0.5"),
        ("R_0_0 1\nR_99_99 1\n", "no column R_99_99"),
        ("Model status\nInfeasible\n\n# Primal solution values\nNone\n", "says 'Infeasible'"),
    ],
)
def test_files_that_are_no_solution(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "plan.sol").write_text(text)
    with pytest.raises(SolutionFileError) as refused:
        read_solution(made("checkmate")[0].model, tmp_path / "plan.sol")
    assert words in str(refused.value)


def test_binary_files_and_missing_files_are_refused(tmp_path: Path) -> None:
    model = made("checkmate")[0].model
    (tmp_path / "plan.sol").write_bytes(b"\xff\xfe\x00R_0_0")
    for path in (tmp_path / "plan.sol", tmp_path / "none.sol"):
        with pytest.raises(SolutionFileError):
            read_solution(model, path)


def test_dual_values_are_not_taken_for_a_solution(tmp_path: Path) -> None:
    """HiGHS repeats the columns with dual values and a basis after the primal ones."""
    model = Model("lp")
    a, b = model.column(0, 4, -3.0, label="x_0"), model.column(0, 4, -1.0, label="x_1")
    model.row([(a, 1.0), (b, 2.0)], upper=6.0)
    write_model(model, tmp_path / "m.lp")
    highs(tmp_path / "m.lp", tmp_path / "m.sol")
    assert "Dual" in (tmp_path / "m.sol").read_text()
    assert read_solution(model, tmp_path / "m.sol").tolist() == [4.0, 1.0]
