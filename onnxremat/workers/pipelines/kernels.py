"""Compiled loops over pipeline schedules: when every action runs, and the search for better orders.

One file, since Numba looks for changes file by file. Arrays are those of :class:`Shape` (what a
pipeline is) and :class:`Work` (what a replay fills).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from onnxremat.planner.problem import Bytes, Floats, Ints
from onnxremat.planner.search.compiled import (
    F64,
    F64_2D,
    I32,
    I64,
    U64,
    Random,
    below,
    compiled,
    uniform,
)

FAR = 1e300


class Shape(NamedTuple):
    """A pipeline with its stages dealt out to ranks.

    Attributes:
        seconds: per stage of F, B, W.
        lag: seconds from stage s to s + 1; 0 within a rank.
        rank: of each stage.
        held: stages by rank, ascending; ``held_begin`` where each rank's start, and one more.
        begin: first step of each rank in an array of all, and one more.
        room: most pairs of stage and micro-batch alive per rank.
        most: one number, micro-batches alive per stage.
        batches: one number, of micro-batches.
    """

    seconds: Floats
    lag: Floats
    rank: Ints
    held: Bytes
    held_begin: Bytes
    begin: Bytes
    room: Bytes
    most: Bytes
    batches: Bytes


class Work(NamedTuple):
    """What a replay fills.

    Attributes:
        start, end: per step.
        done: end of F (even) and B (odd) per stage and micro-batch, -1 before.
        at: the step that made it.
        ran: per stage and kind, how many have run.
        next: per rank, the next step.
        free: per rank, when its last step ended.
        queue, queued: ranks that may go on.
        last: binding predecessor of each step, -1 for none; steps of one rank follow each other.
    """

    start: Floats
    end: Floats
    done: Floats
    at: Bytes
    ran: Bytes
    next: Bytes
    free: Floats
    queue: Bytes
    queued: Bytes
    last: Bytes


SHAPE = types.NamedTuple((F64_2D, F64, I32, I64, I64, I64, I64, I64, I64), Shape)
WORK = types.NamedTuple((F64, F64, F64, I64, I64, I64, F64, I64, I64, I64), Work)


@compiled(types.float64(I32, SHAPE, WORK), entry=True)
def replay(steps: Ints, shape: Shape, work: Work) -> float:
    """When every step runs, each as soon as it can in the order of its rank.

    Returns:
        Seconds to the last end; -1 where steps wait for each other for ever.
    """
    m, stages, ranks = shape.batches[0], len(shape.rank), len(shape.room)
    for i in range(len(work.done)):
        work.done[i] = -1.0
    for i in range(len(work.ran)):
        work.ran[i] = 0
    for r in range(ranks):
        work.next[r] = shape.begin[r]
        work.free[r] = 0.0
        work.queue[r] = ranks - 1 - r
        work.queued[r] = 1
    waiting, left, latest = ranks, len(steps), 0.0
    while waiting > 0:
        waiting -= 1
        r = work.queue[waiting]
        work.queued[r] = 0
        while work.next[r] < shape.begin[r + 1]:
            i = work.next[r]
            s, kind = steps[i] // 4, steps[i] % 4
            k = work.ran[4 * s + kind]
            ready, maker = 0.0, -1
            if kind == 0:
                if s > 0:
                    before = 2 * ((s - 1) * m + k)
                    if work.done[before] < 0.0:
                        break
                    ready, maker = work.done[before] + shape.lag[s - 1], work.at[before]
            elif kind == 2:
                if work.done[2 * (s * m + k) + 1] < 0.0:
                    break
            else:
                if work.done[2 * (s * m + k)] < 0.0:
                    break
                if s + 1 < stages:
                    after = 2 * ((s + 1) * m + k) + 1
                    if work.done[after] < 0.0:
                        break
                    ready, maker = work.done[after] + shape.lag[s], work.at[after]
            begin = work.free[r]
            work.last[i] = i - 1 if i > shape.begin[r] else -1
            if ready > begin:
                begin = ready
                work.last[i] = maker
            took = shape.seconds[s, kind] if kind < 3 else shape.seconds[s, 1] + shape.seconds[s, 2]
            finish = begin + took
            work.start[i], work.end[i], work.free[r] = begin, finish, finish
            latest = max(latest, finish)
            work.ran[4 * s + kind] += 1
            work.next[r] += 1
            left -= 1
            other = r
            if kind == 0:
                work.done[2 * (s * m + k)], work.at[2 * (s * m + k)] = finish, i
                if s + 1 < stages:
                    other = shape.rank[s + 1]
            elif kind != 2:
                work.done[2 * (s * m + k) + 1], work.at[2 * (s * m + k) + 1] = finish, i
                if s > 0:
                    other = shape.rank[s - 1]
            if other != r and work.queued[other] == 0:
                work.queue[waiting] = other
                work.queued[other] = 1
                waiting += 1
    return latest if left == 0 else -1.0


@compiled(types.int64(I32, SHAPE, I64, types.int64), entry=True)
def keeps_room(steps: Ints, shape: Shape, count: Bytes, rank: int) -> int:
    """1 where the steps of a rank are a schedule of its stages that keeps its room."""
    for i in range(len(count)):
        count[i] = 0
    alive = 0
    for i in range(shape.begin[rank], shape.begin[rank + 1]):
        s, kind = steps[i] // 4, steps[i] % 4
        count[steps[i]] += 1
        if kind == 0:
            alive += 1
            here = count[4 * s] - count[4 * s + 2] - count[4 * s + 3]
            if alive > shape.room[rank] or here > shape.most[0]:
                return 0
        elif kind == 1 or kind == 3:
            if count[4 * s + kind] > count[4 * s]:
                return 0
        elif count[4 * s + 2] > count[4 * s + 1]:
            return 0
        if kind >= 2:
            alive -= 1
    return 1


@compiled(types.float64(SHAPE, WORK))
def _late(shape: Shape, work: Work) -> float:
    """A little of when ranks end: tells orders apart that last equally long."""
    total = 0.0
    for r in range(len(shape.room)):
        total += work.free[r]
    return 1e-3 * total / len(shape.room)


@compiled(types.int64(SHAPE, WORK, I64))
def _critical(shape: Shape, work: Work, path: Bytes) -> int:
    """Steps of a critical path that follow straight upon another of their rank; how many."""
    final = 0
    for r in range(len(shape.room)):
        i = shape.begin[r + 1] - 1
        if work.end[i] > work.end[final]:
            final = i
    length = 0
    while final >= 0:
        before = work.last[final]
        if before == final - 1 and before >= 0:
            path[length] = final
            length += 1
        final = before
    return length


@compiled(types.void(I32, types.int64, types.int64))
def _move(steps: Ints, old: int, new: int) -> None:
    moved = steps[old]
    if old < new:
        for i in range(old, new):
            steps[i] = steps[i + 1]
    else:
        for i in range(old, new, -1):
            steps[i] = steps[i - 1]
    steps[new] = moved


@compiled(types.float64(I32, SHAPE, WORK, I32, I64, U64, types.int64, types.float64), entry=True)
def improve(
    steps: Ints,
    shape: Shape,
    work: Work,
    best: Ints,
    path: Bytes,
    random: Random,
    rounds: int,
    goal: float,
) -> float:
    """Anneal an order of F, B and W that are all apart; ``best`` gets the best one.

    A move swaps two neighbours on the critical path, or takes a step a few places further. Ends
    when ``goal`` is reached.

    Returns:
        Seconds of ``best``.
    """
    found = replay(steps, shape, work)
    ranks = len(shape.room)
    for i in range(len(steps)):
        best[i] = steps[i]
    score = found + _late(shape, work)
    heat = 0.02 * found
    length = _critical(shape, work, path)
    for turn in range(rounds):
        if found <= goal:
            break
        if length > 0 and uniform(random) < 0.6:
            old = path[below(random, length)]
            new = old - 1
        else:
            old = below(random, len(steps))
            new = old + below(random, 13) - 6
        r, high = 0, ranks
        while high - r > 1:
            middle = (r + high) // 2
            if shape.begin[middle] <= old:
                r = middle
            else:
                high = middle
        new = min(max(new, shape.begin[r]), shape.begin[r + 1] - 1)
        if old == new:
            continue
        _move(steps, old, new)
        if keeps_room(steps, shape, work.ran, r) == 0:
            _move(steps, new, old)
            continue
        took = replay(steps, shape, work)
        late = took + _late(shape, work)
        share = 1.0 - turn / rounds
        if took < 0.0 or late > score - heat * share * share * np.log(uniform(random) + 1e-300):
            _move(steps, new, old)
            continue
        score = late
        length = _critical(shape, work, path)
        if took < found:
            found = took
            for i in range(len(steps)):
                best[i] = steps[i]
    return found


@compiled(types.void(SHAPE, WORK, I32, types.int64, types.int64, types.int64, types.float64))
def _take(shape: Shape, work: Work, steps: Ints, r: int, s: int, kind: int, now: float) -> None:
    """Rank r runs the next action of a kind of stage s; whoever waits for it is woken in time.
    Arrays are used as in :func:`construct`."""
    m, wake = shape.batches[0], work.start
    finish = now + shape.seconds[s, kind]
    steps[work.next[r]] = 4 * s + kind
    work.next[r] += 1
    k = work.ran[4 * s + kind]
    work.ran[4 * s + kind] += 1
    other, comes = -1, finish
    if kind == 0:
        work.queued[r] += 1
        work.done[2 * (s * m + k)] = finish
        if s + 1 < len(shape.rank):
            other, comes = shape.rank[s + 1], finish + shape.lag[s]
    elif kind == 1:
        work.done[2 * (s * m + k) + 1] = finish
        if s > 0:
            other, comes = shape.rank[s - 1], finish + shape.lag[s - 1]
    else:
        work.queued[r] -= 1
    if kind < 2:
        work.queue[r] = kind
    work.free[r] = finish
    wake[r] = finish if work.next[r] < shape.begin[r + 1] else FAR
    if other >= 0 and other != r and work.next[other] < shape.begin[other + 1]:
        wake[other] = min(wake[other], max(work.free[other], comes))


@compiled(types.int64(SHAPE, WORK, I32, types.int64, types.float64), entry=True)
def construct(shape: Shape, work: Work, steps: Ints, prefer: int, patience: float) -> int:
    """An order by a rule: whoever is free first takes what is ready.

    Args:
        steps: gets the order.
        prefer: of B and F that are both ready, 0: B, 1: F, 2: not the kind taken last.
        patience: W waits where a B or F is known to come within so much of its seconds.

    Of the arrays of ``work``, ``start`` holds when a rank looks again, ``queued`` how many
    micro-batches it keeps alive, ``queue`` whether its last action but W was a B.

    Returns:
        1, or 0 where the rule ends with nothing to take.
    """
    m, stages, ranks = shape.batches[0], len(shape.rank), len(shape.room)
    wake, alive, taken = work.start, work.queued, work.queue
    for i in range(len(work.done)):
        work.done[i] = -1.0
    for i in range(len(work.ran)):
        work.ran[i] = 0
    for r in range(ranks):
        work.next[r] = shape.begin[r]
        work.free[r], wake[r], alive[r], taken[r] = 0.0, 0.0, 0, 1
    left = len(steps)
    while left > 0:
        r = 0
        for other in range(1, ranks):
            if wake[other] < wake[r]:
                r = other
        now = wake[r]
        if now >= FAR:
            return 0
        soon, forward, back, weight, first = FAR, -1, -1, -1, FAR
        for later in range(shape.held_begin[r + 1] - shape.held_begin[r]):
            s = shape.held[shape.held_begin[r + 1] - 1 - later]
            k = work.ran[4 * s]
            here = k - work.ran[4 * s + 2]
            if k < m and here < shape.most[0] and alive[r] + later < shape.room[r]:
                comes = 0.0
                if s > 0:
                    comes = work.done[2 * ((s - 1) * m + k)]
                    comes = comes + shape.lag[s - 1] if comes >= 0.0 else FAR
                if comes <= now and forward < 0:
                    forward = s
                soon = min(soon, comes)
            b = work.ran[4 * s + 1]
            if b < k:
                comes = 0.0
                if s + 1 < stages:
                    comes = work.done[2 * ((s + 1) * m + b) + 1]
                    comes = comes + shape.lag[s] if comes >= 0.0 else FAR
                if comes <= now and comes < first:
                    back, first = s, comes
                soon = min(soon, comes)
            if work.ran[4 * s + 2] < b:
                weight = s
        s, kind = -1, 2
        ahead = prefer == 1 or (prefer == 2 and taken[r] == 1)
        if forward >= 0 and (ahead or back < 0):
            s, kind = forward, 0
        elif back >= 0:
            s, kind = back, 1
        elif weight >= 0 and soon >= now + patience * shape.seconds[weight, 2]:
            s = weight
        if s < 0:
            wake[r] = soon
            continue
        _take(shape, work, steps, r, s, kind, now)
        left -= 1
    return 1


@compiled(types.void(SHAPE, F64_2D, F64_2D, types.int64), entry=True)
def heads_and_tails(shape: Shape, head: Floats, tail: Floats, room: int) -> None:
    """Least seconds before each action can start, and after it has ended, in any schedule.

    Args:
        head, tail: ``[3 * stage + kind, micro-batch]``, filled here.
        room: most micro-batches alive in each stage, 0 for no limit.
    """
    m, stages = shape.batches[0], len(shape.rank)
    took, lag = shape.seconds, shape.lag
    for k in range(m):
        for s in range(stages):
            f = 3 * s
            value = head[f - 3, k] + took[s - 1, 0] + lag[s - 1] if s > 0 else 0.0
            if k > 0:
                value = max(value, head[f, k - 1] + took[s, 0])
            if room > 0 and k >= room:
                w = k - room
                value = max(value, head[f + 2, w] + took[s, 2])
                every = took[s, 0] + took[s, 1] + took[s, 2]
                value = max(value, head[f, 0] + (w + 1) * every + (room - 1) * took[s, 0])
            head[f, k] = value
        for s in range(stages - 1, -1, -1):
            b = 3 * s + 1
            value = head[b - 1, 0] + (k + 1) * took[s, 0] + k * took[s, 1]
            if room > 0 and k >= room:
                value += (k + 1 - room) * took[s, 2]
            value = max(value, head[b - 1, k] + took[s, 0])
            if s + 1 < stages:
                value = max(value, head[b + 3, k] + took[s + 1, 1] + lag[s])
            if k > 0:
                value = max(value, head[b, k - 1] + took[s, 1])
            head[b, k] = value
            every = took[s, 0] + took[s, 1]
            value = max(value + took[s, 1], head[b - 1, 0] + (k + 1) * every + k * took[s, 2])
            if k > 0:
                value = max(value, head[b + 1, k - 1] + took[s, 2])
            head[b + 1, k] = value
    for k in range(m - 1, -1, -1):
        rest = m - 1 - k
        for s in range(stages):
            b = 3 * s + 1
            value = rest * took[s, 2]
            if room > 0 and k + room < m:
                value = max(value, tail[b - 1, k + room] + took[s, 0])
            tail[b + 1, k] = value
            value = max(value + took[s, 2], rest * took[s, 1] + (rest + 1) * took[s, 2])
            if s > 0:
                value = max(value, tail[b - 3, k] + took[s - 1, 1] + lag[s - 1])
            if k + 1 < m:
                value = max(value, tail[b, k + 1] + took[s, 1])
            tail[b, k] = value
        for s in range(stages - 1, -1, -1):
            f = 3 * s
            value = rest * took[s, 0] + (rest + 1) * (took[s, 1] + took[s, 2])
            value = max(value, tail[f + 1, k] + took[s, 1])
            if s + 1 < stages:
                value = max(value, tail[f + 3, k] + took[s + 1, 0] + lag[s])
            if k + 1 < m:
                value = max(value, tail[f, k + 1] + took[s, 0])
            tail[f, k] = value


@compiled(types.float64(SHAPE, F64_2D, F64_2D, I64, F64), entry=True)
def one_machine(shape: Shape, head: Floats, tail: Floats, given: Bytes, left: Floats) -> float:
    """The longest that any rank needs by itself, its actions interrupted as it likes: whatever is
    there and has the longest tail first (Jackson's preemptive schedule, optimal for that).

    Args:
        given, left: work: how many of each row of ``head`` are done, seconds left of the next.
    """
    m, longest = shape.batches[0], 0.0
    for r in range(len(shape.room)):
        first, last = shape.held_begin[r], shape.held_begin[r + 1]
        rows, now = 3 * (last - first), 0.0
        for row in range(rows):
            s = shape.held[first + row // 3]
            given[row], left[row] = 0, shape.seconds[s, row % 3]
        unfinished = rows
        while unfinished > 0:
            chosen, most, soon = -1, -1.0, FAR
            for row in range(rows):
                k = given[row]
                if k == m:
                    continue
                each = 3 * shape.held[first + row // 3] + row % 3
                if head[each, k] > now + 1e-12 * now:
                    soon = min(soon, head[each, k])
                elif tail[each, k] > most:
                    chosen, most = row, tail[each, k]
            if chosen < 0:
                now = soon
                continue
            until = min(now + left[chosen], soon)
            left[chosen] -= until - now
            now = until
            if left[chosen] <= 1e-12 * now:
                longest = max(longest, now + most)
                given[chosen] += 1
                left[chosen] = shape.seconds[shape.held[first + chosen // 3], chosen % 3]
                if given[chosen] == m:
                    unfinished -= 1
    return longest
