"""Random moves over schedules: what annealing by replay tries.

Each move edits ``trial`` in place and returns its new length, or -1 when it does not apply. Those
that change where ops run or what is copied use ``mend`` to bring the values that are then missing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from onnxremat.planner.problem import Ints
from onnxremat.planner.search.arrays import (
    ARRAYS,
    SCRATCH,
    Arrays,
    Scratch,
    copy_of,
    device,
    item,
    run_of,
    source,
)
from onnxremat.planner.search.compiled import I32, below, compiled, part, uniform
from onnxremat.planner.search.edit import copy_steps, delete, insert_one, mend, sort


class Tuning(NamedTuple):
    """Limits of moves, and how often each is tried; docs/search.md has what was measured.

    Shares of moves add up: what is beyond the last moves a first run, where the order is free.
    """

    root: int = 16  # ops inserted by one move at most; work space is made for it
    stretch: int = 32  # steps moved to another device at once at most, beside one alone
    near: int = 20  # steps that one is moved by at most, when it is not moved anywhere
    levels: int = 5  # of ancestry that is recomputed, less one
    alone: float = 0.60  # of recomputations: without ancestry
    ancestor: float = 0.70  # of ancestors
    before: float = 0.25  # of swaps: out before the last touch, whose op may take the value over
    recompute: float = 0.20
    copy: float = 0.27
    swap: float = 0.37
    delete: float = 0.55
    exchange: float = 0.67
    shift: float = 0.79
    device: float = 0.93
    trade: float = 0.97
    output: float = 0.98
    nearby: float = 0.50  # of exchanges: not far
    for_copy: float = 0.25  # of exchanges: for a copy, for a swap, else for a recomputation
    for_swap: float = 0.50
    one: float = 0.50  # of changes of device: a single step
    short: float = 0.60  # of shifts: not far


TUNING = Tuning()
ROOT, STRETCH = TUNING.root, TUNING.stretch


@compiled(types.int64(ARRAYS, SCRATCH, types.int64))
def _input_of(p: Arrays, s: Scratch, code: int) -> int:
    """A random value that a step reads, on the device it reads it on, as the step that would run
    an op of that number there; or -1."""
    this = item(code)
    if source(code) >= 0:
        return run_of(this, source(code))
    many = p.read_start[this + 1] - p.read_start[this]
    if many == 0:
        return -1
    return run_of(p.read_index[p.read_start[this] + below(s.random, many)], device(code))


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, types.int64, I32))
def _insert_recompute(p: Arrays, s: Scratch, trial: Ints, steps: int, at: int, ops: Ints) -> int:
    """Insert before step ``at`` another run of what makes one of its inputs, with a part of its
    ancestry."""
    read = _input_of(p, s, trial[at])
    if read < 0:
        return -1
    where = device(read)
    ops[0] = p.producer[item(read)]
    if p.again[ops[0]] == 0 or not np.isfinite(p.cost[where, ops[0]]):
        return -1
    count, head = 1, 0
    depth = 0 if uniform(s.random) < TUNING.alone else below(s.random, TUNING.levels)
    for _ in range(depth):
        end = count
        while head < end:
            for k in range(p.read_start[ops[head]], p.read_start[ops[head] + 1]):
                maker = p.producer[p.read_index[k]]
                if p.again[maker] == 0 or not np.isfinite(p.cost[where, maker]):
                    continue
                if count >= TUNING.root or uniform(s.random) >= TUNING.ancestor:
                    continue
                known = False
                for i in range(count):
                    known = known or ops[i] == maker
                if not known:
                    ops[count] = maker
                    count += 1
            head += 1
    sort(ops, count)
    for k in range(steps - 1, at - 1, -1):
        trial[k + count] = trial[k]
    for k in range(count):
        trial[at + k] = run_of(ops[k], where)
    return steps + count


@compiled(types.int64(SCRATCH, types.int64, types.int64))
def _other(s: Scratch, devices: int, where: int) -> int:
    """A random device but ``where``, or -1 when there is none."""
    if devices < 2:
        return -1
    other = below(s.random, devices - 1)
    return other + 1 if other >= where else other


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, types.int64))
def _insert_copy(p: Arrays, s: Scratch, trial: Ints, steps: int, at: int) -> int:
    """Insert before step ``at`` a copy of one of its inputs from another device."""
    read = _input_of(p, s, trial[at])
    if read < 0:
        return -1
    value, to = item(read), device(read)
    start = _other(s, len(p.fixed), to)
    if start < 0 or not np.isfinite(p.copy[start, to, value]):
        return -1
    return insert_one(trial, steps, at, copy_of(value, start, to))


@part
def _last_touch(p: Arrays, schedule: Ints, at: int, value: int, where: int) -> int:
    """The last step before ``at`` that makes or reads a value on a device, or -1."""
    made, run = -1, run_of(p.producer[value], where)
    for step in range(at - 1, -1, -1):
        code = schedule[step]
        if code == run and p.keep[value]:
            made = step  # only the first run makes it
            continue
        touch = code == run
        if source(code) >= 0:
            touch = item(code) == value and (device(code) == where or source(code) == where)
        elif device(code) == where:
            for k in range(p.read_start[item(code)], p.read_start[item(code) + 1]):
                touch = touch or p.read_index[k] == value
        if touch:
            return step
    return made


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, types.int64))
def _insert_swap(p: Arrays, s: Scratch, trial: Ints, steps: int, at: int) -> int:
    """Keep an input of step ``at`` on another device since it was last touched."""
    read = _input_of(p, s, trial[at])
    if read < 0:
        return -1
    value, where = item(read), device(read)
    other = _other(s, len(p.fixed), where)
    if other < 0 or not np.isfinite(p.copy[where, other, value]):
        return -1
    if not np.isfinite(p.copy[other, where, value]):
        return -1
    since = _last_touch(p, trial, at, value, where)
    if since < 0 or at - since < 2:
        return -1
    out = since if uniform(s.random) < TUNING.before else since + 1
    steps = insert_one(trial, steps, at, copy_of(value, other, where))
    return insert_one(trial, steps, out, copy_of(value, where, other))


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64))
def _removable(p: Arrays, s: Scratch, trial: Ints, steps: int) -> int:
    """A random step that is a copy or not a first run, or -1."""
    extra = steps - p.cost.shape[1]
    if extra <= 0:
        return -1
    pick = below(s.random, extra)
    s.seen[:] = 0
    for step in range(steps):
        code = trial[step]
        if source(code) >= 0 or s.seen[item(code)]:
            if pick == 0:
                return step
            pick -= 1
        else:
            s.seen[item(code)] = 1
    return -1


@part
def _change_device(p: Arrays, s: Scratch, trial: Ints, steps: int) -> int:
    """Run an op, its colocation group, or a stretch of steps on another device."""
    at = below(s.random, steps)
    code = trial[at]
    if source(code) >= 0:
        return -1
    where = device(code)
    other = _other(s, len(p.fixed), where)
    if other < 0 or not np.isfinite(p.cost[other, item(code)]):
        return -1
    stretch = 1 if uniform(s.random) < TUNING.one else 2 + below(s.random, TUNING.stretch)
    for step in range(at, min(steps, at + stretch)):
        here = trial[step]
        op = item(here)
        if source(here) >= 0 or device(here) != where or not np.isfinite(p.cost[other, op]):
            continue
        trial[step] = run_of(op, other)
        if p.group[op] < 0:
            continue
        for k in range(steps):
            if source(trial[k]) < 0 and p.group[item(trial[k])] == p.group[op]:
                trial[k] = run_of(item(trial[k]), other)
    return steps


@part
def _swap_copy_recompute(p: Arrays, s: Scratch, trial: Ints, steps: int) -> int:
    """Make again what a copy brings, or copy what a second run makes."""
    at = _removable(p, s, trial, steps)
    if at < 0:
        return -1
    code = trial[at]
    if source(code) < 0:
        return delete(trial, steps, at)
    maker = p.producer[item(code)]
    if p.again[maker] == 0 or not np.isfinite(p.cost[device(code), maker]):
        return -1
    trial[at] = run_of(maker, device(code))
    return steps


@part
def _change_output_device(p: Arrays, s: Scratch, placement: Ints) -> bool:
    """Let a kept value without a required device end on another one."""
    values = len(p.keep)
    if values == 0:
        return False
    value = below(s.random, values)
    for _ in range(values):  # the next one that may
        if p.keep[value] and p.required[value] < 0:
            break
        value = (value + 1) % values
    if p.keep[value] == 0 or p.required[value] >= 0:
        return False
    other = _other(s, len(p.fixed), placement[value])
    if other < 0:
        return False
    placement[value] = other
    return True


@part
def _exchange(p: Arrays, s: Scratch, trial: Ints, steps: int, ops: Ints) -> int:
    """Delete a copy or second run; recompute, copy or swap something instead, often nearby."""
    at = _removable(p, s, trial, steps)
    if at < 0:
        return -1
    steps = delete(trial, steps, at)
    to = below(s.random, steps)
    if uniform(s.random) < TUNING.nearby:
        to = min(steps - 1, max(0, at + below(s.random, 2 * TUNING.near + 1) - TUNING.near))
    draw = uniform(s.random)
    if draw < TUNING.for_copy:
        return _insert_copy(p, s, trial, steps, to)
    if draw < TUNING.for_swap:
        return _insert_swap(p, s, trial, steps, to)
    return _insert_recompute(p, s, trial, steps, to, ops)


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, types.boolean))
def _shift(p: Arrays, s: Scratch, trial: Ints, steps: int, any_step: bool) -> int:
    """Move a copy or second run (or any step) to another place."""
    at = below(s.random, steps) if any_step else _removable(p, s, trial, steps)
    if at < 0:
        return -1
    code = trial[at]
    steps = delete(trial, steps, at)
    to = below(s.random, steps + 1)
    if any_step or uniform(s.random) < TUNING.short:
        to = min(steps, max(0, at + below(s.random, 2 * TUNING.near + 1) - TUNING.near))
    return insert_one(trial, steps, to, code)


@part
def move(
    p: Arrays, s: Scratch, trial: Ints, steps: int, placement: Ints, spare: Ints, ops: Ints
) -> int:
    """Apply one random move; the new length, or -1."""
    draw = uniform(s.random)
    if draw < TUNING.recompute:
        return _insert_recompute(p, s, trial, steps, below(s.random, steps), ops)
    if draw < TUNING.copy:
        return _insert_copy(p, s, trial, steps, below(s.random, steps))
    if draw < TUNING.swap:
        return _insert_swap(p, s, trial, steps, below(s.random, steps))
    if draw < TUNING.delete:
        at = _removable(p, s, trial, steps)
        return delete(trial, steps, at) if at >= 0 else -1
    if draw < TUNING.exchange:
        return _exchange(p, s, trial, steps, ops)
    if draw < TUNING.shift:
        return _shift(p, s, trial, steps, False)
    if draw >= TUNING.output:
        return _shift(p, s, trial, steps, True) if p.free[0] else -1
    if draw < TUNING.device:
        steps = _change_device(p, s, trial, steps)
    elif draw < TUNING.trade:
        steps = _swap_copy_recompute(p, s, trial, steps)
    elif not _change_output_device(p, s, placement):
        return -1
    if steps > 0:
        steps = mend(p, s, trial, steps, placement, spare)
    return copy_steps(spare, steps, trial) if steps > 0 else -1
