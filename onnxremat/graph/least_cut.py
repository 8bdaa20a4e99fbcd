"""Least cuts of small networks: what belongs on which of two sides, at the least price.

Choices between two sides, each with a price of its own and prices for being apart from others, are
least cuts (Picard and Ratliff 1975). Found by shortest augmenting paths (Edmonds and Karp 1972):
for networks of some thousand arcs, where compiling anything would take longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

ENDLESS = 1 << 60


class Network:
    """Arcs from one vertex to another, with whole numbers as costs. An arc costs what it holds
    where its tail is on the near side and its head on the far side."""

    def __init__(self) -> None:
        self.near, self.far = object(), object()
        self.room: dict[Hashable, dict[Hashable, int]] = {self.near: {}, self.far: {}}

    def arc(self, tail: Hashable, head: Hashable, cost: int) -> None:
        """One more arc; ``ENDLESS`` where its ends are never to be apart that way. From end to end
        there is nothing to choose."""
        if tail != head and cost > 0 and (tail, head) != (self.near, self.far):
            ahead = self.room.setdefault(tail, {})
            ahead[head] = ahead.get(head, 0) + cost
            self.room.setdefault(head, {}).setdefault(tail, 0)

    def near_side(self) -> set[Hashable]:
        """Vertices on the near side of a least cut, as few as that can be.

        What can be sent on is sent from one neighbour of the near end after another, each until
        nothing goes any more: what others send later opens no way for it. So a search stays in the
        part of the network that its vertex is in.
        """
        room = self.room[self.near]
        for vertex in room:
            while room[vertex] > 0:
                came = self._reached(vertex)
                if self.far not in came:
                    break
                self._fill(vertex, came)
        return self._reached(self.near).keys() - {self.near}

    def _reached(self, start: Hashable) -> dict[Hashable, Hashable]:
        """What there is room to go to, each with where from; no further than the far end."""
        came: dict[Hashable, Hashable] = {start: start, self.near: self.near}
        waiting = deque([start])
        while waiting and self.far not in came:
            here = waiting.popleft()
            for there, room in self.room[here].items():
                if room > 0 and there not in came:
                    came[there] = here
                    waiting.append(there)
        return came

    def _fill(self, start: Hashable, came: dict[Hashable, Hashable]) -> None:
        path, at = [(self.near, start)], self.far
        while at is not start:
            path.append((came[at], at))
            at = came[at]
        most = min(self.room[tail][head] for tail, head in path)
        for tail, head in path:
            self.room[tail][head] -= most
            self.room[head][tail] += most
