"""Simulated annealing over sequences of op runs.

Moves: insert a recompute of an input (with a random part of its ancestry) before a random step,
delete a second run, move one, exchange one for another, and, when the order is free, move a first
run. Second runs that a move leaves unread go with it. Objective: time + price x excess area; the
price rises while the sequence is over budget and falls while it is not, so the walk follows the
border of the feasible set.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from onnxremat.planner.problem import Floats, Ints
from onnxremat.planner.search.arrays import Arrays
from onnxremat.planner.search.compiled import F64, I32, Random, below, compiled, part, uniform
from onnxremat.planner.search.cooling import TUNING as COOLING
from onnxremat.planner.search.cooling import first_price, temperatures
from onnxremat.planner.search.timeline import (
    LINE,
    RUNS,
    SINGLE,
    Line,
    Single,
    cut,
    lay_out,
    line_for,
    put,
    read_out,
    run_before,
    single_of,
    sweep,
    undo,
)


class Tuning(NamedTuple):
    """Limits of moves, and how often each is tried; docs/search.md has what was measured.

    Shares of moves add up: what is beyond the last moves a second run to another place.
    """

    root: int = 12  # ops inserted by one move at most; work space is made for it
    near: int = 20  # steps that a run is moved by at most, when it is not moved anywhere
    far: int = 4096  # slots searched for one over budget: more than most lines have
    draws: int = 12  # values drawn to find one that is held at a slot
    crowded: int = 20  # moves that find no room before the steps are spread anew
    large: int = 4000  # ops up to which there are ``sparse`` slots a step, beyond ``dense``: the
    sparse: int = 16  # bytes of all slots ought to fit the processor's cache
    dense: int = 6
    first: float = 0.15  # moves a first run, where the order is free
    beside: float = 0.50  # of these to a run that makes or reads what it reads, however far
    insert: float = 0.30  # inserts, at a slot over budget where there is one
    over: float = 0.70  # of these
    delete: float = 0.40  # deletes a second run
    replace: float = 0.65  # deletes one, and relieves what is over budget then
    cascade: float = 0.20  # of both: and second runs that follow it, each more with the next share
    longer: float = 0.70
    relief: int = 3  # values dropped for one deleted run at most
    choice: int = 4  # values compared for each at most
    exchange: float = 0.85  # deletes one and inserts another
    nearby: float = 0.50  # of these and of shifts: not far


TUNING = Tuning()
ROOT = TUNING.root


@part
def _ancestry(p: Single, t: Line, ops: Ints, at: int) -> int:
    """Add to ``ops[0]`` a random part of what it needs and is gone by slot ``at``, in base order.

    Returns the number of ops. What is not added is held longer instead.
    """
    count, head, share = 1, 0, uniform(t.random)
    while head < count:
        op = ops[head]
        head += 1
        for k in range(p.read_start[op], p.read_start[op + 1]):
            value = p.read_index[k]
            source = p.producer[value]
            if p.keep[value] or p.again[source] == 0 or count >= TUNING.root:
                continue
            index = run_before(t, source, at)
            if t.last[value * RUNS + index] >= at or uniform(t.random) >= share:
                continue
            known = False
            for i in range(count):
                known = known or ops[i] == source
            if not known:
                ops[count] = source
                count += 1
    for i in range(1, count):
        source, k = ops[i], i - 1
        while k >= 0 and ops[k] > source:
            ops[k + 1] = ops[k]
            k -= 1
        ops[k + 1] = source
    return count


@compiled(types.boolean(SINGLE, LINE, types.int64, types.int64, I32))
def _recompute(p: Single, t: Line, op: int, at: int, ops: Ints) -> bool:
    """Run ``op``, and perhaps some ops it reads from, before the step at a slot."""
    ops[0] = op
    count = _ancestry(p, t, ops, at)
    room = 0
    while at - room - 1 >= 0 and t.op[at - room - 1] < 0:
        room += 1
    if room < count:
        t.tally[3] += 1
        return False
    for i in range(count):
        if not put(p, t, ops[i], at - room + ((i + 1) * (room + 1)) // (count + 1) - 1):
            return False
    return True


@compiled(types.boolean(SINGLE, LINE, types.int64, I32))
def _insert_recompute(p: Single, t: Line, at: int, ops: Ints) -> bool:
    """Remake an input of the step at a slot; False when it cannot be."""
    op = t.op[at]
    many = p.read_start[op + 1] - p.read_start[op]
    if many == 0:
        return False
    source = p.producer[p.read_index[p.read_start[op] + below(t.random, many)]]
    return p.again[source] != 0 and _recompute(p, t, source, at, ops)


@compiled(types.int64(SINGLE, LINE))
def _any_step(p: Single, t: Line) -> int:
    """Slot of a random step."""
    pick = below(t.random, t.tally[0])
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


@part
def _beside(p: Single, t: Line, op: int) -> int:
    """An empty slot behind a run that makes or reads what an op reads, drawn at random: that is
    there then; or -1."""
    first, many = p.read_start[op], p.read_start[op + 1] - p.read_start[op]
    if many == 0:
        return -1
    value = p.read_index[first + below(t.random, many)]
    start = p.reader_start[value]
    pick = below(t.random, p.reader_start[value + 1] - start + 1)
    other = p.producer[value]
    if pick > 0:
        other = p.reader_index[start + pick - 1]
    return _near(t, t.runs[other * RUNS + below(t.random, t.many[other])] + 1, 0)


@part
def _move_first(p: Single, t: Line, apart: int) -> bool:
    """Move a random first run a little, or to where others need the same."""
    op = below(t.random, len(p.cost))
    slot = t.runs[op * RUNS]
    if uniform(t.random) < TUNING.beside:
        to = _beside(p, t, op)
    else:
        to = _near(t, slot, TUNING.near * apart)
    if to < 0 or not put(p, t, op, to):
        return False
    return cut(p, t, op, slot)


@part
def _cut_neighbours(p: Single, t: Line, slot: int) -> None:
    """Delete second runs that follow a slot, at random."""
    while uniform(t.random) < TUNING.longer:
        while slot < len(t.op) and t.op[slot] < 0:
            slot += 1
        if slot == len(t.op):
            return
        op = t.op[slot]
        if t.runs[op * RUNS] == slot or not cut(p, t, op, slot):
            return


@compiled(types.int64(LINE, types.int64, types.int64))
def _over(t: Line, start: int, end: int) -> int:
    """A slot over budget between two slots, from a random one on, or -1."""
    budget, wide = t.budget[0], end - start + 1
    first = below(t.random, wide)
    for k in range(min(wide, TUNING.far)):
        slot = start + (first + k) % wide
        if t.use[slot] > budget:
            return int(slot)
    return -1


@part
def _next_read(p: Single, t: Line, value: int, slot: int) -> int:
    """First slot after ``slot`` that reads a value, or the end of the line."""
    first = len(t.op)
    for k in range(p.reader_start[value], p.reader_start[value + 1]):
        op = p.reader_index[k]
        index = run_before(t, op, slot + 1) + 1
        if index < t.many[op]:
            first = min(first, t.runs[op * RUNS + index])
    return int(first)


@compiled(types.boolean(SINGLE, LINE, types.int64, I32))
def _relieve(p: Single, t: Line, slot: int, ops: Ints) -> bool:
    """Drop at a slot a value that is held across it, and recompute it before its next read.

    Of a few such values, drawn at random, the one that frees most bytes for its cost.
    """
    chosen, best, wanted = -1, -1.0, 1 + below(t.random, TUNING.choice)
    for _ in range(TUNING.draws):
        value = below(t.random, len(p.size))
        op = p.producer[value]
        if p.again[op] == 0 or p.keep[value]:
            continue
        index = run_before(t, op, slot)
        if index < 0 or t.last[value * RUNS + index] <= slot:
            continue
        worth = p.size[value] / (p.cost[op] + 1e-12)
        if worth > best:
            chosen, best = value, worth
        wanted -= 1
        if wanted == 0:
            break
    if chosen < 0:
        return False
    at = _next_read(p, t, chosen, slot - 1)
    return at > slot and at < len(t.op) and _recompute(p, t, p.producer[chosen], at, ops)


@part
def _move(p: Single, t: Line, apart: int, free_order: bool, ops: Ints) -> bool:
    """Apply one random move; False when it cannot be completed."""
    draw, area = uniform(t.random), t.sums[1]
    if free_order and draw < TUNING.first:
        return _move_first(p, t, apart)
    if draw < TUNING.insert:
        if area > 0 and uniform(t.random) < TUNING.over:
            over = _over(t, 0, len(t.op) - 1)
            return over >= 0 and _relieve(p, t, over, ops)
        return _insert_recompute(p, t, _any_step(p, t), ops)
    if t.tally[1] == 0:
        return False
    op = t.extra[below(t.random, t.tally[1])]
    slot = t.runs[op * RUNS + 1 + below(t.random, t.many[op] - 1)]
    if not cut(p, t, op, slot):
        return False
    if draw < TUNING.replace:
        if uniform(t.random) < TUNING.cascade:
            _cut_neighbours(p, t, slot)
        if draw < TUNING.delete:
            return True
        for _ in range(1 + below(t.random, TUNING.relief)):
            if t.sums[1] <= area:
                return True
            over = _over(t, t.tally[4], t.tally[5])
            if over < 0 or not _relieve(p, t, over, ops):
                return True
        return True
    if draw < TUNING.exchange:  # exchange
        to = _any_step(p, t)
        if uniform(t.random) < TUNING.nearby:
            to = slot + below(t.random, 2 * TUNING.near * apart + 1) - TUNING.near * apart
            to = min(max(0, to), len(t.op) - 1)
            while to < len(t.op) and t.op[to] < 0:
                to += 1
        return to < len(t.op) and _insert_recompute(p, t, to, ops)
    far = TUNING.near * apart // 2 if uniform(t.random) < TUNING.nearby else len(t.op)
    to = _near(t, slot, far)
    return to >= 0 and (free_order or run_before(t, op, to) >= 0) and put(p, t, op, to)


class Walk(NamedTuple):
    """What a walk finds, and its work space."""

    best: Ints  # ops
    spare: Ints
    state: Floats  # price of a byte-step over budget, best feasible time, length of ``best``


WALK = types.NamedTuple((I32, I32, F64), Walk)


@compiled(types.int64(SINGLE, LINE, WALK, types.boolean, types.float64, types.int64), entry=True)
def walk(p: Single, t: Line, w: Walk, free_order: bool, heat: float, moves: int) -> int:
    """Try ``moves`` moves at temperature ``heat``; returns how many were taken."""
    state, ops, room = w.state, w.spare[len(w.spare) - ROOT - 1 :], len(w.spare) - ROOT - 1
    apart = len(t.op) // (t.tally[0] + 1)
    taken = 0
    for attempt in range(moves):
        before, area = t.sums[0], t.sums[1]
        t.tally[2] = 0
        if _move(p, t, apart, free_order, ops):
            sweep(p, t)
            worse = t.sums[0] - before + state[0] * (t.sums[1] - area)
            if t.tally[0] < room and (worse <= 0 or uniform(t.random) < np.exp(-worse / heat)):
                t.tally[2] = 0
                taken += 1
                if t.sums[1] <= 0 and t.sums[0] < state[1] * (1 - 1e-9):
                    state[1], state[2] = t.sums[0], read_out(t, w.best)
        if t.tally[2] > 0:
            undo(p, t)
            t.sums[0], t.sums[1] = before, area
        if (attempt + 1) % COOLING.every == 0:
            state[0] *= COOLING.rise if t.sums[1] > 0 else COOLING.fall
            if t.tally[3] > TUNING.crowded:
                lay_out(p, t, w.spare, read_out(t, w.spare))
    return taken


class Walker:
    """An annealing run on one device.

    Args:
        arrays: the problem.
        codes: a valid schedule, as runs.
        placement: where its results end.
        random: state of the generator.
        heat: starting temperature in mean op costs.
        room: steps that a schedule may have.
    """

    def __init__(
        self, arrays: Arrays, codes: Ints, placement: Ints, random: Random, heat: float, room: int
    ) -> None:
        self._placement = placement.copy()
        self.single = single_of(arrays)
        ops, steps = len(self.single.cost), len(codes)
        apart = TUNING.sparse if ops <= TUNING.large else TUNING.dense
        self.line = line_for(self.single, apart * (steps + 1), int(arrays.budget[0]), random)
        self.hot, self.cold = temperatures(arrays, heat)
        best, spare = np.zeros(room, np.int32), np.zeros(room + ROOT + 1, np.int32)
        self._walk = Walk(best, spare, np.asarray([first_price(arrays), np.inf, 0]))
        spare[:steps] = codes >> 8
        self.steps, self.free_order = steps, bool(arrays.free[0])
        self._ready: bool = lay_out(self.single, self.line, spare, steps)
        seconds, area = self.line.sums.tolist()
        if area <= 0:
            self._walk.state[1:] = seconds, steps
            best[:steps] = spare[:steps]

    @property
    def ready(self) -> bool:
        """No op runs too often for the line."""
        return self._ready

    @property
    def best(self) -> float:
        """Best feasible seconds so far."""
        return float(self._walk.state[1])

    def found(self) -> tuple[Ints, Ints]:
        """Best feasible schedule so far, and where its results end."""
        return self._walk.best[: int(self._walk.state[2])] << 8, self._placement

    def step(self, share: float, moves: int) -> None:
        """Run moves at the temperature for this share of the run."""
        heat = self.hot * (self.cold / self.hot) ** min(1.0, share)
        walk(self.single, self.line, self._walk, self.free_order, heat, moves)
        self.steps = read_out(self.line, self._walk.spare)
        # Evenly spread again, and sums without drift.
        lay_out(self.single, self.line, self._walk.spare, self.steps)
