"""The dynamic program over chains of ideals: from each start, a walk over the ideals above it.

``value[(a, c), i]`` is the least largest load (of what is minimised) of a chain of pieces from the
empty ideal to ideal i with ``a`` accelerators and ``c`` CPUs. Loads have two parts: the second is
minimised, the first must stay below ``cap``. Method and proofs: ``docs/placement.md``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.placement.graph import Index
from onnxremat.placement.kernels.lattice import U64_2D, Words
from onnxremat.planner.problem import Floats
from onnxremat.planner.search.compiled import F64, F64_2D, I32, I32_2D, I64, U8, compiled, part

I8_2D = types.Array(types.int8, 2, "C")


class Costs(NamedTuple):
    """What pieces cost; columns 0 and 1 are the two parts of a load."""

    acc: Floats  # (c, 2)
    cpu: Floats  # (c, 2)
    size: Floats  # (c,)
    supported: NDArray[np.uint8]  # (c,)
    cost: Floats  # (m, 2)
    net_at: Index
    net_of: Index
    pins: Index  # (m,): how many
    devices: Index  # accelerators, CPUs
    limits: Floats  # memory, cap, tolerance of both parts, rho of both parts


class Lattice(NamedTuple):
    """Ideals with one class more, in compressed rows; the last one holds everything."""

    bits: Words  # (ideals, words)
    first: Index
    child: NDArray[np.int32]
    added: NDArray[np.int32]
    work: Floats  # (ideals, 2): compute, see ``bound``


class Table(NamedTuple):
    """Results, by (a * (cpus + 1) + c, ideal)."""

    value: Floats
    back: NDArray[np.int32]
    kind: NDArray[np.int8]
    best: Floats  # (1,): upper bound of what is minimised
    pairs: Index  # (1,): ideals walked over


class Walk(NamedTuple):
    """Work space of a walk."""

    stamp: Index  # (ideals,)
    token: Index  # (1,)
    foot: NDArray[np.uint8]  # (m,): a pin lies before the start
    inside: Index  # (m,): pins in the piece
    stack: Index
    edge: Index
    via: Index


COSTS = types.NamedTuple((F64_2D, F64_2D, F64, U8, F64_2D, I64, I64, I64, I64, F64), Costs)
LATTICE = types.NamedTuple((U64_2D, I64, I32, I32, F64_2D), Lattice)
TABLE = types.NamedTuple((F64_2D, I32_2D, I8_2D, F64, I64), Table)
WALK = types.NamedTuple((I64, I64, U8, I64, I64, I64, I64), Walk)


@part
def _low(p: Costs, lat: Lattice, t: Table, side: int, accs: int, cpus: int) -> float:
    """Least work an ideal must hold for what is left to fit so many devices below the bound."""
    left = accs + cpus / p.limits[4 + side]
    bound = p.limits[1] if side == 0 else t.best[0]
    return lat.work[len(lat.work) - 1, side] - bound * left - p.limits[2 + side]


@part
def _plant(p: Costs, lat: Lattice, w: Walk, start: int) -> None:
    """Nets with a pin before the start."""
    w.inside[:] = 0
    w.foot[:] = 0
    for v in range(len(p.size)):
        if (lat.bits[start, v >> 6] >> np.uint64(v & 63)) & np.uint64(1):
            for j in range(p.net_at[v], p.net_at[v + 1]):
                w.foot[p.net_of[j]] = 1


@part
def _keep(t: Table, to: int, ideal: int, value: float, start: int, which: int, last: int) -> bool:
    """Note a chain; True when it is the best whole one so far."""
    if value < t.value[to, ideal]:
        t.value[to, ideal] = value
        t.back[to, ideal] = start
        t.kind[to, ideal] = which
        if ideal == last and value < t.best[0]:
            t.best[0] = value
            return True
    return False


@compiled(types.void(COSTS, LATTICE, TABLE, WALK, types.int64, types.int64, types.int64))
def on_accelerator(p: Costs, lat: Lattice, t: Table, w: Walk, a: int, c: int, start: int) -> None:
    """All pieces on an accelerator from a start that (a, c) devices reach."""
    cpus, last = p.devices[1], len(lat.work) - 1
    to = (a + 1) * (cpus + 1) + c
    value = t.value[a * (cpus + 1) + c, start]
    accs_left, cpus_left = p.devices[0] - a - 1, cpus - c
    low0 = _low(p, lat, t, 0, accs_left, cpus_left)
    low1 = _low(p, lat, t, 1, accs_left, cpus_left)
    cap, slack = p.limits[1] - p.limits[2], p.limits[3]
    w.token[0] += 1
    w.stamp[start] = w.token[0]
    _plant(p, lat, w, start)
    size, here0, here1, cut0, cut1, stuck0, stuck1 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    top = 0
    w.stack[0], w.edge[0], w.via[0] = start, lat.first[start], -1
    while top >= 0:
        at = w.stack[top]
        if w.edge[top] == lat.first[at + 1]:  # all above it seen: take its class out again
            v = w.via[top]
            top -= 1
            if v < 0:
                continue
            size -= p.size[v]
            here0 -= p.acc[v, 0]
            here1 -= p.acc[v, 1]
            for j in range(p.net_at[v], p.net_at[v + 1]):
                e = p.net_of[j]
                if w.inside[e] == p.pins[e]:
                    cut0 += p.cost[e, 0]
                    cut1 += p.cost[e, 1]
                w.inside[e] -= 1
                if w.inside[e] == 0:
                    cut0 -= p.cost[e, 0]
                    cut1 -= p.cost[e, 1]
                    if w.foot[e] > 0:
                        stuck0 -= p.cost[e, 0]
                        stuck1 -= p.cost[e, 1]
            continue
        j = w.edge[top]
        w.edge[top] += 1
        i, v = lat.child[j], lat.added[j]
        if w.stamp[i] == w.token[0] or p.supported[v] == 0 or size + p.size[v] > p.limits[0]:
            continue
        more0, more1 = 0.0, 0.0
        for k in range(p.net_at[v], p.net_at[v + 1]):
            e = p.net_of[k]
            if w.inside[e] == 0 and w.foot[e] > 0:
                more0 += p.cost[e, 0]
                more1 += p.cost[e, 1]
        # Compute, and nets with a pin before the start and one in the piece, only grow.
        if here1 + p.acc[v, 1] + stuck1 + more1 >= t.best[0] - slack:
            continue
        if here0 + p.acc[v, 0] + stuck0 + more0 >= cap:
            continue
        w.stamp[i] = w.token[0]
        t.pairs[0] += 1
        size += p.size[v]
        here0 += p.acc[v, 0]
        here1 += p.acc[v, 1]
        stuck0 += more0
        stuck1 += more1
        for k in range(p.net_at[v], p.net_at[v + 1]):
            e = p.net_of[k]
            w.inside[e] += 1
            if w.inside[e] == 1:
                cut0 += p.cost[e, 0]
                cut1 += p.cost[e, 1]
            if w.inside[e] == p.pins[e]:
                cut0 -= p.cost[e, 0]
                cut1 -= p.cost[e, 1]
        top += 1
        w.stack[top], w.edge[top], w.via[top] = i, lat.first[i], v
        load = here1 + cut1
        if load >= t.best[0] - slack or here0 + cut0 >= cap:
            continue
        ends = i == last or (lat.work[i, 1] > low1 and lat.work[i, 0] > low0)
        if ends and _keep(t, to, i, max(value, load), start, 0, last):
            low1 = _low(p, lat, t, 1, accs_left, cpus_left)


@compiled(types.void(COSTS, LATTICE, TABLE, WALK, types.int64, types.int64, types.int64))
def on_cpu(p: Costs, lat: Lattice, t: Table, w: Walk, a: int, c: int, start: int) -> None:
    """All pieces on a CPU from a start that (a, c) devices reach."""
    cpus, last = p.devices[1], len(lat.work) - 1
    to = a * (cpus + 1) + c + 1
    value = t.value[to - 1, start]
    accs_left, cpus_left = p.devices[0] - a, cpus - c - 1
    low0 = _low(p, lat, t, 0, accs_left, cpus_left)
    low1 = _low(p, lat, t, 1, accs_left, cpus_left)
    cap, slack = p.limits[1] - p.limits[2], p.limits[3]
    w.token[0] += 1
    w.stamp[start] = w.token[0]
    here0, here1 = 0.0, 0.0
    top = 0
    w.stack[0], w.edge[0], w.via[0] = start, lat.first[start], -1
    while top >= 0:
        at = w.stack[top]
        if w.edge[top] == lat.first[at + 1]:
            v = w.via[top]
            top -= 1
            if v >= 0:
                here0 -= p.cpu[v, 0]
                here1 -= p.cpu[v, 1]
            continue
        j = w.edge[top]
        w.edge[top] += 1
        i, v = lat.child[j], lat.added[j]
        if w.stamp[i] == w.token[0]:
            continue
        if here1 + p.cpu[v, 1] >= t.best[0] - slack or here0 + p.cpu[v, 0] >= cap:
            continue
        w.stamp[i] = w.token[0]
        t.pairs[0] += 1
        here0 += p.cpu[v, 0]
        here1 += p.cpu[v, 1]
        top += 1
        w.stack[top], w.edge[top], w.via[top] = i, lat.first[i], v
        ends = i == last or (lat.work[i, 1] > low1 and lat.work[i, 0] > low0)
        if ends and _keep(t, to, i, max(value, here1), start, 1, last):
            low1 = _low(p, lat, t, 1, accs_left, cpus_left)


@compiled(types.int64(COSTS, LATTICE, TABLE, types.int64, types.int64, types.int64))
def next_start(p: Costs, lat: Lattice, t: Table, a: int, c: int, start: int) -> int:
    """The next ideal from ``start`` on that is worth a walk; the number of ideals when none is."""
    last = len(lat.work) - 1
    accs_left, cpus_left = p.devices[0] - a, p.devices[1] - c
    low0 = _low(p, lat, t, 0, accs_left, cpus_left)
    low1 = _low(p, lat, t, 1, accs_left, cpus_left)
    here = a * (p.devices[1] + 1) + c
    for i in range(start, last):
        worth = t.value[here, i] < t.best[0] - p.limits[3]
        if worth and lat.work[i, 1] > low1 and lat.work[i, 0] > low0:
            return i
    return last + 1


@compiled(
    types.int64(COSTS, LATTICE, TABLE, WALK, types.int64, types.int64, types.int64, types.int64),
    entry=True,
)
def from_starts(
    p: Costs, lat: Lattice, t: Table, w: Walk, a: int, c: int, start: int, most: int
) -> int:
    """All pieces from the starts that (a, c) devices reach, from ``start`` on, until ``most``
    ideals are walked over; where to go on, the number of ideals at the end."""
    enough, count = t.pairs[0] + most, len(lat.work)
    start = next_start(p, lat, t, a, c, start)
    while start < count and t.pairs[0] < enough:
        if a < p.devices[0]:
            on_accelerator(p, lat, t, w, a, c, start)
        if c < p.devices[1]:
            on_cpu(p, lat, t, w, a, c, start)
        start = next_start(p, lat, t, a, c, start + 1)
    return start


@compiled(types.void(U64_2D, F64_2D, F64_2D), entry=True)
def weigh(bits: Words, work: Floats, out: Floats) -> None:
    """Work of each ideal: the sum over its classes, (c, 2) to (ideals, 2)."""
    for i in range(len(bits)):
        for v in range(len(work)):
            if (bits[i, v >> 6] >> np.uint64(v & 63)) & np.uint64(1):
                out[i, 0] += work[v, 0]
                out[i, 1] += work[v, 1]
