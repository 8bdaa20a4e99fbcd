"""Small edits of a sequence: insert, delete, drop unread second runs, draw random numbers."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.planner.problem import Ints
from onnxremat.planner.search.compiled import ARRAYS, I32, SCRATCH, U64, Arrays, Scratch, compiled
from onnxremat.planner.search.evaluate import evaluate


@compiled(types.int64(U64, types.int64), lean=True)
def below(random: NDArray[np.uint64], limit: int) -> int:
    """Random integer in [0, limit) (xorshift64); ``random`` holds the state."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return int((x >> np.uint64(11)) % np.uint64(limit))


@compiled(types.float64(U64), lean=True)
def uniform(random: NDArray[np.uint64]) -> float:
    """Random number in [0, 1)."""
    return below(random, 1 << 53) / 9007199254740992.0


@compiled(types.int64(I32, types.int64, types.int64, I32, types.int64), lean=True)
def insert(sequence: Ints, steps: int, at: int, ops: Ints, count: int) -> int:
    """Insert ``ops[:count]`` before step ``at``; returns the new length."""
    for k in range(steps - 1, at - 1, -1):
        sequence[k + count] = sequence[k]
    for k in range(count):
        sequence[at + k] = ops[k]
    return steps + count


@compiled(types.int64(I32, types.int64, types.int64), lean=True)
def delete(sequence: Ints, steps: int, at: int) -> int:
    """Delete step ``at``; returns the new length."""
    for k in range(at, steps - 1):
        sequence[k] = sequence[k + 1]
    return steps - 1


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, types.int64, types.boolean), lean=True)
def prune(p: Arrays, s: Scratch, sequence: Ints, steps: int, budget: int, free_order: bool) -> int:
    """Drop second runs that nobody reads until none is left; leaves ``s`` evaluated."""
    while True:
        evaluate(p, s, sequence, steps, budget, free_order)
        s.seen[:] = 0
        kept = 0
        for step in range(steps):
            op = sequence[step]
            if s.seen[op] == 0 or s.uses[step] > 0:
                sequence[kept] = op
                kept += 1
            s.seen[op] = 1
        if kept == steps:
            return steps
        steps = kept
