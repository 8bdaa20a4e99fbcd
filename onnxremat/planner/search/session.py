"""The search as the planner uses it: one object per problem, budgets and thread.

Inside, schedules are steps as numbers; those of one device are annealed by a walk of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from onnxremat.planner.clock import MOVES, PASSED, REPLAYED, WALL, Clock
from onnxremat.planner.problem import Ints
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.search.arrays import (
    arrays_of,
    pack,
    scratch_for,
    unpack,
)
from onnxremat.planner.search.edit import mended
from onnxremat.planner.search.evaluate import evaluate
from onnxremat.planner.search.greedy import TUNING as GREEDY
from onnxremat.planner.search.greedy import Pool, fill, polish, pool_for
from onnxremat.planner.semantics import Figures

if TYPE_CHECKING:
    from onnxremat.planner.search.streams import Streams


class Tuning(NamedTuple):
    """How the search is driven."""

    growth: int = 5  # schedules may have this many times as many steps as there are ops
    spare: int = 64  # steps that one handed in must be shorter than that: what moves may add
    first: int = 20  # moves before the first look at the clock
    chunk: int = 200  # moves between looks at a clock that counts them
    slice: float = 0.05  # seconds between looks at the wall's: soon enough for Ctrl-C
    seldom: float = 10.0  # times as long as telling of an improvement took until the next is told


TUNING = Tuning()


class Walker(Protocol):
    """An annealing run, by replay or incremental."""

    steps: int

    @property
    def best(self) -> float:
        """Best feasible value so far."""

    @property
    def ready(self) -> bool:
        """The schedule to start from is one that the walk can work on."""

    def found(self) -> tuple[Ints, Ints]:
        """Best feasible schedule so far, and where its results end."""

    def step(self, share: float, moves: int) -> None:
        """Run moves at the temperature for this share of the run."""


class Search:
    """Schedule search for one problem and its budgets.

    Args:
        lists: the problem, ops in base order.
        budgets: bytes per device.
        free_order: let first runs leave the base order.
        seed: random seed.
        clock: what limits are counted by.
    """

    def __init__(
        self, lists: ProblemLists, budgets: Sequence[int], *, free_order: bool = False,
        seed: int = 0, clock: Clock = WALL,
    ) -> None:  # fmt: skip
        self.lists, self.clock = lists, clock
        self.arrays = arrays_of(lists, budgets)
        self.devices, self.ops = self.arrays.cost.shape
        self.room = TUNING.growth * self.ops + 256
        self.scratch = scratch_for(self.arrays, self.room, seed)
        self.codes: Ints = np.zeros(self.room, np.int32)  # the schedule at hand
        self._placement: Ints = np.full(len(self.arrays.keep), -1, np.int32)
        self.free_order = free_order
        self.left: Schedule | None = None

    def _load(self, schedule: Schedule) -> int:
        """Write a schedule into ``codes`` and ``_placement``; its length, -1 when too long."""
        steps = len(schedule.steps)
        if steps > self.room - TUNING.spare:
            return -1
        self.codes[:steps], self._placement[:] = pack(schedule.steps), schedule.placement
        return steps

    def _read(self, codes: Ints, placement: Ints) -> Schedule:
        return Schedule(unpack(codes), tuple(placement.tolist()))

    def allow(self, budgets: Sequence[int]) -> None:
        """Search within other budgets from here on, bytes per device."""
        self.arrays.budget[:] = budgets

    @property
    def free_order(self) -> bool:
        """First runs may leave the base order."""
        return bool(self.arrays.free[0])

    @free_order.setter
    def free_order(self, free: bool) -> None:
        self.arrays.free[0] = free

    @cached_property
    def streams(self) -> Streams:
        """Work space of the makespan."""
        from onnxremat.planner.search.streams import streams_for

        return streams_for(self.arrays, self.scratch, self.room)

    @cached_property
    def _pool(self) -> Pool:
        return pool_for(self.arrays, self.scratch, self.room)

    def replay(self, schedule: Schedule) -> Figures | None:
        """Figures of a schedule, or None when it is not valid (or far too long)."""
        steps = self._load(schedule)
        if steps < 0 or not evaluate(self.arrays, self.scratch, self.codes, steps, self._placement):
            return None
        seconds, area = self.scratch.figures.tolist()
        return Figures(seconds, self._makespan(steps), tuple(self.scratch.peak.tolist()), area)

    def _makespan(self, steps: int) -> float:
        if self.devices == 1:
            return float(self.scratch.figures[0])
        from onnxremat.planner.search.streams import makespan

        return float(makespan(self.arrays, self.scratch, self.streams, self.codes, steps))

    def mended(self, schedule: Schedule) -> Schedule | None:
        """The schedule with copies wherever a value is missing, and nothing unread; or None."""
        steps = self._mend(schedule)
        return None if steps < 0 else self._read(self.codes[:steps], self._placement)

    def _mend(self, schedule: Schedule) -> int:
        steps, out = self._load(schedule), self._pool.trial
        if steps < 0:
            return -1
        return int(mended(self.arrays, self.scratch, self.codes, steps, self._placement, out))

    def fit(
        self, schedule: Schedule, until: float, stop: Callable[[], bool], depth: int, power: float
    ) -> Schedule | None:
        """Greedy repair of a schedule, polished; None when the budgets are not met.

        Leaves what was reached in ``left``, None where the schedule cannot be mended.

        Args:
            until: when to stop, on the clock.
            depth: levels of ancestry one candidate may recompute.
            power: exponent of the cost in the score.
        """
        self.left, steps = None, self._mend(schedule)
        if steps < 0:
            return None
        args = (self.arrays, self.scratch, self._pool, self.codes)
        batch = max(1, self.ops // GREEDY.batch)
        while True:
            steps = fill(*args, steps, self._placement, depth, power, batch, GREEDY.rounds)
            met = self.scratch.figures[1] <= 0
            self.clock.spend((1 + abs(steps)) / PASSED)
            if met or steps < 0 or self.clock.now() > until or stop():
                break
        self.left = self._read(self.codes[: abs(steps)], self._placement)
        if not met:
            return None
        return self._read(self._polished(steps), self._placement)

    def polished(self, schedule: Schedule) -> Schedule:
        """Delete copies and second runs that the budgets do not need."""
        steps = self._load(schedule)
        codes = self._polished(steps) if steps >= 0 else self.codes[:0]
        return self._read(codes, self._placement) if len(codes) else schedule

    def _polished(self, steps: int) -> Ints:
        """The steps of ``codes`` that are needed; none where they are not a valid schedule."""
        if self.devices == 1:
            from onnxremat.planner.search.deletion import lightened

            found = lightened(self.arrays, self.codes[:steps], self.scratch.random)
            if found is not None:
                return found
        args = (self.arrays, self.scratch, self._pool, self.codes)
        return self.codes[: max(0, polish(*args, steps, self._placement))]

    def anneal(
        self,
        schedule: Schedule,
        seconds: float,
        stop: Callable[[], bool],
        improved: Callable[[Schedule], None],
        *,
        parallel: bool = False,
        heat: float = 0.6,
    ) -> None:
        """Anneal from a schedule; ``improved`` is called with better feasible ones.

        Args:
            seconds: on the clock.
            parallel: minimise the makespan instead of the sum of all steps.
            heat: starting temperature in mean op costs.
        """
        clock = self.clock
        clock.spend(1)
        steps = self._load(schedule)
        if steps < 0 or not evaluate(self.arrays, self.scratch, self.codes, steps, self._placement):
            return
        walker = self._walker(steps, heat, parallel)
        if not walker.ready:
            return
        begin = now = clock.now()
        moves, known, told, took = (
            TUNING.chunk if clock.counted else TUNING.first,
            walker.best,
            0.0,
            0.0,
        )
        while now < begin + seconds and not stop():
            walker.step((now - begin) / seconds, moves)
            clock.spend(moves / MOVES if self.devices == 1 else moves * walker.steps / REPLAYED)
            later = clock.now()
            if not clock.counted:
                moves = int(min(1e6, max(10, moves * TUNING.slice / max(1e-4, later - now))))
            now = later
            if walker.best < known and now - told > TUNING.seldom * took:
                known = walker.best
                improved(self._read(*walker.found()))
                told = clock.now()
                took = told - now
        if walker.best < known:
            improved(self._read(*walker.found()))

    def _walker(self, steps: int, heat: float, parallel: bool) -> Walker:
        """An annealing run from the schedule at hand."""
        codes, placement = self.codes[:steps], self._placement
        if self.devices == 1:
            from onnxremat.planner.search import incremental

            random = self.scratch.random
            return incremental.Walker(self.arrays, codes, placement, random, heat, self.room)
        from onnxremat.planner.search import anneal

        space = (self.arrays, self.scratch, self.streams)
        return anneal.Walker(space, codes, placement, heat, self.room, parallel)
