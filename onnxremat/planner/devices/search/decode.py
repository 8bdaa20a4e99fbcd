"""List scheduling: from guesses about ops to a schedule in one pass.

Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for heterogeneous
computing", 2002 (HEFT, without insertion into gaps): the ready op with the longest way to the end
comes next, and goes where it finishes first. Two changes keep memory small. Only ops that are not
far ahead in the base order are looked at, so that values are used soon after they are made; and an
op goes where its device's budget holds, if there is such a device. Both are guesses: what comes out
is judged by the caller.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.planner.devices.search.arrays import (
    ARRAYS,
    F64,
    F64_2D,
    F64_3D,
    I32,
    I64,
    I64_2D,
    U8,
    U8_2D,
    Arrays,
    compiled,
)
from onnxremat.planner.devices.search.streams import heap_pop, heap_push
from onnxremat.planner.problem import Bytes, Floats, Ints


@compiled(types.void(ARRAYS, F64, I32, I32, types.int64, I32))
def take_order(
    p: Arrays, urgency: Floats, reader_start: Ints, reader_index: Ints, window: int, order: Ints
) -> None:
    """Ops by urgency, as soon as their inputs are made, none further ahead than the window."""
    ops = p.cost.shape[1]
    key = np.empty((2, ops + 1), np.float64)  # heap 0: may come next, by urgency; 1: too far ahead
    item = np.empty((2, ops + 1), np.int64)
    count = np.zeros(2, np.int64)
    waiting = np.zeros(ops, np.int64)
    done = np.zeros(ops + 1, np.uint8)
    for op in range(ops):
        waiting[op] = p.read_start[op + 1] - p.read_start[op]
        if waiting[op] == 0:
            heap_push(key, item, count, 1, float(op), op)
    front, taken = 0, 0
    while taken < ops:
        while done[front]:
            front += 1
        while count[1] > 0 and key[1, 0] <= front + window:
            op = item[1, 0]
            heap_pop(key, item, count, 1)
            heap_push(key, item, count, 0, -urgency[op], op)
        op = item[0, 0]
        heap_pop(key, item, count, 0)
        done[op] = 1
        order[taken] = op
        taken += 1
        for k in range(p.write_start[op], p.write_start[op + 1]):
            value = p.write_index[k]
            for r in range(reader_start[value], reader_start[value + 1]):
                reader = reader_index[r]
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    heap_push(key, item, count, 1, float(reader), reader)


class Pass(NamedTuple):
    """State of one pass and what it goes by. At first nothing is anywhere and all streams are
    free."""

    there: Floats  # (D, m): since when a value is on a device, inf where it is not
    link: Floats  # (D, D): when a link is free
    ahead: Floats  # (D,): work space: the same with the copies of the op at hand
    free: Floats  # (D,): when a device is free
    live: Bytes  # (D,): bytes in use, at first the fixed ones
    used: NDArray[np.uint8]  # (D, w): weights
    home: Bytes  # per colocation group: device + 1
    unread: Bytes  # (m,): readers that are left
    excess: Bytes  # (D, n): bytes an op takes beside its inputs and weights, less the budget
    bias: Floats  # (D, n): added to the seconds of an op when devices are compared


PASS = types.NamedTuple(
    (F64_2D, F64_2D, F64, F64, I64, U8_2D, I64, I64, I64_2D, F64_2D), Pass
)  # fmt: skip


@compiled(types.int64(F64_3D, F64_2D, F64_2D, types.int64, types.int64))
def _source(copy: Floats, there: Floats, link: Floats, value: int, device: int) -> int:
    """The device from which a copy of a value would arrive first, or -1."""
    best, soonest = -1, np.inf
    for e in range(len(link)):
        when = max(there[e, value], link[e, device]) + copy[e, device, value]
        if e != device and when < soonest:
            best, soonest = e, when
    return best


@compiled(
    types.boolean(
        F64_3D, F64_3D, I64_2D, F64_2D, F64_2D, F64, I64, types.int64, types.int64, I32, F64,
        types.int64,
    )
)  # fmt: skip
def _send(
    copy: Floats,
    toll: Floats,
    size: Bytes,
    there: Floats,
    link: Floats,
    free: Floats,
    live: Bytes,
    value: int,
    to: int,
    out: Ints,
    start: Floats,
    at: int,
) -> bool:
    """Copy a value as step ``at`` to a device where it is not; False when no link leads there."""
    e = _source(copy, there, link, value, to)
    if e < 0:
        return False
    start[at] = max(there[e, value], link[e, to])
    out[at] = value << 8 | to << 4 | e + 1
    link[e, to] = start[at] + copy[e, to, value]
    there[to, value] = link[e, to]
    free[e] += toll[0, e, value]
    free[to] += toll[1, to, value]
    live[to] += size[to, value]
    return True


@compiled(types.void(I64_2D, U8, F64_2D, I64, types.int64))
def _drop(size: Bytes, keep: NDArray[np.uint8], there: Floats, live: Bytes, value: int) -> None:
    """Give the memory of a value back that nobody reads any more."""
    for d in range(len(live)):
        if keep[value] == 0 and there[d, value] < np.inf:
            live[d] -= size[d, value]


@compiled(types.int64(ARRAYS, PASS, I32, types.float64, I32, F64))
def list_schedule(
    p: Arrays, t: Pass, order: Ints, reluctance: float, out: Ints, start: Floats
) -> int:
    """Write the steps that run ops in this order, each where it finishes first, and their starts.

    ``reluctance`` is added to the seconds of an op for every copy that it needs, when devices are
    compared. Returns the number of steps, -1 when a value cannot come to where it is needed.
    """
    there, link, ahead, free, live, used = t.there, t.link, t.ahead, t.free, t.live, t.used
    home, unread = t.home, t.unread
    devices = len(free)
    count = 0
    for op in order:
        group, device, least, soonest = p.group[op], -1, 0, np.inf
        for d in range(devices):
            if group >= 0 and home[group] > 0 and home[group] != d + 1:
                continue
            finish, late = free[d], p.cost[d, op] + t.bias[d, op]
            over = live[d] + t.excess[d, op]
            for e in range(devices):
                ahead[e] = link[e, d]
            for k in range(p.read_start[op], p.read_start[op + 1]):
                value = p.read_index[k]
                ready = there[d, value]
                if ready == np.inf:
                    e = _source(p.copy, there, link, value, d)
                    if e >= 0:
                        ready = max(there[e, value], ahead[e]) + p.copy[e, d, value]
                        ahead[e] = ready
                    finish += p.toll[1, d, value]
                    over += p.size[d, value]
                    late += reluctance
                finish = max(finish, ready)
            for k in range(p.use_start[op], p.use_start[op + 1]):
                over += 0 if used[d, p.use_index[k]] else p.weight[p.use_index[k]]
            finish, over = finish + late, max(0, over)
            if finish < np.inf and (device < 0 or (over, finish) < (least, soonest)):
                device, least, soonest = d, over, finish
        if device < 0:
            return -1
        if group >= 0:
            home[group] = device + 1
        begin = 0.0
        for k in range(p.read_start[op], p.read_start[op + 1]):
            value = p.read_index[k]
            if there[device, value] == np.inf:
                _send(p.copy, p.toll, p.size, there, link, free, live, value, device, out, start,
                      count)  # fmt: skip
                count += 1
            begin = max(begin, there[device, value])
            unread[value] -= 1
            if unread[value] == 0:
                _drop(p.size, p.keep, there, live, value)
        start[count] = max(begin, free[device])  # copies may have a toll
        out[count] = op << 8 | device << 4
        free[device] = start[count] + p.cost[device, op]
        count += 1
        for k in range(p.use_start[op], p.use_start[op + 1]):
            live[device] += 0 if used[device, p.use_index[k]] else p.weight[p.use_index[k]]
            used[device, p.use_index[k]] = 1
        for k in range(p.write_start[op], p.write_start[op + 1]):
            value = p.write_index[k]
            there[device, value] = free[device]
            live[device] += p.size[device, value]
            to = p.goal[value]
            if p.keep[value] and to >= 0 and to != device:
                if not _send(p.copy, p.toll, p.size, there, link, free, live, value, to, out,
                             start, count):  # fmt: skip
                    return -1
                count += 1
            if unread[value] == 0:
                _drop(p.size, p.keep, there, live, value)
    return count
