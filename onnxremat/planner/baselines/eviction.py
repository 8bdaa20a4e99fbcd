"""Eviction rules run offline over the base order: drop a value when room is needed.

``dtr`` is the rule of Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021 (cost of
remaking with the evicted neighbourhood, over size and staleness), with dead values dropped first;
``farthest`` drops the value with the largest size x distance to its next read / cost.
"""

from __future__ import annotations

from bisect import bisect_right

from onnxremat.planner.baselines.verdict import fastest_within
from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.solution import Solution

LONGEST = 60  # runs per op at which a rule is given up


def dtr(problem: Problem, budget: int) -> Solution:
    """Evict the value with the least cost / (size x staleness)."""
    return fastest_within(problem, budget, "dtr", [_Run(problem, budget, stale=True).sequence()])


def farthest(problem: Problem, budget: int) -> Solution:
    """Evict the value with the largest size x distance to its next read / cost."""
    run = _Run(problem, budget, stale=False)
    return fastest_within(problem, budget, "farthest", [run.sequence()])


class _Full(Exception):  # noqa: N818 - control flow, never leaves this module
    """The budget cannot be met by this rule."""


class _Run:
    def __init__(self, problem: Problem, budget: int, *, stale: bool) -> None:
        self.lists = ProblemLists(problem)
        self.budget, self.stale = budget, stale
        self.live = problem.resident
        self.touched: dict[int, int] = {}  # value in memory -> step of its last use
        self.pinned: dict[int, int] = {}
        self.steps: list[int] = []
        self.ran: set[int] = set()
        self.stage = 0

    def sequence(self) -> list[int] | None:
        """The whole run, or None when the rule fails."""
        try:
            for op in range(self.lists.problem.ops):
                self.stage = op
                self._run(op)
        except _Full:
            return None
        return self.steps

    def _run(self, wanted: int) -> None:
        """Run ``wanted`` after remaking what it reads, depth first without recursion."""
        stack = [(wanted, False)]
        while stack:
            if len(self.steps) > LONGEST * self.lists.problem.ops:
                raise _Full
            op, pinned = stack.pop()
            reads = self.lists.reads[op]
            if not pinned:
                for value in reads:
                    self.pinned[value] = self.pinned.get(value, 0) + 1
            missing = [value for value in reads if value not in self.touched]
            if missing:
                maker = self.lists.producer[missing[0]]
                if not self.lists.recomputable[maker]:
                    raise _Full
                stack += [(op, True), (maker, False)]
                continue
            self._execute(op)
            for value in reads:
                self.pinned[value] -= 1

    def _execute(self, op: int) -> None:
        lists = self.lists
        for value in lists.reads[op]:
            self.touched[value] = len(self.steps)
        new = [value for value in lists.writes[op] if value not in self.touched]
        self._drop_dead(op)
        self._make_room(sum(lists.size[0][value] for value in new) + lists.work[0][op])
        for value in new:
            self.touched[value] = len(self.steps)
            self.live += lists.size[0][value]
        self.steps.append(op)
        self.ran.add(op)

    def _drop_dead(self, op: int) -> None:
        for value in list(self.touched):
            readers = self.lists.readers[value]
            if readers and readers[-1] >= self.stage:
                continue
            if not self.lists.keep[value] and not self.pinned.get(value):
                self._drop(value)

    def _make_room(self, bytes_: int) -> None:
        while self.live + bytes_ > self.budget:
            loose = [
                value
                for value in self.touched
                if not self.pinned.get(value)
                and not self.lists.keep[value]
                and self.lists.recomputable[self.lists.producer[value]]
            ]
            if not loose:
                raise _Full
            self._drop(min(loose, key=self._worth))

    def _drop(self, value: int) -> None:
        self.live -= self.lists.size[0][value]
        del self.touched[value]

    def _worth(self, value: int) -> float:
        size = max(1, self.lists.size[0][value])
        if self.stale:
            age = len(self.steps) - self.touched[value] + 1
            return self._remake_cost(value) / (size * age)
        readers = self.lists.readers[value]
        place = bisect_right(readers, self.stage - 1)
        following = readers[place] if place < len(readers) else self.lists.problem.ops + 1
        return self._remake_cost(value) / (size * max(1, following - self.stage))

    def _remake_cost(self, value: int) -> float:
        """Seconds of remaking a value with what is in memory now."""
        lists = self.lists
        stack, seen = [lists.producer[value]], {lists.producer[value]}
        cost = 0.0
        while stack:
            op = stack.pop()
            cost += lists.cost[0][op]
            for read in lists.reads[op]:
                maker = lists.producer[read]
                if read not in self.touched and maker not in seen:
                    seen.add(maker)
                    stack.append(maker)
        return cost
