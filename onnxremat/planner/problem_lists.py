"""A problem unpacked to Python lists once, for everything that walks it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite

import numpy as np

from onnxremat.planner.problem import ANY, Ints, Problem, Rows


@dataclass(frozen=True)
class ProblemLists:
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
    def keep(self) -> list[bool]:
        """Values that stay to the end."""
        return [bool(flag) for flag in self.problem.keep]

    @cached_property
    def recomputable(self) -> list[bool]:
        """Ops whose second run is allowed and makes something (not only kept outputs)."""
        allowed, keep = self.problem.recompute.tolist(), self.keep
        return [
            bool(flag) and not all(keep[value] for value in row)
            for flag, row in zip(allowed, self.writes, strict=True)
        ]

    @property
    def devices(self) -> range:
        """Device ids."""
        return range(self.problem.devices)

    @cached_property
    def cost(self) -> list[list[float]]:
        """Seconds of each op per device (``inf`` where it cannot run)."""
        costs: list[list[float]] = self.problem.cost.tolist()
        return costs

    @cached_property
    def copy(self) -> list[list[list[float]]]:
        """Seconds per source, target and value (``inf`` without a link)."""
        seconds: list[list[list[float]]] = self.problem.copy.tolist()
        return seconds

    @cached_property
    def size(self) -> list[list[int]]:
        """Bytes of each value per device."""
        sizes: list[list[int]] = self.problem.size.tolist()
        return sizes

    @cached_property
    def work(self) -> list[list[int]]:
        """Workspace bytes of each op per device."""
        sizes: list[list[int]] = self.problem.work.tolist()
        return sizes

    @cached_property
    def able(self) -> list[list[int]]:
        """Devices each op can run on."""
        return [[d for d in self.devices if isfinite(self.cost[d][op])] for op in self._ops]

    @cached_property
    def links(self) -> list[tuple[int, int]]:
        """Ordered pairs of devices between which some value can be copied."""
        usable = np.isfinite(self.problem.copy)
        return [(e, d) for e in self.devices for d in self.devices if e != d and usable[e, d].any()]

    @cached_property
    def into(self) -> list[list[list[int]]]:
        """Devices from which each value can be copied to each device: ``into[d][u]``."""
        usable = np.isfinite(self.problem.copy)
        return [
            [np.flatnonzero(usable[:, d, u]).tolist() for u in range(self.problem.values)]
            if usable[:, d].any()
            else [[] for _ in range(self.problem.values)]
            for d in self.devices
        ]

    @cached_property
    def places(self) -> list[list[int]]:
        """Devices that each value can be on: where it can be made, or copied to."""
        able, into = self.able, self.into
        return [
            [d for d in self.devices if d in able[maker] or into[d][u]]
            for u, maker in enumerate(self.producer)
        ]

    @cached_property
    def lone(self) -> list[int]:
        """The device of each value that can be on one only, -1 for the others."""
        return [places[0] if len(places) == 1 else -1 for places in self.places]

    def least_run(self, device: int, op: int, *, first: bool = True) -> int:
        """Bytes that a run of an op on a device takes at least: workspace, inputs and outputs, less
        the largest takeover.

        Args:
            first: it is the first run of the op, which makes all outputs. A later one makes no kept
                value, and that may be on another device.
        """
        size, reads = self.size[device], self.reads[op]
        made = [u for u in self.writes[op] if first or not self.keep[u] or self.lone[u] >= 0]
        bytes_ = self.work[device][op] + sum(size[u] for u in {*reads, *made})
        return bytes_ - max((size[u] for u in self.inplace[op]), default=0)

    @cached_property
    def required(self) -> list[int]:
        """Required device of each kept value, -1 for any or not kept."""
        where: list[int] = np.where(self.problem.keep, self.problem.required, ANY).tolist()
        return where

    @cached_property
    def group(self) -> list[int]:
        """Colocation group of each op, -1 for none."""
        groups: list[int] = self.problem.group.tolist()
        return groups

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """Ops of each colocation group."""
        rows: dict[int, list[int]] = {}
        for op, group in enumerate(self.group):
            if group != ANY:
                rows.setdefault(group, []).append(op)
        return rows

    @cached_property
    def uses(self) -> list[list[int]]:
        """Weights each op reads."""
        return self.problem.uses.lists()

    @cached_property
    def tied(self) -> list[tuple[frozenset[int], int]]:
        """Per device the weights of ops that can run on no other one, there throughout in every
        schedule, and their bytes."""
        found: list[set[int]] = [set() for _ in self.devices]
        for able, uses in zip(self.able, self.uses, strict=True):
            if len(able) == 1:
                found[able[0]].update(uses)
        weight = self.problem.weight
        return [
            (frozenset(row), sum(int(weight[d, w]) for w in row)) for d, row in enumerate(found)
        ]

    @property
    def _ops(self) -> range:
        return range(self.problem.ops)

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

    def rows(table: Rows) -> Rows:
        lists = table.lists()
        return Rows.of([lists[op] for op in order])

    return replace(
        problem,
        cost=problem.cost[:, order],
        work=problem.work[:, order],
        reads=rows(problem.reads),
        writes=rows(problem.writes),
        inplace=rows(problem.inplace),
        recompute=problem.recompute[order],
        group=problem.group[order],
        uses=rows(problem.uses),
    )
