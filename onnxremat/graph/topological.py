"""Topological orders: one walk, and which of the nodes that are ready comes next.

Nodes are numbers. ``before[v]`` lists those that come before ``v`` and ``after[v]``, where a caller
has it, those that come after it, both once per edge. Where there is a circle an order is short: the
nodes on it and after it are not in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heappop, heappush

Rows = Sequence[Collection[int]]


def turned(rows: Sequence[Iterable[int]]) -> list[list[int]]:
    """The edges the other way: who comes after each node, ascending, of who comes before it."""
    other: list[list[int]] = [[] for _ in rows]
    for node, row in enumerate(rows):
        for source in row:
            other[source].append(node)
    return other


def least_first(before: Rows, rank: Sequence[float] | None = None) -> list[int]:
    """Always the ready node of least rank, of equal ones the first; without ranks the first."""
    ready: list[tuple[float, int]] = []

    def put(node: int) -> None:
        heappush(ready, (0.0 if rank is None else rank[node], node))

    return _walked(before, turned(before), ready, lambda: heappop(ready)[1], put)


def first_come(before: Rows, after: Rows | None = None) -> list[int]:
    """Breadth first: the node that has been ready longest."""
    ready = deque[int]()
    return _walked(before, after or turned(before), ready, ready.popleft, ready.append)


def last_come(before: Rows, after: Rows | None = None) -> list[int]:
    """Along one branch as far as it goes: the node that became ready last."""
    ready: list[int] = []
    return _walked(before, after or turned(before), ready, ready.pop, ready.append)


def picked(before: Rows, after: Rows, pick: Callable[[list[int]], int]) -> list[int]:
    """``pick`` says which of the ready nodes, listed as they came, is next."""
    ready: list[int] = []
    return _walked(before, after, ready, lambda: ready.pop(pick(ready)), ready.append)


def as_left(before: Sequence[Sequence[int]], begin: Sequence[int]) -> list[int]:
    """Nodes as a depth-first walk against the edges leaves them, each after all before it. Of those
    to begin with, and of those before a node, the last listed is walked first."""
    stack = [(node, False) for node in begin]
    seen = [False] * len(before)
    order = []
    while stack:
        node, leaving = stack.pop()
        if leaving:
            order.append(node)
        elif not seen[node]:
            seen[node] = True
            stack.append((node, True))
            stack += [(one, False) for one in before[node] if not seen[one]]
    return order


def _walked(
    before: Rows,
    after: Rows,
    ready: Collection[object],
    take: Callable[[], int],
    put: Callable[[int], None],
) -> list[int]:
    waiting = [len(row) for row in before]
    for node, count in enumerate(waiting):
        if not count:
            put(node)
    order = []
    while ready:
        order.append(take())
        for later in after[order[-1]]:
            waiting[later] -= 1
            if not waiting[later]:
                put(later)
    return order
