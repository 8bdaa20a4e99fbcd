"""The transpose of indexing an axis with known numbers, without a scatter.

Indices as exporters write them are mostly a few runs (ranges, reversed ranges, one number
repeated): a slice of the cotangent, reversed or summed, padded to the length of the axis.
"""

from __future__ import annotations

import numpy as np

from onnxremat.grad.tape import Tape

Run = tuple[int, int, int]  # first position, length, step between the indices: 1, -1 or 0


def runs_of(indices: np.ndarray) -> list[Run]:
    """Split indices into maximal runs of constant step -1, 0 or 1."""
    runs: list[Run] = []
    start = 0
    while start < len(indices):
        end = start + 1
        step = int(indices[end] - indices[start]) if end < len(indices) else 1
        if abs(step) <= 1:
            while end < len(indices) and indices[end] - indices[end - 1] == step:
                end += 1
        length = end - start
        runs.append((start, length, step if length > 1 else 1))
        start = end
    return runs


def sum_of_runs(t: Tape, dy: str, axis: int, indices: np.ndarray, length: int) -> str:
    """The cotangent of x with y = take(x, indices, axis), the axis of x being ``length`` long."""
    total: str | None = None
    for start, count, step in runs_of(indices):
        part = t.slice(dy, [axis], [start], [start + count])
        if step == 0:
            part = t.sum(part, [axis], keep=True)
        elif step == -1:
            part = t.reversed(part, [axis])
        first = int(min(indices[start : start + count]))
        before, after = [0] * t.rank(dy), [0] * t.rank(dy)
        before[axis], after[axis] = first, length - first - t.shape(part)[axis]
        part = t.pad(part, before, after)
        total = part if total is None else t.add(total, part)
    return total if total is not None else t.zeros(dy)
