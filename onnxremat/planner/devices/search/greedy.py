"""Greedy repair: drop a value where a device is over budget and bring it back when it is read.

For every gap in the life of an instance (two consecutive touches with steps over budget between),
price dropping it in the gap and bringing it back before its next read: by running its producer
again there, up to a depth with the producers of inputs that are gone by then, or by copying it
through another device. Inputs at the last level are held longer instead. Score = (excess removed -
excess added) / cost ** power. The best candidates are inserted.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.planner.devices.search.arrays import (
    ARRAYS,
    F64,
    I32,
    I32_2D,
    I64,
    I64_2D,
    SCRATCH,
    Arrays,
    Scratch,
    compiled,
)
from onnxremat.planner.devices.search.edit import mend, prune
from onnxremat.planner.devices.search.evaluate import evaluate
from onnxremat.planner.problem import Bytes, Floats, Ints

POOL = 64  # candidates kept per round
WIDE = 24  # ops in one candidate at most
WIDTH = WIDE + 4  # of a candidate: count, place and step of an early copy, then steps to insert


@compiled(types.void(ARRAYS, SCRATCH, I32, types.int64, I64, I64_2D))
def excess(
    p: Arrays, s: Scratch, schedule: Ints, steps: int, budget: Bytes, over: NDArray[np.int64]
) -> None:
    """Bytes above the budget per device and step of an evaluated schedule (negative: room)."""
    devices = len(p.fixed)
    over[:, : steps + 2] = 0
    for step in range(steps):
        for instance in range(s.first[step], s.first[step + 1]):
            d, size = s.place[instance], p.size[s.place[instance], s.owner[instance]]
            over[d, step] += size
            over[d, min(steps, s.death[instance]) + 1] -= size
    for d in range(devices):
        live = s.resident[d] - budget[d]
        for step in range(steps):
            live += over[d, step]
            over[d, step] = live
    for step in range(steps):
        code = schedule[step]
        if code & 15 == 0:
            d = code >> 4 & 15
            over[d, step] += p.work[d, code >> 8]
            if s.taken[step] >= 0:
                over[d, step] -= p.size[d, s.owner[s.taken[step]]]


@compiled(types.float64(I64_2D, types.int64, types.int64, types.int64, types.int64))
def _relief(over: NDArray[np.int64], device: int, start: int, end: int, size: int) -> float:
    """Excess removed by taking ``size`` bytes off a device in steps [start, end)."""
    total = 0.0
    for step in range(start, end):
        if over[device, step] > 0:
            total += min(over[device, step], size)
    return total


@compiled(types.float64(I64_2D, types.int64, types.int64, types.int64, types.int64))
def _burden(over: NDArray[np.int64], device: int, start: int, end: int, size: int) -> float:
    """Excess added by putting ``size`` more bytes on a device in steps [start, end)."""
    total = 0.0
    for step in range(start, end):
        more = over[device, step] + size
        if more > 0:
            total += min(more, size)
    return total


@compiled(types.float64(ARRAYS, SCRATCH, I64_2D, I32_2D, types.int64, types.int64, types.int64))
def _fetch_price(
    p: Arrays, s: Scratch, over: NDArray[np.int64], now: Ints, value: int, device: int, at: int
) -> float:
    """Seconds of copying a value to a device before step ``at``, ``inf`` when it is nowhere."""
    least = np.inf
    for e in range(len(p.fixed)):
        if e != device and now[e, value] >= 0:
            least = min(least, p.copy[e, device, value])
    return least


@compiled(
    types.float64(
        ARRAYS, SCRATCH, I64_2D, I32_2D, types.int64, types.int64, types.int64, types.int64, I32,
        I32, I32, types.int64, F64,
    )
)  # fmt: skip
def _remake(
    p: Arrays,
    s: Scratch,
    over: NDArray[np.int64],
    now: Ints,
    value: int,
    device: int,
    at: int,
    depth: int,
    chosen: Ints,
    mark: Ints,
    level: Ints,
    stamp: int,
    price: Floats,
) -> float:
    """Excess added by remaking ``value`` on a device before step ``at``.

    ``now`` is the current instance of each value on each device. ``chosen`` receives the number
    of ops and the ops, ``price[0]`` their seconds. -1 when the depth adds nothing or it cannot be.
    """
    loss, biggest, count, head, grew = 0.0, p.size[device, value], 1, 0, depth == 0
    chosen[0] = p.producer[value]
    level[0] = 0
    mark[p.producer[value]] = stamp
    price[0] = 1e-12
    while head < count:
        op, deep = chosen[head], level[head]
        head += 1
        if p.again[op] == 0 or not np.isfinite(p.cost[device, op]):
            return -1.0
        price[0] += p.cost[device, op]
        for k in range(p.read_start[op], p.read_start[op + 1]):
            need = p.read_index[k]
            source, instance = p.producer[need], now[device, need]
            if mark[source] == stamp or (instance >= 0 and s.death[instance] >= at):
                continue
            weight = p.size[device, need]
            biggest = max(biggest, weight)
            if deep < depth and p.again[source] and count < WIDE:
                mark[source] = stamp
                chosen[count] = source
                level[count] = deep + 1
                count += 1
                grew = grew or deep + 1 == depth
            elif instance >= 0:
                loss += _burden(over, device, s.death[instance] + 1, at, weight)
            else:
                price[0] += _fetch_price(p, s, over, now, need, device, at)
    if not grew or not np.isfinite(price[0]):
        return -1.0
    chosen[:count].sort()
    chosen[WIDE + 1] = count
    return loss + _burden(over, device, at, at + 1, biggest)


@compiled(types.int64(F64, I32, types.int64, types.float64, types.int64))
def _slot(score: Floats, where: Ints, found: int, worth: float, at: int) -> int:
    """Slot of the pool for a candidate of this worth, or -1."""
    slot = found if found < POOL else int(np.argmin(score))
    if found >= POOL and score[slot] >= worth:
        return -1
    score[slot] = worth
    where[slot] = at
    return slot


@compiled(
    types.int64(
        ARRAYS, SCRATCH, I32, types.int64, I64_2D, types.int64, types.float64, F64, I32, I32,
    )
)  # fmt: skip
def _candidates(
    p: Arrays,
    s: Scratch,
    schedule: Ints,
    steps: int,
    over: NDArray[np.int64],
    depth: int,
    power: float,
    score: Floats,
    where: Ints,
    what: Ints,
) -> int:
    """Fill the pool with the best insertions for an evaluated schedule; returns their number."""
    devices = len(p.fixed)
    now = np.full(p.size.shape, -1, np.int32)
    touch = np.zeros(s.first[steps] + 1, np.int32)
    mark = np.full(p.cost.shape[1], -1, np.int32)
    level = np.zeros(WIDE + 2, np.int32)
    chosen = np.zeros(WIDE + 2, np.int32)
    price = np.zeros(1, np.float64)
    found, stamp = 0, 0
    for at in range(steps):
        for look in range(s.looks[at], s.looks[at + 1]):
            instance = s.read[look]
            since = touch[instance]
            touch[instance] = at
            d, value = s.place[instance], s.owner[instance]
            if at - since < 2 or s.death[instance] >= steps:
                continue
            gain = _relief(over, d, since + 1, at, p.size[d, value])
            if gain <= 0:
                continue
            for deep in range(depth + 1):
                stamp += 1
                loss = _remake(
                    p, s, over, now, value, d, at, deep, chosen, mark, level, stamp, price
                )
                if loss < 0:
                    break
                if gain <= loss:
                    continue
                worth = (gain - loss) / price[0] ** power
                slot = _slot(score, where, found, worth, at)
                if slot < 0:
                    continue
                found = max(found, slot + 1)
                base = slot * WIDTH
                what[base], what[base + 1] = chosen[WIDE + 1], -1
                for i in range(chosen[WIDE + 1]):
                    what[base + 3 + i] = chosen[i] << 8 | d << 4
            for e in range(devices):
                if e == d or not np.isfinite(p.copy[e, d, value]):
                    continue
                seconds, size, start = p.copy[e, d, value], p.size[e, value], since + 1
                early = now[e, value] < 0
                if early:
                    seconds += p.copy[d, e, value]
                else:
                    start = min(at, s.death[now[e, value]] + 1)
                loss = _burden(over, e, start, at, size)
                if gain <= loss or not np.isfinite(seconds):
                    continue
                worth = (gain - loss) / max(1e-12, seconds) ** power
                slot = _slot(score, where, found, worth, at)
                if slot < 0:
                    continue
                found = max(found, slot + 1)
                base = slot * WIDTH
                what[base], what[base + 1] = 1, since + 1 if early else -1
                what[base + 2] = value << 8 | e << 4 | d + 1
                what[base + 3] = value << 8 | d << 4 | e + 1
        for instance in range(s.first[at], s.first[at + 1]):
            now[s.place[instance], s.owner[instance]] = instance
            touch[instance] = at
    return found


@compiled(
    types.int64(
        I32, types.int64, I64, types.int64, types.int64, types.int64, F64, I32, I32, I32,
    )
)  # fmt: skip
def _apply(
    schedule: Ints,
    steps: int,
    rank: NDArray[np.int64],
    head: int,
    many: int,
    found: int,
    score: Floats,
    where: Ints,
    what: Ints,
    out: Ints,
) -> int:
    """Write the schedule with up to ``many`` good candidates from ``head`` on into ``out``."""
    last = min(found, head + many)
    count = 0
    for step in range(steps + 1):
        for i in range(head, last):
            k = rank[i]
            if score[k] < 0.8 * score[rank[head]]:
                continue
            base = k * WIDTH
            if what[base + 1] == step:
                if count >= len(out):
                    return -1
                out[count] = what[base + 2]
                count += 1
            if where[k] == step:
                if count + what[base] >= len(out):
                    return -1
                out[count : count + what[base]] = what[base + 3 : base + 3 + what[base]]
                count += what[base]
        if step < steps:
            if count >= len(out):
                return -1
            out[count] = schedule[step]
            count += 1
    return count


@compiled(
    types.int64(
        ARRAYS, SCRATCH, I32, types.int64, I32, I64, types.boolean, types.int64, types.float64,
        types.int64, types.int64, I32, I32, I64_2D,
    )
)  # fmt: skip
def fill(
    p: Arrays,
    s: Scratch,
    schedule: Ints,
    steps: int,
    hold: Ints,
    budget: Bytes,
    free_order: bool,
    depth: int,
    power: float,
    batch: int,
    rounds: int,
    trial: Ints,
    spare: Ints,
    over: NDArray[np.int64],
) -> int:
    """Insert remakes and copies until the budgets hold, nothing helps, or ``rounds`` are done.

    Returns the new length, negated when nothing helps any more; ``s.figures`` describes the result.
    """
    score = np.zeros(POOL, np.float64)
    where = np.zeros(POOL, np.int32)
    what = np.zeros(POOL * WIDTH, np.int32)
    evaluate(p, s, schedule, steps, hold, budget, free_order)
    for _ in range(rounds):
        area = s.figures[1]
        if area <= 0:
            return steps
        excess(p, s, schedule, steps, budget, over)
        found = _candidates(p, s, schedule, steps, over, depth, power, score, where, what)
        rank = np.argsort(-score[:found])
        done = False
        for attempt in range(found + 1):  # a batch first, then one at a time
            if attempt == 0 and (batch == 1 or found == 0):
                continue
            head, many = max(0, attempt - 1), batch if attempt == 0 else 1
            length = _apply(schedule, steps, rank, head, many, found, score, where, what, trial)
            if length > 0:
                length = mend(p, s, trial, length, hold, spare)
            if length > 0:
                length = prune(p, s, spare, length, hold, budget, free_order)
            if length > 0 and s.figures[1] < area:
                schedule[:length] = spare[:length]
                steps = length
                done = True
                break
        if not done:
            evaluate(p, s, schedule, steps, hold, budget, free_order)
            return -steps
    return steps


@compiled(
    types.int64(ARRAYS, SCRATCH, I32, types.int64, I32, I64, types.boolean, I32)
)  # fmt: skip
def polish(
    p: Arrays,
    s: Scratch,
    schedule: Ints,
    steps: int,
    hold: Ints,
    budget: Bytes,
    free_order: bool,
    trial: Ints,
) -> int:
    """Delete copies and second runs that the budgets do not need, dearest first."""
    changed = True
    while changed:
        changed = False
        s.seen[:] = 0
        price = np.full(steps, 1.0)
        for step in range(steps):
            code = schedule[step]
            item, device, source = code >> 8, code >> 4 & 15, (code & 15) - 1
            if source >= 0:
                price[step] = -p.copy[source, device, item]
            elif s.seen[item]:
                price[step] = -p.cost[device, item]
            else:
                s.seen[item] = 1
        rank = np.argsort(price)
        gone = np.zeros(steps, np.uint8)
        for i in range(steps):
            step = rank[i]
            if price[step] > 0:
                break
            count = 0
            for k in range(steps):
                if gone[k] == 0 and k != step:
                    trial[count] = schedule[k]
                    count += 1
            if evaluate(p, s, trial, count, hold, budget, free_order) and s.figures[1] <= 0:
                gone[step] = 1
                changed = True
        count = 0
        for k in range(steps):
            if gone[k] == 0:
                schedule[count] = schedule[k]
                count += 1
        steps = prune(p, s, schedule, count, hold, budget, free_order)
    return steps
