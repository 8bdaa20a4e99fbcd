"""Simulated annealing over sequences of op runs.

Moves: insert a remake of an input (with a random part of its ancestry) before a random step,
delete a second run, move one, exchange one for another, and, when the order is free, move a first
run. Second runs that a move leaves unread go with it. Objective: time + price x excess area; the
price rises while the sequence is over budget and falls while it is not, so the walk follows the
border of the feasible set.
"""

from __future__ import annotations

import numpy as np
from numba import types

from onnxremat.plan.problem import Floats, Ints
from onnxremat.plan.search.compiled import ARRAYS, F64, I32, Arrays, compiled
from onnxremat.plan.search.edit import below, uniform
from onnxremat.plan.search.timeline import (
    LINE,
    RUNS,
    Line,
    cut,
    lay_out,
    put,
    read_out,
    run_before,
    sweep,
    undo,
)

ROOT = 6  # ops inserted by one move at most
NEAR = 20  # steps that a run is moved by, at most
CROWDED = 20  # moves that find no room before the steps are spread anew


@compiled(types.int64(ARRAYS, LINE, I32, types.int64))
def _ancestry(p: Arrays, t: Line, ops: Ints, depth: int) -> int:
    """Add to ``ops[0]`` a random part of its ancestry, in base order; returns the number."""
    count, head = 1, 0
    for _ in range(depth):
        end = count
        while head < end:
            for k in range(p.read_start[ops[head]], p.read_start[ops[head] + 1]):
                source = p.producer[p.read_index[k]]
                if p.again[source] == 0 or count >= ROOT or uniform(t.random) >= 0.7:
                    continue
                known = False
                for i in range(count):
                    known = known or ops[i] == source
                if not known:
                    ops[count] = source
                    count += 1
            head += 1
    for i in range(1, count):
        source, k = ops[i], i - 1
        while k >= 0 and ops[k] > source:
            ops[k + 1] = ops[k]
            k -= 1
        ops[k + 1] = source
    return count


@compiled(types.boolean(ARRAYS, LINE, types.int64, I32))
def _sprout(p: Arrays, t: Line, at: int, ops: Ints) -> bool:
    """Insert before the step at a slot a remake of one of its inputs; False when it cannot be."""
    op = t.op[at]
    many = p.read_start[op + 1] - p.read_start[op]
    if many == 0:
        return False
    ops[0] = p.producer[p.read_index[p.read_start[op] + below(t.random, many)]]
    if p.again[ops[0]] == 0:
        return False
    depth = 0 if uniform(t.random) < 0.6 else below(t.random, 5)
    count = _ancestry(p, t, ops, depth)
    room = 0
    while at - room - 1 >= 0 and t.op[at - room - 1] < 0:
        room += 1
    if room < count:
        t.count[3] += 1
        return False
    for i in range(count):
        if not put(p, t, ops[i], at - room + ((i + 1) * (room + 1)) // (count + 1) - 1):
            return False
    return True


@compiled(types.int64(ARRAYS, LINE))
def _any_step(p: Arrays, t: Line) -> int:
    """Slot of a random step."""
    pick = below(t.random, t.count[0])
    if pick < len(p.cost):
        return int(t.runs[pick * RUNS])
    op = t.extra[pick - len(p.cost)]
    return int(t.runs[op * RUNS + 1 + below(t.random, t.many[op] - 1)])


@compiled(types.int64(LINE, types.int64, types.int64))
def _near(t: Line, slot: int, far: int) -> int:
    """A random empty slot at most ``far`` slots away (and a little), or -1."""
    to = max(0, slot + below(t.random, 2 * far + 1) - far)
    for k in range(to, min(to + 32, len(t.op))):
        if t.op[k] < 0:
            return int(k)
    return -1


@compiled(types.boolean(ARRAYS, LINE, types.int64))
def _move_first(p: Arrays, t: Line, apart: int) -> bool:
    """Move a random first run a little."""
    op = below(t.random, len(p.cost))
    slot = t.runs[op * RUNS]
    to = _near(t, slot, NEAR * apart)
    if to < 0 or not put(p, t, op, to):
        return False
    return cut(p, t, op, slot)


@compiled(types.void(ARRAYS, LINE, types.int64))
def _cut_neighbours(p: Arrays, t: Line, slot: int) -> None:
    """Delete second runs that follow a slot, as luck goes."""
    while uniform(t.random) < 0.7:
        while slot < len(t.op) and t.op[slot] < 0:
            slot += 1
        if slot == len(t.op):
            return
        op = t.op[slot]
        if t.runs[op * RUNS] == slot or not cut(p, t, op, slot):
            return


@compiled(types.boolean(ARRAYS, LINE, types.int64, types.boolean, I32))
def _move(p: Arrays, t: Line, apart: int, free_order: bool, ops: Ints) -> bool:
    """Apply one random move; False when it cannot be completed."""
    draw = uniform(t.random)
    if free_order and draw < 0.1:
        return _move_first(p, t, apart)
    if draw < 0.35:
        return _sprout(p, t, _any_step(p, t), ops)
    if t.count[1] == 0:
        return False
    op = t.extra[below(t.random, t.count[1])]
    slot = t.runs[op * RUNS + 1 + below(t.random, t.many[op] - 1)]
    if not cut(p, t, op, slot):
        return False
    if draw < 0.57:
        if uniform(t.random) < 0.2:
            _cut_neighbours(p, t, slot)
        return True
    if draw < 0.85:  # exchange
        to = _any_step(p, t)
        if uniform(t.random) < 0.5:
            to = min(max(0, slot + below(t.random, 2 * NEAR * apart + 1) - NEAR * apart), len(t.op) - 1)
            while to < len(t.op) and t.op[to] < 0:
                to += 1
        if to == len(t.op) or not _sprout(p, t, to, ops):
            return False
        if uniform(t.random) < 0.25:
            return _sprout(p, t, _any_step(p, t), ops)
        return True
    far = NEAR * apart // 2 if uniform(t.random) < 0.5 else len(t.op)
    to = _near(t, slot, far)
    return to >= 0 and (free_order or run_before(t, op, to) >= 0) and put(p, t, op, to)


@compiled(
    types.int64(
        ARRAYS, LINE, types.int64, types.boolean, types.float64, types.int64, F64, I32, I32,
    )
)  # fmt: skip
def walk(
    p: Arrays,
    t: Line,
    room: int,
    free_order: bool,
    heat: float,
    moves: int,
    state: Floats,
    spare: Ints,
    best: Ints,
) -> int:
    """Try ``moves`` moves at temperature ``heat``; returns how many were taken.

    Args:
        room: steps a sequence may have.
        state: 0 price of a byte-step over budget, 1 best feasible time, 2 length of ``best``.
    """
    ops = np.zeros(ROOT + 1, np.int32)
    apart = len(t.op) // (t.count[0] + 1)
    taken = 0
    for attempt in range(moves):
        before, area = t.sums[0], t.sums[1]
        t.count[2] = 0
        if _move(p, t, apart, free_order, ops):
            sweep(p, t)
            worse = t.sums[0] - before + state[0] * (t.sums[1] - area)
            if t.count[0] < room and (worse <= 0 or uniform(t.random) < np.exp(-worse / heat)):
                t.count[2] = 0
                taken += 1
                if t.sums[1] <= 0 and t.sums[0] < state[1] - 1e-9 * state[1]:
                    state[1], state[2] = t.sums[0], read_out(t, best)
        if t.count[2] > 0:
            undo(p, t)
            t.sums[0], t.sums[1] = before, area
        if attempt % 50 == 49:
            state[0] *= 1.02 if t.sums[1] > 0 else 0.985
            if t.count[3] > CROWDED:
                lay_out(p, t, spare, read_out(t, spare))
    return taken
