"""Simulated annealing over schedules on several devices: every move is replayed.

Objective: value + price x excess area, where the value is the sum of all steps, or the makespan
with a hundredth of the sum. The price rises while the schedule is over budget and falls while it
is not, so the walk follows the border of the feasible set.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from onnxremat.planner.problem import Floats, Ints
from onnxremat.planner.search.arrays import ARRAYS, SCRATCH, Arrays, Scratch
from onnxremat.planner.search.compiled import F64, I32, compiled, part, uniform
from onnxremat.planner.search.cooling import TUNING as COOLING
from onnxremat.planner.search.cooling import first_price, temperatures
from onnxremat.planner.search.edit import copy_steps, prune
from onnxremat.planner.search.evaluate import evaluate
from onnxremat.planner.search.moves import ROOT, STRETCH, move
from onnxremat.planner.search.streams import STREAMS, Streams, makespan


class Tuning(NamedTuple):
    """What the walk by replay adds to :mod:`.cooling`."""

    serial: float = 1e-2  # weight of the sum beside the makespan: what idle devices do is not free
    dear: float = 100.0  # times the first price at which it starts again, at as small a share of it


TUNING = Tuning()


class Walk(NamedTuple):
    """State of a walk."""

    schedule: Ints
    trial: Ints
    spare: Ints
    best: Ints
    placement: Ints  # of the schedule
    trial_placement: Ints
    best_placement: Ints
    ops: Ints  # work space of a move
    state: Floats  # price of a byte-step over budget; best feasible value; length of ``best``;
    # value and excess of the schedule; first price


WALK = types.NamedTuple((I32, I32, I32, I32, I32, I32, I32, I32, F64), Walk)


@compiled(types.float64(ARRAYS, SCRATCH, STREAMS, I32, types.int64, types.boolean), entry=True)
def value_of(
    p: Arrays, s: Scratch, t: Streams, schedule: Ints, steps: int, parallel: bool
) -> float:
    """What the walk minimises, of the evaluated schedule."""
    if not parallel:
        return float(s.figures[0])
    return makespan(p, s, t, schedule, steps) + TUNING.serial * s.figures[0]


@part
def _take(w: Walk, steps: int, value: float, area: float) -> None:
    """The trial becomes the schedule, and the best one where it is."""
    w.state[3], w.state[4] = value, area
    copy_steps(w.trial, steps, w.schedule)
    copy_steps(w.trial_placement, len(w.placement), w.placement)
    if area <= 0 and value < w.state[1] * (1 - 1e-12):
        w.state[1], w.state[2] = value, steps
        copy_steps(w.trial, steps, w.best)
        copy_steps(w.trial_placement, len(w.placement), w.best_placement)


@compiled(
    types.int64(
        ARRAYS, SCRATCH, STREAMS, WALK, types.int64, types.boolean, types.float64, types.int64
    ),
    entry=True,
)
def walk(
    p: Arrays, s: Scratch, t: Streams, w: Walk, steps: int, parallel: bool, heat: float, moves: int
) -> int:
    """Try ``moves`` moves at temperature ``heat``; returns the length of the schedule."""
    room = len(w.schedule) - 2 * ROOT - STRETCH
    score = w.state[3] + w.state[0] * w.state[4]
    for attempt in range(moves):
        copy_steps(w.schedule, steps, w.trial)
        copy_steps(w.placement, len(w.placement), w.trial_placement)
        length = move(p, s, w.trial, steps, w.trial_placement, w.spare, w.ops)
        if 0 < length < room:
            length = prune(p, s, w.trial, length, w.trial_placement)
        if 0 < length < room:
            area = s.figures[1]
            value = value_of(p, s, t, w.trial, length, parallel)
            mine = value + w.state[0] * area
            if mine <= score or uniform(s.random) < np.exp((score - mine) / heat):
                _take(w, length, value, area)
                steps, score = length, mine
        if (attempt + 1) % COOLING.every == 0:
            w.state[0] *= COOLING.rise if w.state[4] > 0 else COOLING.fall
            if w.state[0] > TUNING.dear * w.state[5]:  # stuck over budget: let it climb out
                w.state[0] = w.state[5] / TUNING.dear
            score = w.state[3] + w.state[0] * w.state[4]
    return steps


class Walker:
    """An annealing run.

    Args:
        space: the problem, and work space.
        codes: a valid schedule.
        placement: where its results end.
        heat: starting temperature in mean op costs.
        room: steps that a schedule may have.
        parallel: minimise the makespan.
    """

    def __init__(
        self, space: tuple[Arrays, Scratch, Streams], codes: Ints, placement: Ints, heat: float,
        room: int, parallel: bool,
    ) -> None:  # fmt: skip
        self.arrays, self.scratch, self.streams = arrays, scratch, streams = space
        self.steps, self.parallel = len(codes), parallel
        self.hot, self.cold = temperatures(arrays, heat)
        price = first_price(arrays)
        schedule, trial, spare, best = (np.zeros(room, np.int32) for _ in range(4))
        schedule[: self.steps] = codes
        evaluate(arrays, scratch, schedule, self.steps, placement)
        area = float(scratch.figures[1])
        value = value_of(arrays, scratch, streams, schedule, self.steps, parallel)
        state = np.asarray([price, np.inf, 0, value, area, price])
        placements = (placement.copy(), placement.copy(), placement.copy())
        ops: Ints = np.zeros(ROOT + 1, np.int32)
        self._walk = Walk(schedule, trial, spare, best, *placements, ops, state)
        if area <= 0:
            state[1:3] = value, self.steps
            self._walk.best[: self.steps] = codes

    @property
    def ready(self) -> bool:
        """Any valid schedule is one to start from."""
        return True

    @property
    def best(self) -> float:
        """Best feasible value so far."""
        return float(self._walk.state[1])

    def found(self) -> tuple[Ints, Ints]:
        """Best feasible schedule so far, and where its results end."""
        return self._walk.best[: int(self._walk.state[2])], self._walk.best_placement

    def step(self, share: float, moves: int) -> None:
        """Run moves at the temperature for this share of the run."""
        heat = self.hot * (self.cold / self.hot) ** min(1.0, share)
        self.steps = walk(
            self.arrays, self.scratch, self.streams, self._walk, self.steps, self.parallel, heat,
            moves,
        )  # fmt: skip
