"""Second runs that the budget does not need, taken out of a schedule of one device.

The dearest goes first, and what it alone needed goes with it. Which of several equal ones goes
first decides what the others can spare, so a few orders are drawn at random and the best is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from onnxremat.planner.problem import Floats, Ints
from onnxremat.planner.search.arrays import Arrays
from onnxremat.planner.search.compiled import F64, I32, Random, compiled, uniform
from onnxremat.planner.search.edit import rank_by
from onnxremat.planner.search.timeline import (
    LINE,
    RUNS,
    SINGLE,
    Line,
    Single,
    cut,
    lay_out,
    line_for,
    read_out,
    single_of,
    sweep,
    undo,
)


class Tuning(NamedTuple):
    """How often it is tried. Greedy repair of resnet50/15%: 11.10 % with one order, 11.08 with 24,
    11.06 with 96, which take a third longer; of six other rows none changes.

    Attributes:
        tries: orders of deletion.
        spread: share of its cost by which a run may go later than that says, from the second on.
    """

    tries: int = 24
    spread: float = 0.3


TUNING = Tuning()


class Room(NamedTuple):
    """Work space."""

    best: Ints  # ops of the best schedule
    slot: Ints  # of each second run
    rank: Ints
    key: Floats


ROOM = types.NamedTuple((I32, I32, I32, F64), Room)


@compiled(types.int64(SINGLE, LINE, ROOM, types.float64))
def _ranked(p: Single, t: Line, room: Room, spread: float) -> int:
    """List the second runs, dearest first; returns their number."""
    count = 0
    for op in range(len(p.cost)):
        for index in range(1, t.many[op]):
            room.slot[count] = t.runs[op * RUNS + index]
            room.key[count] = p.cost[op] * (spread * uniform(t.random) - 1.0)
            count += 1
    rank_by(room.key, room.rank, count)
    return count


@compiled(types.boolean(SINGLE, LINE, ROOM, types.float64))
def _delete(p: Single, t: Line, room: Room, spread: float) -> bool:
    """Take out what can go, each second run once; False where nothing could."""
    found = False
    for k in range(_ranked(p, t, room, spread)):
        slot = room.slot[room.rank[k]]
        op, before, area = t.op[slot], t.sums[0], t.sums[1]
        if op < 0:  # it went with another
            continue
        t.tally[2] = 0
        if cut(p, t, op, slot):
            sweep(p, t)
            if t.sums[1] <= 0:
                found = True
            else:
                undo(p, t)
                t.sums[0], t.sums[1] = before, area
    return found


@compiled(types.int64(SINGLE, LINE, ROOM, I32, types.int64, types.int64), entry=True)
def _lightest(p: Single, t: Line, room: Room, sequence: Ints, steps: int, tries: int) -> int:
    """Write the fastest of so many results to ``room.best``; its length, or -1 where the schedule
    is over budget or an op runs too often."""
    least, length = np.inf, -1
    for attempt in range(tries):
        if not lay_out(p, t, sequence, steps) or t.sums[1] > 0:
            return -1
        spread = 0.0 if attempt == 0 else TUNING.spread
        while _delete(p, t, room, spread):
            pass
        if t.sums[0] < least * (1.0 - 1e-12):
            least, length = t.sums[0], read_out(t, room.best)
        if t.tally[1] == 0:
            break
    return length


def lightened(arrays: Arrays, codes: Ints, random: Random) -> Ints | None:
    """A valid schedule within the budget without what it does not need; None where it is over
    budget, or not for the line of time.

    Args:
        codes: its runs, shape (steps,).
        random: state of the generator.
    """
    single, steps = single_of(arrays), len(codes)
    line = line_for(single, steps + 1, int(arrays.budget[0]), random)
    best, slot, rank = np.zeros((3, steps), np.int32)
    room = Room(best, slot, rank, np.zeros(steps))
    length = _lightest(single, line, room, codes >> 8, steps, TUNING.tries)
    return None if length < 0 else room.best[:length] << 8
