"""Starts for annealing from schedules that it has found: a stretch of one put into another.

Walks end in different places that share little. A stretch between two first runs, taken from one
into another, may be where the one recomputes cheaply and the other does not. What is missing then
is brought, and what does not fit is for the walk to mend. (Two-point crossover of genetic
algorithms, on sequences that agree on the order of first runs, or nearly so.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from onnxremat.planner.schedule import Schedule
from onnxremat.planner.search.session import Search

SAME = 1e-6  # relative difference of seconds up to which two schedules count as one


@dataclass
class Crossings:
    """The best different schedules that walks on one device have ended with, and what is made of
    two of them.

    Attributes:
        search: replays and mends.
        most: schedules that are kept.
    """

    search: Search
    seed: int
    most: int = 12
    pool: list[tuple[float, Schedule]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def add(self, schedule: Schedule | None) -> None:
        """Keep a schedule within budget unless an equally quick one is there."""
        figures = None if schedule is None else self.search.replay(schedule)
        if schedule is None or figures is None or figures.area > 0:
            return
        took = figures.seconds
        if all(abs(took - known) > SAME * took for known, _ in self.pool):
            self.pool.append((took, schedule))
            self.pool = sorted(self.pool, key=lambda one: one[0])[: self.most]

    def draw(self) -> Schedule | None:
        """A good one with a stretch of any other, or the other way round, perhaps over budget; None
        while there is nothing to cross, or where what is missing cannot be made again."""
        count, random = len(self.pool), self._random
        if count < 2:
            return None
        good = min(int(random.exponential(count / 3)), count - 1)
        other = (good + 1 + int(random.integers(count - 1))) % count
        into, out_of = self.pool[good][1], self.pool[other][1]
        if random.random() < 0.5:
            into, out_of = out_of, into
        begin, end = sorted(random.choice(self.search.ops, 2, replace=False).tolist())
        crossed = stretch_of(into, out_of, begin, end)
        return None if crossed is None else self.search.mended(crossed)


def stretch_of(into: Schedule, out_of: Schedule, begin: int, end: int) -> Schedule | None:
    """``into`` with what ``out_of`` does from the first run of op ``begin`` to that of ``end``.

    None where one of them runs ``end`` first. Values may be missing.
    """
    ours, theirs = _first_runs(into), _first_runs(out_of)
    if ours[begin] > ours[end] or theirs[begin] > theirs[end]:
        return None
    middle = out_of.steps[theirs[begin] : theirs[end]]
    steps = (*into.steps[: ours[begin]], *middle, *into.steps[ours[end] :])
    return Schedule(steps, into.placement)


def _first_runs(schedule: Schedule) -> dict[int, int]:
    """Step of the first run of every op."""
    return {step.item: k for k, step in reversed(list(enumerate(schedule.steps))) if step.runs}
