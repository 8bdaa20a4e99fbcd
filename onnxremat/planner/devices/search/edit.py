"""Edits of a schedule: insert, delete, bring missing values, drop what nobody reads."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.planner.devices.search.arrays import (
    ARRAYS,
    F64_3D,
    I32,
    I32_2D,
    I64,
    SCRATCH,
    U64,
    Arrays,
    Scratch,
    compiled,
)
from onnxremat.planner.devices.search.evaluate import evaluate
from onnxremat.planner.problem import Bytes, Floats, Ints


@compiled(types.int64(U64, types.int64))
def below(random: NDArray[np.uint64], limit: int) -> int:
    """Random integer in [0, limit) (xorshift64)."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return int((x >> np.uint64(11)) % np.uint64(limit))


@compiled(types.float64(U64))
def uniform(random: NDArray[np.uint64]) -> float:
    """Random number in [0, 1)."""
    return below(random, 1 << 53) / 9007199254740992.0


@compiled(types.int64(I32, types.int64, types.int64, I32, types.int64))
def insert(schedule: Ints, steps: int, at: int, codes: Ints, count: int) -> int:
    """Insert ``codes[:count]`` before step ``at``; the new length."""
    for k in range(steps - 1, at - 1, -1):
        schedule[k + count] = schedule[k]
    for k in range(count):
        schedule[at + k] = codes[k]
    return steps + count


@compiled(types.int64(I32, types.int64, types.int64))
def delete(schedule: Ints, steps: int, at: int) -> int:
    """Delete step ``at``; the new length."""
    for k in range(at, steps - 1):
        schedule[k] = schedule[k + 1]
    return steps - 1


@compiled(types.int64(I32, types.int64, types.int64, types.int64))
def insert_one(schedule: Ints, steps: int, at: int, code: int) -> int:
    """Insert one step before step ``at``; the new length."""
    for k in range(steps - 1, at - 1, -1):
        schedule[k + 1] = schedule[k]
    schedule[at] = code
    return steps + 1


@compiled(types.int64(I32_2D, F64_3D, I32, types.int64, types.int64, types.int64))
def _bring(current: Ints, copy: Floats, out: Ints, count: int, value: int, device: int) -> int:
    """Append the quickest copy of a missing value from where it is; the new length, or -1."""
    source, least = -1, np.inf
    for e in range(len(current)):
        if e != device and current[e, value] >= 0 and copy[e, device, value] < least:
            source, least = e, copy[e, device, value]
    if source < 0 or count >= len(out):
        return -1
    out[count] = value << 8 | device << 4 | source + 1
    current[device, value] = 0
    return count + 1


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, I32, I32))
def mend(p: Arrays, s: Scratch, schedule: Ints, steps: int, hold: Ints, out: Ints) -> int:
    """Rewrite a list of steps into ``out`` with copies where values are missing.

    Copies whose source is missing come from elsewhere or go; kept values are brought to their
    hold device at the end. Returns the new length, or -1 when a value is nowhere at hand.
    """
    current, seen, copy, keep = s.current, s.seen, p.copy, p.keep
    read_start, read_index = p.read_start, p.read_index
    write_start, write_index = p.write_start, p.write_index
    current[:] = -1
    seen[:] = 0
    count = 0
    for step in range(steps):
        code = schedule[step]
        item, device, source = code >> 8, code >> 4 & 15, (code & 15) - 1
        if source >= 0:
            if current[source, item] < 0:
                if current[device, item] < 0:
                    count = _bring(current, copy, out, count, item, device)
                    if count < 0:
                        return -1
                continue
            current[device, item] = 0
        else:
            for k in range(read_start[item], read_start[item + 1]):
                if current[device, read_index[k]] < 0:
                    count = _bring(current, copy, out, count, read_index[k], device)
                    if count < 0:
                        return -1
            for k in range(write_start[item], write_start[item + 1]):
                if seen[item] == 0 or keep[write_index[k]] == 0:
                    current[device, write_index[k]] = 0
            seen[item] = 1
        if count >= len(out):
            return -1
        out[count] = code
        count += 1
    for value in range(len(keep)):
        if keep[value] and hold[value] >= 0 and current[hold[value], value] < 0:
            count = _bring(current, copy, out, count, value, hold[value])
            if count < 0:
                return -1
    return count


@compiled(types.int64(I32, I32, I32, I32, types.int64))
def _read_steps(seen: Ints, first: Ints, reads: Ints, schedule: Ints, steps: int) -> int:
    """Keep first runs and steps that make something that is read; the new length."""
    seen[:] = 0
    kept = 0
    for step in range(steps):
        code = schedule[step]
        needed = False
        if code & 15 == 0:
            needed = seen[code >> 8] == 0
            seen[code >> 8] = 1
        for instance in range(first[step], first[step + 1]):
            needed = needed or reads[instance] > 0
        if needed:
            schedule[kept] = code
            kept += 1
    return kept


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, I32, I64, types.boolean))
def prune(
    p: Arrays, s: Scratch, schedule: Ints, steps: int, hold: Ints, budget: Bytes, free_order: bool
) -> int:
    """Drop second runs and copies that nobody reads until none is left; leaves ``s`` evaluated.

    Returns the new length, or -1 when the schedule is not valid.
    """
    while True:
        if not evaluate(p, s, schedule, steps, hold, budget, free_order):
            return -1
        kept = _read_steps(s.seen, s.first, s.reads, schedule, steps)
        if kept == steps:
            return steps
        steps = kept
