"""Makespan of an evaluated schedule: the compiled twin of ``makespan.timing``."""

from __future__ import annotations

import numpy as np
from numba import types

from onnxremat.planner.devices.search.arrays import (
    ARRAYS,
    F64_2D,
    I32,
    I64,
    I64_2D,
    SCRATCH,
    Arrays,
    Scratch,
    compiled,
)
from onnxremat.planner.problem import Bytes, Floats, Ints


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


@compiled(types.float64(ARRAYS, SCRATCH, I32, types.int64, I64))
def makespan(p: Arrays, s: Scratch, schedule: Ints, steps: int, budget: Bytes) -> float:
    """Seconds with all streams side by side; ``s`` must hold the evaluated schedule."""
    devices, count = len(p.fixed), s.first[steps]
    free = np.empty(devices, np.int64)
    for d in range(devices):
        free[d] = budget[d] - s.resident[d]
    when = np.empty((devices, count + steps + 1), np.float64)
    amount = np.empty((devices, count + steps + 1), np.int64)
    waiting = np.zeros(devices, np.int64)
    granted = np.zeros(devices, np.float64)
    stream = np.zeros((devices + 1, devices), np.float64)
    made = np.zeros(count + 1, np.float64)
    done = np.zeros(count + 1, np.float64)
    last = 0.0
    for step in range(steps):
        code = schedule[step]
        item, d, source = code >> 8, code >> 4 & 15, (code & 15) - 1
        begin, grant, need = stream[source + 1, d], granted[d], 0
        for k in range(s.looks[step], s.looks[step + 1]):
            begin = max(begin, made[s.read[k]])
        for instance in range(s.first[step], s.first[step + 1]):
            need += p.size[d, s.owner[instance]]
        work = p.work[d, item] if source < 0 else 0
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
        end = begin + (p.cost[d, item] if source < 0 else p.copy[source, d, item])
        last = max(last, end)
        stream[source + 1, d], granted[d] = end, grant
        if source >= 0:
            stream[0, source] += p.toll[0, source, item]
            stream[0, d] += p.toll[1, d, item]
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
