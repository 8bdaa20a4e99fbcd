"""Latency of one sample over slots, and annealing over them.

Accelerator a has the slots ``a * q .. a * q + q - 1``, run in this order, one piece each; slot -1
is a CPU core of the node's own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.placement.graph import Index
from onnxremat.planner.problem import Floats
from onnxremat.planner.search.compiled import (
    F64,
    I64,
    U8,
    U64,
    Random,
    below,
    compiled,
    part,
    uniform,
)

LARGEST = 32  # classes of a cluster that moves


class Nodes(NamedTuple):
    """A graph of n nodes in u classes, k accelerators of q slots."""

    acc: Floats
    cpu: Floats
    size: Floats  # (u,): of classes
    supported: NDArray[np.uint8]  # (u,)
    out: Floats
    reader_at: Index
    reader: Index
    input_at: Index
    input: Index
    of: Index  # class of each node
    member_at: Index
    member: Index
    shape: Index  # k, q
    memory: Floats  # (1,)


class Clock(NamedTuple):
    """Work space of one evaluation; n nodes and S slots."""

    slot: Index  # (n,)
    done: Floats  # (n,)
    need: Index  # (n,): inputs a CPU node waits for
    load: Floats  # (S,)
    waits: Index  # (S,): inputs a slot waits for
    ready: Floats  # (S,)
    held: Index  # (S,): nodes
    first: Index  # (S,): start of its nodes in ``inside``
    inside: Index  # (n,)
    stack: Index  # (n + S,)
    used: Floats  # (k,): bytes
    kept: Index  # (n,): the best so far
    group: Index
    best: Floats  # (1,)
    random: Random


NODES = types.NamedTuple(
    (F64, F64, F64, U8, F64, I64, I64, I64, I64, I64, I64, I64, I64, F64), Nodes
)  # fmt: skip
CLOCK = types.NamedTuple(
    (I64, F64, I64, F64, I64, F64, I64, I64, I64, I64, F64, I64, I64, F64, U64), Clock
)  # fmt: skip


@part
def _charge(g: Nodes, t: Clock, v: int) -> None:
    """What node v adds to the loads of slots, and what waits for its inputs."""
    s = t.slot[v]
    if s >= 0:
        t.held[s] += 1
        t.load[s] += g.acc[v]
        for j in range(g.input_at[v], g.input_at[v + 1]):
            if t.slot[g.input[j]] != s:
                t.waits[s] += 1
    else:
        t.need[v] = g.input_at[v + 1] - g.input_at[v]
    leaves = False
    for j in range(g.reader_at[v], g.reader_at[v + 1]):
        to = t.slot[g.reader[j]]
        if to == s:
            continue
        leaves = True
        fresh = to >= 0
        for i in range(g.reader_at[v], j):
            fresh &= t.slot[g.reader[i]] != to
        if fresh:  # once per slot that reads it
            t.load[to] += g.out[v]
    if leaves and s >= 0:
        t.load[s] += g.out[v]


@part
def _set_up(g: Nodes, t: Clock) -> int:
    """Loads, and what can start; how many units are on the stack."""
    n, slots = len(g.acc), len(t.load)
    for s in range(slots):
        t.load[s], t.ready[s] = 0.0, 0.0
        t.waits[s] = 1 if s % g.shape[1] else 0  # for the slot before
        t.held[s] = 0
    for v in range(n):
        _charge(g, t, v)
    t.first[0] = 0
    for s in range(1, slots):
        t.first[s] = t.first[s - 1] + t.held[s - 1]
    for s in range(slots):
        t.held[s] = 0
    top = 0
    for v in range(n):
        s = t.slot[v]
        if s >= 0:
            t.inside[t.first[s] + t.held[s]] = v
            t.held[s] += 1
        elif t.need[v] == 0:
            t.stack[top] = v
            top += 1
    for s in range(slots):
        if t.waits[s] == 0:
            t.stack[top] = n + s
            top += 1
    return top


@part
def _tell(g: Nodes, t: Clock, v: int, end: float, top: int) -> int:
    """Node v ends: what waits for it."""
    n = len(g.acc)
    t.done[v] = end
    for j in range(g.reader_at[v], g.reader_at[v + 1]):
        w = g.reader[j]
        s = t.slot[w]
        if s < 0:
            t.need[w] -= 1
            if t.need[w] == 0:
                t.stack[top] = w
                top += 1
        elif s != t.slot[v]:
            t.ready[s] = max(t.ready[s], end)
            t.waits[s] -= 1
            if t.waits[s] == 0:
                t.stack[top] = n + s
                top += 1
    return top


@compiled(types.float64(NODES, CLOCK), entry=True)
def evaluate(g: Nodes, t: Clock) -> float:
    """Latency of ``slot``; infinite where slots wait for each other in a circle."""
    n, left, total = len(g.acc), len(g.acc), 0.0
    top = _set_up(g, t)
    while top > 0:
        top -= 1
        unit = t.stack[top]
        if unit < n:
            begin = 0.0
            for j in range(g.input_at[unit], g.input_at[unit + 1]):
                begin = max(begin, t.done[g.input[j]])
            end = begin + g.cpu[unit]
            total = max(total, end)
            left -= 1
            top = _tell(g, t, unit, end, top)
            continue
        s = unit - n
        end = t.ready[s] + t.load[s]
        if t.held[s] > 0:
            total = max(total, end)
        left -= t.held[s]
        for i in range(t.first[s], t.first[s] + t.held[s]):
            top = _tell(g, t, t.inside[i], end, top)
        if (s + 1) % g.shape[1]:
            t.ready[s + 1] = max(t.ready[s + 1], end)
            t.waits[s + 1] -= 1
            if t.waits[s + 1] == 0:
                t.stack[top] = n + s + 1
                top += 1
    return total if left == 0 else np.inf


@part
def _aim(g: Nodes, t: Clock, u: int) -> int:
    """A slot, mostly one of a neighbour of the class."""
    r = uniform(t.random)
    if r < 0.7:
        members = g.member_at[u + 1] - g.member_at[u]
        v = g.member[g.member_at[u] + below(t.random, members)]
        later, earlier = g.reader_at[v + 1] - g.reader_at[v], g.input_at[v + 1] - g.input_at[v]
        if later + earlier == 0:
            return t.slot[v]
        j = below(t.random, later + earlier)
        if j < later:
            return t.slot[g.reader[g.reader_at[v] + j]]
        return t.slot[g.input[g.input_at[v] + j - later]]
    if r < 0.85:
        return below(t.random, len(t.load) + 1) - 1
    return -1


@part
def _add(g: Nodes, t: Clock, w: int, a: int, count: int, want: int) -> int:
    """Class w joins the cluster where it is in slot a and new."""
    if t.slot[g.member[g.member_at[w]]] != a or count >= want:
        return count
    for i in range(count):
        if t.group[i] == w:
            return count
    t.group[count] = w
    return count + 1


@part
def _cluster(g: Nodes, t: Clock, u: int, a: int) -> int:
    """Class u and connected ones of slot a, grown to both sides, forward or backward."""
    want = 1
    if uniform(t.random) < 0.5:
        want = 2 + below(t.random, LARGEST - 1)
    way = below(t.random, 3)
    t.group[0] = u
    count, head = 1, 0
    while head < count and count < want:
        x = t.group[head]
        head += 1
        for i in range(g.member_at[x], g.member_at[x + 1]):
            v = g.member[i]
            if way != 2:
                for j in range(g.reader_at[v], g.reader_at[v + 1]):
                    count = _add(g, t, g.of[g.reader[j]], a, count, want)
            if way != 1:
                for j in range(g.input_at[v], g.input_at[v + 1]):
                    count = _add(g, t, g.of[g.input[j]], a, count, want)
    return count


@part
def _put(g: Nodes, t: Clock, count: int, slot: int) -> None:
    for i in range(count):
        u = t.group[i]
        for j in range(g.member_at[u], g.member_at[u + 1]):
            t.slot[g.member[j]] = slot


@part
def _home(g: Nodes, slot: int) -> int:
    return slot // g.shape[1] if slot >= 0 else -1


@compiled(types.void(NODES, CLOCK, types.int64, types.float64, types.float64), entry=True)
def anneal(g: Nodes, t: Clock, steps: int, hot: float, cold: float) -> None:
    """Anneal ``slot`` from a temperature to another; the best goes to ``kept``. All nodes of a
    class move together."""
    classes = len(g.size)
    for a in range(len(t.used)):
        t.used[a] = 0.0
    for u in range(classes):
        home = _home(g, t.slot[g.member[g.member_at[u]]])
        if home >= 0:
            t.used[home] += g.size[u]
    now = evaluate(g, t)
    for step in range(steps):
        heat = hot * (cold / hot) ** (step / steps)
        u = below(t.random, classes)
        a, to = t.slot[g.member[g.member_at[u]]], _aim(g, t, u)
        if a == to:
            continue
        count = _cluster(g, t, u, a)
        extra, good = 0.0, True
        for i in range(count):
            extra += g.size[t.group[i]]
            good &= to < 0 or g.supported[t.group[i]] > 0
        here, there = _home(g, a), _home(g, to)
        if there >= 0 and there != here and t.used[there] + extra > g.memory[0]:
            good = False
        if not good:
            continue
        _put(g, t, count, to)
        new = evaluate(g, t)
        if new <= now or (new < np.inf and uniform(t.random) < np.exp((now - new) / heat)):
            now = new
            if here >= 0:
                t.used[here] -= extra
            if there >= 0:
                t.used[there] += extra
            if now < t.best[0] * (1 - 1e-12):
                t.best[0] = now
                for v in range(len(t.slot)):
                    t.kept[v] = t.slot[v]
        else:
            _put(g, t, count, a)
