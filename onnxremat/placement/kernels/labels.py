"""Latency by labels: how quickly a set of classes that is closed under predecessors can be done.

A placement is a way through the ideals: each step adds a piece (one accelerator more), or one class
on CPU cores. A *label* of an ideal and a number of accelerators says when each of its *live* nodes
(with readers outside) is there. A label is dropped where one with no more accelerators has nothing
later, or where some path cannot end in time any more. Method and proofs: ``docs/placement.md``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.placement.graph import Index
from onnxremat.placement.kernels.lattice import U64_2D, Words
from onnxremat.planner.problem import Floats
from onnxremat.planner.search.compiled import (
    F64,
    F64_3D,
    I32,
    I32_2D,
    I64,
    U8,
    compiled,
    part,
)

CPU, PIECE = 0, 1


class Called(NamedTuple):
    """n nodes in c classes, m nets, p paths, k accelerators."""

    acc: Floats  # (c,)
    size: Floats  # (c,)
    supported: NDArray[np.uint8]  # (c,)
    weight: Floats  # (m,)
    pins: Index  # (m,): how many
    net_at: Index
    net_of: Index
    feed_at: Index  # nodes of other classes that each class reads
    feed: Index
    member_at: Index  # nodes of each class, in the order data flows
    member: Index
    of: Index  # (n,): class
    cpu: Floats  # (n,)
    input_at: Index
    input: Index
    path: NDArray[np.int32]  # (p, length + 1): nodes, then -1
    tail: Floats  # (p, k + 1, length + 1): least time from a place on, with so many accelerators
    limits: Floats  # memory; and 1 where there are CPUs


class Ideals(NamedTuple):
    """Ideals with one class more, in compressed rows; the last one holds everything."""

    bits: Words
    first: Index
    child: NDArray[np.int32]
    added: NDArray[np.int32]
    live_at: Index
    live: NDArray[np.int32]
    place: NDArray[np.int32]  # (ideals, p): nodes of each path inside


class Pool(NamedTuple):
    """Labels, in lists by (ideal, accelerators)."""

    head: NDArray[np.int32]  # (ideals, k + 1)
    next: NDArray[np.int32]
    ideal: NDArray[np.int32]
    back: NDArray[np.int32]  # the label it came from
    kind: NDArray[np.uint8]
    at: Index  # its times
    times: Floats
    end: Floats  # the latest end so far
    sure: Floats  # no way on from here can end sooner
    state: Index  # labels, times, pairs walked
    best: Floats  # (1,): only ways that end sooner are looked for
    found: Index  # (1,): the label that does, -1 for none


class Room(NamedTuple):
    """Work space."""

    now: Floats  # (n,): of the nodes that are done
    held: NDArray[np.uint8]  # (c,): classes that are done
    foot: NDArray[np.uint8]  # (m,)
    inside: Index  # (m,)
    stamp: Index  # (ideals,)
    token: Index  # (1,)
    stack: Index
    edge: Index
    via: Index
    ready: Floats  # by depth: when all inputs are there
    fresh: Floats  # (n,)


CALLED = types.NamedTuple(
    (F64, F64, U8, F64, I64, I64, I64, I64, I64, I64, I64, I64, F64, I64, I64, I32_2D, F64_3D, F64),
    Called,
)  # fmt: skip
IDEALS = types.NamedTuple((U64_2D, I64, I32, I32, I64, I32, I32_2D), Ideals)
POOL = types.NamedTuple((I32_2D, I32, I32, I32, U8, I64, F64, F64, F64, I64, F64, I64), Pool)
ROOM = types.NamedTuple((F64, U8, U8, I64, I64, I64, I64, I64, I64, F64, F64), Room)


@compiled(
    types.float64(
        CALLED, IDEALS, POOL, ROOM, types.int64, types.int64, types.float64, types.float64
    )
)
def _sure(
    g: Called, lat: Ideals, t: Pool, r: Room, ideal: int, a: int, finish: float, end: float
) -> float:
    """The least end of a way on, by the paths; fills ``fresh`` where it is in time."""
    least = end
    left = t.head.shape[1] - 1 - a
    for p in range(len(g.path)):
        q = lat.place[ideal, p]
        if g.path[p, q] < 0:  # the whole path is done
            continue
        then = g.tail[p, left, q]
        if q > 0:
            u = g.path[p, q - 1]
            then += r.now[u] if r.held[g.of[u]] > 0 else finish
        if then > least:
            least = then
            if least >= t.best[0]:
                return least
    first = lat.live_at[ideal]
    for j in range(first, lat.live_at[ideal + 1]):
        u = lat.live[j]
        r.fresh[j - first] = r.now[u] if r.held[g.of[u]] > 0 else finish
    return least


@part
def _beaten(t: Pool, r: Room, ideal: int, a: int, count: int, sure: float) -> bool:
    """Whether a label with no more accelerators has nothing later than ``fresh``."""
    for b in range(a + 1):
        other = t.head[ideal, b]
        while other >= 0:
            if t.end[other] <= sure:
                at, less = t.at[other], True
                for i in range(count):
                    if t.times[at + i] > r.fresh[i]:
                        less = False
                        break
                if less:
                    return True
            other = t.next[other]
    return False


@part
def _drop(t: Pool, r: Room, ideal: int, a: int, count: int, end: float) -> None:
    """Take labels with as many accelerators out that have nothing sooner than ``fresh``."""
    last, other = -1, t.head[ideal, a]
    while other >= 0:
        then = t.next[other]
        more = end <= t.sure[other]
        if more:
            at = t.at[other]
            for i in range(count):
                if t.times[at + i] < r.fresh[i]:
                    more = False
                    break
        if more:
            if last < 0:
                t.head[ideal, a] = then
            else:
                t.next[last] = then
        else:
            last = other
        other = then


@compiled(
    types.boolean(
        CALLED,
        IDEALS,
        POOL,
        ROOM,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        types.float64,
        types.float64,
    )
)
def _offer(
    g: Called,
    lat: Ideals,
    t: Pool,
    r: Room,
    ideal: int,
    a: int,
    parent: int,
    kind: int,
    finish: float,
    end: float,
) -> bool:
    """A label, kept where it may be of use; False when the pool is full."""
    sure = _sure(g, lat, t, r, ideal, a, finish, end)
    if sure >= t.best[0]:
        return True
    count = lat.live_at[ideal + 1] - lat.live_at[ideal]
    last = ideal == len(lat.bits) - 1
    if not last and _beaten(t, r, ideal, a, count, sure):
        return True
    new, at = t.state[0], t.state[1]
    if new == len(t.next) or at + count > len(t.times):
        return False
    if not last:
        _drop(t, r, ideal, a, count, end)
    t.state[0] += 1
    t.state[1] += count
    t.ideal[new], t.back[new], t.kind[new], t.at[new] = ideal, parent, kind, at
    t.end[new], t.sure[new] = end, sure
    for i in range(count):
        t.times[at + i] = r.fresh[i]
    if last:
        t.best[0], t.found[0] = end, new
        return True
    t.next[new] = t.head[ideal, a]
    t.head[ideal, a] = new
    return True


@part
def _on_cpu(g: Called, lat: Ideals, t: Pool, r: Room, label: int, a: int) -> bool:
    """All classes that can come next, each on cores of its own."""
    at = t.ideal[label]
    for j in range(lat.first[at], lat.first[at + 1]):
        v, end = lat.added[j], t.end[label]
        for i in range(g.member_at[v], g.member_at[v + 1]):
            u = g.member[i]
            ready = 0.0
            for h in range(g.input_at[u], g.input_at[u + 1]):
                ready = max(ready, r.now[g.input[h]])
            r.now[u] = ready + g.cpu[u]
            end = max(end, r.now[u])
        if end < t.best[0]:
            r.held[v] = 1
            room = _offer(g, lat, t, r, lat.child[j], a, label, CPU, 0.0, end)
            r.held[v] = 0
            if not room:
                return False
    return True


@compiled(types.boolean(CALLED, IDEALS, POOL, ROOM, types.int64, types.int64))
def _on_accelerator(g: Called, lat: Ideals, t: Pool, r: Room, label: int, a: int) -> bool:
    """All pieces that can come next."""
    start = t.ideal[label]
    r.token[0] += 1
    r.stamp[start] = r.token[0]
    size, here, cut, stuck = 0.0, 0.0, 0.0, 0.0
    top = 0
    r.stack[0], r.edge[0], r.via[0], r.ready[0] = start, lat.first[start], -1, 0.0
    while top >= 0:
        at = r.stack[top]
        if r.edge[top] == lat.first[at + 1]:  # all above it seen: take its class out again
            v = r.via[top]
            top -= 1
            if v < 0:
                continue
            size -= g.size[v]
            here -= g.acc[v]
            for j in range(g.net_at[v], g.net_at[v + 1]):
                e = g.net_of[j]
                if r.inside[e] == g.pins[e]:
                    cut += g.weight[e]
                r.inside[e] -= 1
                if r.inside[e] == 0:
                    cut -= g.weight[e]
                    if r.foot[e] > 0:
                        stuck -= g.weight[e]
            continue
        j = r.edge[top]
        r.edge[top] += 1
        i, v = lat.child[j], lat.added[j]
        if r.stamp[i] == r.token[0] or g.supported[v] == 0 or size + g.size[v] > g.limits[0]:
            continue
        more = 0.0
        for h in range(g.net_at[v], g.net_at[v + 1]):
            e = g.net_of[h]
            if r.inside[e] == 0 and r.foot[e] > 0:
                more += g.weight[e]
        ready = r.ready[top]
        for h in range(g.feed_at[v], g.feed_at[v + 1]):
            u = g.feed[h]
            if r.held[g.of[u]] > 0:
                ready = max(ready, r.now[u])
        # When it can start, compute, and nets with a pin before the start and one in it, only grow.
        if ready + here + g.acc[v] + stuck + more >= t.best[0]:
            continue
        r.stamp[i] = r.token[0]
        t.state[2] += 1
        size += g.size[v]
        here += g.acc[v]
        stuck += more
        for h in range(g.net_at[v], g.net_at[v + 1]):
            e = g.net_of[h]
            r.inside[e] += 1
            if r.inside[e] == 1:
                cut += g.weight[e]
            if r.inside[e] == g.pins[e]:
                cut -= g.weight[e]
        top += 1
        r.stack[top], r.edge[top], r.via[top], r.ready[top] = i, lat.first[i], v, ready
        finish = ready + here + cut
        end = max(finish, t.end[label])
        if end < t.best[0] and not _offer(g, lat, t, r, i, a + 1, label, PIECE, finish, end):
            return False
    return True


@part
def _inside(lat: Ideals, ideal: int, v: int) -> bool:
    """Whether an ideal holds a class."""
    return (lat.bits[ideal, v >> 6] >> np.uint64(v & 63)) & np.uint64(1) > 0


@part
def _begin(g: Called, lat: Ideals, t: Pool, r: Room, ideal: int) -> None:
    """What is done, and the nets with a pin in it."""
    r.inside[:] = 0
    r.foot[:] = 0
    for v in range(len(g.size)):
        r.held[v] = 1 if _inside(lat, ideal, v) else 0
        if r.held[v] > 0:
            for j in range(g.net_at[v], g.net_at[v + 1]):
                r.foot[g.net_of[j]] = 1


@compiled(types.int64(CALLED, IDEALS, POOL, ROOM, types.int64, types.int64), entry=True)
def expand(g: Called, lat: Ideals, t: Pool, r: Room, begin: int, most: int) -> int:
    """Ways on from the labels of some ideals, from ``begin`` on, until so many pairs were walked;
    the next ideal, or -1 when the pool is full."""
    last, k = len(lat.bits) - 1, t.head.shape[1] - 1
    stop = t.state[2] + most
    for ideal in range(begin, last):
        if t.state[2] >= stop:
            return ideal
        begun = False
        for a in range(k + 1):
            label = t.head[ideal, a]
            while label >= 0:
                if t.sure[label] >= t.best[0]:
                    label = t.next[label]
                    continue
                if not begun:
                    _begin(g, lat, t, r, ideal)
                    begun = True
                first, at = lat.live_at[ideal], t.at[label]
                for j in range(first, lat.live_at[ideal + 1]):
                    r.now[lat.live[j]] = t.times[at + j - first]
                if g.limits[1] > 0 and not _on_cpu(g, lat, t, r, label, a):
                    return -1
                # CPU steps wrote times of nodes that are not done: nobody reads those.
                if a < k and not _on_accelerator(g, lat, t, r, label, a):
                    return -1
                label = t.next[label]
    return last


@compiled(types.int64(IDEALS, I64, I32_2D, I64, I64, types.boolean), entry=True)
def survey(
    lat: Ideals, of: Index, path: NDArray[np.int32], reader_at: Index, reader: Index, write: bool
) -> int:
    """Live nodes of every ideal, counted in ``live_at`` or written with places on paths; how many
    there are of all."""
    total = 0
    for i in range(len(lat.bits)):
        if not write:
            lat.live_at[i] = total
        for u in range(len(of)):
            if not _inside(lat, i, of[u]):
                continue
            live = False
            for j in range(reader_at[u], reader_at[u + 1]):
                live |= not _inside(lat, i, of[reader[j]])
            if live:
                if write:
                    lat.live[total] = u
                total += 1
        if write:
            for p in range(len(path)):
                q = 0
                while path[p, q] >= 0 and _inside(lat, i, of[path[p, q]]):
                    q += 1
                lat.place[i, p] = q
    if not write:
        lat.live_at[len(lat.bits)] = total
    return total
