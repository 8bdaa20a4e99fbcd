"""Simulated annealing over placements of any shape: single classes and connected clusters move.

Loads are kept by counting, for every net, its pins on each device: a move costs the nets that the
moved classes touch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.placement.graph import Index
from onnxremat.placement.kernels.pieces import COSTS, Costs
from onnxremat.planner.problem import Floats
from onnxremat.planner.search.compiled import (
    F64,
    F64_2D,
    I32_2D,
    I64,
    U64,
    Random,
    below,
    compiled,
    part,
    uniform,
)

LARGEST = 24  # classes of a cluster that moves
SPREAD = 0.02  # weight of the sum of all loads beside the largest
SAME = 1e-12  # of a value: differences below it are rounding
DRAWS = 20  # tries to draw a class of a device


class State(NamedTuple):
    """A placement under annealing; D devices, n classes, m nets."""

    where: Index  # (n,)
    pinned: NDArray[np.int32]  # (m, D): pins on each device
    load: Floats  # (D, 2)
    used: Floats  # (D,): bytes
    kept: Index  # (n,): the best placement so far
    best: Floats  # (1,): its value
    group: Index  # work space for a cluster
    pin_at: Index
    pin_of: Index
    random: Random


STATE = types.NamedTuple(
    (I64, I32_2D, F64_2D, F64, I64, F64, I64, I64, I64, U64), State
)  # fmt: skip


@part
def _value(load: Floats, two: bool) -> float:
    """The largest load; the sum of the two largest parts."""
    first, second, both = 0.0, 0.0, 0.0
    for d in range(load.shape[0]):
        first = max(first, load[d, 0])
        second = max(second, load[d, 1])
        both = max(both, load[d, 0] + load[d, 1])
    return first + second if two else both


@part
def _power(x: float) -> float:
    x2 = x * x
    x4 = x2 * x2
    x8 = x4 * x4
    return x8 * x8


@part
def _energy(load: Floats, scale: float, two: bool) -> float:
    """What is annealed: the maximum made smooth (a norm of order 16), so that moves between devices
    below it count too, and some of the sum of all loads."""
    first, second, total = 0.0, 0.0, 0.0
    for d in range(load.shape[0]):
        a, b = load[d, 0], load[d, 1]
        total += a + b
        if two:
            first += _power(a / scale)
            second += _power(b / scale)
        else:
            first += _power((a + b) / scale)
    return scale * (first ** (1 / 16) + second ** (1 / 16)) + SPREAD * total


@part
def _note(s: State) -> None:
    """Keep the placement at hand."""
    for v in range(len(s.where)):
        s.kept[v] = s.where[v]


@part
def _charge(p: Costs, s: State, e: int, d: int, sign: float) -> None:
    """Charge a net to an accelerator that cuts it, or take it back."""
    if d < p.devices[0] and 0 < s.pinned[e, d] < p.pins[e]:
        s.load[d, 0] += sign * p.cost[e, 0]
        s.load[d, 1] += sign * p.cost[e, 1]


@compiled(types.void(COSTS, STATE, types.int64, types.int64), entry=True)
def move(p: Costs, s: State, v: int, to: int) -> None:
    """Move one class."""
    a = s.where[v]
    for h in range(2):
        s.load[a, h] -= p.acc[v, h] if a < p.devices[0] else p.cpu[v, h]
        s.load[to, h] += p.acc[v, h] if to < p.devices[0] else p.cpu[v, h]
    s.used[a] -= p.size[v]
    s.used[to] += p.size[v]
    for j in range(p.net_at[v], p.net_at[v + 1]):
        e = p.net_of[j]
        _charge(p, s, e, a, -1.0)
        s.pinned[e, a] -= 1
        _charge(p, s, e, a, 1.0)
        _charge(p, s, e, to, -1.0)
        s.pinned[e, to] += 1
        _charge(p, s, e, to, 1.0)
    s.where[v] = to


@compiled(types.float64(COSTS, STATE, types.boolean), entry=True)
def settle(p: Costs, s: State, two: bool) -> float:
    """Loads and counts of ``where``; returns its value."""
    s.pinned[:] = 0
    s.load[:] = 0.0
    s.used[:] = 0.0
    for v in range(len(p.size)):
        d = s.where[v]
        s.used[d] += p.size[v]
        for h in range(2):
            s.load[d, h] += p.acc[v, h] if d < p.devices[0] else p.cpu[v, h]
        for j in range(p.net_at[v], p.net_at[v + 1]):
            s.pinned[p.net_of[j], d] += 1
    for e in range(len(p.pins)):
        for d in range(p.devices[0]):
            _charge(p, s, e, d, 1.0)
    return _value(s.load, two)


@part
def _draw(s: State) -> int:
    """A class, half of the time one of the busiest device."""
    n = len(s.where)
    v = below(s.random, n)
    if uniform(s.random) < 0.5:
        top = 0
        for d in range(s.load.shape[0]):
            if s.load[d, 0] + s.load[d, 1] > s.load[top, 0] + s.load[top, 1]:
                top = d
        for _ in range(DRAWS):
            if s.where[v] == top:
                break
            v = below(s.random, n)
    return v


@part
def _aim(p: Costs, s: State, v: int) -> int:
    """A device, mostly one that holds a neighbour of v."""
    degree = p.net_at[v + 1] - p.net_at[v]
    if degree > 0 and uniform(s.random) < 0.75:
        e = p.net_of[p.net_at[v] + below(s.random, degree)]
        pins = s.pin_at[e + 1] - s.pin_at[e]
        return s.where[s.pin_of[s.pin_at[e] + below(s.random, pins)]]
    return below(s.random, s.load.shape[0])


@part
def _cluster(p: Costs, s: State, v: int) -> int:
    """v and connected classes of its device; how many."""
    want = 1
    if uniform(s.random) < 0.5:
        want = 2 + below(s.random, LARGEST - 1)
    s.group[0] = v
    count, head = 1, 0
    while head < count and count < want:
        u = s.group[head]
        head += 1
        for j in range(p.net_at[u], p.net_at[u + 1]):
            e = p.net_of[j]
            for i in range(s.pin_at[e], s.pin_at[e + 1]):
                w = s.pin_of[i]
                if s.where[w] != s.where[v] or count == want:
                    continue
                fresh = True
                for q in range(count):
                    fresh &= s.group[q] != w
                if fresh:
                    s.group[count] = w
                    count += 1
    return count


@part
def _fits(p: Costs, s: State, count: int, to: int) -> bool:
    """Whether a cluster may move."""
    if to >= p.devices[0]:
        return True
    size = s.used[to]
    for q in range(count):
        if p.supported[s.group[q]] == 0:
            return False
        size += p.size[s.group[q]]
    return size <= p.limits[0]


@part
def _exchange(p: Costs, s: State, v: int, a: int, to: int) -> int:
    """Sometimes a class of ``to`` that may take the place of v, else -1."""
    if uniform(s.random) >= 0.3:
        return -1
    w = below(s.random, len(s.where))
    for _ in range(DRAWS):
        if s.where[w] == to:
            break
        w = below(s.random, len(s.where))
    if s.where[w] != to:
        return -1
    over = s.used[a] - p.size[v] + p.size[w] > p.limits[0]
    if a < p.devices[0] and (over or p.supported[w] == 0):
        return -1
    return w


@compiled(
    types.void(COSTS, STATE, types.int64, types.float64, types.float64, types.boolean), entry=True
)
def anneal(p: Costs, s: State, steps: int, hot: float, cold: float, two: bool) -> None:
    """Anneal ``where`` from a temperature to another; the best goes to ``kept``."""
    now = settle(p, s, two)
    if now < s.best[0]:
        s.best[0] = now
        _note(s)
    scale = max(s.best[0], 1e-300)
    now = _energy(s.load, scale, two)
    for step in range(steps):
        heat = hot * (cold / hot) ** (step / steps)
        v = _draw(s)
        a, to = s.where[v], _aim(p, s, v)
        if a == to:
            continue
        count = _cluster(p, s, v)
        if not _fits(p, s, count, to):
            continue
        back = _exchange(p, s, v, a, to) if count == 1 else -1
        for q in range(count):
            move(p, s, s.group[q], to)
        if back >= 0:
            move(p, s, back, a)
        value = _value(s.load, two)
        new = _energy(s.load, scale, two)
        if new <= now or uniform(s.random) < np.exp((now - new) / heat):
            now = new
            if value < s.best[0] - 1e-12 * abs(s.best[0]):
                s.best[0] = value
                _note(s)
            continue
        if back >= 0:
            move(p, s, back, to)
        for q in range(count):
            move(p, s, s.group[q], a)


@compiled(types.int64(COSTS, STATE, I64, types.float64), entry=True)
def descend(p: Costs, s: State, walked: Index, least: float) -> int:
    """The released local search: the best move of one class between accelerators, the first in
    ``walked`` of equally good ones, memory not regarded, as long as it gains ``least``; returns the
    number of moves."""
    now = settle(p, s, False)
    moves = 0
    while True:
        best, class_, device = np.inf, -1, -1
        for v in walked:
            a = s.where[v]
            for d in range(p.devices[0]):
                if d == a:
                    continue
                move(p, s, v, d)
                value = _value(s.load, False)
                move(p, s, v, a)
                if value < best - SAME * now:
                    best, class_, device = value, v, d
        if best > now - least:
            s.best[0] = now
            return moves
        move(p, s, class_, device)
        now = best
        moves += 1
