"""Edits of a schedule: insert, delete, bring missing values, drop what nobody reads."""

from __future__ import annotations

import numpy as np
from numba import types

from onnxremat.planner.problem import Floats, Ints
from onnxremat.planner.search.arrays import (
    ARRAYS,
    SCRATCH,
    Arrays,
    Scratch,
    copy_of,
    device,
    item,
    source,
)
from onnxremat.planner.search.compiled import F64, F64_3D, I32, I32_2D, compiled, part
from onnxremat.planner.search.evaluate import evaluate


@compiled(types.int64(I32, types.int64, I32))
def copy_steps(schedule: Ints, steps: int, out: Ints) -> int:
    """Copy ``schedule[:steps]``; returns ``steps``."""
    for k in range(steps):
        out[k] = schedule[k]
    return steps


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


@compiled(types.void(I32, types.int64))
def sort(numbers: Ints, count: int) -> None:
    """Sort a few numbers, increasing."""
    for i in range(1, count):
        number, k = numbers[i], i - 1
        while k >= 0 and numbers[k] > number:
            numbers[k + 1] = numbers[k]
            k -= 1
        numbers[k + 1] = number


@compiled(types.boolean(F64, types.int64, types.int64))
def _before(key: Floats, a: int, b: int) -> bool:
    """Less key, or the same and less number."""
    return key[a] < key[b] or (key[a] == key[b] and a < b)


@compiled(types.void(F64, I32, types.int64))
def rank_by(key: Floats, rank: Ints, count: int) -> None:
    """Fill ``rank[:count]`` with 0..count-1, least key first, equal ones by number (heap sort)."""
    for k in range(count):
        rank[k] = k
    for turn in range(count // 2 + count):
        # The first turns make a heap from its last parent up, the others take its top off.
        top, end = count // 2 - 1 - turn, count
        if top < 0:
            end = count - 1 - (turn - count // 2)
            rank[0], rank[end] = rank[end], rank[0]
            top = 0
        mover = rank[top]
        while 2 * top + 1 < end:
            child = 2 * top + 1
            if child + 1 < end and _before(key, rank[child], rank[child + 1]):
                child += 1
            if _before(key, rank[child], mover):
                break
            rank[top] = rank[child]
            top = child
        rank[top] = mover


@compiled(types.int64(I32_2D, F64_3D, I32, types.int64, types.int64, types.int64))
def _bring(current: Ints, copy: Floats, out: Ints, count: int, value: int, to: int) -> int:
    """Append the quickest copy of a missing value from where it is; the new length, or -1."""
    start, least = -1, np.inf
    for e in range(len(current)):
        if e != to and current[e, value] >= 0 and copy[e, to, value] < least:
            start, least = e, copy[e, to, value]
    if start < 0 or count >= len(out):
        return -1
    out[count] = copy_of(value, start, to)
    current[to, value] = 0
    return count + 1


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, I32, I32))
def mend(p: Arrays, s: Scratch, schedule: Ints, steps: int, placement: Ints, out: Ints) -> int:
    """Rewrite a list of steps into ``out`` with copies where values are missing.

    Copies whose source is missing come from elsewhere or go; kept values are brought to where
    they are placed at the end. Returns the new length, or -1 when a value is nowhere at hand.
    """
    current, seen = s.current, s.seen
    current[:] = -1
    seen[:] = 0
    count = 0
    for step in range(steps):
        code = schedule[step]
        this, to, start = item(code), device(code), source(code)
        if start >= 0:
            if current[start, this] < 0:
                if current[to, this] < 0:
                    count = _bring(current, p.copy, out, count, this, to)
                    if count < 0:
                        return -1
                continue
            current[to, this] = 0
        else:
            for k in range(p.read_start[this], p.read_start[this + 1]):
                if current[to, p.read_index[k]] < 0:
                    count = _bring(current, p.copy, out, count, p.read_index[k], to)
                    if count < 0:
                        return -1
            for k in range(p.write_start[this], p.write_start[this + 1]):
                if seen[this] == 0 or p.keep[p.write_index[k]] == 0:
                    current[to, p.write_index[k]] = 0
            seen[this] = 1
        if count >= len(out):
            return -1
        out[count] = code
        count += 1
    for value in range(len(p.keep)):
        if p.keep[value] and placement[value] >= 0 and current[placement[value], value] < 0:
            count = _bring(current, p.copy, out, count, value, placement[value])
            if count < 0:
                return -1
    return count


@part
def _read_steps(s: Scratch, schedule: Ints, steps: int) -> int:
    """Keep first runs and steps that make something that is read; the new length."""
    s.seen[:] = 0
    kept = 0
    for step in range(steps):
        code = schedule[step]
        needed = False
        if source(code) < 0:
            needed = s.seen[item(code)] == 0
            s.seen[item(code)] = 1
        for instance in range(s.first[step], s.first[step + 1]):
            needed = needed or s.reads[instance] > 0
        if needed:
            schedule[kept] = code
            kept += 1
    return kept


@part
def prune(p: Arrays, s: Scratch, schedule: Ints, steps: int, placement: Ints) -> int:
    """Drop second runs and copies that nobody reads until none is left; leaves ``s`` evaluated.

    Returns the new length, or -1 when the schedule is not valid.
    """
    while True:
        if not evaluate(p, s, schedule, steps, placement):
            return -1
        kept = _read_steps(s, schedule, steps)
        if kept == steps:
            return steps
        steps = kept


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, I32, I32), entry=True)
def mended(p: Arrays, s: Scratch, schedule: Ints, steps: int, placement: Ints, out: Ints) -> int:
    """:func:`mend`, then :func:`prune`: the new length of ``schedule``, or -1."""
    steps = mend(p, s, schedule, steps, placement, out)
    if steps < 0:
        return -1
    copy_steps(out, steps, schedule)
    return prune(p, s, schedule, steps, placement)
