"""The continuous relaxation of a cut model, tightened by path and hold rows until none is broken.

Its bound is proven by weak duality whatever the precision of the solver. The rows that matter at
the end stay in the model, so that a mixed-integer solver starts from the tightened relaxation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from onnxremat.planner.formulations.cut_model import CutModel
from onnxremat.planner.formulations.holds import Hold, Holds
from onnxremat.planner.formulations.paths import Path, add_paths, violated
from onnxremat.planner.problem import Floats
from onnxremat.planner.solvers import Limits, Relaxation

Row = Path | Hold


@dataclass(frozen=True)
class Tuning:
    """Constants of the tightening; rows are those of ``make bench-plan``.

    Attributes:
        broken: by how much a path row is violated that is added; what path and hold rows earn:
            ``make bench-plan ARGS=--ablate``.
        over: the same for a hold row, as a share of the budget.
        at_once: path rows added before the relaxation is solved again, worst first.
        each: hold rows per interval added then.
        loose: slack from which a path row is dropped at the end.
        wide: the same for a hold row, in thousandths of the budget.
        least: gain per solve, as a share of the objective over the store-all time, to go on.
    """

    broken: float = 0.02
    over: float = 4e-3
    at_once: int = 4000
    each: int = 6
    loose: float = 0.3
    wide: float = 20.0
    least: float = 2e-4


TUNING = Tuning()


@dataclass(frozen=True)
class Relaxed:
    """Where the tightening ended.

    Attributes:
        bound: proven, of the objective.
        point: the last solution.
        rows: path and hold rows that are left in the model.
        price: of a byte at each cut, in the scale of the model.
    """

    bound: float
    point: Floats
    rows: list[Row]
    price: dict[int, float]


def add_rows(made: CutModel, rows: Iterable[Row]) -> list[Row]:
    """Append path and hold rows that fit the intervals of a model; returns those."""
    rows = list(rows)
    paths = add_paths(made, [row for row in rows if isinstance(row, Path)])
    holds = Holds(made).add(row for row in rows if isinstance(row, Hold))
    return [*paths, *holds]


def tighten(made: CutModel, known: Sequence[Row], limits: Limits) -> Relaxed | None:
    """Solve the relaxation, adding rows to the model; None when the first solve fails.

    Args:
        known: rows found before, which the model starts with.
    """
    clock, stop = limits.clock, limits.stop
    model, first, end = made.model, made.model.rows, clock.now() + limits.seconds
    rows, holds = add_rows(made, known), Holds(made)
    relaxation = Relaxation(model, limits.seed)
    best, solved = -inf, False
    while relaxation.solve(replace(limits, seconds=end - clock.now())):
        gain = relaxation.bound - best
        best, solved = max(best, relaxation.bound), True
        if gain < TUNING.least * max(1.0, best - model.offset) or clock.now() > end:
            break
        if stop is not None and stop():
            break
        paths = sorted(violated(made, relaxation.point, TUNING.broken), key=lambda item: -item[0])
        held = holds.violated(relaxation.point, TUNING.over, TUNING.each)
        if not paths and not held:
            break
        rows += add_paths(made, [path for _, path in paths[: TUNING.at_once]])
        rows += holds.add(hold for _, hold in held)
    if not solved:
        model.cut_back(first)
        return None
    tight = _tight(made, first, rows, relaxation.point)
    price = dict.fromkeys(made.spans.cuts, 0.0)
    for (cut, _), row in made.memory.items():
        price[cut] -= float(relaxation.prices[row])
    model.cut_back(first)
    return Relaxed(best, relaxation.point, add_rows(made, tight), price)


def _tight(made: CutModel, first: int, rows: list[Row], point: Floats) -> list[Row]:
    """Those of the rows, which begin at ``first`` in the model, that a point nearly breaks."""
    start, index, value = made.model.matrix()
    sums = np.concatenate([[0.0], np.cumsum(value * point[index])])
    activity = sums[start[first + 1 :]] - sums[start[first:-1]]
    over = activity - np.asarray(made.model.row_lower[first:])
    under = np.asarray(made.model.row_upper[first:]) - activity
    slack = np.minimum(over / TUNING.loose, under / TUNING.wide)
    return [row for row, far in zip(rows, slack.tolist(), strict=True) if far < 1.0]
