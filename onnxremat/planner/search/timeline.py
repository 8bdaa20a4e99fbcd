"""A sequence that is edited in place: each edit costs what it touches, not the whole sequence.

Steps sit in *slots* of a sparse line of time, a few empty slots between neighbours. Per op the
slots of its runs are kept sorted; a run starts an instance of each value it makes, and per instance
the slot of its last read is kept. Putting in or taking out one run then changes the memory on a few
stretches of slots: where an instance of its outputs is no longer (or again) needed, and where one
of its inputs is held longer (or no longer). Time, bytes and excess area follow exactly; tests
compare them with :func:`~onnxremat.planner.problem.occupancy` after every edit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from onnxremat.planner.problem import Bytes, Floats, Ints
from onnxremat.planner.search.arrays import Arrays, Flags
from onnxremat.planner.search.compiled import (
    F64,
    I32,
    I64,
    U8,
    U64,
    Random,
    compiled,
    part,
)

EMPTY = 1 << 60  # taken off the bytes of a slot that holds no step
RUNS = 24  # runs of one op at most
LOG = 256  # edits of one move at most


class Single(NamedTuple):
    """What the arrays of a problem say about its one device."""

    cost: Floats
    work: Bytes
    size: Bytes
    read_start: Ints
    read_index: Ints
    write_start: Ints
    write_index: Ints
    take_start: Ints
    take_index: Ints
    reader_start: Ints
    reader_index: Ints
    keep: Flags
    producer: Ints
    again: Flags
    resident: Bytes  # one entry: fixed bytes and weights


SINGLE = types.NamedTuple(
    (F64, I64, I64, I32, I32, I32, I32, I32, I32, I32, I32, U8, I32, U8, I64), Single
)


def single_of(arrays: Arrays) -> Single:
    """The first device, which runs every op."""
    weights = arrays.weight[0, np.unique(arrays.use_index)].sum()
    rows = {name: getattr(arrays, name) for name in Single._fields[3:-1]}
    return Single(
        arrays.cost[0], arrays.work[0], arrays.size[0], **rows,
        resident=np.array([arrays.fixed[0] + weights], np.int64),
    )  # fmt: skip


class Line(NamedTuple):
    """State of an edited sequence; lengths follow :func:`line_for`."""

    op: Ints  # per slot: op, or -1
    use: Bytes  # per slot: bytes, less EMPTY where there is no step
    take: Bytes  # per slot: bytes that an output takes over there
    runs: Ints  # per op, RUNS entries: slots of its runs, increasing
    many: Ints  # per op: number of runs
    last: Ints  # per value, RUNS entries: slot of the last read of each instance
    extra: Ints  # ops of second runs, in any order
    place: Ints  # per op, RUNS entries: its entries in ``extra``
    log: Ints  # edits of the move at hand: op + 1 put in (or its negative), slot
    tally: Bytes  # steps, second runs, log entries, moves without room, latest excess
    sums: Floats  # time, excess area
    budget: Bytes  # one entry: bytes
    random: Random  # one entry: state of the generator


LINE = types.NamedTuple((I32, I64, I64, I32, I32, I32, I32, I32, I32, I64, F64, I64, U64), Line)


def line_for(single: Single, slots: int, budget: int, random: Random) -> Line:
    """An empty line of time."""
    ops, values = len(single.cost), len(single.size)
    return Line(
        op=np.full(slots, -1, np.int32),
        use=np.zeros(slots, np.int64),
        take=np.zeros(slots, np.int64),
        runs=np.zeros(ops * RUNS, np.int32),
        many=np.zeros(ops, np.int32),
        last=np.zeros(values * RUNS, np.int32),
        extra=np.zeros(ops * RUNS, np.int32),
        place=np.zeros(ops * RUNS, np.int32),
        log=np.zeros(2 * LOG, np.int32),
        tally=np.zeros(6, np.int64),
        sums=np.zeros(2, np.float64),
        budget=np.asarray([budget], np.int64),
        random=random,
    )


@compiled(types.void(LINE, types.int64, types.int64, types.int64))
def _shift(t: Line, start: int, end: int, change: int) -> None:
    """Add ``change`` bytes to slots start..end (both included), and the excess that makes."""
    budget, area, use = t.budget[0], 0, t.use[start : end + 1]
    for k in range(len(use)):  # a slice: the compiler turns this into vector instructions
        before = use[k] - budget
        after = before + change
        use[k] = after + budget
        area += max(after, 0) - max(before, 0)
    t.sums[1] += area
    if area > 0:
        t.tally[4], t.tally[5] = start, end


@compiled(types.int64(LINE, types.int64, types.int64))
def run_before(t: Line, op: int, slot: int) -> int:
    """Index of the last run of ``op`` before a slot, or -1."""
    index = t.many[op] - 1
    while index >= 0 and t.runs[op * RUNS + index] >= slot:
        index -= 1
    return int(index)


@compiled(types.int64(SINGLE, LINE, types.int64, types.int64, types.int64))
def _last_read(p: Single, t: Line, value: int, start: int, end: int) -> int:
    """Last slot strictly between start and end that reads a value, or ``start``."""
    last = start
    for k in range(p.reader_start[value], p.reader_start[value + 1]):
        base = p.reader_index[k] * RUNS
        index = t.many[p.reader_index[k]] - 1
        while index >= 0 and t.runs[base + index] >= end:
            index -= 1
        if index >= 0:
            last = max(last, t.runs[base + index])
    return int(last)


@compiled(types.void(SINGLE, LINE, types.int64))
def _retake(p: Single, t: Line, slot: int) -> None:
    """Work out again what the step at a slot takes over, after a last read moved."""
    op = t.op[slot]
    if op < 0 or p.take_start[op] == p.take_start[op + 1]:
        return
    bytes_ = 0
    for k in range(p.take_start[op], p.take_start[op + 1]):
        value = p.take_index[k]
        index = run_before(t, p.producer[value], slot)
        if index >= 0 and t.last[value * RUNS + index] == slot:
            bytes_ = p.size[value]
            break
    if bytes_ != t.take[slot]:
        _shift(t, slot, slot, t.take[slot] - bytes_)
        t.take[slot] = bytes_


@part
def _note(t: Line, edit: int, slot: int) -> None:
    """Remember an edit of the move at hand."""
    at = t.tally[2]
    t.log[2 * at], t.log[2 * at + 1] = edit, slot
    t.tally[2] = at + 1


@part
def _enlist(t: Line, op: int, change: int) -> None:
    """Keep the list of second runs: one entry more, or one less, for ``op``."""
    if change > 0:
        t.place[op * RUNS + t.many[op] - 1] = t.tally[1]
        t.extra[t.tally[1]] = op
        t.tally[1] += 1
        return
    hole, end = t.place[op * RUNS + t.many[op]], t.tally[1] - 1
    mover = t.extra[end]
    t.extra[hole] = mover
    index = mover * RUNS + 1
    while t.place[index] != end:
        index += 1
    t.place[index] = hole
    t.tally[1] = end


@part
def _make(p: Single, t: Line, value: int, base: int, index: int, many: int, slot: int) -> None:
    """Start an instance of ``value`` at a slot: run ``index`` of its op, which had ``many``."""
    size, mine = p.size[value], value * RUNS
    if p.keep[value]:
        if index == 0:  # made earlier than before, or for the first time
            end = t.runs[base + 1] - 1 if many > 0 else len(t.use) - 1
            _shift(t, slot, end, size)
        return
    for k in range(many, index, -1):
        t.last[mine + k] = t.last[mine + k - 1]
    t.last[mine + index] = slot
    if index > 0 and t.last[mine + index - 1] > slot:  # the older one was read after this step
        birth = t.runs[base + index - 1]
        before = _last_read(p, t, value, birth, slot)
        t.last[mine + index] = t.last[mine + index - 1]
        t.last[mine + index - 1] = before
        _shift(t, before + 1, slot - 1, -size)
        _retake(p, t, before)
        return
    _shift(t, slot, slot, size)


@compiled(types.boolean(SINGLE, LINE, types.int64, types.int64))
def put(p: Single, t: Line, op: int, slot: int) -> bool:
    """Run ``op`` at an empty slot; False, with nothing changed, when an input is not made."""
    many = t.many[op]
    if many >= RUNS or t.tally[2] >= LOG:
        return False
    for k in range(p.read_start[op], p.read_start[op + 1]):
        if run_before(t, p.producer[p.read_index[k]], slot) < 0:
            return False
    base, index = op * RUNS, many
    while index > 0 and t.runs[base + index - 1] > slot:
        t.runs[base + index] = t.runs[base + index - 1]
        index -= 1
    t.runs[base + index] = slot
    t.many[op] = many + 1
    t.op[slot], t.take[slot] = op, 0
    t.tally[0] += 1
    if many > 0:
        _enlist(t, op, 1)
    t.sums[0] += p.cost[op]
    _shift(t, slot, slot, EMPTY + p.work[op])
    for k in range(p.write_start[op], p.write_start[op + 1]):
        value = p.write_index[k]
        _make(p, t, value, base, index, many, slot)
    for k in range(p.read_start[op], p.read_start[op + 1]):
        value = p.read_index[k]
        source = value * RUNS + run_before(t, p.producer[value], slot)
        before = t.last[source]
        if before < slot and not p.keep[value]:
            _shift(t, before + 1, slot, p.size[value])
            t.last[source] = slot
            _retake(p, t, before)
    _retake(p, t, slot)
    _note(t, op + 1, slot)
    return True


@part
def _unmake(p: Single, t: Line, value: int, base: int, index: int, many: int, slot: int) -> None:
    """End of the instance of ``value`` that started at a slot: run ``index`` of ``many``."""
    size, mine = p.size[value], value * RUNS
    if p.keep[value]:
        if index == 0:
            _shift(t, slot, t.runs[base] - 1, -size)
        return
    last = t.last[mine + index]
    for k in range(index, many - 1):
        t.last[mine + k] = t.last[mine + k + 1]
    if last > slot:  # its readers turn to the older one
        before = t.last[mine + index - 1]
        t.last[mine + index - 1] = last
        _shift(t, before + 1, slot - 1, size)
        _retake(p, t, before)
        return
    _shift(t, slot, slot, -size)


@compiled(types.boolean(SINGLE, LINE, types.int64, types.int64))
def cut(p: Single, t: Line, op: int, slot: int) -> bool:
    """Take out the run of ``op`` at a slot; False, with nothing changed, when it is needed."""
    base, many = op * RUNS, t.many[op]
    index = run_before(t, op, slot + 1)
    if many < 2 or t.tally[2] >= LOG:
        return False
    if index == 0:
        for k in range(p.write_start[op], p.write_start[op + 1]):
            value = p.write_index[k]
            if p.keep[value]:
                if _last_read(p, t, value, slot, t.runs[base + 1]) > slot:
                    return False
            elif t.last[value * RUNS] > slot:
                return False
    for k in range(index, many - 1):
        t.runs[base + k] = t.runs[base + k + 1]
    t.many[op] = many - 1
    _enlist(t, op, -1)
    for k in range(p.read_start[op], p.read_start[op + 1]):
        value = p.read_index[k]
        source = run_before(t, p.producer[value], slot)
        if t.last[value * RUNS + source] == slot and not p.keep[value]:
            birth = t.runs[p.producer[value] * RUNS + source]
            before = _last_read(p, t, value, birth, slot)
            t.last[value * RUNS + source] = before
            _shift(t, before + 1, slot, -p.size[value])
            _retake(p, t, before)
    for k in range(p.write_start[op], p.write_start[op + 1]):
        _unmake(p, t, p.write_index[k], base, index, many, slot)
    _shift(t, slot, slot, t.take[slot] - EMPTY - p.work[op])
    t.op[slot], t.take[slot] = -1, 0
    t.tally[0] -= 1
    t.sums[0] -= p.cost[op]
    _note(t, -op - 1, slot)
    return True


@compiled(types.boolean(SINGLE, LINE, types.int64, types.int64))
def unread(p: Single, t: Line, op: int, index: int) -> bool:
    """True when nobody reads what run ``index`` of an op made."""
    slot = t.runs[op * RUNS + index]
    for k in range(p.write_start[op], p.write_start[op + 1]):
        value = p.write_index[k]
        if not p.keep[value] and t.last[value * RUNS + index] > slot:
            return False
    return True


@part
def sweep(p: Single, t: Line) -> None:
    """Take out second runs that the edits in the log left unread."""
    at = 0
    while at < t.tally[2]:
        edit, slot = t.log[2 * at], t.log[2 * at + 1]
        at += 1
        if edit > 0:  # an older instance of the outputs may have lost its readers
            op = edit - 1
            index = run_before(t, op, slot)
            if index > 0 and unread(p, t, op, index):
                cut(p, t, op, t.runs[op * RUNS + index])
            continue
        op = -edit - 1
        for k in range(p.read_start[op], p.read_start[op + 1]):
            source = p.producer[p.read_index[k]]
            index = run_before(t, source, slot)
            if index > 0 and unread(p, t, source, index):
                cut(p, t, source, t.runs[source * RUNS + index])


@part
def undo(p: Single, t: Line) -> None:
    """Take back every edit of the log."""
    end = t.tally[2]
    for at in range(end - 1, -1, -1):
        edit, slot = t.log[2 * at], t.log[2 * at + 1]
        t.tally[2] = at
        if edit > 0:
            cut(p, t, edit - 1, slot)
        else:
            put(p, t, -edit - 1, slot)
    t.tally[2] = 0


@compiled(types.int64(LINE, I32), entry=True)
def read_out(t: Line, sequence: Ints) -> int:
    """The ops in order of time; returns their number."""
    steps = 0
    for slot in range(len(t.op)):
        if t.op[slot] >= 0:
            sequence[steps] = t.op[slot]
            steps += 1
    return steps


@compiled(types.boolean(SINGLE, LINE, I32, types.int64), entry=True)
def lay_out(p: Single, t: Line, sequence: Ints, steps: int) -> bool:
    """Put a valid sequence on the line, evenly spaced; False when an op runs too often."""
    t.op[:], t.take[:], t.many[:] = -1, 0, 0
    t.use[:] = p.resident[0] - EMPTY
    t.tally[:] = 0
    t.sums[:] = 0.0
    apart = len(t.op) // (steps + 1)
    for step in range(steps):  # in order of time: each run is the last of its op so far
        t.tally[2] = 0
        if not put(p, t, sequence[step], (step + 1) * apart - 1):
            return False
    t.tally[2] = 0
    return True
