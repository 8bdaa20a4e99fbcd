"""The edges of a problem as Python lists, unpacked once for everything that walks them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onnxremat.planner.problem import Ints, Problem, Rows


@dataclass(frozen=True)
class Wiring:
    """List views of a :class:`Problem` (same ids, same meaning)."""

    problem: Problem

    @cached_property
    def reads(self) -> list[list[int]]:
        """Values each op reads."""
        return self.problem.reads.lists()

    @cached_property
    def writes(self) -> list[list[int]]:
        """Values each op makes."""
        return self.problem.writes.lists()

    @cached_property
    def inplace(self) -> list[list[int]]:
        """Values whose buffer output 0 of each op may take over: read by it and not kept."""
        keep = self.keep
        return [
            [value for value in row if not keep[value] and value in reads]
            for row, reads in zip(self.problem.inplace.lists(), self.reads, strict=True)
        ]

    @cached_property
    def producer(self) -> list[int]:
        """Op that makes each value."""
        return [int(op) for op in self.problem.producer]

    @cached_property
    def readers(self) -> list[list[int]]:
        """Ops that read each value, increasing."""
        rows: list[list[int]] = [[] for _ in range(self.problem.values)]
        for op, row in enumerate(self.reads):
            for value in row:
                rows[value].append(op)
        return rows

    @cached_property
    def before(self) -> list[list[int]]:
        """Ops each op reads from, increasing, without repeats."""
        producer = self.producer
        return [sorted({producer[value] for value in row}) for row in self.reads]

    @cached_property
    def after(self) -> list[list[int]]:
        """Ops that read from each op, increasing, without repeats."""
        rows: list[list[int]] = [[] for _ in range(self.problem.ops)]
        for op, row in enumerate(self.before):
            for earlier in row:
                rows[earlier].append(op)
        return rows

    @cached_property
    def size(self) -> list[int]:
        """Bytes of each value."""
        return [int(size) for size in self.problem.size]

    @cached_property
    def work(self) -> list[int]:
        """Workspace bytes of each op."""
        return [int(size) for size in self.problem.work]

    @cached_property
    def keep(self) -> list[bool]:
        """Values that stay to the end."""
        return [bool(flag) for flag in self.problem.keep]

    @cached_property
    def cost(self) -> list[float]:
        """Seconds per run of each op."""
        return [float(cost) for cost in self.problem.cost]

    @cached_property
    def recomputable(self) -> list[bool]:
        """Ops whose second run is allowed and makes something (not only kept outputs)."""
        allowed, keep = self.problem.recompute.tolist(), self.keep
        return [
            bool(flag) and not all(keep[value] for value in row)
            for flag, row in zip(allowed, self.writes, strict=True)
        ]

    def ancestors(self, op: int) -> list[bool]:
        """Flags of the ops that must run before ``op`` in every order."""
        return _flags(self.ancestor_ops(op), self.problem.ops)

    def descendants(self, op: int) -> list[bool]:
        """Flags of the ops that must run after ``op`` in every order."""
        return _flags(self.descendant_ops(op), self.problem.ops)

    def ancestor_ops(self, op: int) -> set[int]:
        """Ops that must run before ``op`` in every order."""
        return _reached(self.before, op)

    def descendant_ops(self, op: int) -> set[int]:
        """Ops that must run after ``op`` in every order."""
        return _reached(self.after, op)


def _flags(chosen: set[int], count: int) -> list[bool]:
    flags = [False] * count
    for op in chosen:
        flags[op] = True
    return flags


def _reached(edges: list[list[int]], start: int) -> set[int]:
    seen: set[int] = set()
    stack = list(edges[start])
    while stack:
        op = stack.pop()
        if op not in seen:
            seen.add(op)
            stack.extend(edges[op])
    return seen


def reordered(problem: Problem, order: list[int]) -> Problem:
    """The same problem with op ``order[i]`` renamed ``i``; values keep their ids.

    Raises:
        ValueError: ``order`` is not a topological order of the ops.
    """
    if sorted(order) != list(range(problem.ops)):
        raise ValueError("an order must name every op once")
    rank: Ints = np.empty(problem.ops, np.int32)
    rank[order] = np.arange(problem.ops, dtype=np.int32)
    producer = problem.producer
    for op, row in enumerate(problem.reads.lists()):
        if any(rank[producer[value]] >= rank[op] for value in row):
            raise ValueError(f"op {op} runs before one of its inputs is made")
    reads, writes = problem.reads.lists(), problem.writes.lists()
    inplace = problem.inplace.lists()
    return Problem(
        cost=problem.cost[order],
        work=problem.work[order],
        reads=Rows.of([reads[op] for op in order]),
        writes=Rows.of([writes[op] for op in order]),
        size=problem.size,
        keep=problem.keep,
        inplace=Rows.of([inplace[op] for op in order]),
        recompute=problem.recompute[order],
        fixed=problem.fixed,
    )
