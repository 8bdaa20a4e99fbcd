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
def _look(s: Scratch, instance: int, step: int, steps: int, looked: int) -> None:
    """A step reads an instance."""
    s.read[looked] = instance
    s.reads[instance] += 1
    if s.death[instance] != steps:  # that of an instance that is held to the end
        s.death[instance] = step


@part
def _start(
    p: Arrays, s: Scratch, placement: Ints, value: int, to: int, step: int, steps: int, count: int
) -> int:
    """An instance of a value starts on a device, unless one is held there; the new number."""
    held = p.keep[value] > 0 and placement[value] == to
    if held and s.current[to, value] >= 0:
        return count
    s.current[to, value] = count
    s.owner[count], s.place[count] = value, to
    s.reads[count] = 1 if held else 0
    s.death[count] = steps if held else step
    return count + 1


@part
def _may_run(p: Arrays, s: Scratch, op: int, to: int, fresh: int) -> bool:
    """Whether an op may run (perhaps again) on a device, and that it does."""
    if s.seen[op] > 0:
        if p.again[op] == 0:
            return False
    elif p.free[0] == 0 and op != fresh:
        return False
    group = p.group[op]
    if group >= 0:
        if s.home[group] < 0:
            s.home[group] = to
        if s.home[group] != to:
            return False
    for k in range(p.use_start[op], p.use_start[op + 1]):
        s.there[to, p.use_index[k]] = 1
    return True


@part
def _replay(p: Arrays, s: Scratch, schedule: Ints, steps: int, placement: Ints) -> bool:
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
        took = p.cost[to, this] if start < 0 else p.copy[start, to, this]
        if not took < np.inf:
            return False
        time += took
        if start >= 0:
            instance = s.current[start, this]
            if instance < 0:
                return False
            _look(s, instance, step, steps, looked)
            looked += 1
            count = _start(p, s, placement, this, to, step, steps, count)
            continue
        if not _may_run(p, s, this, to, fresh):
            return False
        for k in range(p.read_start[this], p.read_start[this + 1]):
            instance = s.current[to, p.read_index[k]]
            if instance < 0:
                return False
            _look(s, instance, step, steps, looked)
            looked += 1
        for k in range(p.take_start[this], p.take_start[this + 1]):
            s.takes[candidates] = s.current[to, p.take_index[k]]
            candidates += 1
        again = s.seen[this] > 0
        fresh += 0 if again else 1
        s.seen[this] = 1
        for k in range(p.write_start[this], p.write_start[this + 1]):
            value = p.write_index[k]
            if not again or p.keep[value] == 0:
                count = _start(p, s, placement, value, to, step, steps, count)
    s.first[steps], s.looks[steps], s.taker[steps] = count, looked, candidates
    s.figures[0] = time
    return bool(fresh == p.cost.shape[1])


@part
def _arrived(p: Arrays, s: Scratch, placement: Ints) -> bool:
    """Whether every kept value came to where it is placed, and that is where it must be."""
    for value in range(len(p.keep)):
        if p.keep[value]:
            if p.required[value] >= 0 and placement[value] != p.required[value]:
                return False
            if placement[value] < 0 or s.current[placement[value], value] < 0:
                return False
    return True


@part
def _takeover(p: Arrays, s: Scratch, step: int, to: int) -> int:
    """Bytes that the run of a step takes over, noted in ``s.taken``."""
    for k in range(s.taker[step], s.taker[step + 1]):
        if s.death[s.takes[k]] == step:
            s.taken[step] = s.takes[k]
            return p.size[to, s.owner[s.takes[k]]]
    return 0


@part
def _profile(p: Arrays, s: Scratch, schedule: Ints, steps: int) -> None:
    """Bytes per device and step, peaks, and excess on the devices that each step touches."""
    devices, area = len(p.fixed), 0
    for d in range(devices):
        for step in range(steps + 2):
            s.use[d, step] = 0
    for step in range(steps):
        s.taken[step] = -1
        for instance in range(s.first[step], s.first[step + 1]):
            d = s.place[instance]
            size = p.size[d, s.owner[instance]]
            s.use[d, step] += size
            s.use[d, s.death[instance] + 1] -= size
    for d in range(devices):
        live = p.fixed[d]
        for w in range(p.weight.shape[1]):
            live += p.weight[d, w] if s.there[d, w] else 0
        s.resident[d] = peak = live
        budget = p.budget[d]
        for step in range(steps):
            code = schedule[step]
            live += s.use[d, step]
            here = live
            if device(code) == d and source(code) < 0:
                here += p.work[d, item(code)] - _takeover(p, s, step, d)
            s.use[d, step] = here
            if device(code) == d or source(code) == d:
                peak = max(peak, here)
                area += max(0, here - budget)
        s.peak[d] = peak
    s.figures[1] = area


@compiled(types.boolean(ARRAYS, SCRATCH, I32, types.int64, I32), entry=True)
def evaluate(p: Arrays, s: Scratch, schedule: Ints, steps: int, placement: Ints) -> bool:
    """Replay ``schedule[:steps]``; False when it is not valid.

    Leaves in ``s`` the instances, ``use`` per device and step, ``peak`` and ``resident`` per
    device, and ``figures`` = seconds, sum over steps of bytes above the budgets of the devices it
    touches. Valid is what
    :func:`onnxremat.planner.semantics.ledger` accepts, with first runs in the base order
    unless ``p.free``.
    """
    if not _replay(p, s, schedule, steps, placement):
        return False
    if not _arrived(p, s, placement):
        return False
    _profile(p, s, schedule, steps)
    return True
