"""Simulated annealing over schedules on several devices.

Objective: value + price x excess area, where the value is the sum of all steps, or the makespan
with a hundredth of the sum. The price rises while the schedule is over budget and falls while it
is not, so the walk follows the border of the feasible set.
"""

from __future__ import annotations

import numpy as np
from numba import types

from onnxremat.planner.devices.search.arrays import (
    ARRAYS,
    F64,
    I32,
    I64,
    SCRATCH,
    Arrays,
    Scratch,
    compiled,
)
from onnxremat.planner.devices.search.edit import prune, uniform
from onnxremat.planner.devices.search.moves import LONG, ROOT, move
from onnxremat.planner.devices.search.streams import makespan
from onnxremat.planner.problem import Bytes, Floats, Ints

SERIAL = 1e-2  # weight of the sum beside the makespan: what idle devices do is not free
DEAR = 100.0  # times the first price at which the price starts again, at as small a share of it


@compiled(types.float64(ARRAYS, SCRATCH, I32, types.int64, I64, types.boolean))
def value_of(
    p: Arrays, s: Scratch, schedule: Ints, steps: int, budget: Bytes, parallel: bool
) -> float:
    """What the walk minimises, of the evaluated schedule."""
    if not parallel:
        return float(s.figures[0])
    return makespan(p, s, schedule, steps, budget) + SERIAL * s.figures[0]


@compiled(
    types.int64(
        ARRAYS, SCRATCH, I32, types.int64, I32, I64, types.boolean, types.boolean, types.float64,
        types.int64, F64, I32, I32, I32, I32,
    )
)  # fmt: skip
def walk(
    p: Arrays,
    s: Scratch,
    schedule: Ints,
    steps: int,
    hold: Ints,
    budget: Bytes,
    free_order: bool,
    parallel: bool,
    heat: float,
    moves: int,
    state: Floats,
    trial: Ints,
    spare: Ints,
    best: Ints,
    best_hold: Ints,
) -> int:
    """Try ``moves`` moves at temperature ``heat``; returns the length of ``schedule``.

    ``state`` holds: 0 price of a byte-step over budget, 1 best feasible value, 2 length of
    ``best``, 3 value and 4 excess of ``schedule``, 5 first price.
    """
    room = len(schedule) - 2 * ROOT - LONG
    score = state[3] + state[0] * state[4]
    held = hold.copy()
    for attempt in range(moves):
        trial[:steps] = schedule[:steps]
        held[:] = hold
        length = move(p, s, trial, steps, held, spare, free_order)
        if 0 < length < room:
            length = prune(p, s, trial, length, held, budget, free_order)
        if 0 < length < room:
            area = s.figures[1]
            value = value_of(p, s, trial, length, budget, parallel)
            mine = value + state[0] * area
            if mine <= score or uniform(s.random) < np.exp((score - mine) / heat):
                state[3], state[4], score = value, area, mine
                schedule[:length] = trial[:length]
                hold[:] = held
                steps = length
                if area <= 0 and value < state[1] * (1 - 1e-12):
                    state[1], state[2] = value, steps
                    best[:steps] = schedule[:steps]
                    best_hold[:] = hold
        if attempt % 50 == 49:
            state[0] *= 1.02 if state[4] > 0 else 0.985
            if state[0] > DEAR * state[5]:  # stuck over budget: let it climb out
                state[0] = state[5] / DEAR
            score = state[3] + state[0] * state[4]
    return steps
