"""Greedy insertion of recomputations, and removal of those that turn out not to be needed.

While the budget is broken: for every gap in the life of a value (two consecutive touches with
over-budget steps between), price dropping the value in the gap and remaking it before its next
read. Remaking takes its producer and, up to a depth, the producers of inputs that are gone by
then; inputs at the last level are held longer instead. Score = (excess removed - excess added) /
cost ** power. The best candidates are inserted.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.planner.problem import Floats, Ints
from onnxremat.planner.search.compiled import ARRAYS, F64, I32, SCRATCH, Arrays, Scratch, compiled
from onnxremat.planner.search.edit import insert, prune
from onnxremat.planner.search.evaluate import evaluate

POOL = 64  # candidates kept per round
WIDE = 24  # ops in one candidate at most


@compiled(
    types.float64(
        ARRAYS,
        SCRATCH,
        I32,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        I32,
        I32,
        types.int64,
        types.int64,
        I32,
        I32,
        types.int64,
    ),
    lean=True,
)
def _price(
    p: Arrays,
    s: Scratch,
    sequence: Ints,
    steps: int,
    budget: int,
    at: int,
    depth: int,
    now: Ints,
    chosen: Ints,
    since: int,
    value: int,
    mark: Ints,
    level: Ints,
    stamp: int,
) -> float:
    """Net excess removed by remaking ``value`` before step ``at``.

    ``now`` is the current instance of each value before step ``at``; ``chosen[0]`` receives the
    number of ops to insert and ``chosen[1:]`` the ops. -1 when the depth adds nothing new.
    """
    size = p.size[value]
    gain = 0.0
    for step in range(since + 1, at):
        over = s.use[step] - budget
        if over > 0:
            gain += min(over, size)
    loss, biggest, count, head, grew = 0.0, size, 1, 0, depth == 0
    chosen[1] = p.producer[value]
    level[0] = 0
    mark[p.producer[value]] = stamp
    while head < count:
        op, deep = chosen[1 + head], level[head]
        head += 1
        for k in range(p.read_start[op], p.read_start[op + 1]):
            need = p.read_index[k]
            source = p.producer[need]
            last = s.death[now[need]]
            if mark[source] == stamp or last >= at or p.keep[need]:
                continue
            weight = p.size[need]
            biggest = max(biggest, weight)
            if deep < depth and p.again[source] and count < WIDE:
                mark[source] = stamp
                chosen[1 + count] = source
                level[count] = deep + 1
                count += 1
                grew = grew or deep + 1 == depth
                continue
            for step in range(last + 1, at):
                over = s.use[step] + weight - budget
                if over > 0:
                    loss += min(over, weight)
    if not grew:
        return -1.0
    over = s.use[at] + biggest - budget
    if over > 0:
        loss += min(over, size)
    chosen[0] = count
    for i in range(2, count + 1):  # base order
        op, k = chosen[i], i - 1
        while k >= 1 and chosen[k] > op:
            chosen[k + 1] = chosen[k]
            k -= 1
        chosen[k + 1] = op
    return gain - loss


@compiled(    types.int64(
        ARRAYS, SCRATCH, I32, types.int64, types.int64, types.int64, types.float64, F64, I32, I32,
    )
)  # fmt: skip
def _candidates(
    p: Arrays,
    s: Scratch,
    sequence: Ints,
    steps: int,
    budget: int,
    depth: int,
    power: float,
    score: Floats,
    where: Ints,
    what: Ints,
) -> int:
    """Fill the pool with the best insertions for an evaluated sequence; returns their number."""
    now = np.full(len(p.size), -1, np.int32)
    touch = np.zeros(s.first[steps] + 1, np.int32)
    mark = np.full(len(p.cost), -1, np.int32)
    level = np.zeros(WIDE + 2, np.int32)
    chosen = np.zeros(WIDE + 2, np.int32)
    excess = np.zeros(steps + 1, np.int64)  # number of steps over budget before each step
    for step in range(steps):
        excess[step + 1] = excess[step] + (1 if s.use[step] > budget else 0)
    found, stamp = 0, 0
    for at in range(steps):
        op = sequence[at]
        for k in range(p.read_start[op], p.read_start[op + 1]):
            value = p.read_index[k]
            since = touch[now[value]]
            touch[now[value]] = at
            if at - since < 2 or p.keep[value] or p.again[p.producer[value]] == 0:
                continue
            if excess[at] == excess[since + 1]:
                continue
            for deep in range(depth + 1):
                stamp += 1
                net = _price(
                    p, s, sequence, steps, budget, at, deep, now, chosen, since, value, mark,
                    level, stamp,
                )  # fmt: skip
                if net == -1.0:
                    break
                if net <= 0:
                    continue
                cost = 1e-12
                for i in range(1, chosen[0] + 1):
                    cost += p.cost[chosen[i]]
                worth = net / cost**power
                slot = found
                if found == POOL:
                    slot = int(np.argmin(score))
                    if score[slot] >= worth:
                        continue
                else:
                    found += 1
                score[slot] = worth
                where[slot] = at
                base = slot * (WIDE + 2)
                for i in range(chosen[0] + 1):
                    what[base + i] = chosen[i]
        for instance in range(s.first[at], s.first[at + 1]):
            if s.owner[instance] >= 0:
                now[s.owner[instance]] = instance
                touch[instance] = at
    return found


@compiled(    types.int64(
        I32, types.int64, types.Array(types.int64, 1, "C"), types.int64, types.int64, types.int64,
        F64, I32, I32, types.int64,
    )
)  # fmt: skip
def _apply(
    trial: Ints,
    steps: int,
    rank: NDArray[np.int64],
    head: int,
    many: int,
    found: int,
    score: Floats,
    where: Ints,
    what: Ints,
    room: int,
) -> int:
    """Insert up to ``many`` candidates from ``head`` on, last position first."""
    last = len(trial)
    best = score[rank[head]]
    taken = 0
    used = np.zeros(found, np.uint8)
    while taken < many and steps < room:
        pick = -1  # the latest position below the last one, among good candidates
        for i in range(head, min(found, head + many)):
            k = rank[i]
            if used[i] or score[k] < 0.8 * best or where[k] >= last:
                continue
            if pick < 0 or where[k] > where[rank[pick]]:
                pick = i
        if pick < 0:
            break
        used[pick] = 1
        k = rank[pick]
        base = k * (WIDE + 2)
        steps = insert(trial, steps, where[k], what[base + 1 : base + 1 + what[base]], what[base])
        last = where[k]
        taken += 1
    return steps


@compiled(    types.int64(
        ARRAYS, SCRATCH, I32, types.int64, types.int64, types.boolean, types.int64, types.float64,
        types.int64, types.int64, I32,
    )
)  # fmt: skip
def fill(
    p: Arrays,
    s: Scratch,
    sequence: Ints,
    steps: int,
    budget: int,
    free_order: bool,
    depth: int,
    power: float,
    batch: int,
    rounds: int,
    trial: Ints,
) -> int:
    """Insert recomputations until the budget holds, nothing helps, or ``rounds`` are done.

    Returns the new length, negated when nothing helps any more; ``s.figures`` describes the result.
    """
    score = np.zeros(POOL, np.float64)
    where = np.zeros(POOL, np.int32)
    what = np.zeros(POOL * (WIDE + 2), np.int32)
    evaluate(p, s, sequence, steps, budget, free_order)
    room = len(sequence) - 2 * WIDE
    for _ in range(rounds):
        area = s.figures[2]
        if area <= 0:
            return steps
        found = _candidates(p, s, sequence, steps, budget, depth, power, score, where, what)
        rank = np.argsort(-score[:found])
        done = False
        for lot in range(2):  # a batch first, then one at a time
            many = batch if lot == 0 else 1
            if lot == 0 and (batch == 1 or found == 0):
                continue
            for head in range(found):
                if lot == 0 and head > 0:
                    break
                length = steps
                trial[:steps] = sequence[:steps]
                length = _apply(trial, steps, rank, head, many, found, score, where, what, room)
                if evaluate(p, s, trial, length, budget, free_order) and s.figures[2] < area:
                    length = prune(p, s, trial, length, budget, free_order)
                    sequence[:length] = trial[:length]
                    steps = length
                    done = True
                    break
            if done:
                break
        if not done:
            evaluate(p, s, sequence, steps, budget, free_order)
            return -steps
    return steps


@compiled(types.int64(ARRAYS, SCRATCH, I32, types.int64, types.int64, types.boolean, I32))
def polish(
    p: Arrays,
    s: Scratch,
    sequence: Ints,
    steps: int,
    budget: int,
    free_order: bool,
    trial: Ints,
) -> int:
    """Delete second runs that the budget does not need, dearest first; returns the new length."""
    changed = True
    while changed:
        changed = False
        s.seen[:] = 0
        price = np.full(steps, 1.0)
        for step in range(steps):
            if s.seen[sequence[step]]:
                price[step] = -p.cost[sequence[step]]
            s.seen[sequence[step]] = 1
        rank = np.argsort(price)
        gone = np.zeros(steps, np.uint8)
        length = steps
        for i in range(steps):
            step = rank[i]
            if price[step] > 0:
                break
            count = 0
            for k in range(length):
                if gone[k] == 0 and k != step:
                    trial[count] = sequence[k]
                    count += 1
            if evaluate(p, s, trial, count, budget, free_order) and s.figures[2] <= 0:
                gone[step] = 1
                changed = True
        count = 0
        for k in range(length):
            if gone[k] == 0:
                sequence[count] = sequence[k]
                count += 1
        steps = prune(p, s, sequence, count, budget, free_order)
    return steps
