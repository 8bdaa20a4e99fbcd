"""The planner's view of a model: pure numbers, no ONNX.

A :class:`Problem` is what every formulation, search and baseline reads; a :class:`Solution` is
what each of them returns. ``occupancy`` is the reference semantics of memory: everything compiled
or formulated elsewhere must agree with it to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Bytes = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Lists of ids in compressed sparse rows: row ``i`` is ``index[start[i]:start[i + 1]]``."""

    start: Ints
    index: Ints

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Rows:
        """Pack a list of lists."""
        start = np.zeros(len(lists) + 1, np.int32)
        start[1:] = np.cumsum([len(row) for row in lists])
        flat = [item for row in lists for item in row]
        return cls(start, np.asarray(flat, np.int32))

    def __getitem__(self, row: int) -> Ints:
        return self.index[self.start[row] : self.start[row + 1]]

    def __len__(self) -> int:
        return len(self.start) - 1

    def lists(self) -> list[list[int]]:
        """Unpack to Python lists, which are quicker to walk one by one."""
        flat, start = self.index.tolist(), self.start.tolist()
        return [flat[a:b] for a, b in pairwise(start)]


@dataclass(frozen=True)
class Problem:
    """Ops ``0..n-1`` in a topological base order, and the values they write and read.

    Memory while op ``v`` runs as step ``p`` of a sequence is

        fixed + live values (inputs included) + outputs of v + work[v] - takeover

    where a value lives from the step that makes it to the last step that reads that instance
    (a later run of its producer starts a new instance), or to the end of the sequence when
    ``keep`` holds (graph outputs; made once, the first time). A value nobody reads after it was
    made lives for its own step only. ``takeover`` is the size of the first value in
    ``inplace[v]`` whose last read is this step (and that is not kept): output 0 of ``v`` then
    moves into its buffer; output 0 has the same size and is not kept.

    Attributes:
        cost: seconds per run of each op, shape (n,).
        work: workspace bytes while each op runs, shape (n,).
        reads: values each op reads (only those made by ops; inputs and weights are ``fixed``
            or outside the account), without repeats.
        writes: values each op makes; every value has exactly one producer.
        size: bytes of each value, shape (m,).
        keep: values that stay to the end once made, shape (m,).
        inplace: for each op the values whose buffer its output 0 may take over, best first.
        recompute: ops that may run more than once, shape (n,); an op whose outputs are all kept
            never needs to.
        fixed: bytes resident throughout (weights).
    """

    cost: Floats
    work: Bytes
    reads: Rows
    writes: Rows
    size: Bytes
    keep: NDArray[np.bool_]
    inplace: Rows
    recompute: NDArray[np.bool_]
    fixed: int = 0

    @property
    def ops(self) -> int:
        """Number of ops, n."""
        return len(self.cost)

    @property
    def values(self) -> int:
        """Number of values, m."""
        return len(self.size)

    @property
    def producer(self) -> Ints:
        """The op that makes each value, shape (m,)."""
        made = np.full(self.values, -1, np.int32)
        for op, row in enumerate(self.writes.lists()):
            made[row] = op
        return made

    def store_all(self) -> list[int]:
        """The sequence that runs every op once, in the base order."""
        return list(range(self.ops))


def seconds(problem: Problem, sequence: Sequence[int]) -> float:
    """Compute time of a sequence, in seconds."""
    return float(problem.cost[np.asarray(sequence, np.int64)].sum())


def occupancy(problem: Problem, sequence: Sequence[int]) -> Bytes:
    """Bytes in use while each step of ``sequence`` runs, shape (len(sequence),).

    Raises:
        ValueError: a step reads a value that no earlier step made, or an op never runs.
    """
    reads, writes, inplace = problem.reads.lists(), problem.writes.lists(), problem.inplace.lists()
    size, keep = problem.size.tolist(), problem.keep.tolist()
    steps = len(sequence)
    born = [-1] * problem.values  # step that made the current instance of each value
    death: dict[tuple[int, int], int] = {}  # (value, birth step) -> last step that reads it
    for step, op in enumerate(sequence):
        for value in reads[op]:
            if born[value] < 0:
                raise ValueError(f"step {step} (op {op}) reads value {value} before it is made")
            death[value, born[value]] = step
        for value in writes[op]:
            if keep[value] and born[value] >= 0:
                continue
            born[value] = step
            death[value, step] = step
    missing = set(range(problem.ops)) - set(sequence)
    if missing:
        raise ValueError(f"ops {sorted(missing)[:5]} never run")
    change = np.zeros(steps + 1, np.int64)
    for (value, birth), last in death.items():
        change[birth] += size[value]
        change[steps if keep[value] else last + 1] -= size[value]
    use = np.cumsum(change[:-1]) + problem.work[np.asarray(sequence, np.int64)] + problem.fixed
    current = [-1] * problem.values
    for step, op in enumerate(sequence):
        for value in inplace[op]:
            if not keep[value] and death[value, current[value]] == step:
                use[step] -= size[value]
                break
        for value in writes[op]:
            if not (keep[value] and current[value] >= 0):
                current[value] = step
    return use


def peak(problem: Problem, sequence: Sequence[int]) -> int:
    """Largest occupancy over the sequence, in bytes."""
    return int(occupancy(problem, sequence).max(initial=problem.fixed))


class Status(Enum):
    """What is known about a solution (the words solvers use)."""

    OPTIMAL = "optimal"  # found = bound within the gap asked for
    FEASIBLE = "feasible"  # within budget, bound below it
    INFEASIBLE = "infeasible"  # proven: no sequence fits the budget
    UNKNOWN = "unknown"  # nothing found, nothing proven


@dataclass(frozen=True)
class Certificate:
    """A proven lower bound on the time of every sequence within the budget.

    Attributes:
        bound: seconds; ``inf`` when the budget is proven infeasible.
        kind: which argument gave it (``store-all``, ``single-cut``, ``lazy-cuts``, ...).
        any_order: True when it holds for every order of the ops, not only the base order of
            first runs.
        staged: True when it holds only for sequences that run each op at most once per stage, in
            base order (the class that Checkmate's model and its kin search).
    """

    bound: float
    kind: str
    any_order: bool
    staged: bool = False


@dataclass(frozen=True)
class Solution:
    """Answer of a planner for one budget.

    Attributes:
        status: see :class:`Status`.
        sequence: ops in execution order, repeats are recomputations; None when none was found.
        time: seconds of ``sequence`` (``inf`` when None).
        peak: bytes of ``sequence``.
        certificate: the proven bound.
        planner: name of the method that found ``sequence``.
        plan_seconds: wall time spent.
        trace: (wall seconds, best time, bound) whenever either moved.
        notes: what a user should know (fall-backs, limits hit), one sentence each.
    """

    status: Status
    sequence: tuple[int, ...] | None
    time: float
    peak: int
    certificate: Certificate
    planner: str
    plan_seconds: float
    trace: tuple[tuple[float, float, float], ...] = ()
    notes: tuple[str, ...] = field(default=())

    def gap(self, store_all_seconds: float) -> float:
        """(time - bound) as a share of the store-all time; ``inf`` when nothing was found."""
        if self.sequence is None:
            return float("inf")
        return max(0.0, self.time - self.certificate.bound) / store_all_seconds
