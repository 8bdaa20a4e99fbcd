"""Least cuts of a network of arcs: Dinic's method, shortest augmenting paths in layers (1970).

Arcs come in pairs, ``i`` and ``i ^ 1``, each the way back of the other.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import types

from onnxremat.placement.graph import Index
from onnxremat.planner.problem import Floats
from onnxremat.planner.search.compiled import F64, I64, compiled, part


class Network(NamedTuple):
    """Arcs in compressed rows of their tails; ``room`` is what each can still take."""

    first: Index  # (vertices + 1,)
    arc: Index  # arcs out of each vertex
    head: Index  # (arcs,)
    room: Floats  # (arcs,)
    level: Index  # (vertices,): work space; after a run, -1 for what the source cannot reach
    queue: Index
    at: Index
    path: Index


NETWORK = types.NamedTuple((I64, I64, I64, F64, I64, I64, I64, I64), Network)


@part
def _layers(g: Network, source: int, sink: int, least: float) -> bool:
    """Distances from the source; whether the sink is reached."""
    g.level[:] = -1
    g.level[source] = 0
    g.queue[0] = source
    head, tail = 0, 1
    while head < tail:
        u = g.queue[head]
        head += 1
        for j in range(g.first[u], g.first[u + 1]):
            i = g.arc[j]
            v = g.head[i]
            if g.room[i] > least and g.level[v] < 0:
                g.level[v] = g.level[u] + 1
                g.queue[tail] = v
                tail += 1
    return g.level[sink] >= 0


@part
def _push(g: Network, depth: int) -> float:
    """Fill the path; how much it took."""
    most = g.room[g.path[0]]
    for k in range(1, depth):
        most = min(most, g.room[g.path[k]])
    for k in range(depth):
        g.room[g.path[k]] -= most
        g.room[g.path[k] ^ 1] += most
    return most


@compiled(
    types.float64(NETWORK, types.int64, types.int64, types.float64, types.float64), entry=True
)
def least_cut(g: Network, source: int, sink: int, enough: float, least: float) -> float:
    """Value of a least cut, or some value of at least ``enough``; changes ``room``.

    Args:
        least: room of no more than this counts as none.
    """
    flow = 0.0
    while flow < enough and _layers(g, source, sink, least):
        for v in range(len(g.at)):
            g.at[v] = g.first[v]
        u, depth = source, 0
        while True:
            if u == sink:
                flow += _push(g, depth)
                u, depth = source, 0
                if flow >= enough:
                    return flow
                continue
            moved = False
            while g.at[u] < g.first[u + 1]:
                i = g.arc[g.at[u]]
                if g.room[i] > least and g.level[g.head[i]] == g.level[u] + 1:
                    g.path[depth] = i
                    depth += 1
                    u = g.head[i]
                    moved = True
                    break
                g.at[u] += 1
            if moved:
                continue
            if depth == 0:
                break
            depth -= 1  # a dead end: leave it out
            u = g.head[g.path[depth] ^ 1]
            g.at[u] += 1
    return flow
