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

from onnxremat.planner.problem import Bytes, Floats, Ints
from onnxremat.planner.search.arrays import ARRAYS, Arrays, Flags, copy_of, run_of
from onnxremat.planner.search.compiled import (
    F64,
    F64_2D,
    I32,
    I64,
    I64_2D,
    U8,
    U8_2D,
    compiled,
    part,
)
from onnxremat.planner.search.streams import heap_pop, heap_push


class Queue(NamedTuple):
    """Ops that are ready: heap 0 those that may come next, by urgency, 1 those too far ahead."""

    key: Floats  # (2, n + 1)
    op: Bytes  # (2, n + 1)
    many: Bytes  # (2,): ops in each
    waiting: Bytes  # per op: inputs that are not made
    done: Flags  # per op
    order: Ints  # result: the ops in the order taken


QUEUE = types.NamedTuple((F64_2D, I64_2D, I64, I64, U8, I32), Queue)


def queue_for(ops: int) -> Queue:
    """Work space for so many ops."""
    return Queue(
        key=np.zeros((2, ops + 1), np.float64),
        op=np.zeros((2, ops + 1), np.int64),
        many=np.zeros(2, np.int64),
        waiting=np.zeros(ops, np.int64),
        done=np.zeros(ops + 1, np.uint8),
        order=np.zeros(ops, np.int32),
    )


@compiled(types.void(ARRAYS, QUEUE, F64, types.int64), entry=True)
def take_order(p: Arrays, q: Queue, urgency: Floats, window: int) -> None:
    """Ops by urgency, as soon as their inputs are made, none further ahead than the window."""
    ops = p.cost.shape[1]
    q.many[:] = 0
    q.done[:] = 0
    for op in range(ops):
        q.waiting[op] = p.read_start[op + 1] - p.read_start[op]
        if q.waiting[op] == 0:
            heap_push(q.key, q.op, q.many, 1, float(op), op)
    front, taken = 0, 0
    while taken < ops:
        while q.done[front]:
            front += 1
        while q.many[1] > 0 and q.key[1, 0] <= front + window:
            op = q.op[1, 0]
            heap_pop(q.key, q.op, q.many, 1)
            heap_push(q.key, q.op, q.many, 0, -urgency[op], op)
        op = q.op[0, 0]
        heap_pop(q.key, q.op, q.many, 0)
        q.done[op] = 1
        q.order[taken] = op
        taken += 1
        for k in range(p.write_start[op], p.write_start[op + 1]):
            value = p.write_index[k]
            for r in range(p.reader_start[value], p.reader_start[value + 1]):
                reader = p.reader_index[r]
                q.waiting[reader] -= 1
                if q.waiting[reader] == 0:
                    heap_push(q.key, q.op, q.many, 1, float(reader), reader)


class Pass(NamedTuple):
    """State of one pass and what it goes by. At first nothing is anywhere and all streams are
    free."""

    there: Floats  # (D, m): since when a value is on a device, inf where it is not
    link: Floats  # (D, D): when a link is free
    ahead: Floats  # (D,): work space: the same with the copies of the op at hand
    free: Floats  # (D,): when a device is free
    live: Bytes  # (D,): bytes in use, at first the fixed ones
    used: Flags  # (D, w): weights
    home: Bytes  # per colocation group: device + 1
    unread: Bytes  # (m,): readers that are left
    excess: Bytes  # (D, n): bytes an op takes beside its inputs and weights, less the budget
    bias: Floats  # (D, n): added to the seconds of an op when devices are compared
    out: Ints  # result: the steps
    start: Floats  # result: when each starts


PASS = types.NamedTuple(
    (F64_2D, F64_2D, F64, F64, I64, U8_2D, I64, I64, I64_2D, F64_2D, I32, F64), Pass
)  # fmt: skip


@compiled(types.int64(ARRAYS, PASS, types.int64, types.int64))
def _source(p: Arrays, t: Pass, value: int, to: int) -> int:
    """The device from which a copy of a value would arrive first, or -1."""
    best, soonest = -1, np.inf
    for e in range(len(t.free)):
        when = max(t.there[e, value], t.link[e, to]) + p.copy[e, to, value]
        if e != to and when < soonest:
            best, soonest = e, when
    return best


@compiled(types.boolean(ARRAYS, PASS, types.int64, types.int64, types.int64))
def _send(p: Arrays, t: Pass, value: int, to: int, at: int) -> bool:
    """Copy a value as step ``at`` to a device where it is not; False when no link leads there."""
    e = _source(p, t, value, to)
    if e < 0:
        return False
    t.start[at] = max(t.there[e, value], t.link[e, to])
    t.out[at] = copy_of(value, e, to)
    t.link[e, to] = t.start[at] + p.copy[e, to, value]
    t.there[to, value] = t.link[e, to]
    t.free[e] += p.busy[0, e, value]
    t.free[to] += p.busy[1, to, value]
    t.live[to] += p.size[to, value]
    return True


@compiled(types.void(ARRAYS, PASS, types.int64))
def _drop(p: Arrays, t: Pass, value: int) -> None:
    """Give the memory of a value back that nobody reads any more."""
    for d in range(len(t.free)):
        if p.keep[value] == 0 and t.there[d, value] < np.inf:
            t.live[d] -= p.size[d, value]


@part
def _place(p: Arrays, t: Pass, op: int, reluctance: float) -> int:
    """The device on which an op finishes first, of those with least bytes over budget, or -1."""
    group, best, least, soonest = p.group[op], -1, 0, np.inf
    devices = len(t.free)
    for d in range(devices):
        if group >= 0 and t.home[group] > 0 and t.home[group] != d + 1:
            continue
        finish, late = t.free[d], p.cost[d, op] + t.bias[d, op]
        over = t.live[d] + t.excess[d, op]
        for e in range(devices):
            t.ahead[e] = t.link[e, d]
        for k in range(p.read_start[op], p.read_start[op + 1]):
            value = p.read_index[k]
            ready = t.there[d, value]
            if ready == np.inf:
                e = _source(p, t, value, d)
                if e >= 0:
                    ready = max(t.there[e, value], t.ahead[e]) + p.copy[e, d, value]
                    t.ahead[e] = ready
                finish += p.busy[1, d, value]
                over += p.size[d, value]
                late += reluctance
            finish = max(finish, ready)
        for k in range(p.use_start[op], p.use_start[op + 1]):
            over += 0 if t.used[d, p.use_index[k]] else p.weight[d, p.use_index[k]]
        finish, over = finish + late, max(0, over)
        first = best < 0 or over < least or (over == least and finish < soonest)
        if finish < np.inf and first:
            best, least, soonest = d, over, finish
    return best


@compiled(types.int64(ARRAYS, PASS, I32, types.float64), entry=True)
def list_schedule(p: Arrays, t: Pass, order: Ints, reluctance: float) -> int:
    """Write the steps that run ops in this order, each where it finishes first, and their starts.

    ``reluctance`` is added to the seconds of an op for every copy that it needs, when devices are
    compared. Returns the number of steps, -1 when a value cannot come to where it is needed.
    """
    count = 0
    for at in range(len(order)):
        op = order[at]
        where = _place(p, t, op, reluctance)
        if where < 0:
            return -1
        if p.group[op] >= 0:
            t.home[p.group[op]] = where + 1
        begin = 0.0
        for k in range(p.read_start[op], p.read_start[op + 1]):
            value = p.read_index[k]
            if t.there[where, value] == np.inf:
                _send(p, t, value, where, count)
                count += 1
            begin = max(begin, t.there[where, value])
            t.unread[value] -= 1
            if t.unread[value] == 0:
                _drop(p, t, value)
        t.start[count] = max(begin, t.free[where])  # a copy may keep a device busy
        t.out[count] = run_of(op, where)
        t.free[where] = t.start[count] + p.cost[where, op]
        count += 1
        for k in range(p.use_start[op], p.use_start[op + 1]):
            t.live[where] += 0 if t.used[where, p.use_index[k]] else p.weight[where, p.use_index[k]]
            t.used[where, p.use_index[k]] = 1
        for k in range(p.write_start[op], p.write_start[op + 1]):
            value = p.write_index[k]
            t.there[where, value] = t.free[where]
            t.live[where] += p.size[where, value]
            to = p.required[value]
            if p.keep[value] and to >= 0 and to != where:
                if not _send(p, t, value, to, count):
                    return -1
                count += 1
            if t.unread[value] == 0:
                _drop(p, t, value)
    return count
