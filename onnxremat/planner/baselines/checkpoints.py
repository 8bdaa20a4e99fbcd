"""Checkpoint rules: hold a chosen set of forward values, remake the rest when they are read.

The forward part is what runs up to the peak of the store-all sequence (for a training graph: up to
the loss). Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016: checkpoints at the
ends of segments, sqrt(n) of them (section 4.1) or as a byte threshold says (algorithm 3). Segment
ends are articulation values: the only forward value that is live there (algorithm of Feng and
Huang, "Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs", CVPR 2021, in spirit).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt

from onnxremat.planner.baselines.verdict import fastest_within
from onnxremat.planner.formulations.extract import late_remakes
from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.semantics import occupancy
from onnxremat.planner.solution import Solution

MOST_STEPS = 2_000_000  # beyond this, recomputing everything is not tried


def store_all(problem: Problem, budget: int) -> Solution:
    """Run every op once, in the base order."""
    return fastest_within(problem, budget, "store-all", [problem.store_all()])


def recompute_all(problem: Problem, budget: int) -> Solution:
    """Hold no forward value that can be remade: every later op remakes what it reads."""
    lists, turn = ProblemLists(problem), turning_point(ProblemLists(problem))
    later = range(turn + 1, problem.ops)
    if len(later) * turn > MOST_STEPS:
        return fastest_within(problem, budget, "recompute-all", [])
    stay = {
        value for value, op in enumerate(lists.producer) if op > turn or not lists.recomputable[op]
    }
    intervals = [range(turn + 1), *([op] for op in later)]
    carried = [set[int](), *(stay for _ in later)]
    sequence = late_remakes(lists, intervals, carried)
    return fastest_within(problem, budget, "recompute-all", [sequence])


def articulation(problem: Problem, budget: int) -> Solution:
    """Hold every articulation value."""
    lists = ProblemLists(problem)
    return fastest_within(problem, budget, "articulation", [holding(lists, articulations(lists))])


def chen_sqrt(problem: Problem, budget: int) -> Solution:
    """Hold every sqrt(n)-th articulation value."""
    lists = ProblemLists(problem)
    ends = articulations(lists)
    step = max(1, isqrt(len(ends)))
    return fastest_within(problem, budget, "chen-sqrt", [holding(lists, ends[step - 1 :: step])])


def every_block(problem: Problem, budget: int) -> Solution:
    """Hold every k-th articulation value, for the k that is fastest within the budget."""
    lists = ProblemLists(problem)
    ends = articulations(lists)
    steps = sorted({1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, len(ends)} & {*range(1, 10**6)})
    sequences = (holding(lists, ends[k - 1 :: k]) for k in steps if k <= len(ends))
    return fastest_within(problem, budget, "every-block", sequences)


def chen_greedy(problem: Problem, budget: int) -> Solution:
    """Hold an articulation value when the bytes since the last one pass a threshold.

    Thresholds are tried from small to large, as the paper's search over budgets does.
    """
    lists = ProblemLists(problem)
    ends = articulations(lists)
    turn = turning_point(lists)
    total = sum(lists.size[0][v] for op in range(turn + 1) for v in lists.writes[op])
    thresholds = (total * k // 64 for k in range(65))
    sequences = (holding(lists, _above(lists, ends, limit)) for limit in thresholds)
    return fastest_within(problem, budget, "chen-greedy", sequences)


def turning_point(lists: ProblemLists) -> int:
    """Op at the peak of the store-all sequence: the last of the forward part; -1 without ops."""
    problem = lists.problem
    if not problem.ops:  # onnxruntime computes it all when it loads the model
        return -1
    return int(occupancy(problem, problem.store_all()).argmax())


def articulations(lists: ProblemLists) -> list[int]:
    """Values that are alone in being read by later forward ops once they are made."""
    turn = turning_point(lists)
    last = [
        max((r for r in lists.readers[v] if r <= turn), default=-1)
        for v in range(lists.problem.values)
    ]
    found: list[int] = []
    live: set[int] = set()
    for op in range(turn + 1):
        live = {v for v in live if last[v] > op}
        live |= {v for v in lists.writes[op] if last[v] > op}
        if len(live) == 1 and next(iter(live)) in lists.writes[op]:
            found.append(next(iter(live)))
    return found


def holding(lists: ProblemLists, held: Iterable[int]) -> list[int] | None:
    """Sequence that holds only ``held`` (and what cannot be remade) across the turning point."""
    ops, turn = lists.problem.ops, turning_point(lists)
    if turn + 1 >= ops:
        return lists.problem.store_all()
    kept = set(held)
    kept |= {v for v, op in enumerate(lists.producer) if not lists.recomputable[op]}
    kept |= {*lists.reads[turn], *lists.writes[turn]}
    return late_remakes(lists, [range(turn + 1), range(turn + 1, ops)], [set(), kept])


def _above(lists: ProblemLists, ends: list[int], limit: int) -> list[int]:
    held, since, at = [], 0, 0
    for value in ends:
        maker = lists.producer[value]
        since += sum(lists.size[0][v] for op in range(at, maker + 1) for v in lists.writes[op])
        at = maker + 1
        if since > limit:
            held.append(value)
            since = 0
    return held
