"""Bytes that are live while steps run, by the rules of :mod:`onnxremat.schedule.simulate`, without
its option ``reuse``. Values are numbers; weights and inputs are none, but where an op shows them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.planner.search.compiled import I64, compiled, part

Numbers = NDArray[np.int64]

NONE = -1
MANY = 1 << 40  # readers of what never dies


class Steps(NamedTuple):
    """Steps, one after the other; ``*_at`` is where those of each begin, of the last also end."""

    scratch: Numbers  # per step: bytes
    place: Numbers  # per step: of the op of the whole graph that it is of; NONE for a copy
    read_at: Numbers
    make_at: Numbers
    read: Numbers  # values
    make: Numbers  # values
    size: Numbers  # per value that is made: bytes
    shares: Numbers  # per value that is made: the value whose buffer it shares, or NONE
    take_at: Numbers  # per value that is made
    take: Numbers  # values whose buffers may be taken over


class Scratch(NamedTuple):
    """Work space; as :func:`scratch_for` gives it before and after a replay."""

    uses: Numbers  # per value: mentions that are to come
    home: Numbers  # per value: the value whose buffer it is in, NONE before it is made
    size: Numbers  # per value: bytes of its own buffer
    last: Numbers  # per value: the last step that reads its buffer
    change: Numbers  # per step of a replay: bytes more than before, and behind the last


STEPS = types.NamedUniTuple(I64, len(Steps._fields), Steps)
SCRATCH = types.NamedUniTuple(I64, len(Scratch._fields), Scratch)


def scratch_for(values: int, steps: int) -> Scratch:
    """Work space for so many values, and steps of one replay."""
    none = [np.full(values, NONE, np.int64) for _ in range(2)]
    zero = [np.zeros(size, np.int64) for size in (values, values, steps + 1)]
    return Scratch(zero[0], none[0], zero[1], none[1], zero[2])


@part
def _mentioned(s: Steps, w: Scratch, first: Numbers, end: Numbers, outputs: Numbers) -> None:
    """Count mentions; outputs have one more, so never die."""
    for part_ in range(len(first)):
        for step in range(first[part_], end[part_]):
            for j in range(s.read_at[step], s.read_at[step + 1]):
                w.uses[s.read[j]] += 1
            for j in range(s.make_at[step], s.make_at[step + 1]):
                w.uses[s.make[j]] += 1
    for j in range(len(outputs)):
        w.uses[outputs[j]] += 1


@part
def _buffer(s: Steps, w: Scratch, j: int) -> int:
    """The value whose buffer a value that is made is in, NONE for one of its own."""
    found = s.shares[j]
    if found != NONE:
        if w.home[found] == NONE:  # the caller's
            w.home[found] = found
            w.uses[found] = MANY
        return w.home[found]
    for k in range(s.take_at[j], s.take_at[j + 1]):
        if w.uses[w.home[s.take[k]]] == 1:
            found = w.home[s.take[k]]
            break
    return found


@part
def _run(s: Steps, w: Scratch, step: int, at: int) -> None:
    """Buffers of what a step makes, and what is still to be read after it."""
    for j in range(s.make_at[step], s.make_at[step + 1]):
        value, found = s.make[j], _buffer(s, w, j)
        if found == NONE:
            w.home[value] = value
            w.size[value] = s.size[j]
            w.change[at] += s.size[j]
        else:
            w.home[value] = found
            w.uses[found] += w.uses[value]
    for j in range(s.read_at[step], s.read_at[step + 1]):
        w.last[w.home[s.read[j]]] = at
        w.uses[w.home[s.read[j]]] -= 1
    for j in range(s.make_at[step], s.make_at[step + 1]):
        w.uses[w.home[s.make[j]]] -= 1


@part
def _missing(s: Steps, w: Scratch, step: int) -> int:
    """A value that a step reads and that is not there, or NONE."""
    for j in range(s.read_at[step], s.read_at[step + 1]):
        if w.home[s.read[j]] == NONE:
            return s.read[j]
    return NONE


@part
def _freed(s: Steps, w: Scratch, first: Numbers, end: Numbers, outputs: Numbers) -> None:
    """Buffers end with their last reader; those of outputs, and of what nobody reads, do not."""
    for j in range(len(outputs)):
        w.last[outputs[j]] = NONE
    for part_ in range(len(first)):
        for j in range(s.make_at[first[part_]], s.make_at[end[part_]]):
            value = s.make[j]
            if w.last[value] != NONE:
                w.change[w.last[value] + 1] -= w.size[value]
                w.last[value] = NONE


@part
def _added_up(s: Steps, w: Scratch, first: Numbers, end: Numbers, levels: Numbers) -> int:
    """Levels, and the highest."""
    live, high, peak, last, at = 0, 0, 0, 0, 0
    for part_ in range(len(first)):
        for step in range(first[part_], end[part_]):
            live += w.change[at]
            at += 1
            high = max(high, live + s.scratch[step])
            if s.place[step] != NONE:
                last = s.place[step]
                levels[last] = max(levels[last], high)
                peak = max(peak, high)
                high = 0
    if len(levels):
        levels[last] = max(levels[last], high)
    return max(peak, high)


@part
def _forgotten(w: Scratch, value: int) -> None:
    w.uses[value] = 0
    w.home[value] = NONE
    w.size[value] = 0
    w.last[value] = NONE


@compiled(types.int64(STEPS, SCRATCH, I64, I64, I64, I64), entry=True)
def replay(
    s: Steps, w: Scratch, first: Numbers, end: Numbers, outputs: Numbers, levels: Numbers
) -> int:
    """The most bytes live, scratch included; or ``-1 - v`` for a value v that is read before it is
    made.

    Args:
        first, end: stretches of steps, in the order in which they run.
        outputs: values that stay to the end.
        levels: zeros, per op of the whole graph; gets the most bytes live while a step of it runs,
            and copies before it.
    """
    _mentioned(s, w, first, end, outputs)
    lacking, at = NONE, 0
    for part_ in range(len(first)):
        for step in range(first[part_], end[part_]):
            if lacking == NONE:
                lacking = _missing(s, w, step)
            if lacking == NONE:
                _run(s, w, step, at)
            at += 1
    peak = -1 - lacking
    if lacking == NONE:
        _freed(s, w, first, end, outputs)
        peak = _added_up(s, w, first, end, levels)
    for each in range(at + 1):
        w.change[each] = 0
    for part_ in range(len(first)):
        for j in range(s.read_at[first[part_]], s.read_at[end[part_]]):
            _forgotten(w, s.read[j])
        for j in range(s.make_at[first[part_]], s.make_at[end[part_]]):
            _forgotten(w, s.make[j])
            if s.shares[j] != NONE:
                _forgotten(w, s.shares[j])
    for j in range(len(outputs)):
        _forgotten(w, outputs[j])
    return peak
