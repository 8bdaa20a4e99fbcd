"""Exported models mean the same to independent readers, and solutions come back."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import pytest

from onnxremat.plan import peak
from onnxremat.plan.export import SolutionFileError, read_solution, write_model
from onnxremat.plan.formulations import xengine
from onnxremat.plan.formulations.cuts import build, fixed_spans
from onnxremat.plan.formulations.stages import StageModel
from onnxremat.plan.model import Model
from onnxremat.plan.solvers import SOLVERS, Limits
from onnxremat.plan.wiring import Wiring
from tests.plan.oracle import random_problem
from tests.plan.test_formulations import all_formulations, budget_of, two_devices


def models(seed: int) -> dict[str, Model]:
    problem = random_problem(seed, 4)
    wiring, budget = Wiring(problem), budget_of(problem, seed)
    made: dict[str, StageModel] = all_formulations(wiring, budget)
    found = {name: stage.model for name, stage in made.items()}
    found["cuts"] = build(wiring, fixed_spans(problem.ops, [1, 2]), budget).model
    found["two devices"] = xengine.build(wiring, two_devices(wiring, budget, seed)).model
    return found


@pytest.mark.parametrize("suffix", [".mps", ".lp"])
@pytest.mark.parametrize("seed", [1, 4])
def test_independent_readers_find_the_same_optimum(seed: int, suffix: str, tmp_path: Path) -> None:
    pyscipopt = pytest.importorskip("pyscipopt")
    for name, model in models(seed).items():
        path = tmp_path / f"model{suffix}"
        write_model(model, path)
        ours = SOLVERS["scip"].solve(model, Limits(20)).objective
        reader = pyscipopt.Model()
        reader.hideOutput()
        reader.readProblem(str(path))
        reader.optimize()
        if ours == inf:
            assert reader.getStatus() == "infeasible", name
        else:
            assert reader.getObjVal() == pytest.approx(ours, abs=1e-3), name


@pytest.mark.parametrize("suffix", [".mps", ".lp"])
def test_highs_reads_linear_models(suffix: str, tmp_path: Path) -> None:
    highspy = pytest.importorskip("highspy")
    for name, model in models(2).items():
        if model.quadratic:
            continue
        path = tmp_path / f"model{suffix}"
        write_model(model, path)
        reader = highspy.Highs()
        reader.setOptionValue("output_flag", False)
        reader.readModel(str(path))
        reader.run()
        ours = SOLVERS["highs"].solve(model, Limits(20)).objective
        assert ours < inf
        assert reader.getInfo().objective_function_value == pytest.approx(ours, abs=1e-3), name


def test_product_in_a_row_survives_mps(tmp_path: Path) -> None:
    pyscipopt = pytest.importorskip("pyscipopt")
    model = Model("square")
    a, b = model.binary(-1.0, "a"), model.column(0.0, 2.0, -1.0, label="b")
    model.row([(a, 1.0)], upper=1.5, quadratic=[(a, b, 1.0)])
    for suffix in (".mps", ".lp"):
        write_model(model, tmp_path / f"m{suffix}")
        reader = pyscipopt.Model()
        reader.hideOutput()
        reader.readProblem(str(tmp_path / f"m{suffix}"))
        reader.optimize()
        assert reader.getObjVal() == pytest.approx(-2.0, abs=1e-5)


def test_solution_files_come_back(tmp_path: Path) -> None:
    problem = random_problem(4, 5)
    wiring, budget = Wiring(problem), peak(problem, problem.store_all())
    made = all_formulations(wiring, budget)["checkmate"]
    result = SOLVERS["highs"].solve(made.model, Limits(10))
    assert result.point is not None
    path = tmp_path / "plan.sol"
    lines = ["# Objective value = 1"]
    lines += [f"{n} {v:.9g}" for n, v in zip(made.model.labels, result.point, strict=True)]
    path.write_text("\n".join(lines))
    point = read_solution(made.model, path)
    assert np.allclose(point, result.point, atol=1e-6)
    assert peak(problem, made.sequence(point)) <= budget
    path.write_text("y 1\n")
    with pytest.raises(SolutionFileError, match="names no column"):
        read_solution(made.model, path)
    path.write_text("R_0_0 0\n")
    with pytest.raises(SolutionFileError, match="breaks"):
        read_solution(made.model, path)


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.mps"):
        write_model(Model(), tmp_path / "model.txt")
