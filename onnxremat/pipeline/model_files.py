"""Formulations written for solvers elsewhere, and the solutions of these solvers read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxremat.errors import UsageError
from onnxremat.graph.atomic import atomic
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.study_problem import Subject, prepared_subject
from onnxremat.planner.export import SUFFIXES, write_model
from onnxremat.planner.formulate import Formulated, check_for_devices, formulate
from onnxremat.planner.formulations.extract import stage_excess
from onnxremat.planner.incumbent import NO_LIMIT, Incumbent
from onnxremat.planner.model import Model
from onnxremat.planner.options import MOST_COLUMNS, Method
from onnxremat.planner.problem import Floats, Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import InvalidScheduleError, Schedule
from onnxremat.planner.semantics import occupancy, peak, peaks, seconds
from onnxremat.planner.solution import Certificate, Solution, Status
from onnxremat.planner.solution_files import SolutionFileError, read_solution
from onnxremat.units import Budget, format_bytes

SOLUTION = "solve the model that --write-model wrote; the solver writes a .sol file"


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
        ProblemLists(subject.problem), [limit], name, cut_ops=cut_ops, most_columns=most_columns
    )
    written = _written(made.model, path)
    return {
        "model": subject.name,
        "formulation": name,
        "budget_bytes": limit + subject.beside,
        "limit_bytes": limit,
        **written,
        "cuts": list(made.cuts),
        "seconds_per_objective_unit": made.unit,
    }


def write_prepared(
    prepared: Prepared, budget: Budget, method: Method, path: Path
) -> dict[str, Any]:
    """Write the formulation that a prepared model is about to be planned with, ``cuts`` when the
    method names none; returns its figures.

    Raises:
        UsageError: a budget that is not a number, a method that is no formulation, or a model that
            is too large.
    """
    subject = prepared_subject(prepared)
    limit = number_of_bytes(subject, budget)
    if method.planner != "auto":
        raise no_model(method.planner)
    return write_formulation(
        subject, limit, method.formulation or "cuts", path, most_columns=method.most_columns
    )


def number_of_bytes(subject: Subject, budget: Budget) -> int:
    """Bytes of the problem within the budget; a written model needs a number.

    Raises:
        UsageError: it is ``min``.
    """
    limit = subject.limit(budget)
    if limit is None:
        raise UsageError(
            "the budget of a written model is a number", hint="--budget 2GiB or --budget 0.6x"
        )
    return limit.planned


def no_model(planner: str) -> UsageError:
    """A planner that is no formulation was asked to write one."""
    return UsageError(f"--planner {planner} writes no model", hint="name one with --formulation")


def model_words(facts: Mapping[str, Any], path: Path) -> str:
    """What was written, for people."""
    words = (
        f"wrote {path}: {facts['formulation']}, {facts['columns']} columns "
        f"({facts['integer_columns']} integer), {facts['rows']} rows"
    )
    return words + (f", {facts['products']} products" if facts["products"] else "")


def write_device_formulation(
    problem: Problem, budgets: Sequence[int], method: Method, path: Path
) -> dict[str, Any]:
    """Write the model of a formulation for a budget in bytes per device; returns its figures.

    Raises:
        UsageError: not a formulation for several devices, or a model that is too large.
    """
    name = method.formulation
    check_for_devices(name)
    made = formulate(ProblemLists(problem), budgets, name, most_columns=method.most_columns)
    written = _written(made.model, path)
    return {
        "formulation": method.formulation,
        "budget_bytes": {
            name: limit if limit < NO_LIMIT else None
            for name, limit in zip(problem.names, budgets, strict=True)
        },
        **written,
        "seconds_per_objective_unit": made.unit,
        "file": str(path),
    }


def _written(model: Model, path: Path) -> dict[str, int]:
    """Write a model by the suffix of the path; its size.

    Raises:
        UsageError: another suffix.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: a model file ends in {' or '.join(SUFFIXES)}")
    with atomic(path) as temporary:
        write_model(model, temporary, path.suffix.lower())
    return {
        "columns": model.columns,
        "integer_columns": sum(model.integer),
        "rows": model.rows,
        "products": len(model.quadratic_cost),
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
        ProblemLists(subject.problem), [limit], name, cut_ops=cut_ops, most_columns=most_columns
    )
    point = _point(made.model, path)
    schedule = made.schedule(point)
    if schedule is None:
        raise UsageError(f"{path} holds no plan", why="it runs an op again that may run only once")
    problem = subject.problem
    bytes_ = _replayed(problem, limit, made, schedule, path)
    total = seconds(problem, problem.store_all())
    return Solution(
        Status.FEASIBLE, schedule, seconds(problem, schedule), (bytes_,),
        Certificate(total, "store-all", any_order=True), f"{name} ({path.name})", reference=total,
        notes=("read from a solution file: no bound but that of storing everything",),
    )  # fmt: skip


def read_device_formulation(
    problem: Problem, budgets: Sequence[int], method: Method, path: Path
) -> Solution:
    """The schedule that a solution file stands for, judged against the budgets in bytes.

    The file proves nothing that could be checked: the bound is each op once on its best device.

    Raises:
        UsageError: the file is no solution of this model, or its schedule cannot be carried out or
            takes more than a budget.
    """
    name = method.formulation
    check_for_devices(name)
    made = formulate(ProblemLists(problem), budgets, name, most_columns=method.most_columns)
    point = _point(made.model, path)
    try:
        schedule = made.schedule(point)
        assert schedule is not None  # XEngine's points all stand for one
        held = peaks(problem, schedule).tolist()
    except InvalidScheduleError as error:
        raise UsageError(f"the plan of {path} cannot run", why=str(error)) from error
    for device, count, limit in zip(problem.names, held, budgets, strict=True):
        if count > limit:
            raise UsageError(
                f"the plan of {path} takes {format_bytes(count)} ({count} B) of "
                f"{format_bytes(limit)} ({limit} B) on '{device}'",
                hint="give the budgets that the model was written with",
            )
    record = Incumbent(problem, tuple(budgets), 0.0, 0.0, fixed_order=True)
    record.raise_bound(problem.least_seconds, "least run", any_order=True)
    record.notes.append("read from a solution file: no bound but each op once on its best device")
    record.offer(schedule, f"{method.formulation} ({path.name})")
    return record.solution()


def _point(model: Model, path: Path) -> Floats:
    """The point of a solution file.

    Raises:
        UsageError: it is none of this model.
    """
    try:
        return read_solution(model, path)
    except SolutionFileError as error:
        raise UsageError(
            f"{path} holds no plan",
            why=str(error).removeprefix(f"{path}: "),
            hint="give the formulation, budget and options that the model was written with; "
            "SCIP, Gurobi and HiGHS (styles raw, pretty, sparse) files are read",
        ) from error


def _replayed(
    problem: Problem, limit: int, made: Formulated, schedule: Schedule, path: Path
) -> int:
    """Peak bytes of a schedule, by the simulator.

    Raises:
        UsageError: it cannot run, or takes more than ``limit`` bytes.
    """
    try:
        use = occupancy(problem, schedule)[0]
    except ValueError as error:
        raise UsageError(f"the plan of {path} cannot run", why=str(error)) from error
    highest = peak(problem, schedule)
    if highest <= limit:
        return highest
    step, hint = int(use.argmax()), "give the budget that the model was written with"
    if made.name == "cuts":
        worst = int(stage_excess(problem.ops, schedule, use.astype(float) - limit).argmax())
        more = next((op for op in (worst, worst - 1) if op >= 0 and op not in made.cuts), None)
        hint = "between cuts the relaxation forgets memory: try --formulation checkmate"
        if more is not None:
            hint = "the limit holds at the cuts only: write and solve again with "
            hint += " ".join(f"--cut {op}" for op in sorted((*made.cuts, more)))
    raise UsageError(
        f"the plan of {path} takes {format_bytes(highest)} ({highest} B) "
        f"of {format_bytes(limit)} ({limit} B)",
        where=f"step {step}, op {schedule.sequence[step]}",
        hint=hint,
    )
