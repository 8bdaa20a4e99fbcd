"""Strongly connected components, after Tarjan (1972), without recursion."""

from __future__ import annotations

from collections.abc import Sequence, Set

from onnxremat.graph.topological import first_come, turned


def components(after: Sequence[Set[int]]) -> list[int]:
    """A representative of the component of each vertex; ``after`` are the edges out of each."""
    n = len(after)
    low, number, home = [0] * n, [-1] * n, [-1] * n
    stack: list[int] = []
    clock = 0
    for root in range(n):
        if number[root] >= 0:
            continue
        low[root] = number[root] = clock
        clock += 1
        stack.append(root)
        work = [(root, iter(after[root]))]
        while work:
            v, rest = work[-1]
            below = None
            for w in rest:
                if number[w] < 0:
                    below = w
                    break
                if home[w] < 0:
                    low[v] = min(low[v], number[w])
            if below is not None:
                low[below] = number[below] = clock
                clock += 1
                stack.append(below)
                work.append((below, iter(after[below])))
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[v])
            if low[v] == number[v]:
                while home[v] < 0:
                    home[stack.pop()] = v
    return home


def acyclic(after: Sequence[Set[int]]) -> bool:
    """Whether no vertex reaches itself."""
    home = components(after)
    return len(set(home)) == len(after) and all(v not in row for v, row in enumerate(after))


def ordered(after: Sequence[Set[int]]) -> list[int]:
    """Vertices of an acyclic graph, each before those it has edges to."""
    return first_come(turned(after), [sorted(row) for row in after])
