"""Sequences from solutions of the cut relaxation: remake as late as possible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxremat.planner.problem import Bytes
from onnxremat.planner.wiring import Wiring


def late_remakes(
    wiring: Wiring,
    intervals: Sequence[Sequence[int]],
    carried: Sequence[set[int]],
    *,
    within: bool = False,
) -> list[int] | None:
    """Sequence that carries the given values between intervals and remakes the rest when read.

    Args:
        intervals: ops that run first in each interval, in the order of their first runs.
        carried: for each interval the values available at its start (entry 0 is ignored).
        within: remake values to carry on before the op that ends their interval, as the model has
            it, and not right after it, where they usually take less room.

    Returns:
        The sequence, or None when it would need a second run of an op that allows none.
    """
    keep = np.flatnonzero(wiring.problem.keep).tolist()
    sequence: list[int] = []
    have: set[int] = set()
    made: set[int] = set()
    for interval, ops in enumerate(intervals):
        if interval:
            have = {u for u in carried[interval] if u in made} | {u for u in keep if u in made}
        for op in ops:
            if within and op == ops[-1] and interval + 1 < len(intervals):
                missing = [u for u in sorted(carried[interval + 1]) if u in made and u not in have]
                if not _remake(wiring, missing, have, sequence):
                    return None
            if not _remake(wiring, wiring.reads[op], have, sequence):
                return None
            sequence.append(op)
            have.update(wiring.writes[op])
            made.update(wiring.writes[op])
        if interval + 1 < len(intervals):
            missing = [u for u in sorted(carried[interval + 1]) if u in made and u not in have]
            if not _remake(wiring, missing, have, sequence):
                return None
    return without_unread(wiring, sequence)


def _remake(wiring: Wiring, wanted: Sequence[int], have: set[int], sequence: list[int]) -> bool:
    """Append runs that make ``wanted`` from what is in memory; False when not allowed."""
    producer, recomputable = wiring.producer, wiring.recomputable
    todo: set[int] = set()
    stack = [producer[value] for value in wanted if value not in have]
    while stack:
        op = stack.pop()
        if op in todo:
            continue
        if not recomputable[op]:
            return False
        todo.add(op)
        stack.extend(producer[value] for value in wiring.reads[op] if value not in have)
    for op in sorted(todo):
        sequence.append(op)
        have.update(wiring.writes[op])
    return True


def without_unread(wiring: Wiring, sequence: Sequence[int]) -> list[int]:
    """Drop second runs of which no output is read, until none is left."""
    steps = list(sequence)
    while True:
        used = [False] * len(steps)
        born: dict[int, int] = {}
        seen: set[int] = set()
        for step, op in enumerate(steps):
            for value in wiring.reads[op]:
                used[born[value]] = True
            for value in wiring.writes[op]:
                if not (wiring.keep[value] and value in born):
                    born[value] = step
            if op not in seen:
                used[step] = True
                seen.add(op)
        kept = [op for op, flag in zip(steps, used, strict=True) if flag]
        if len(kept) == len(steps):
            return kept
        steps = kept


def stage_excess(ops: int, sequence: Sequence[int], use: Bytes, budget: int) -> Bytes:
    """Largest excess over the budget per stage, shape (ops,).

    The stage of a step is the op whose first run comes next (or is this step).
    """
    seen: set[int] = set()
    first = []
    for op in sequence:
        first.append(op not in seen)
        seen.add(op)
    excess = np.zeros(ops, np.int64)
    stage = next(op for op in reversed(sequence))
    for step in range(len(sequence) - 1, -1, -1):
        if first[step]:
            stage = sequence[step]
        excess[stage] = max(int(excess[stage]), int(use[step]) - budget)
    return excess
