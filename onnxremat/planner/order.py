"""Order of the ops with the least peak when nothing is recomputed.

Cheap orders first (base, breadth first, depth first both ways, greedy by growth), then a threshold
search over sets of executed ops: is there an order within P bytes? Two rules keep it small. An op
that fits and does not raise memory is run at once (running it later can only need more), and a set
of executed ops is visited once. Bisection on P between the best order and the largest need of one
op gives the optimum when the search is allowed to finish.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

from onnxremat.graph.topological import as_left, first_come
from onnxremat.planner.bounds import largest_need
from onnxremat.planner.clock import ORDERS, WALL, Clock
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.semantics import peak

LOOK = 64  # sets between looks at the clock
STATES = 200_000  # executed sets one threshold search may visit


@dataclass(frozen=True)
class Order:
    """An order of the ops, its peak in bytes without recomputation, and a proven lower bound."""

    order: list[int]
    peak: int
    bound: int

    @property
    def proven(self) -> bool:
        """True when no order has a smaller peak."""
        return self.bound >= self.peak


def best_order(
    lists: ProblemLists,
    seconds: float = 1.0,
    *,
    enough: int = 0,
    stop: Callable[[], bool] | None = None,
    clock: Clock = WALL,
) -> Order:
    """Minimum-peak order, exact when ``seconds`` suffice.

    Args:
        enough: bytes at which a smaller peak is no longer of use.
        stop: polled; True ends the search with the best order so far.
    """
    problem, until = lists.problem, clock.now() + seconds
    starts = [list(range(problem.ops))]
    best, order = peak(problem, starts[0]), starts[0]
    bound = largest_need(lists).bytes
    for make in (_breadth_first, _greedy, _depth_first, _depth_first_reversed):
        if best <= max(enough, bound) or clock.now() > until or (stop and stop()):
            break
        other = make(lists)
        bytes_ = peak(problem, other)
        if bytes_ < best:
            best, order = bytes_, other
    while bound < best and best > enough:
        limit = max(enough, (best + bound) // 2 if best > 1.002 * bound else best - 1)
        answer = _Threshold(lists, limit, until, stop, clock).search()
        if isinstance(answer, str):
            break
        if answer is None:
            bound = limit + 1
        else:
            order = answer
            best = peak(problem, order)
    return Order(order, best, min(bound, best))


def late_order(lists: ProblemLists) -> list[int]:
    """The base order with ops put off as long as that raises memory nowhere.

    Seen from the end, where all is turned round: an op takes what it reads, unless something later
    reads it too, and gives what it writes. One that gives no less is run at once.
    """
    size, keep, readers = lists.size[0], lists.keep, lists.readers
    waiting = [len(row) for row in lists.after]
    needed = set[int]()
    open_ = [op for op, count in enumerate(waiting) if count == 0]  # ascending
    order = list[int]()

    def gives(op: int) -> bool:
        made = sum(size[v] for v in lists.writes[op] if readers[v] and not keep[v])
        taken = sum(size[v] for v in set(lists.reads[op]) if v not in needed and not keep[v])
        return taken <= made

    while open_:
        op = next((op for op in reversed(open_) if gives(op)), open_[-1])
        open_.remove(op)
        order.append(op)
        needed.update(lists.reads[op])
        for earlier in lists.before[op]:
            waiting[earlier] -= 1
            if waiting[earlier] == 0:
                insort(open_, earlier)
    return order[::-1]


def _breadth_first(lists: ProblemLists) -> list[int]:
    return first_come(lists.before, lists.after)


def _depth_first(lists: ProblemLists, *, last_input_first: bool = False) -> list[int]:
    """Post-order from the sinks."""
    sinks = [op for op, row in enumerate(lists.after) if not row]
    before = lists.before if last_input_first else [row[::-1] for row in lists.before]
    return as_left(before, sinks[::-1])


def _depth_first_reversed(lists: ProblemLists) -> list[int]:
    return _depth_first(lists, last_input_first=True)


def _greedy(lists: ProblemLists) -> list[int]:
    """Always the ready op with the least growth, then the least peak."""
    run = _Memory(lists)
    order = []
    while run.ready:
        op = min(run.ready, key=lambda v: (run.growth(v), run.during(v), v))
        order.append(op)
        run.step(op)
    return order


class _Memory:
    """Live bytes and ready ops of a partial order, with undo."""

    def __init__(self, lists: ProblemLists) -> None:
        self.lists = lists
        size, keep, readers = lists.size[0], lists.keep, lists.readers
        self._new = [sum(size[v] for v in row if keep[v] or readers[v]) for row in lists.writes]
        self._freed = [[(v, size[v]) for v in row if not keep[v]] for row in lists.reads]
        self.left = [len(row) for row in lists.readers]
        self.waiting = [len(row) for row in lists.before]
        self.ready = {op for op, count in enumerate(self.waiting) if count == 0}
        self.live = lists.problem.resident
        self.done = 0

    def growth(self, op: int) -> int:
        """Live bytes after ``op`` less live bytes before it."""
        change, left = self._new[op], self.left
        for value, size in self._freed[op]:
            if left[value] == 1:
                change -= size
        return change

    def during(self, op: int) -> int:
        """Bytes in use while ``op`` runs next."""
        lists = self.lists
        use = self.live + lists.work[0][op] + sum(lists.size[0][v] for v in lists.writes[op])
        for value in lists.inplace[op]:
            if self.left[value] == 1:
                return use - lists.size[0][value]
        return use

    def step(self, op: int) -> None:
        """Run ``op``."""
        self.live += self.growth(op)
        for value in self.lists.reads[op]:
            self.left[value] -= 1
        self.ready.discard(op)
        self.done |= 1 << op
        for later in self.lists.after[op]:
            self.waiting[later] -= 1
            if self.waiting[later] == 0:
                self.ready.add(later)

    def undo(self, op: int) -> None:
        """Take back the latest run."""
        for later in self.lists.after[op]:
            if self.waiting[later] == 0:
                self.ready.discard(later)
            self.waiting[later] += 1
        self.done &= ~(1 << op)
        self.ready.add(op)
        for value in self.lists.reads[op]:
            self.left[value] += 1
        self.live -= self.growth(op)


class _Threshold:
    """Depth-first search for an order within ``limit`` bytes."""

    def __init__(
        self, lists: ProblemLists, limit: int, until: float, stop: Callable[[], bool] | None,
        clock: Clock,
    ) -> None:  # fmt: skip
        self.run, self.limit, self.until, self.stop = _Memory(lists), limit, until, stop
        self.clock = clock
        self.ops = lists.problem.ops
        self.visited: set[int] = set()

    def search(self) -> list[int] | str | None:
        """An order, None when there is none, or ``unknown`` when a limit was hit."""
        run = self.run
        order: list[int] = []
        # a frame: ops run by force before the choice, and the choices left (best last)
        frames: list[tuple[int, list[int]]] = []
        while True:
            forced = self._force(order)
            if len(order) == self.ops:
                return order
            choices: list[int] = []
            if run.done not in self.visited:
                self.visited.add(run.done)
                if self._exhausted():
                    return "unknown"
                fitting = [op for op in run.ready if run.during(op) <= self.limit]
                choices = sorted(fitting, key=run.growth, reverse=True)
            frames.append((forced, choices))
            while frames and not frames[-1][1]:
                count, _ = frames.pop()
                self._back(order, count)
                if not frames:
                    return None
                self._back(order, 1)  # the choice that led here
            op = frames[-1][1].pop()
            run.step(op)
            order.append(op)

    def _force(self, order: list[int]) -> int:
        """Run ops that fit and do not raise memory; returns how many."""
        run, count = self.run, 0
        while True:
            op = next(
                (v for v in run.ready if run.growth(v) <= 0 and run.during(v) <= self.limit), None
            )
            if op is None:
                return count
            run.step(op)
            order.append(op)
            count += 1

    def _back(self, order: list[int], count: int) -> None:
        for _ in range(count):
            self.run.undo(order.pop())

    def _exhausted(self) -> bool:
        states = len(self.visited)
        if states > STATES:
            return True
        if states % LOOK:
            return False
        self.clock.spend(LOOK / ORDERS)
        return self.clock.now() > self.until or bool(self.stop and self.stop())
