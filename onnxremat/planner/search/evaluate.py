"""Exact time, peaks and excess of a schedule: the compiled twin of ``problem.occupancy``."""

from __future__ import annotations

import numpy as np
from numba import types

from onnxremat.planner.problem import Ints
from onnxremat.planner.search.arrays import (
    ARRAYS,
    SCRATCH,
    Arrays,
    Scratch,
    device,
    item,
    source,
)
from onnxremat.planner.search.compiled import I32, compiled, part


@part
def _replay(p: Arrays, s: Scratch, schedule: Ints, steps: int, hold: Ints) -> bool:
    """Instances, reads and seconds; False when the schedule cannot be carried out."""
    count, looked, candidates, fresh, time = 0, 0, 0, 0, 0.0
    s.current[:] = -1
    s.seen[:] = 0
    s.home[:] = -1
    s.there[:] = 0
    for step in range(steps):
        code = schedule[step]
        this, to, start = item(code), device(code), source(code)
        s.first[step], s.looks[step], s.taker[step] = count, looked, candidates
        runs = start < 0
        again = runs and s.seen[this] > 0
        took = p.cost[to, this] if runs else p.copy[start, to, this]
        if not np.isfinite(took) or (again and p.again[this] == 0):
            return False
        time += took
        if runs:
            if not again:
                if p.free[0] == 0 and this != fresh:
                    return False
                fresh += 1
            group = p.group[this]
            if group >= 0:
                if s.home[group] < 0:
                    s.home[group] = to
                if s.home[group] != to:
                    return False
            s.seen[this] += 1
            for k in range(p.use_start[this], p.use_start[this + 1]):
                s.there[to, p.use_index[k]] = 1
        where = to if runs else start
        begin, end = (p.read_start[this], p.read_start[this + 1]) if runs else (0, 1)
        for k in range(begin, end):
            instance = s.current[where, p.read_index[k] if runs else this]
            if instance < 0:
                return False
            s.read[looked] = instance
            s.reads[instance] += 1
            if s.death[instance] != steps:
                s.death[instance] = step
            looked += 1
        if runs:
            for k in range(p.take_start[this], p.take_start[this + 1]):
                s.takes[candidates] = s.current[to, p.take_index[k]]
                candidates += 1
        begin, end = (p.write_start[this], p.write_start[this + 1]) if runs else (0, 1)
        for k in range(begin, end):
            value = p.write_index[k] if runs else this
            held = p.keep[value] > 0 and hold[value] == to
            if (again and p.keep[value] > 0) or (held and s.current[to, value] >= 0):
                continue
            s.current[to, value] = count
            s.owner[count], s.place[count] = value, to
            s.reads[count] = 1 if held else 0
            s.death[count] = steps if held else step
            count += 1
    s.first[steps], s.looks[steps], s.taker[steps] = count, looked, candidates
    s.figures[0] = time
    return bool(fresh == p.cost.shape[1])


@part
def _arrived(p: Arrays, s: Scratch, hold: Ints) -> bool:
    """Whether every kept value came to its hold device, and that is its goal."""
    for value in range(len(p.keep)):
        if p.keep[value]:
            if p.goal[value] >= 0 and hold[value] != p.goal[value]:
                return False
            if hold[value] < 0 or s.current[hold[value], value] < 0:
                return False
    return True


@part
def _profile(p: Arrays, s: Scratch, schedule: Ints, steps: int) -> None:
    """Peaks, and bytes over budget on the devices that each step touches."""
    live = s.live
    for d in range(len(live)):
        live[d] = p.fixed[d]
        for w in range(len(p.weight)):
            if s.there[d, w]:
                live[d] += p.weight[w]
        s.resident[d] = live[d]
        s.peak[d] = live[d]
    area = 0
    for step in range(steps):
        code = schedule[step]
        this, to, start = item(code), device(code), source(code)
        for instance in range(s.first[step], s.first[step + 1]):
            live[to] += p.size[to, s.owner[instance]]
        here = live[to]
        s.taken[step] = -1
        if start < 0:
            here += p.work[to, this]
            for k in range(s.taker[step], s.taker[step + 1]):
                if s.death[s.takes[k]] == step:
                    here -= p.size[to, s.owner[s.takes[k]]]
                    s.taken[step] = s.takes[k]
                    break
        else:
            s.peak[start] = max(s.peak[start], live[start])
            area += max(0, live[start] - p.budget[start])
        s.peak[to] = max(s.peak[to], here)
        area += max(0, here - p.budget[to])
        for k in range(s.looks[step], s.looks[step + 1]):
            instance = s.read[k]
            if s.death[instance] == step:
                live[s.place[instance]] -= p.size[s.place[instance], s.owner[instance]]
        for instance in range(s.first[step], s.first[step + 1]):
            if s.death[instance] == step:
                live[to] -= p.size[to, s.owner[instance]]
    s.figures[1] = area


@compiled(types.boolean(ARRAYS, SCRATCH, I32, types.int64, I32), entry=True)
def evaluate(p: Arrays, s: Scratch, schedule: Ints, steps: int, hold: Ints) -> bool:
    """Replay ``schedule[:steps]``; False when it is not valid.

    Leaves in ``s`` the instances, ``peak`` and ``resident`` per device, and ``figures`` = seconds,
    sum over steps of bytes above the budgets of the devices it touches. Valid is what
    :func:`onnxremat.planner.devices.problem.ledger` accepts, with first runs in the base order
    unless ``p.free``.
    """
    if not _replay(p, s, schedule, steps, hold):
        return False
    if not _arrived(p, s, hold):
        return False
    _profile(p, s, schedule, steps)
    return True
