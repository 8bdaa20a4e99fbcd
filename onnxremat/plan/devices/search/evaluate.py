"""Exact time, peaks and excess of a schedule: the compiled twin of ``problem.occupancy``."""

from __future__ import annotations

import numpy as np
from numba import types

from onnxremat.plan.devices.search.arrays import (
    ARRAYS,
    I32,
    I64,
    SCRATCH,
    Arrays,
    Scratch,
    compiled,
)
from onnxremat.plan.problem import Bytes, Ints


@compiled(types.boolean(ARRAYS, SCRATCH, types.int64, types.int64, types.int64, types.boolean))
def _may_run(p: Arrays, s: Scratch, op: int, device: int, fresh: int, free_order: bool) -> bool:
    """Whether a run is allowed by costs, repeats, order and groups; notes a group's device."""
    if not np.isfinite(p.cost[device, op]):
        return False
    if s.seen[op] > 0:
        if p.again[op] == 0:
            return False
    elif not free_order and op != fresh:
        return False
    group = p.group[op]
    if group >= 0:
        if s.home[group] < 0:
            s.home[group] = device
        return bool(s.home[group] == device)
    return True


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, types.int64, types.int64, types.int64))
def _make(p: Arrays, s: Scratch, hold: Ints, value: int, device: int, count: int, ends: int) -> int:
    """Start an instance unless a held one is there; the new number of instances.

    ``ends`` holds the step and, above bit 32, the number of steps (the death of held ones).
    """
    step, steps = ends & 0xFFFFFFFF, ends >> 32
    held = p.keep[value] > 0 and hold[value] == device
    if held and s.current[device, value] >= 0:
        return count
    s.current[device, value] = count
    s.owner[count] = value
    s.place[count] = device
    s.reads[count] = 1 if held else 0
    s.death[count] = steps if held else step
    return count + 1


@compiled(types.int64(SCRATCH, types.int64, types.int64, types.int64, types.int64, types.int64))
def _look(s: Scratch, value: int, device: int, step: int, steps: int, looked: int) -> int:
    """Read the current instance; the new number of reads, or -1 when there is none."""
    instance = s.current[device, value]
    if instance < 0:
        return -1
    s.read[looked] = instance
    s.reads[instance] += 1
    if s.death[instance] != steps:
        s.death[instance] = step
    return looked + 1


@compiled(types.boolean(ARRAYS, SCRATCH, I32, types.int64, I32, types.boolean))
def _replay(
    p: Arrays, s: Scratch, schedule: Ints, steps: int, hold: Ints, free_order: bool
) -> bool:
    """Instances, reads and seconds; False when the schedule cannot be carried out."""
    count, looked, candidates, fresh, time = 0, 0, 0, 0, 0.0
    s.current[:] = -1
    s.seen[:] = 0
    s.home[:] = -1
    s.there[:] = 0
    for step in range(steps):
        code = schedule[step]
        item, device, source = code >> 8, code >> 4 & 15, (code & 15) - 1
        s.first[step], s.looks[step], s.taker[step] = count, looked, candidates
        if source >= 0:
            if not np.isfinite(p.copy[source, device, item]):
                return False
            looked = _look(s, item, source, step, steps, looked)
            if looked < 0:
                return False
            time += p.copy[source, device, item]
            count = _make(p, s, hold, item, device, count, steps << 32 | step)
            continue
        if not _may_run(p, s, item, device, fresh, free_order):
            return False
        for k in range(p.read_start[item], p.read_start[item + 1]):
            looked = _look(s, p.read_index[k], device, step, steps, looked)
            if looked < 0:
                return False
        for k in range(p.take_start[item], p.take_start[item + 1]):
            s.takes[candidates] = s.current[device, p.take_index[k]]
            candidates += 1
        for k in range(p.use_start[item], p.use_start[item + 1]):
            s.there[device, p.use_index[k]] = 1
        for k in range(p.write_start[item], p.write_start[item + 1]):
            value = p.write_index[k]
            if s.seen[item] == 0 or p.keep[value] == 0:
                count = _make(p, s, hold, value, device, count, steps << 32 | step)
        if s.seen[item] == 0:
            fresh += 1
        s.seen[item] += 1
        time += p.cost[device, item]
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
    Valid is what :func:`onnxremat.plan.devices.problem.ledger` accepts, with first runs in the
    base order unless ``free_order``.
    """
    if not _replay(p, s, schedule, steps, hold, free_order):
        return False
    if not _arrived(p, s, hold):
        return False
    _profile(p, s, schedule, steps, budget)
    return True
