"""Solution files of solvers elsewhere: columns by name, as SCIP, Gurobi and HiGHS write them.

SCIP and Gurobi write ``name value`` lines (SCIP leaves zeros out, Gurobi adds slack columns of
ranges). HiGHS writes the same in its styles raw and sparse, where rows and dual values follow, and
a table with the name last in its style pretty. Its two GLPK styles number columns instead of naming
them or cut names off, so they are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isfinite
from pathlib import Path

import numpy as np

from onnxremat.limits import regular
from onnxremat.planner.model import Model
from onnxremat.planner.problem import Floats

WHOLE = 1e-3  # farthest an integer column may be from a whole number
_OURS = re.compile(r"[A-Za-z]+(_\d+)+|x\d+")  # names that formulations give
_STATUS = re.compile(r"[A-Z]{2}")
_END = re.compile(r"# (Rows|Dual|Basis)|Rows\s*$")
_NOTHING = re.compile(r"no solution available|infeasible|unbounded", re.IGNORECASE)


class SolutionFileError(ValueError):
    """A solution file that does not belong to the model; the message says why."""


def read_solution(model: Model, path: str | Path) -> Floats:
    """Point of a solution file, shape (columns,); columns that are not listed are 0.

    Integer columns come back as whole numbers. Rows are not checked: the sequence that the point
    stands for is, by the simulator.

    Raises:
        SolutionFileError: unreadable, no solution in it, of another model, or fractional.
    """
    try:
        text = regular(Path(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SolutionFileError(f"{path}: {error}") from error
    known = {label: column for column, label in enumerate(model.labels)}
    point = np.zeros(model.columns)
    listed = 0
    for number, name, word in _entries(text):
        column = known.get(name)
        if column is None:
            if _OURS.fullmatch(name):
                raise SolutionFileError(
                    f"{path}, line {number}: {model.name}'s model of this graph has no column "
                    f"{name}; the solution belongs to another graph, order or formulation"
                )
            continue
        point[column] = _number(path, number, word)
        listed += 1
    said = None if listed else _NOTHING.search(text)
    if said or (model.columns and not listed):
        why = f"says '{said.group()}'" if said else f"names no column of model {model.name}"
        raise SolutionFileError(f"{path}: {why}")
    return _whole(model, point, path)


def _entries(text: str) -> Iterator[tuple[int, str, str]]:
    """(line number, column name, value) of every line that may hold one."""
    table = False
    for number, line in enumerate(text.splitlines(), 1):
        if _END.match(line):
            return
        words = line.split()
        if words == ["Columns"]:
            table = True
        elif table and len(words) >= 5 and words[0].isdigit():
            yield number, words[-1], words[4 if _STATUS.fullmatch(words[1]) else 3]
        elif len(words) >= 2 and not table and not words[0].startswith("#"):
            yield number, words[0], words[1]


def _number(path: str | Path, line: int, word: str) -> float:
    try:
        value = float(word)
    except ValueError as error:
        raise SolutionFileError(f"{path}, line {line}: {word!r} is no number") from error
    if not isfinite(value):
        raise SolutionFileError(f"{path}, line {line}: {word!r} is no value of a column")
    return value


def _whole(model: Model, point: Floats, path: str | Path) -> Floats:
    """The point with its integer columns rounded."""
    integer = np.asarray(model.integer, np.bool_)
    nearest = np.where(integer, np.round(point), point)
    off = np.abs(point - nearest)
    worst = int(off.argmax()) if len(off) else 0
    if len(off) and off[worst] > WHOLE:
        raise SolutionFileError(
            f"{path}: integer column {model.labels[worst]} is {point[worst]:.4g}; "
            "this is a solution of the relaxation"
        )
    return nearest
