"""Annealing again and again: which start each run of it has, how hot it is, and how long it takes.

Runs afresh freeze in places that share little with the best schedule there is. What the cut models
know of the whole is a better start: schedules read from their solutions, over budget as they are,
and from continuous solutions rounded at a number drawn at random, each of which leads elsewhere.
What such runs end with is crossed, and the search goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Protocol

import numpy as np

from onnxremat.planner.crossing import Crossings
from onnxremat.planner.incumbent import Incumbent
from onnxremat.planner.lazy_cuts import LazyCuts
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.search.session import Search


@dataclass(frozen=True)
class Tuning:
    """Constants of the walks; rows are those of ``make bench-plan``.

    Attributes:
        near: heat of a run near the best, in mean op costs.
        cools: of runs from schedules over budget, by turns (random_500/80%: which of them pays
            changes).
        short: of the seconds of a run afresh, for each of those.
        rounded, rounding, warm: runs from rounded solutions in a round, on one device, in place of
            one afresh; their seconds per op, and their heats by turns (resnet50/15%, without
            integer solutions to begin at: 9.40 % after 150 s, with hot runs instead 9.82 %).
        crossed, crossing: runs from crossed schedules in a round, on one device, and their seconds
            per op.
        mild: their heats, by turns.
        longest: seconds per op that a run afresh takes at most: what is gained by more is luck.
    """

    near: float = 0.05
    cools: tuple[float, ...] = (0.02, 0.1, 0.04, 0.2)
    short: float = 0.4
    rounded: int = 5
    rounding: float = 0.011
    warm: tuple[float, ...] = (0.05, 0.1, 0.2)
    crossed: int = 20
    crossing: float = 0.006
    mild: tuple[float, ...] = (0.03, 0.1)
    longest: float = 0.04


TUNING = Tuning()


class Owner(Protocol):
    """What the runs are a part of; it takes what they find."""

    incumbent: Incumbent
    lazy: LazyCuts
    options: PlanOptions

    def best(self) -> Schedule | None:
        """The best schedule so far."""

    def anneal(
        self, search: Search, seconds: float, done: Callable[[], bool], heat: float | None,
        start: Schedule | None,
    ) -> Schedule | None:  # fmt: skip
        """Anneal from a start, None for the best; what that came by within the budgets."""


@dataclass
class Walks:
    """The runs of one thread.

    Attributes:
        portfolio: whose runs they are.
        search: of this thread.
        done: True ends the run at hand.
    """

    portfolio: Owner
    search: Search
    done: Callable[[], bool]
    tuning: Tuning = TUNING
    crossings: Crossings = field(init=False)

    def __post_init__(self) -> None:
        seed, tuning = self.portfolio.options.seed, self.tuning
        self.crossings = Crossings(self.search, seed)
        self._random = np.random.default_rng(seed)
        self._seconds = 1.0 + 0.002 * self.search.ops  # of a run afresh
        self._cools, self._warm = cycle(tuning.cools), cycle(tuning.warm)
        self._mild = cycle(tuning.mild)

    def each(self) -> Iterator[None]:
        """Make one run after the other, until the planner or ``done`` ends them."""
        incumbent, alone = self.portfolio.incumbent, self.search.devices == 1
        while not (incumbent.over() or self.done()):
            incumbent.clock.spend(1)  # where there is nothing to start from, too
            if incumbent.left < 2.5 * self._seconds:
                self._seconds = 0.8 * incumbent.left
            yield from self._from_rounded() if self.rounds else self._afresh()
            self._seconds = min(2.0 * self._seconds, self.tuning.longest * self.search.ops)
            if not incumbent.parallel:
                yield from self._from_solutions()
            if alone:
                yield from self._from_crossings()

    @property
    def rounds(self) -> bool:
        """There are continuous solutions to start from."""
        alone = self.search.devices == 1 and not self.portfolio.incumbent.parallel
        return alone and self.tuning.rounded > 0 and bool(self.portfolio.lazy.points)

    def _afresh(self) -> Iterator[None]:
        """From the best, hot enough to leave it; then near what that found."""
        incumbent, known = self.portfolio.incumbent, self.portfolio.incumbent.value
        self._run(None, self._seconds)
        yield
        if incumbent.value < known and not incumbent.parallel:
            self._run(None, 0.25 * self._seconds, self.tuning.near)
            yield

    def _from_rounded(self) -> Iterator[None]:
        tuning = self.tuning
        for _ in range(tuning.rounded):
            start = self.portfolio.lazy.rounded(self._random)
            if start is not None:
                part = min(tuning.rounding * self.search.ops, 0.1 * self.portfolio.incumbent.left)
                self._run(start, part, next(self._warm))
            yield

    def _from_solutions(self) -> Iterator[None]:
        for schedule in self.portfolio.lazy.read:
            self._run(schedule, self.tuning.short * self._seconds, next(self._cools))
            yield

    def _from_crossings(self) -> Iterator[None]:
        for _ in range(self.tuning.crossed):
            self.crossings.add(self.portfolio.best())
            start = self.crossings.draw()
            if start is not None:
                part = min(self._seconds, self.tuning.crossing * self.search.ops)
                self._run(start, part, next(self._mild))
            yield

    def _run(self, start: Schedule | None, seconds: float, heat: float | None = None) -> None:
        found = self.portfolio.anneal(self.search, seconds, self.done, heat, start)
        if self.search.devices == 1 and start is not None:
            self.crossings.add(found)
