"""Exact time, peak and excess of a sequence: the compiled twin of ``problem.occupancy``."""

from __future__ import annotations

from numba import types

from onnxremat.planner.problem import Ints
from onnxremat.planner.search.compiled import ARRAYS, I32, SCRATCH, Arrays, Scratch, compiled


@compiled(types.void(ARRAYS, SCRATCH, I32, types.int64, types.int64), lean=True)
def _profile(p: Arrays, s: Scratch, sequence: Ints, steps: int, budget: int) -> None:
    """Bytes per step from the instances; peak and excess area into ``figures``."""
    for step in range(steps):
        for instance in range(s.first[step], s.first[step + 1]):
            value = s.owner[instance]
            if value >= 0:
                s.use[step] += p.size[value]
                end = steps if p.keep[value] else s.death[instance] + 1
                s.use[end] -= p.size[value]
    # reads of outputs, to find second runs that nobody reads
    s.current[:] = -1
    for step in range(steps):
        op = sequence[step]
        for k in range(p.read_start[op], p.read_start[op + 1]):
            s.uses[s.current[p.read_index[k]]] += 1
        for instance in range(s.first[step], s.first[step + 1]):
            if s.owner[instance] >= 0:
                s.current[s.owner[instance]] = step
    live = p.fixed[0]
    peak, area = p.fixed[0], 0.0
    for step in range(steps):
        live += s.use[step]
        here = live + p.work[sequence[step]]
        for k in range(s.taker[step], s.taker[step + 1]):
            if s.death[s.takes[k]] == step:
                here -= p.size[s.owner[s.takes[k]]]
                break
        s.use[step] = here
        peak = max(peak, here)
        if here > budget:
            area += here - budget
    s.figures[1] = peak
    s.figures[2] = area


@compiled(types.boolean(ARRAYS, SCRATCH, I32, types.int64, types.int64, types.boolean), lean=True)
def evaluate(
    p: Arrays, s: Scratch, sequence: Ints, steps: int, budget: int, free_order: bool
) -> bool:
    """Replay ``sequence[:steps]``; False when it is not valid.

    Leaves in ``s``: ``use`` (bytes per step), ``uses`` (reads of each step's outputs), instances
    (``first``, ``owner``, ``death``) and ``figures`` = time, peak, sum over steps of
    bytes above the budget. Valid means: inputs made before they are read, every op runs, second
    runs only where allowed, and first runs in the base order unless ``free_order``.
    """
    ops, count, taken, fresh = len(p.cost), 0, 0, 0
    time = 0.0
    s.current[:] = -1
    s.seen[:] = 0
    for step in range(steps):
        op = sequence[step]
        s.uses[step] = 0
        s.use[step] = 0
        s.first[step] = count
        s.taker[step] = taken
        for k in range(p.read_start[op], p.read_start[op + 1]):
            instance = s.current[p.read_index[k]]
            if instance < 0:
                return False
            s.death[instance] = step
        for k in range(p.take_start[op], p.take_start[op + 1]):
            s.takes[taken] = s.current[p.take_index[k]]
            taken += 1
        if s.seen[op] > 0:
            if p.again[op] == 0:
                return False
        else:
            if not free_order and op != fresh:
                return False
            fresh += 1
        s.seen[op] += 1
        for k in range(p.write_start[op], p.write_start[op + 1]):
            value = p.write_index[k]
            if p.keep[value] and s.current[value] >= 0:
                s.owner[count] = -1
            else:
                s.owner[count] = value
                s.current[value] = count
            s.death[count] = step
            count += 1
        time += p.cost[op]
    if fresh != ops:
        return False
    s.first[steps] = count
    s.taker[steps] = taken
    s.use[steps] = 0
    _profile(p, s, sequence, steps, budget)
    s.figures[0] = time
    return True
