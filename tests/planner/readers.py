"""Solvers that read our files by themselves: what they see, solve, and write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Seen:
    """What a reader found in a file, and the optimum that it wrote a solution file for."""

    columns: int
    integers: int
    objective: float


def highs(path: Path, out: Path, style: int = 0) -> Seen:
    """HiGHS; ``style`` is its option write_solution_style."""
    highspy = pytest.importorskip("highspy")
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    assert solver.readModel(str(path)) == highspy.HighsStatus.kOk
    lp = solver.getLp()
    integers = sum(kind == highspy.HighsVarType.kInteger for kind in lp.integrality_)
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    solver.writeSolution(str(out), style)
    return Seen(lp.num_col_, integers, solver.getInfo().objective_function_value)


def highs_pretty(path: Path, out: Path) -> Seen:
    """HiGHS's table."""
    return highs(path, out, 1)


def highs_sparse(path: Path, out: Path) -> Seen:
    """HiGHS's file without zeros."""
    return highs(path, out, 4)


def scip(path: Path, out: Path) -> Seen:
    """SCIP."""
    pyscipopt = pytest.importorskip("pyscipopt")
    solver = pyscipopt.Model()
    solver.hideOutput()
    solver.readProblem(str(path))
    columns = solver.getVars()
    integers = sum(column.vtype() in ("BINARY", "INTEGER") for column in columns)
    solver.optimize()
    assert solver.getStatus() == "optimal"
    solver.writeBestSol(str(out))
    return Seen(len(columns), integers, solver.getObjVal())


def gurobi(path: Path, out: Path) -> Seen:
    """Gurobi, within the limits of its free licence."""
    gurobipy = pytest.importorskip("gurobipy")
    with gurobipy.Env(empty=True) as environment:
        environment.setParam("OutputFlag", 0)
        environment.start()
        with gurobipy.read(str(path), environment) as solver:
            columns, integers = solver.NumVars, solver.NumIntVars
            solver.optimize()
            assert solver.Status == gurobipy.GRB.OPTIMAL
            solver.write(str(out))
            return Seen(columns, integers, solver.ObjVal)


LINEAR = {
    "highs": highs, "highs-pretty": highs_pretty, "highs-sparse": highs_sparse, "scip": scip,
    "gurobi": gurobi,
}  # fmt: skip
QUADRATIC = {"scip": scip, "gurobi": gurobi}
