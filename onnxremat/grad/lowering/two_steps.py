"""Large sums in two ops, each of which the CPU kernels do faster than all at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

LARGE = 1 << 14  # elements from which a sum is worth two ops
PARTS = 32  # most parts that rows are summed in


def in_two_steps(shape: tuple[int, ...], axes: Sequence[int]) -> tuple[tuple[int, ...], int] | None:
    """How to see a tensor to be summed over ``axes`` as [parts, ...] of three axes, and the axis to
    sum first; the parts come second. None for one step."""
    count, rank = math.prod(shape), len(shape)
    kept = [axis for axis in range(rank) if axis not in axes]
    if count < LARGE or not axes or axes[0] != 0 or not kept:
        return None
    if kept == list(range(kept[0], rank)):  # sums of rows
        columns = math.prod(shape[kept[0] :])
        rows = count // columns
        parts = max(k for k in range(1, PARTS + 1) if rows % k == 0)
        return ((parts, rows // parts, columns), 1) if 1 < parts < rows else None
    together = kept == list(range(1, 1 + len(kept)))
    if not together or shape[0] == 1:
        return None
    channels = math.prod(shape[axis] for axis in kept)
    return (shape[0], channels, count // (shape[0] * channels)), 2
