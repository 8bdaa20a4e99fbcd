"""Makespan of an evaluated schedule: the compiled twin of ``makespan.timing``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from onnxremat.planner.problem import Bytes, Floats, Ints
from onnxremat.planner.search.arrays import (
    ARRAYS,
    SCRATCH,
    Arrays,
    Scratch,
    device,
    item,
    source,
)
from onnxremat.planner.search.compiled import F64, F64_2D, I32, I64, I64_2D, compiled


class Streams(NamedTuple):
    """Work space: clocks of devices and links, and memory that comes back."""

    free: Bytes  # (D,): bytes
    when: Floats  # (D, ..): heap of times at which memory comes back
    amount: Bytes  # (D, ..): bytes of each
    waiting: Bytes  # (D,): lengths of the heaps
    granted: Floats  # (D,): when the last step of a device had its memory
    stream: Floats  # (D + 1, D): when devices (row 0) and links (source + 1, target) are free
    made: Floats  # per instance: when it is there
    done: Floats  # per instance: end of the last step so far that needs it


STREAMS = types.NamedTuple((I64, F64_2D, I64_2D, I64, F64, F64_2D, F64, F64), Streams)


def streams_for(arrays: Arrays, scratch: Scratch, steps: int) -> Streams:
    """Work space for schedules of at most ``steps`` steps."""
    devices, instances = len(arrays.fixed), len(scratch.owner) + 1
    return Streams(
        free=np.zeros(devices, np.int64),
        when=np.zeros((devices, instances + steps), np.float64),
        amount=np.zeros((devices, instances + steps), np.int64),
        waiting=np.zeros(devices, np.int64),
        granted=np.zeros(devices, np.float64),
        stream=np.zeros((devices + 1, devices), np.float64),
        made=np.zeros(instances, np.float64),
        done=np.zeros(instances, np.float64),
    )


@compiled(types.void(F64_2D, I64_2D, I64, types.int64, types.float64, types.int64))
def heap_push(
    when: Floats, amount: Bytes, count: Bytes, device: int, time: float, bytes_: int
) -> None:
    """Add an item to a heap (of a device: bytes it gets back), least time first."""
    k = count[device]
    count[device] += 1
    while k > 0 and when[device, (k - 1) // 2] > time:
        when[device, k] = when[device, (k - 1) // 2]
        amount[device, k] = amount[device, (k - 1) // 2]
        k = (k - 1) // 2
    when[device, k] = time
    amount[device, k] = bytes_


@compiled(types.void(F64_2D, I64_2D, I64, types.int64))
def heap_pop(when: Floats, amount: Bytes, count: Bytes, device: int) -> None:
    """Remove the first item of a heap."""
    count[device] -= 1
    last = count[device]
    time, bytes_ = when[device, last], amount[device, last]
    k = 0
    while 2 * k + 1 < last:
        child = 2 * k + 1
        if child + 1 < last and when[device, child + 1] < when[device, child]:
            child += 1
        if when[device, child] >= time:
            break
        when[device, k] = when[device, child]
        amount[device, k] = amount[device, child]
        k = child
    when[device, k] = time
    amount[device, k] = bytes_


@compiled(types.float64(ARRAYS, SCRATCH, STREAMS, I32, types.int64), entry=True)
def makespan(p: Arrays, s: Scratch, t: Streams, schedule: Ints, steps: int) -> float:
    """Seconds with all streams side by side; ``s`` must hold the evaluated schedule."""
    free, when, amount, waiting = t.free, t.when, t.amount, t.waiting
    granted, stream, made, done = t.granted, t.stream, t.made, t.done
    for d in range(len(p.fixed)):
        free[d] = p.budget[d] - s.resident[d]
    waiting[:] = 0
    granted[:] = 0.0
    stream[:] = 0.0
    last = 0.0
    for step in range(steps):
        code = schedule[step]
        this, d, start = item(code), device(code), source(code)
        begin, grant, need = stream[start + 1, d], granted[d], 0
        for k in range(s.looks[step], s.looks[step + 1]):
            begin = max(begin, made[s.read[k]])
        for instance in range(s.first[step], s.first[step + 1]):
            need += p.size[d, s.owner[instance]]
        work = p.work[d, this] if start < 0 else 0
        need += work
        taken = s.taken[step]
        if taken >= 0:
            begin = max(begin, done[taken])
            need -= p.size[d, s.owner[taken]]
        while waiting[d] > 0 and (when[d, 0] <= grant or free[d] < need):
            grant = max(grant, when[d, 0])
            free[d] += amount[d, 0]
            heap_pop(when, amount, waiting, d)
        begin = max(begin, grant)
        end = begin + (p.cost[d, this] if start < 0 else p.copy[start, d, this])
        last = max(last, end)
        stream[start + 1, d], granted[d] = end, grant
        if start >= 0:
            stream[0, start] += p.busy[0, start, this]
            stream[0, d] += p.busy[1, d, this]
        free[d] -= need
        if work > 0:
            heap_push(when, amount, waiting, d, end, work)
        for instance in range(s.first[step], s.first[step + 1]):
            made[instance] = done[instance] = end
            if s.death[instance] == step:
                heap_push(when, amount, waiting, d, end, p.size[d, s.owner[instance]])
        for k in range(s.looks[step], s.looks[step + 1]):
            instance = s.read[k]
            done[instance] = max(done[instance], end)
            if s.death[instance] == step and instance != taken:
                where = s.place[instance]
                heap_push(
                    when, amount, waiting, where, done[instance], p.size[where, s.owner[instance]]
                )
    return last
