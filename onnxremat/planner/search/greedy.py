"""Greedy repair: drop a value where a device is over budget and bring it back when it is read.

For every gap in the life of an instance (two consecutive touches with steps over budget between),
price dropping it in the gap and bringing it back before its next read: by running its producer
again there, up to a depth with the producers of inputs that are gone by then, or by copying it
through another device. Inputs at the last level are held longer instead. Score = (excess removed -
excess added) / cost ** power. The best candidates are inserted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from onnxremat.planner.problem import Floats, Ints
from onnxremat.planner.search.arrays import (
    ARRAYS,
    SCRATCH,
    Arrays,
    Flags,
    Scratch,
    copy_of,
    device,
    item,
    run_of,
    source,
)
from onnxremat.planner.search.compiled import (
    F64,
    I32,
    I32_2D,
    U8,
    compiled,
    part,
)
from onnxremat.planner.search.edit import copy_steps, mend, prune, rank_by, sort
from onnxremat.planner.search.evaluate import evaluate


class Tuning(NamedTuple):
    """Sizes of a round."""

    pool: int = 64  # candidates kept per round: as many as are tried when none helps
    wide: int = 24  # ops in one candidate at most; work space is made for it
    good: float = 0.8  # share of the best score from which others join it in a batch
    rounds: int = 4  # between looks at the clock
    batch: int = 400  # ops per candidate of a batch: one at a time in small problems


TUNING = Tuning()
POOL, WIDE = TUNING.pool, TUNING.wide
WIDTH = WIDE + 4  # of a candidate: count, place and step of an early copy, then steps to insert


class Pool(NamedTuple):
    """Candidates of one round, and work space to price them."""

    now: Ints  # (D, m): current instance
    touch: Ints  # per instance: last step that touched it
    mark: Ints  # per op: number of the price that counts it
    level: Ints  # per op of a candidate: levels above the value it is for
    chosen: Ints  # ops of a candidate
    price: Floats  # one entry: their seconds
    score: Floats  # per candidate
    where: Ints  # per candidate: step it goes before
    what: Ints  # per candidate, WIDTH entries
    key: Floats  # per candidate or step: what they are sorted by
    rank: Ints  # candidates or steps in that order
    gone: Flags  # per step: deleted
    trial: Ints  # steps
    spare: Ints  # steps


POOLED = types.NamedTuple(
    (I32_2D, I32, I32, I32, I32, F64, F64, I32, I32, F64, I32, U8, I32, I32), Pool
)


def pool_for(arrays: Arrays, scratch: Scratch, steps: int) -> Pool:
    """Work space for schedules of at most ``steps`` steps."""
    longest = max(POOL, steps) + 2
    return Pool(
        now=np.zeros_like(scratch.current),
        touch=np.zeros_like(scratch.owner),
        mark=np.zeros_like(scratch.seen),
        level=np.zeros(WIDE + 2, np.int32),
        chosen=np.zeros(WIDE + 2, np.int32),
        price=np.zeros(1, np.float64),
        score=np.zeros(POOL, np.float64),
        where=np.zeros(POOL, np.int32),
        what=np.zeros(POOL * WIDTH, np.int32),
        key=np.zeros(longest, np.float64),
        rank=np.zeros(longest, np.int32),
        gone=np.zeros(longest, np.uint8),
        trial=np.zeros(steps, np.int32),
        spare=np.zeros(steps, np.int32),
    )


@compiled(types.float64(ARRAYS, SCRATCH, types.int64, types.int64, types.int64, types.int64))
def _relief(p: Arrays, s: Scratch, d: int, start: int, end: int, size: int) -> float:
    """Excess removed by taking ``size`` bytes off a device in steps [start, end)."""
    total, budget = 0, p.budget[d]
    for step in range(start, end):
        total += max(0, min(s.use[d, step] - budget, size))
    return float(total)


@compiled(types.float64(ARRAYS, SCRATCH, types.int64, types.int64, types.int64, types.int64))
def _burden(p: Arrays, s: Scratch, d: int, start: int, end: int, size: int) -> float:
    """Excess added by putting ``size`` more bytes on a device in steps [start, end)."""
    total, room = 0, p.budget[d] - size
    for step in range(start, end):
        total += max(0, min(s.use[d, step] - room, size))
    return float(total)


@part
def _fetch_price(p: Arrays, now: Ints, value: int, to: int) -> float:
    """Seconds of copying a value to a device, ``inf`` when it is nowhere."""
    least = np.inf
    for e in range(len(p.fixed)):
        if e != to and now[e, value] >= 0:
            least = min(least, p.copy[e, to, value])
    return least


@part
def _recompute(
    p: Arrays, s: Scratch, q: Pool, value: int, d: int, at: int, depth: int, stamp: int
) -> float:
    """Excess added by making ``value`` again on a device before step ``at``.

    ``q.chosen`` receives the ops and, at the end, their number, ``q.price`` their seconds. -1 when
    the depth adds nothing or it cannot be.
    """
    loss, biggest, count, head, grew = 0.0, p.size[d, value], 1, 0, depth == 0
    q.chosen[0] = p.producer[value]
    q.level[0] = 0
    q.mark[p.producer[value]] = stamp
    price = 1e-12
    while head < count:
        op, deep = q.chosen[head], q.level[head]
        head += 1
        if p.again[op] == 0 or not np.isfinite(p.cost[d, op]):
            return -1.0
        price += p.cost[d, op]
        for k in range(p.read_start[op], p.read_start[op + 1]):
            need = p.read_index[k]
            maker, instance = p.producer[need], q.now[d, need]
            if q.mark[maker] == stamp or (instance >= 0 and s.death[instance] >= at):
                continue
            weight = p.size[d, need]
            biggest = max(biggest, weight)
            if deep < depth and p.again[maker] and count < WIDE:
                q.mark[maker] = stamp
                q.chosen[count] = maker
                q.level[count] = deep + 1
                count += 1
                grew = grew or deep + 1 == depth
            elif instance >= 0:
                loss += _burden(p, s, d, s.death[instance] + 1, at, weight)
            else:
                price += _fetch_price(p, q.now, need, d)
    if not grew or not np.isfinite(price):
        return -1.0
    sort(q.chosen, count)
    q.chosen[WIDE + 1] = count
    q.price[0] = price
    more = s.use[d, at] + biggest - p.budget[d]
    return loss + max(0, min(more, p.size[d, value]))


@compiled(types.int64(POOLED, types.int64, types.float64, types.int64))
def _slot(q: Pool, found: int, worth: float, at: int) -> int:
    """Slot of the pool for a candidate of this worth, or -1."""
    slot = found
    if found >= POOL:
        slot = 0
        for k in range(1, POOL):
            if q.score[k] < q.score[slot]:
                slot = k
        if q.score[slot] >= worth:
            return -1
    q.score[slot] = worth
    q.where[slot] = at
    return slot


@part
def _add_recompute(q: Pool, slot: int, d: int) -> None:
    """Write the ops chosen for a device into a slot."""
    base = slot * WIDTH
    q.what[base], q.what[base + 1] = q.chosen[WIDE + 1], -1
    for i in range(q.chosen[WIDE + 1]):
        q.what[base + 3 + i] = run_of(q.chosen[i], d)


@part
def _swaps(
    p: Arrays, s: Scratch, q: Pool, instance: int, since: int, at: int, power: float, gain: float,
    found: int,
) -> int:  # fmt: skip
    """Candidates that keep an instance on another device between two touches."""
    d, value = s.place[instance], s.owner[instance]
    for e in range(len(p.fixed)):
        if e == d or not np.isfinite(p.copy[e, d, value]):
            continue
        seconds, start = p.copy[e, d, value], since + 1
        early = q.now[e, value] < 0
        if early:
            seconds += p.copy[d, e, value]
        else:
            start = min(at, s.death[q.now[e, value]] + 1)
        loss = _burden(p, s, e, start, at, p.size[e, value])
        if gain <= loss or not np.isfinite(seconds):
            continue
        slot = _slot(q, found, (gain - loss) / max(1e-12, seconds) ** power, at)
        if slot < 0:
            continue
        found = max(found, slot + 1)
        base = slot * WIDTH
        q.what[base], q.what[base + 1] = 1, since + 1 if early else -1
        q.what[base + 2] = copy_of(value, d, e)
        q.what[base + 3] = copy_of(value, e, d)
    return found


@part
def _candidates(p: Arrays, s: Scratch, q: Pool, steps: int, depth: int, power: float) -> int:
    """Fill the pool with the best insertions for an evaluated schedule; returns their number."""
    q.now[:] = -1
    q.mark[:] = -1
    found, stamp = 0, 0
    for at in range(steps):
        for look in range(s.looks[at], s.looks[at + 1]):
            instance = s.read[look]
            since = q.touch[instance]
            q.touch[instance] = at
            d, value = s.place[instance], s.owner[instance]
            if at - since < 2 or s.death[instance] >= steps:
                continue
            gain = _relief(p, s, d, since + 1, at, p.size[d, value])
            if gain <= 0:
                continue
            for deep in range(depth + 1):
                stamp += 1
                loss = _recompute(p, s, q, value, d, at, deep, stamp)
                if loss < 0:
                    break
                if gain > loss:
                    slot = _slot(q, found, (gain - loss) / q.price[0] ** power, at)
                    if slot >= 0:
                        found = max(found, slot + 1)
                        _add_recompute(q, slot, d)
            found = _swaps(p, s, q, instance, since, at, power, gain, found)
        for instance in range(s.first[at], s.first[at + 1]):
            q.now[s.place[instance], s.owner[instance]] = instance
            q.touch[instance] = at
    return found


@part
def _apply(q: Pool, schedule: Ints, steps: int, head: int, last: int) -> int:
    """Write the schedule with the good candidates among those in [head, last) into ``q.trial``."""
    count = 0
    for step in range(steps + 1):
        for i in range(head, last):
            k = q.rank[i]
            if q.score[k] < TUNING.good * q.score[q.rank[head]]:
                continue
            base = k * WIDTH
            if q.what[base + 1] == step:
                if count >= len(q.trial):
                    return -1
                q.trial[count] = q.what[base + 2]
                count += 1
            if q.where[k] == step:
                if count + q.what[base] >= len(q.trial):
                    return -1
                for j in range(q.what[base]):
                    q.trial[count + j] = q.what[base + 3 + j]
                count += q.what[base]
        if step < steps:
            if count >= len(q.trial):
                return -1
            q.trial[count] = schedule[step]
            count += 1
    return count


@compiled(
    types.int64(
        ARRAYS, SCRATCH, POOLED, I32, types.int64, I32, types.int64, types.float64, types.int64,
        types.int64,
    ),
    entry=True,
)  # fmt: skip
def fill(
    p: Arrays, s: Scratch, q: Pool, schedule: Ints, steps: int, placement: Ints, depth: int,
    power: float, batch: int, rounds: int,
) -> int:  # fmt: skip
    """Insert recomputations and copies until the budgets hold, nothing helps, or ``rounds`` are
    done.

    Returns the new length, negated when nothing helps any more; ``s.figures`` describes the result.
    """
    evaluate(p, s, schedule, steps, placement)
    for _ in range(rounds):
        area = s.figures[1]
        if area <= 0:
            return steps
        found = _candidates(p, s, q, steps, depth, power)
        for k in range(found):
            q.key[k] = -q.score[k]
        rank_by(q.key, q.rank, found)
        done = False
        for attempt in range(found + 1):  # a batch first, then one at a time
            if attempt == 0 and (batch == 1 or found == 0):
                continue
            head = max(0, attempt - 1)
            last = min(found, head + (batch if attempt == 0 else 1))
            length = _apply(q, schedule, steps, head, last)
            if length > 0:
                length = mend(p, s, q.trial, length, placement, q.spare)
            if length > 0:
                length = prune(p, s, q.spare, length, placement)
            if length > 0 and s.figures[1] < area:
                steps = copy_steps(q.spare, length, schedule)
                done = True
                break
        if not done:
            evaluate(p, s, schedule, steps, placement)
            return -steps
    return steps


@compiled(types.int64(I32, types.int64, U8, I32))
def _left(schedule: Ints, steps: int, gone: Flags, out: Ints) -> int:
    """Copy the steps that are not gone; returns their number."""
    count = 0
    for step in range(steps):
        if gone[step] == 0:
            out[count] = schedule[step]
            count += 1
    return count


@compiled(types.int64(ARRAYS, SCRATCH, POOLED, I32, types.int64, I32), entry=True)
def polish(p: Arrays, s: Scratch, q: Pool, schedule: Ints, steps: int, placement: Ints) -> int:
    """Delete copies and second runs that are unread or that the budgets do not need, dearest first.

    Returns the new length, -1 when the schedule is not valid.
    """
    changed = True
    while changed:
        steps = prune(p, s, schedule, steps, placement)
        if steps < 0 or s.figures[1] > 0:
            return steps
        changed = False
        s.seen[:] = 0
        for step in range(steps):
            code = schedule[step]
            this, start = item(code), source(code)
            q.gone[step] = 0
            q.key[step] = 1.0
            if start >= 0:
                q.key[step] = -p.copy[start, device(code), this]
            elif s.seen[this]:
                q.key[step] = -p.cost[device(code), this]
            else:
                s.seen[this] = 1
        rank_by(q.key, q.rank, steps)
        for i in range(steps):
            step = q.rank[i]
            if q.key[step] > 0:
                break
            q.gone[step] = 1
            count = _left(schedule, steps, q.gone, q.trial)
            if evaluate(p, s, q.trial, count, placement) and s.figures[1] <= 0:
                changed = True
            else:
                q.gone[step] = 0
        steps = _left(schedule, steps, q.gone, schedule)
    return steps
