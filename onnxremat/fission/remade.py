"""Single pieces of a graph in parts made again instead of held.

Where a value is needed whole between two regions (an image, until the statistics that normalise it
are known), all of its pieces are held at once. A few of them may be left out: each is made again
right before it is read, from what is held anyway or from much smaller pieces, which are held longer
for that. Whole chains are made again, as long as they need be: a piece of a product, the
normalisation before it, and the piece of the image before that.

A greedy search: pieces are left out that free most of what is over the limit for the time that it
takes to make them again. In the end each that need not be left out is held again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import InvalidScheduleError
from onnxremat.planner.semantics import occupancy

SMALL = 0.5  # share of a piece's bytes up to which what it is made of is held for it
NEAR = 64  # ops of the order for which what was made again is there
LONGEST = 200  # ops of a chain
LARGE = 512  # such a share of the limit, at least, is worth a chain
AT_ONCE = 4  # pieces that are left out in a turn, at most
AIMS = 8  # times that less is aimed at
TURNS = 200


@dataclass(frozen=True)
class _Gap:
    """A value is not there between two ops of the order: after an op that reads it (or makes it)
    and before the next one that does."""

    value: int
    after: int
    until: int


class _TooLongError(Exception):
    """A chain has too many ops, or one that may not run again."""


class _Left:
    """Which values are left out, and what is run then."""

    def __init__(self, problem: Problem) -> None:
        self.problem, lists = problem, ProblemLists(problem)
        self.reads, self.writes, self.maker = lists.reads, lists.writes, lists.producer
        self.readers, self.keep, self.again = lists.readers, lists.keep, lists.recomputable
        self.size, self.cost = lists.size[0], problem.cost[0].tolist()
        self.last = [max(found, default=-1) for found in self.readers]
        self.gaps = set[_Gap]()
        self.of: dict[int, list[_Gap]] = {}
        self.until = list(self.last)

    def leave(self, gaps: Iterable[_Gap]) -> None:
        """Leave values out in these gaps, too."""
        self.gaps.update(gaps)
        self._sort()

    def hold(self, gaps: Iterable[_Gap]) -> None:
        """Hold values in these gaps again."""
        self.gaps.difference_update(gaps)
        self._sort()

    def _sort(self) -> None:
        self.of = {}
        for gap in self.gaps:
            self.of.setdefault(gap.value, []).append(gap)

    def gaps_of(self, value: int) -> list[_Gap]:
        """Where a value need not be there, and is."""
        if self.keep[value] or not self.again[self.maker[value]]:
            return []
        touched = [self.maker[value], *sorted(self.readers[value])]
        found = (_Gap(value, a, b) for a, b in pairwise(touched) if b - a > 1)
        return [gap for gap in found if gap not in self.gaps]

    def there(self, value: int, at: int) -> bool:
        """A value is there when an op of the order runs, nothing being held longer."""
        gaps = self.of.get(value, ())
        return at <= self.last[value] and not any(g.after < at < g.until for g in gaps)

    def sequence(self) -> tuple[list[int], list[int]]:
        """Ops as they run, and for each the op of the order that it is run for.

        Raises:
            _TooLongError: of a chain.
        """
        order, whose = list[int](), list[int]()
        near: dict[int, int] = {}
        due: dict[int, list[int]] = {}
        for gap in self.gaps:
            due.setdefault(gap.until, []).append(gap.value)
        unread = {gap.value for gap in self.gaps if gap.after == self.maker[gap.value]}
        for op in range(self.problem.ops):
            for value in sorted(due.get(op, ())):
                if near.get(value, -NEAR) < op - NEAR:
                    chain = self.chain(value, op, near)
                    order += chain
                    whose += [op] * len(chain)
            if not self.writes[op] or not unread.issuperset(self.writes[op]):
                order.append(op)
                whose.append(op)
        self._see(order, whose)
        return order, whose

    def _see(self, order: list[int], whose: list[int]) -> None:
        """Until when values that were made in their turn are read."""
        first = [False] * len(self.size)
        for op, at in zip(order, whose, strict=True):
            for value in self.reads[op]:
                if first[value]:
                    self.until[value] = at
            for value in self.writes[op]:
                first[value] = op == at

    def chain(self, value: int, at: int, near: dict[int, int]) -> list[int]:
        """Ops that make a value again before an op of the order.

        Args:
            near: when what was made again was, which is added to.

        Raises:
            _TooLongError: there are too many.
        """
        found: list[int] = []
        room = SMALL * self.size[value]

        def make(wanted: int) -> None:
            op = self.maker[wanted]
            if len(found) >= LONGEST or not self.again[op]:
                raise _TooLongError
            for read in self.reads[op]:
                if self.there(read, at) or near.get(read, -NEAR) >= at - NEAR:
                    continue
                if self.size[read] > room or read in self.of:
                    make(read)
            found.append(op)
            near.update(dict.fromkeys(self.writes[op], at))

        make(value)
        return found


@dataclass
class _Search:
    """A search for what is left out.

    Attributes:
        aim: what is planned for, the limit or less.
        fixed: gaps that did not help.
    """

    left: _Left
    limit: int
    aim: int
    fixed: set[_Gap] = field(default_factory=set)

    def run(self, stop: Callable[[], bool]) -> list[int] | None:
        """Ops as they run within the limit, None where that was not found.

        What chains take while they run is not foreseen: where it is too much, less is aimed at.
        """
        order, use = self._played()
        most, aims = AT_ONCE, AIMS
        best: list[_Gap] | None = None
        for _ in range(TURNS):
            if use.max() <= self.limit:
                return self._without_need(order, stop)
            best = self._best(use) if best is None else best
            chosen = best[:most]
            if stop() or not (chosen or aims):
                break
            if not chosen:
                self.aim -= int(use.max()) - self.limit
                self.fixed.clear()
                aims, best = aims - 1, None
                continue
            self.left.leave(chosen)
            tried = self._tried()
            if tried is not None and self._excess(tried[1]) < self._excess(use):
                order, use = tried
                most, best = AT_ONCE, None
                continue
            self.left.hold(chosen)
            if len(chosen) == 1:
                self.fixed.update(chosen)
                best = best[1:]
            most = max(1, most // 4)
        return None

    def _without_need(self, order: list[int], stop: Callable[[], bool]) -> list[int]:
        """The same, pieces held again that need not be left out, those first that take longest."""
        left = self.left

        def seconds(gap: _Gap) -> float:
            return sum(left.cost[op] for op in left.chain(gap.value, gap.until, {}))

        for gap in sorted(left.gaps, key=lambda gap: (-seconds(gap), gap.after, gap.value)):
            if stop():
                break
            left.hold([gap])
            tried = self._tried()
            if tried is None or tried[1].max() > self.limit:
                left.leave([gap])
            else:
                order = tried[0]
        return order

    def _excess(self, use: np.ndarray) -> float:
        return float(np.maximum(use - self.aim, 0).sum())

    def _played(self) -> tuple[list[int], np.ndarray]:
        """Ops as they run, and the most bytes in use while each op of the order is run for."""
        order, whose = self.left.sequence()
        use = np.zeros(self.left.problem.ops, np.int64)
        np.maximum.at(use, np.asarray(whose), occupancy(self.left.problem, order)[0])
        return order, use

    def _tried(self) -> tuple[list[int], np.ndarray] | None:
        try:
            return self._played()
        except (_TooLongError, InvalidScheduleError):
            return None

    def _best(self, use: np.ndarray) -> list[_Gap]:
        """Where values may be left out, those first that free most of what is over the limit for
        the time that it takes to make them again."""
        left, least = self.left, self.limit // LARGE
        sums = _Sums(use - self.aim)
        found = list[tuple[float, _Gap]]()
        for value, size in enumerate(left.size):
            for gap in left.gaps_of(value) if size >= least else ():
                if gap in self.fixed:
                    continue
                relief = sums.over(0, size, gap.after + 1, gap.until)
                worth = self._worth(gap, relief, sums) if relief else 0.0
                if worth > 0:
                    found.append((worth, gap))
        found.sort(key=lambda each: (-each[0], -each[1].until))
        return [gap for _, gap in found]

    def _worth(self, gap: _Gap, relief: float, sums: _Sums) -> float:
        """What a gap frees, less what is held longer for it, per second of its chain."""
        left = self.left
        try:
            chain = left.chain(gap.value, gap.until, {})
        except _TooLongError:
            return 0.0
        made = {name for op in chain for name in left.writes[op]}
        held = {name for op in chain for name in left.reads[op]} - made
        for name in held:
            if not left.there(name, gap.until):
                size, last = left.size[name], max(left.until[name], left.maker[name])
                relief -= sums.over(size, size, last + 1, max(last + 1, gap.until))
        return relief / max(sum(left.cost[op] for op in chain), 1e-9)


class _Sums:
    """How much of so many bytes lies over a limit, summed over stretches of steps.

    Args:
        over: bytes in use beyond the limit at every step.
    """

    def __init__(self, over: np.ndarray) -> None:
        self.steps, self.known = over, dict[tuple[int, int], np.ndarray]()

    def over(self, more: int, size: int, first: int, end: int) -> float:
        """Of ``size`` bytes, where ``more`` are in use besides."""
        if (more, size) not in self.known:
            found = np.clip(self.steps + more, 0, size)
            self.known[more, size] = np.concatenate([[0], np.cumsum(found)])
        sums = self.known[more, size]
        return float(sums[max(first, end)] - sums[first])


def remade(problem: Problem, limit: int, stop: Callable[[], bool]) -> Sequence[int] | None:
    """Ops of a problem on one device in its order, some again, so that no more than ``limit`` bytes
    are in use; None where that was not found.

    Args:
        stop: asked between turns.
    """
    return _Search(_Left(problem), limit, limit).run(stop)
