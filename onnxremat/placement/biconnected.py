"""Biconnected components of an undirected graph, after Hopcroft and Tarjan (1973), without
recursion."""

from __future__ import annotations

from collections.abc import Sequence

Edge = tuple[int, int]


def biconnected(count: int, edges: Sequence[Edge]) -> list[list[int]]:
    """Edges (by number) of each component; of edges between two vertices all are in one."""
    beside: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for i, (u, v) in enumerate(edges):
        beside[u].append((v, i))
        beside[v].append((u, i))
    number, low = [-1] * count, [0] * count
    found: list[list[int]] = []
    stack: list[int] = []
    used = [False] * len(edges)
    clock = 0
    for root in range(count):
        if number[root] >= 0:
            continue
        number[root] = low[root] = clock
        clock += 1
        work = [(root, iter(beside[root]), -1)]
        while work:
            u, rest, came = work[-1]
            below = None
            for v, i in rest:
                if used[i]:
                    continue
                used[i] = True
                stack.append(i)
                if number[v] >= 0:
                    low[u] = min(low[u], number[v])
                else:
                    below = (v, i)
                    break
            if below is not None:
                v, i = below
                number[v] = low[v] = clock
                clock += 1
                work.append((v, iter(beside[v]), i))
                continue
            work.pop()
            if not work:
                continue
            above = work[-1][0]
            low[above] = min(low[above], low[u])
            if low[u] >= number[above]:
                component = []
                while True:
                    component.append(stack.pop())
                    if component[-1] == came:
                        break
                found.append(component)
    return found
