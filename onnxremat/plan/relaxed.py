"""The continuous relaxation of a cut model, tightened by path rows until none is broken.

Its bound is proven by weak duality whatever the precision of the solver. The rows that matter at
the end stay in the model, so that a mixed-integer solver starts from the tightened relaxation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic

from onnxremat.plan.formulations.cuts import CutModel
from onnxremat.plan.formulations.paths import Path, add_paths, violated
from onnxremat.plan.problem import Floats
from onnxremat.plan.solvers import Limits, Relaxation

BROKEN = 0.02  # a row counts as violated from here
AT_ONCE = 4000  # rows added before the relaxation is solved again, worst first
LOOSE = 0.3  # slack from which a row is dropped at the end
LEAST = 2e-4  # gain per solve, as a share of the objective over the store-all time, to go on


@dataclass(frozen=True)
class Relaxed:
    """Where the tightening ended: proven bound of the objective, point, rows in the model."""

    bound: float
    point: Floats
    paths: list[Path]


def tighten(
    made: CutModel,
    known: Sequence[Path],
    *,
    seconds: float,
    stop: Callable[[], bool] | None = None,
    seed: int = 0,
) -> Relaxed | None:
    """Solve the relaxation, adding path rows to the model; None when the first solve fails.

    Args:
        known: paths found before, whose rows the model starts with.
    """
    model, rows, end = made.model, made.model.rows, monotonic() + seconds
    paths = add_paths(made, known)
    relaxation = Relaxation(model, seed)
    best, solved = -inf, False
    while relaxation.solve(Limits(seconds=end - monotonic(), stop=stop)):
        gain = relaxation.bound - best
        best, solved = max(best, relaxation.bound), True
        if gain < LEAST * max(1.0, best - model.offset) or monotonic() > end:
            break
        if stop is not None and stop():
            break
        broken = violated(made, relaxation.point, BROKEN)
        if not broken:
            break
        broken.sort(key=lambda item: -item[0])
        paths += add_paths(made, [path for _, path in broken[:AT_ONCE]])
    if not solved:
        model.cut_back(rows)
        return None
    point = relaxation.point
    tight = [
        path for path, slack in zip(paths, _slack(made, rows, point), strict=True) if slack < LOOSE
    ]
    model.cut_back(rows)
    return Relaxed(best, point, add_paths(made, tight))


def _slack(made: CutModel, rows: int, point: Floats) -> list[float]:
    """Slack of the path rows, which begin at row ``rows``, at a point."""
    start, index, _ = made.model.matrix()
    sums = point[index[start[rows] :]].cumsum() if len(index) > start[rows] else point[:0]
    ends = (start[rows + 1 :] - start[rows] - 1).tolist()
    totals = sums[ends].tolist()
    return [b - a - 1.0 for a, b in zip([0.0, *totals], totals, strict=False)]
