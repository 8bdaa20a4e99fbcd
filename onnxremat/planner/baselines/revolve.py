"""Revolve: optimal checkpointing of a chain with a number of slots.

Griewank and Walther, "Algorithm 799: Revolve", ACM TOMS 2000. The chain is the list of articulation
values of the forward part; between two of them lies a segment. With s slots and l segments, the
forward recursion t(l, s) = min over j of j + t(l - j, s - 1) + t(j, s) says where the next
checkpoint goes. Later ops run in the base order; when one reads a value of a segment, the segment
is remade from the nearest checkpoint before it, and checkpoints are placed on the way.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache

from onnxremat.planner.baselines.checkpoints import articulations, turning_point
from onnxremat.planner.baselines.verdict import fastest_within
from onnxremat.planner.formulations.extract import without_unread
from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.solution import Solution


def revolve(problem: Problem, budget: int) -> Solution:
    """Revolve with every number of slots; the fastest that fits."""
    lists = ProblemLists(problem)
    ends = articulations(lists)
    slots = sorted({*range(1, min(len(ends), 16) + 1), len(ends)} - {0})
    sequences = (_Chain(lists, ends, count).sequence() for count in slots)
    return fastest_within(problem, budget, "revolve", sequences)


@cache
def _split(length: int, slots: int) -> tuple[int, int]:
    """(forward steps, first checkpoint) for reversing ``length`` segments with ``slots``."""
    if length <= 1:
        return 0, 0
    if slots == 0:
        return length * (length - 1) // 2, 0
    if slots >= length - 1:  # a checkpoint each; without this, as deep a recursion as the chain
        return length - 1, 1
    return min(
        (j + _split(length - j, slots - 1)[0] + _split(j, slots)[0], j) for j in range(1, length)
    )


class _Chain:
    """One run of the schedule."""

    def __init__(self, lists: ProblemLists, ends: list[int], slots: int) -> None:
        self.lists, self.ends, self.slots = lists, ends, slots
        self.makers = [lists.producer[value] for value in ends]
        self.turn = turning_point(lists)
        self.forward = {v for op in range(self.turn + 1) for v in lists.writes[op]}
        self.fixed = {v for v in self.forward if lists.keep[v] or not self._may_drop(v)}

    def _may_drop(self, value: int) -> bool:
        return self.lists.recomputable[self.lists.producer[value]]

    def sequence(self) -> list[int] | None:
        """Ops in execution order, None when it grows out of hand."""
        if len(self.ends) > 400:
            return None
        ops = self.lists.problem.ops
        held = set(self._placed(0, len(self.ends), self.slots))
        steps = list(range(self.turn + 1))
        last = self.makers[-1] if self.makers else -1
        have = {v for v in self.forward if v in held or self.lists.producer[v] > last}
        have |= self.fixed | {*self.lists.reads[self.turn], *self.lists.writes[self.turn]}
        for op in range(self.turn + 1, ops):
            wanted = [v for v in self.lists.reads[op] if v not in have]
            if wanted:
                have = self._remake(wanted, have, held, steps)
                if not have or len(steps) > 40 * ops:
                    return None
            steps.append(op)
            have.update(self.lists.writes[op])
        whole = Schedule.of(self.lists.problem, steps)
        return list(without_unread(self.lists, whole).sequence)

    def _placed(self, start: int, stop: int, slots: int) -> list[int]:
        """Checkpoints on the way from segment ``start`` to ``stop``."""
        found = []
        while slots > 0 and stop - start > 1:
            start += _split(stop - start, slots)[1]
            slots -= 1
            if start - 1 < len(self.ends):
                found.append(self.ends[start - 1])
        return found

    def _remake(
        self, wanted: list[int], have: set[int], held: set[int], steps: list[int]
    ) -> set[int]:
        """Remake ``wanted``; keeps checkpoints and the segment that was asked for."""
        lists = self.lists
        target = max(bisect_left(self.makers, lists.producer[v]) for v in wanted)
        held -= {v for v in held if self.ends.index(v) >= target}
        start = 1 + max((self.ends.index(v) for v in held), default=-1)
        held.update(self._placed(start, target, self.slots - len(held)))
        low = self.makers[target - 1] if target else -1
        have = {v for v in have if v not in self.forward or v in held or v in self.fixed}
        todo: set[int] = set()
        stack = [lists.producer[v] for v in wanted]
        while stack:
            op = stack.pop()
            if op in todo:
                continue
            if not lists.recomputable[op]:
                return set()
            todo.add(op)
            stack += [lists.producer[v] for v in lists.reads[op] if v not in have]
        for op in sorted(todo):
            steps.append(op)
            have |= {v for v in lists.writes[op] if op > low or v in held}
            have |= {v for v in wanted if lists.producer[v] == op}
        return have
