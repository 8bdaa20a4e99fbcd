"""Formulations written for solvers elsewhere, and the solutions of these solvers read back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxremat.errors import UsageError
from onnxremat.graph.onnx_io import atomic
from onnxremat.plan.export import write_model
from onnxremat.plan.formulate import MOST_COLUMNS, Formulated, formulate
from onnxremat.plan.formulations.extract import stage_excess
from onnxremat.plan.problem import Certificate, Problem, Solution, Status, occupancy, seconds
from onnxremat.plan.solution_files import SolutionFileError, read_solution
from onnxremat.plan.wiring import Wiring
from onnxremat.run.subject import Subject
from onnxremat.units import format_bytes


def write_formulation(
    subject: Subject,
    limit: int,
    name: str,
    path: Path,
    *,
    cut_ops: Sequence[int] = (),
    most_columns: int = MOST_COLUMNS,
) -> dict[str, Any]:
    """Write the model of a formulation as ``.mps`` or ``.lp``; returns its figures.

    Raises:
        UsageError: unknown formulation, a model that is too large, or a wrong cut.
    """
    made = formulate(
        Wiring(subject.problem), limit, name, cut_ops=cut_ops, most_columns=most_columns
    )
    with atomic(path) as temporary:
        write_model(made.model, temporary, path.suffix.lower())
    model = made.model
    products = len(model.quadratic_cost) + sum(map(len, model.quadratic_rows.values()))
    return {
        "model": subject.name,
        "formulation": name,
        "budget_bytes": limit,
        "columns": model.columns,
        "integer_columns": sum(model.integer),
        "rows": model.rows,
        "products": products,
        "cuts": list(made.cuts),
        "seconds_per_objective_unit": made.unit,
    }


def read_formulation(
    subject: Subject,
    limit: int,
    name: str,
    path: Path,
    *,
    cut_ops: Sequence[int] = (),
    most_columns: int = MOST_COLUMNS,
) -> Solution:
    """The plan that a solution file stands for, replayed against the budget.

    The file proves nothing that could be checked: the bound is that of storing everything.

    Raises:
        UsageError: the file is no solution of this model, or its plan is not valid or takes more
            than ``limit`` bytes.
    """
    made = formulate(
        Wiring(subject.problem), limit, name, cut_ops=cut_ops, most_columns=most_columns
    )
    try:
        point = read_solution(made.model, path)
    except SolutionFileError as error:
        raise UsageError(
            f"{path} holds no plan",
            why=str(error).removeprefix(f"{path}: "),
            hint="give the formulation, budget and options that the model was written with; "
            "SCIP, Gurobi and HiGHS (styles raw, pretty, sparse) files are read",
        ) from error
    sequence = made.sequence(point)
    if sequence is None:
        raise UsageError(f"{path} holds no plan", why="it runs an op again that may run only once")
    problem = subject.problem
    bytes_ = _replayed(problem, limit, made, sequence, path)
    total = seconds(problem, problem.store_all())
    return Solution(
        Status.FEASIBLE, tuple(sequence), seconds(problem, sequence), bytes_,
        Certificate(total, "store-all", any_order=True), f"{name} ({path.name})", 0.0,
        notes=("read from a solution file: no bound but that of storing everything",),
    )  # fmt: skip


def _replayed(
    problem: Problem, limit: int, made: Formulated, sequence: list[int], path: Path
) -> int:
    """Peak bytes of a sequence, by the simulator.

    Raises:
        UsageError: it cannot run, or takes more than ``limit`` bytes.
    """
    try:
        use = occupancy(problem, sequence)
    except ValueError as error:
        raise UsageError(f"the plan of {path} cannot run", why=str(error)) from error
    seen: set[int] = set()
    for op in sequence:
        if op in seen and not problem.recompute[op]:
            raise UsageError(f"the plan of {path} is not allowed", why=f"op {op} may run only once")
        seen.add(op)
    highest = int(use.max(initial=problem.fixed))
    if highest <= limit:
        return highest
    step, hint = int(use.argmax()), "give the budget that the model was written with"
    if made.name == "cuts":
        worst = int(stage_excess(problem.ops, sequence, use, limit).argmax())
        more = next((op for op in (worst, worst - 1) if op >= 0 and op not in made.cuts), None)
        hint = "between cuts the relaxation forgets memory: try --formulation checkmate"
        if more is not None:
            hint = "the limit holds at the cuts only: write and solve again with "
            hint += " ".join(f"--cut {op}" for op in sorted((*made.cuts, more)))
    raise UsageError(
        f"the plan of {path} takes {format_bytes(highest)} ({highest} B) "
        f"of {format_bytes(limit)} ({limit} B)",
        where=f"step {step}, op {sequence[step]}",
        hint=hint,
    )
