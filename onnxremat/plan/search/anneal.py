"""Simulated annealing over sequences of op runs.

Moves: insert a remake of an input (with a random part of its ancestry) before a random step,
delete a second run, move one, exchange one for another, and, when the order is free, move a first
run. Objective: time + price x excess area; the price rises while the sequence is over budget and
falls while it is not, so the walk follows the border of the feasible set.
"""

from __future__ import annotations

import numpy as np
from numba import types

from onnxremat.plan.problem import Floats, Ints
from onnxremat.plan.search.compiled import ARRAYS, F64, I32, SCRATCH, Arrays, Scratch, compiled
from onnxremat.plan.search.edit import below, delete, insert, prune, uniform
from onnxremat.plan.search.evaluate import evaluate

ROOT = 16  # ops inserted by one move at most


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, types.int64))
def _sprout(p: Arrays, s: Scratch, trial: Ints, steps: int, at: int) -> int:
    """Insert before step ``at`` a remake of one of its inputs; -1 when it has none to remake."""
    if at >= steps:
        return -1
    op = trial[at]
    many = p.read_start[op + 1] - p.read_start[op]
    if many == 0:
        return -1
    ops = np.zeros(ROOT + 1, np.int32)
    ops[0] = p.producer[p.read_index[p.read_start[op] + below(s, many)]]
    if p.again[ops[0]] == 0:
        return -1
    count, head = 1, 0
    depth = 0 if uniform(s) < 0.6 else below(s, 5)
    for _ in range(depth):
        end = count
        while head < end:
            for k in range(p.read_start[ops[head]], p.read_start[ops[head] + 1]):
                source = p.producer[p.read_index[k]]
                if p.again[source] == 0 or count >= ROOT or uniform(s) >= 0.7:
                    continue
                known = False
                for i in range(count):
                    known = known or ops[i] == source
                if not known:
                    ops[count] = source
                    count += 1
            head += 1
    for i in range(1, count):  # base order
        source, k = ops[i], i - 1
        while k >= 0 and ops[k] > source:
            ops[k + 1] = ops[k]
            k -= 1
        ops[k + 1] = source
    return insert(trial, steps, at, ops, count)


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64))
def _second_run(p: Arrays, s: Scratch, trial: Ints, steps: int) -> int:
    """A random step that is not a first run, or -1."""
    extra = steps - len(p.cost)
    if extra <= 0:
        return -1
    pick = below(s, extra)
    s.seen[:] = 0
    for step in range(steps):
        if s.seen[trial[step]]:
            if pick == 0:
                return step
            pick -= 1
        s.seen[trial[step]] = 1
    return -1


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, types.boolean))
def _move(p: Arrays, s: Scratch, trial: Ints, steps: int, free_order: bool) -> int:
    """Apply one random move in place; the new length, or -1."""
    draw = uniform(s)
    if free_order and draw < 0.1:
        at = below(s, steps)
        op = trial[at]
        steps = delete(trial, steps, at)
        to = min(steps, max(0, at + below(s, 41) - 20))
        one = np.full(1, op, np.int32)
        return insert(trial, steps, to, one, 1)
    if draw < 0.35:
        return _sprout(p, s, trial, steps, below(s, steps))
    at = _second_run(p, s, trial, steps)
    if at < 0:
        return -1
    op = trial[at]
    steps = delete(trial, steps, at)
    if draw < 0.57:  # delete, sometimes a run of neighbours
        if uniform(s) < 0.2:
            while at < steps and steps > len(p.cost) and uniform(s) < 0.7:
                repeat = False
                for k in range(at):
                    repeat = repeat or trial[k] == trial[at]
                if not repeat:
                    break
                steps = delete(trial, steps, at)
        return steps
    if draw < 0.85:  # exchange
        to = below(s, steps)
        if uniform(s) < 0.5:
            to = min(steps - 1, max(0, at + below(s, 41) - 20))
        steps = _sprout(p, s, trial, steps, to)
        if steps > 0 and uniform(s) < 0.25:
            more = _sprout(p, s, trial, steps, below(s, steps))
            steps = max(steps, more)
        return steps
    to = below(s, steps + 1)
    if uniform(s) < 0.5:
        to = min(steps, max(0, at + below(s, 21) - 10))
    one = np.full(1, op, np.int32)
    return insert(trial, steps, to, one, 1)


@compiled(
    types.int64(
        ARRAYS, SCRATCH, I32, types.int64, types.int64, types.boolean, types.float64,
        types.int64, F64, I32, I32,
    )
)  # fmt: skip
def walk(
    p: Arrays,
    s: Scratch,
    sequence: Ints,
    steps: int,
    budget: int,
    free_order: bool,
    heat: float,
    moves: int,
    state: Floats,
    trial: Ints,
    best: Ints,
) -> int:
    """Try ``moves`` moves at temperature ``heat``; returns the length of ``sequence``.

    ``state`` holds: 0 price of a byte-step over budget, 1 best feasible time, 2 length of
    ``best``, 3 time and 4 excess of ``sequence``.
    """
    room = len(sequence) - 3 * ROOT
    score = state[3] + state[0] * state[4]
    for attempt in range(moves):
        trial[:steps] = sequence[:steps]
        length = _move(p, s, trial, steps, free_order)
        if length > 0 and length < room and evaluate(p, s, trial, length, budget, free_order):
            time, area = s.figures[0], s.figures[2]
            mine = time + state[0] * area
            if mine <= score or uniform(s) < np.exp((score - mine) / heat):
                length = prune(p, s, trial, length, budget, free_order)
                state[3], state[4] = s.figures[0], s.figures[2]
                score = state[3] + state[0] * state[4]
                sequence[:length] = trial[:length]
                steps = length
                if state[4] <= 0 and state[3] < state[1] - 1e-12 * state[1]:
                    state[1], state[2] = state[3], steps
                    best[:steps] = sequence[:steps]
        if attempt % 50 == 49:
            state[0] *= 1.02 if state[4] > 0 else 0.985
            score = state[3] + state[0] * state[4]
    return steps
