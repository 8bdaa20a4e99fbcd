"""Models as MPS and LP files for solvers elsewhere.

MPS is the free format; products of columns in the objective go to the section QMATRIX (both
triangles, x^T Q x / 2). Gurobi, SCIP and CPLEX take all of it. HiGHS reads QMATRIX but solves it
for continuous columns only. In LP files the constant of the objective is a column fixed to 1, which
every reader takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isinf
from pathlib import Path

from onnxremat.planner.model import Model

SUFFIXES = (".mps", ".lp")


def write_model(model: Model, path: str | Path, suffix: str = "") -> None:
    """Write ``.mps`` or ``.lp`` by the suffix of ``path``, or as ``suffix`` says.

    Raises:
        ValueError: another suffix.
    """
    path = Path(path)
    suffix = suffix or path.suffix
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: model files end in .mps or .lp")
    lines = mps_lines(model) if suffix == ".mps" else lp_lines(model)
    with path.open("w", encoding="ascii") as file:
        file.writelines(f"{line}\n" for line in lines)


def mps_lines(model: Model) -> Iterator[str]:
    """Free-format MPS, line by line."""
    yield f"NAME {model.name}"
    yield "ROWS"
    yield " N cost"
    for row in range(model.rows):
        yield f" {_sense(model, row)} r{row}"
    yield from _mps_columns(model)
    yield "RHS"
    if model.offset:
        yield f" RHS cost {-model.offset!r}"
    for row in range(model.rows):
        side = model.row_upper[row] if _sense(model, row) in "LE" else model.row_lower[row]
        if side and not isinf(side):
            yield f" RHS r{row} {side!r}"
    ranged = [row for row in range(model.rows) if _ranged(model, row)]
    if ranged:
        yield "RANGES"
        for row in ranged:
            yield f" RNG r{row} {model.row_upper[row] - model.row_lower[row]!r}"
    yield from _mps_bounds(model)
    yield from _mps_products(model)
    yield "ENDATA"


def _sense(model: Model, row: int) -> str:
    lower, upper = model.row_lower[row], model.row_upper[row]
    if lower == upper:
        return "E"
    if upper < inf:
        return "L"
    return "G" if lower > -inf else "N"


def _ranged(model: Model, row: int) -> bool:
    lower, upper = model.row_lower[row], model.row_upper[row]
    return -inf < lower < upper < inf


def _mps_columns(model: Model) -> Iterator[str]:
    start, index, value = (array.tolist() for array in model.matrix())
    entries: list[list[tuple[int, float]]] = [[] for _ in range(model.columns)]
    for row in range(model.rows):
        for k in range(start[row], start[row + 1]):
            entries[index[k]].append((row, value[k]))
    yield "COLUMNS"
    inside = False
    for column, label in enumerate(model.labels):
        if model.integer[column] != inside:
            inside = not inside
            yield f" MARKER 'MARKER' '{'INTORG' if inside else 'INTEND'}'"
        yield f" {label} cost {model.cost[column]!r}"
        for row, number in entries[column]:
            yield f" {label} r{row} {number!r}"
    if inside:
        yield " MARKER 'MARKER' 'INTEND'"


def _mps_bounds(model: Model) -> Iterator[str]:
    yield "BOUNDS"
    for label, lower, upper in zip(model.labels, model.lower, model.upper, strict=True):
        if lower == upper:
            yield f" FX BND {label} {lower!r}"
            continue
        if lower == -inf:
            yield f" MI BND {label}"
        elif lower:
            yield f" LO BND {label} {lower!r}"
        yield f" PL BND {label}" if upper == inf else f" UP BND {label} {upper!r}"


def _mps_products(model: Model) -> Iterator[str]:
    labels = model.labels
    if model.quadratic_cost:
        yield "QMATRIX"
        for (i, j), q in _symmetric(model.quadratic_cost).items():
            yield f" {labels[i]} {labels[j]} {q!r}"


def _symmetric(terms: list[tuple[int, int, float]]) -> dict[tuple[int, int], float]:
    """Entries of the symmetric Q, which the objective has half of."""
    entries: dict[tuple[int, int], float] = {}
    for i, j, q in terms:
        for key in ((i, j), (j, i)):
            entries[key] = entries.get(key, 0.0) + q
    return entries


def lp_lines(model: Model) -> Iterator[str]:
    """CPLEX LP format, line by line."""
    yield f"\\ {model.name}"
    yield "Minimize"
    objective = _linear([(j, c) for j, c in enumerate(model.cost) if c], model)
    quadratic = _products(model)
    constant = f" + {model.offset!r} constant" if model.offset else ""
    products = f" + [ {quadratic} ] / 2" if quadratic else ""
    nothing = f"0 {next(iter(model.labels), 'constant')}"
    yield f" cost: {objective or nothing}{constant}{products}"
    yield "Subject To"
    start, index, value = (array.tolist() for array in model.matrix())
    for row in range(model.rows):
        a, b = start[row], start[row + 1]
        left = _linear(list(zip(index[a:b], value[a:b], strict=True)), model) or nothing
        lower, upper = model.row_lower[row], model.row_upper[row]
        if lower == upper:
            yield f" r{row}: {left} = {upper!r}"
            continue
        if upper < inf:
            yield f" r{row}: {left} <= {upper!r}"
        if lower > -inf:
            yield f" r{row}{'b' if upper < inf else ''}: {left} >= {lower!r}"
    yield from _lp_bounds(model)
    yield "End"


def _lp_bounds(model: Model) -> Iterator[str]:
    yield "Bounds"
    if model.offset or not model.labels:
        yield " constant = 1"
    for label, lower, upper in zip(model.labels, model.lower, model.upper, strict=True):
        low = "-inf" if lower == -inf else repr(lower)
        yield f" {low} <= {label} <= {'+inf' if upper == inf else repr(upper)}"
    integers = [label for label, flag in zip(model.labels, model.integer, strict=True) if flag]
    if integers:
        yield "Generals"
        for k in range(0, len(integers), 8):
            yield " " + " ".join(integers[k : k + 8])


def _linear(terms: list[tuple[int, float]], model: Model) -> str:
    return " ".join(f"{'-' if a < 0 else '+'} {abs(a)!r} {model.labels[j]}" for j, a in terms)


def _products(model: Model) -> str:
    """Twice the products of the objective, as inside brackets; SCIP wants no leading plus and no
    blank before the exponent."""
    parts = []
    for i, j, q in model.quadratic_cost:
        a, b = model.labels[i], model.labels[j]
        body = f"{a} ^2" if i == j else f"{a} * {b}"
        parts.append(f"{'-' if q < 0 else '+'} {abs(2.0 * q)!r} {body}")
    return " ".join(parts).removeprefix("+ ")
