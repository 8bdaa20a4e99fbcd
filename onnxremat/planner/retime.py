"""When copies happen: where they break budgets least.

A copy that waits until its value is read on the target keeps the source's instance alive; one right
after the source's last other reader fills the target earlier. Moving copies changes no seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from onnxremat.planner.problem import Bytes, Problem
from onnxremat.planner.schedule import RUN, Schedule, Step
from onnxremat.planner.semantics import Ledger, bytes_of, ledger


@dataclass(frozen=True)
class _Copy:
    """A copy step: where it is, what it moves, and since when it could happen.

    Attributes:
        alone: first step after the source's instance is made and its other readers are done.
    """

    step: int
    device: int
    source: int
    size: int
    source_size: int
    alone: int


def retimed(
    problem: Problem, schedule: Schedule, budgets: Sequence[int], *, rounds: int = 3
) -> Schedule:
    """Move each copy to the place where the bytes over budget are least, the latest such place."""
    for _ in range(rounds):
        book = ledger(problem, schedule)
        over = bytes_of(problem, schedule, book) - np.asarray(budgets, np.int64)[:, None]
        moves: dict[int, int] = {}
        for copy in _copies(problem, schedule, book):
            place = _least_excess(copy, over)
            if place < copy.step:
                moves[copy.step] = place
                over[copy.source, place : copy.step] -= copy.source_size
                over[copy.device, place : copy.step] += copy.size
        if not moves:
            break
        schedule = _moved(schedule, moves)
    return schedule


def _copies(problem: Problem, schedule: Schedule, book: Ledger) -> Iterator[_Copy]:
    """Copies that may gain by being moved, in order."""
    readers: list[list[int]] = [[] for _ in book.instances]
    for step, instances in enumerate(book.read):
        for instance in instances:
            readers[instance].append(step)
    for step, (value, device, source) in enumerate(schedule.steps):
        if source == RUN or not book.made[step]:
            continue
        origin = book.read[step][0]
        if book.instances[origin].death > step:
            continue  # the source stays anyway: late is best
        others = [s for s in readers[origin] if s < step]
        alone = max([book.instances[origin].birth, *others]) + 1
        yield _Copy(
            step, device, source, int(problem.size[device, value]),
            int(problem.size[source, value]), alone,
        )  # fmt: skip


def _least_excess(copy: _Copy, over: Bytes) -> int:
    window = slice(copy.alone, copy.step)
    late = np.clip(over[copy.source, window], 0, copy.source_size)
    early = np.clip(over[copy.device, window] + copy.size, 0, copy.size)
    total = _sums(late) + early.sum() - _sums(early)
    best = len(total) - 1 - int(total[::-1].argmin())
    return copy.alone + best


def _sums(row: Bytes) -> Bytes:
    """Sums of the first 0, 1, .. entries."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(row)])


def _moved(schedule: Schedule, moves: dict[int, int]) -> Schedule:
    arriving: dict[int, list[Step]] = {}
    for step, place in moves.items():
        arriving.setdefault(place, []).append(schedule.steps[step])
    steps: list[Step] = []
    for step, move in enumerate(schedule.steps):
        steps += arriving.get(step, [])
        if step not in moves:
            steps.append(move)
    return Schedule(tuple(steps), schedule.placement)
