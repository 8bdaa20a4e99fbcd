"""Random moves over schedules: what annealing tries.

Each move edits ``trial`` in place and returns its new length, or -1 when it does not apply. Those
that change where ops run or what is copied use ``mend`` to bring the values that are then missing.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.planner.devices.search.arrays import (
    ARRAYS,
    I32,
    SCRATCH,
    U8,
    Arrays,
    Scratch,
    compiled,
)
from onnxremat.planner.devices.search.edit import below, delete, insert, insert_one, mend, uniform
from onnxremat.planner.problem import Ints

ROOT = 16  # ops inserted by one move at most
LONG = 32  # steps moved to another device at once at most


@compiled(types.int64(ARRAYS, SCRATCH, types.int64))
def _input_of(p: Arrays, s: Scratch, code: int) -> int:
    """A random value that a step reads, with the device it reads it on: value << 4 | device."""
    item, device, source = code >> 8, code >> 4 & 15, (code & 15) - 1
    if source >= 0:
        return item << 4 | source
    many = p.read_start[item + 1] - p.read_start[item]
    if many == 0:
        return -1
    return p.read_index[p.read_start[item] + below(s.random, many)] << 4 | device


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, types.int64))
def sprout(p: Arrays, s: Scratch, trial: Ints, steps: int, at: int) -> int:
    """Insert before step ``at`` a remake of one of its inputs, with a part of its ancestry."""
    read = _input_of(p, s, trial[at])
    if read < 0:
        return -1
    device = read & 15
    ops = np.zeros(ROOT + 1, np.int32)
    ops[0] = p.producer[read >> 4]
    if p.again[ops[0]] == 0 or not np.isfinite(p.cost[device, ops[0]]):
        return -1
    count, head = 1, 0
    depth = 0 if uniform(s.random) < 0.6 else below(s.random, 5)
    for _ in range(depth):
        end = count
        while head < end:
            for k in range(p.read_start[ops[head]], p.read_start[ops[head] + 1]):
                source = p.producer[p.read_index[k]]
                if p.again[source] == 0 or not np.isfinite(p.cost[device, source]):
                    continue
                if count >= ROOT or uniform(s.random) >= 0.7:
                    continue
                known = False
                for i in range(count):
                    known = known or ops[i] == source
                if not known:
                    ops[count] = source
                    count += 1
            head += 1
    ops[:count].sort()
    for i in range(count):
        ops[i] = ops[i] << 8 | device << 4
    return insert(trial, steps, at, ops, count)


@compiled(types.int64(ARRAYS, SCRATCH, types.int64))
def _other(p: Arrays, s: Scratch, device: int) -> int:
    """A random device but ``device``, or -1 when there is none."""
    devices = len(p.fixed)
    if devices < 2:
        return -1
    other = below(s.random, devices - 1)
    return other + 1 if other >= device else other


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, types.int64))
def fetch(p: Arrays, s: Scratch, trial: Ints, steps: int, at: int) -> int:
    """Insert before step ``at`` a copy of one of its inputs from another device."""
    read = _input_of(p, s, trial[at])
    if read < 0:
        return -1
    value, device = read >> 4, read & 15
    source = _other(p, s, device)
    if source < 0 or not np.isfinite(p.copy[source, device, value]):
        return -1
    return insert_one(trial, steps, at, value << 8 | device << 4 | source + 1)


@compiled(types.int64(I32, I32, U8, I32, I32, types.int64, types.int64, types.int64))
def _last_touch(
    read_start: Ints,
    read_index: Ints,
    keep: NDArray[np.uint8],
    producer: Ints,
    schedule: Ints,
    at: int,
    value: int,
    device: int,
) -> int:
    """The last step before ``at`` that makes or reads a value on a device, or -1."""
    made, run = -1, producer[value] << 8 | device << 4
    for step in range(at - 1, -1, -1):
        code = schedule[step]
        if code == run and keep[value]:
            made = step  # only the first run makes it
            continue
        touch = code == run
        if code & 15:
            touch = code >> 8 == value and (code >> 4 & 15 == device or (code & 15) - 1 == device)
        elif code >> 4 & 15 == device:
            for k in range(read_start[code >> 8], read_start[(code >> 8) + 1]):
                touch = touch or read_index[k] == value
        if touch:
            return step
    return made


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, types.int64))
def swap(p: Arrays, s: Scratch, trial: Ints, steps: int, at: int) -> int:
    """Keep an input of step ``at`` on another device since it was last touched."""
    read = _input_of(p, s, trial[at])
    if read < 0:
        return -1
    value, device = read >> 4, read & 15
    other = _other(p, s, device)
    if other < 0 or not np.isfinite(p.copy[device, other, value]):
        return -1
    if not np.isfinite(p.copy[other, device, value]):
        return -1
    since = _last_touch(p.read_start, p.read_index, p.keep, p.producer, trial, at, value, device)
    if since < 0 or at - since < 2:
        return -1
    out = since if uniform(s.random) < 0.25 else since + 1  # before: its last reader may take over
    steps = insert_one(trial, steps, at, value << 8 | device << 4 | other + 1)
    return insert_one(trial, steps, out, value << 8 | other << 4 | device + 1)


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64))
def removable(p: Arrays, s: Scratch, trial: Ints, steps: int) -> int:
    """A random step that is a copy or not a first run, or -1."""
    extra = steps - p.cost.shape[1]
    if extra <= 0:
        return -1
    pick = below(s.random, extra)
    s.seen[:] = 0
    for step in range(steps):
        code = trial[step]
        if code & 15 or s.seen[code >> 8]:
            if pick == 0:
                return step
            pick -= 1
        else:
            s.seen[code >> 8] = 1
    return -1


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, I32, I32))
def _mended(p: Arrays, s: Scratch, trial: Ints, steps: int, hold: Ints, spare: Ints) -> int:
    count = mend(p, s, trial, steps, hold, spare)
    if count >= 0:
        trial[:count] = spare[:count]
    return count


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, I32, I32))
def flip(p: Arrays, s: Scratch, trial: Ints, steps: int, hold: Ints, spare: Ints) -> int:
    """Run an op, its colocation group, or a stretch of steps on another device."""
    at = below(s.random, steps)
    code = trial[at]
    if code & 15:
        return -1
    device = code >> 4 & 15
    other = _other(p, s, device)
    if other < 0 or not np.isfinite(p.cost[other, code >> 8]):
        return -1
    stretch = 1 if uniform(s.random) < 0.5 else 2 + below(s.random, LONG)
    for step in range(at, min(steps, at + stretch)):
        here = trial[step]
        item = here >> 8
        if here & 15 or here >> 4 & 15 != device or not np.isfinite(p.cost[other, item]):
            continue
        group = p.group[item]
        if group < 0:
            trial[step] = item << 8 | other << 4
            continue
        for k in range(steps):
            if trial[k] & 15 == 0 and p.group[trial[k] >> 8] == group:
                trial[k] = trial[k] >> 8 << 8 | other << 4
    return _mended(p, s, trial, steps, hold, spare)


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, I32, I32))
def trade(p: Arrays, s: Scratch, trial: Ints, steps: int, hold: Ints, spare: Ints) -> int:
    """Remake what a copy brings, or copy what a second run makes."""
    at = removable(p, s, trial, steps)
    if at < 0:
        return -1
    code = trial[at]
    device = code >> 4 & 15
    if code & 15:
        maker = p.producer[code >> 8]
        if p.again[maker] == 0 or not np.isfinite(p.cost[device, maker]):
            return -1
        trial[at] = maker << 8 | device << 4
    else:
        steps = delete(trial, steps, at)
    return _mended(p, s, trial, steps, hold, spare)


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, I32, I32))
def rehold(p: Arrays, s: Scratch, trial: Ints, steps: int, hold: Ints, spare: Ints) -> int:
    """Let a kept value without a goal end on another device."""
    value = below(s.random, len(p.keep)) if len(p.keep) else -1
    for _ in range(len(p.keep)):  # the next one that may
        if p.keep[value] and p.goal[value] < 0:
            break
        value = (value + 1) % len(p.keep)
    if value < 0 or p.keep[value] == 0 or p.goal[value] >= 0:
        return -1
    other = _other(p, s, hold[value])
    if other < 0:
        return -1
    hold[value] = other
    return _mended(p, s, trial, steps, hold, spare)


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64))
def exchange(p: Arrays, s: Scratch, trial: Ints, steps: int) -> int:
    """Delete a copy or second run; remake, fetch or swap something instead, often nearby."""
    at = removable(p, s, trial, steps)
    if at < 0:
        return -1
    steps = delete(trial, steps, at)
    to = below(s.random, steps)
    if uniform(s.random) < 0.5:
        to = min(steps - 1, max(0, at + below(s.random, 41) - 20))
    draw = uniform(s.random)
    if draw < 0.25:
        return fetch(p, s, trial, steps, to)
    if draw < 0.5:
        return swap(p, s, trial, steps, to)
    return sprout(p, s, trial, steps, to)


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, types.boolean))
def shift(p: Arrays, s: Scratch, trial: Ints, steps: int, first: bool) -> int:
    """Move a copy or second run (any step when ``first``) to another place."""
    at = below(s.random, steps) if first else removable(p, s, trial, steps)
    if at < 0:
        return -1
    code = trial[at]
    steps = delete(trial, steps, at)
    to = below(s.random, steps + 1)
    if first or uniform(s.random) < 0.6:
        to = min(steps, max(0, at + below(s.random, 41) - 20))
    return insert_one(trial, steps, to, code)


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, I32, I32, types.boolean))
def move(
    p: Arrays, s: Scratch, trial: Ints, steps: int, hold: Ints, spare: Ints, free_order: bool
) -> int:
    """Apply one random move; the new length, or -1."""
    draw = uniform(s.random)
    if draw < 0.20:
        return sprout(p, s, trial, steps, below(s.random, steps))
    if draw < 0.27:
        return fetch(p, s, trial, steps, below(s.random, steps))
    if draw < 0.37:
        return swap(p, s, trial, steps, below(s.random, steps))
    if draw < 0.55:
        at = removable(p, s, trial, steps)
        return delete(trial, steps, at) if at >= 0 else -1
    if draw < 0.67:
        return exchange(p, s, trial, steps)
    if draw < 0.79:
        return shift(p, s, trial, steps, False)
    if draw < 0.93:
        return flip(p, s, trial, steps, hold, spare)
    if draw < 0.97:
        return trade(p, s, trial, steps, hold, spare)
    if draw < 0.98:
        return rehold(p, s, trial, steps, hold, spare)
    if not free_order:
        return -1
    return shift(p, s, trial, steps, True)
