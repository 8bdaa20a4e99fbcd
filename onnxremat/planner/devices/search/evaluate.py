"""Exact time, peaks and excess of a schedule: the compiled twin of ``problem.occupancy``."""

from __future__ import annotations

import numpy as np
from numba import types

from onnxremat.planner.devices.search.arrays import (
    ARRAYS,
    I32,
    I64,
    SCRATCH,
    Arrays,
    Scratch,
    compiled,
)
from onnxremat.planner.problem import Bytes, Ints


@compiled(types.boolean(ARRAYS, SCRATCH, I32, types.int64, I32, types.boolean))
def _replay(
    p: Arrays, s: Scratch, schedule: Ints, steps: int, hold: Ints, free_order: bool
) -> bool:
    """Instances, reads and seconds; False when the schedule cannot be carried out.

    One function on purpose: handing these tuples to another kernel costs a microsecond, and this
    is the inner loop of the search.
    """
    count, looked, candidates, fresh, time = 0, 0, 0, 0, 0.0
    s.current[:] = -1
    s.seen[:] = 0
    s.home[:] = -1
    s.there[:] = 0
    for step in range(steps):
        code = schedule[step]
        item, device, source = code >> 8, code >> 4 & 15, (code & 15) - 1
        s.first[step], s.looks[step], s.taker[step] = count, looked, candidates
        runs = source < 0
        again = runs and s.seen[item] > 0
        took = p.cost[device, item] if runs else p.copy[source, device, item]
        if not np.isfinite(took) or (again and p.again[item] == 0):
            return False
        time += took
        if runs:
            if not again:
                if not free_order and item != fresh:
                    return False
                fresh += 1
            group = p.group[item]
            if group >= 0:
                if s.home[group] < 0:
                    s.home[group] = device
                if s.home[group] != device:
                    return False
            s.seen[item] += 1
            for k in range(p.use_start[item], p.use_start[item + 1]):
                s.there[device, p.use_index[k]] = 1
        where = device if runs else source
        start, end = (p.read_start[item], p.read_start[item + 1]) if runs else (0, 1)
        for k in range(start, end):
            instance = s.current[where, p.read_index[k] if runs else item]
            if instance < 0:
                return False
            s.read[looked] = instance
            s.reads[instance] += 1
            if s.death[instance] != steps:
                s.death[instance] = step
            looked += 1
        if runs:
            for k in range(p.take_start[item], p.take_start[item + 1]):
                s.takes[candidates] = s.current[device, p.take_index[k]]
                candidates += 1
        start, end = (p.write_start[item], p.write_start[item + 1]) if runs else (0, 1)
        for k in range(start, end):
            value = p.write_index[k] if runs else item
            held = p.keep[value] > 0 and hold[value] == device
            if (again and p.keep[value] > 0) or (held and s.current[device, value] >= 0):
                continue
            s.current[device, value] = count
            s.owner[count], s.place[count] = value, device
            s.reads[count] = 1 if held else 0
            s.death[count] = steps if held else step
            count += 1
    s.first[steps], s.looks[steps], s.taker[steps] = count, looked, candidates
    s.figures[0] = time
    return bool(fresh == p.cost.shape[1])


@compiled(types.boolean(ARRAYS, SCRATCH, I32))
def _arrived(p: Arrays, s: Scratch, hold: Ints) -> bool:
    """Whether every kept value came to its hold device, and that is its goal."""
    for value in range(len(p.keep)):
        if p.keep[value]:
            if p.goal[value] >= 0 and hold[value] != p.goal[value]:
                return False
            if hold[value] < 0 or s.current[hold[value], value] < 0:
                return False
    return True


@compiled(types.void(ARRAYS, SCRATCH, I32, types.int64, I64))
def _profile(p: Arrays, s: Scratch, schedule: Ints, steps: int, budget: Bytes) -> None:
    """Peaks, and bytes over budget on the devices that each step touches."""
    devices = len(p.fixed)
    live = np.empty(devices, np.int64)
    for d in range(devices):
        live[d] = p.fixed[d]
        for w in range(len(p.weight)):
            if s.there[d, w]:
                live[d] += p.weight[w]
        s.resident[d] = live[d]
        s.peak[d] = live[d]
    area = 0.0
    for step in range(steps):
        code = schedule[step]
        item, device, source = code >> 8, code >> 4 & 15, (code & 15) - 1
        for instance in range(s.first[step], s.first[step + 1]):
            live[device] += p.size[device, s.owner[instance]]
        here = live[device]
        s.taken[step] = -1
        over = 0
        if source < 0:
            here += p.work[device, item]
            for k in range(s.taker[step], s.taker[step + 1]):
                if s.death[s.takes[k]] == step:
                    here -= p.size[device, s.owner[s.takes[k]]]
                    s.taken[step] = s.takes[k]
                    break
        else:
            s.peak[source] = max(s.peak[source], live[source])
            over = max(0, live[source] - budget[source])
        s.peak[device] = max(s.peak[device], here)
        s.over[step] = over + max(0, here - budget[device])
        area += s.over[step]
        for k in range(s.looks[step], s.looks[step + 1]):
            instance = s.read[k]
            if s.death[instance] == step:
                live[s.place[instance]] -= p.size[s.place[instance], s.owner[instance]]
        for instance in range(s.first[step], s.first[step + 1]):
            if s.death[instance] == step:
                live[device] -= p.size[device, s.owner[instance]]
    s.figures[1] = area


@compiled(types.boolean(ARRAYS, SCRATCH, I32, types.int64, I32, I64, types.boolean))
def evaluate(
    p: Arrays,
    s: Scratch,
    schedule: Ints,
    steps: int,
    hold: Ints,
    budget: Bytes,
    free_order: bool,
) -> bool:
    """Replay ``schedule[:steps]``; False when it is not valid.

    Leaves in ``s`` the instances, ``peak`` and ``resident`` per device, ``over`` per step, and
    ``figures`` = seconds, sum over steps of bytes above the budgets of the devices it touches.
    Valid is what :func:`onnxremat.planner.devices.problem.ledger` accepts, with first runs in the
    base order unless ``free_order``.
    """
    if not _replay(p, s, schedule, steps, hold, free_order):
        return False
    if not _arrived(p, s, hold):
        return False
    _profile(p, s, schedule, steps, budget)
    return True
