"""The search as the planner uses it: one object per problem, budgets and thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from onnxremat.planner.clock import PASSED, REPLAYED, WALL, Clock
from onnxremat.planner.devices.search.anneal import value_of, walk
from onnxremat.planner.devices.search.arrays import arrays_of, pack, scratch_for, unpack
from onnxremat.planner.devices.search.edit import mend, prune
from onnxremat.planner.devices.search.evaluate import evaluate
from onnxremat.planner.devices.search.greedy import fill, polish
from onnxremat.planner.devices.search.streams import makespan
from onnxremat.planner.problem import Bytes, Ints
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import Figures

GROWTH = 5  # schedules may have this many times as many steps as there are ops
CHUNK = 200  # moves between looks at a clock that counts them
SLICE = 0.05  # seconds between looks at the clock
SELDOM = 10  # times the time that telling of an improvement takes before the next is told


class Search:
    """Schedule search for one problem and its budgets.

    Args:
        layout: the problem, ops in base order.
        budgets: bytes per device.
        free_order: let first runs leave the base order.
        seed: random seed.
        clock: what limits are counted by.
    """

    def __init__(
        self, layout: ProblemLists, budgets: Sequence[int], *, free_order: bool = False,
        seed: int = 0, clock: Clock = WALL,
    ) -> None:  # fmt: skip
        self.layout, self.free_order, self.clock = layout, free_order, clock
        self.budget: Bytes = np.asarray(budgets, np.int64)
        self.arrays = arrays_of(layout)
        self.room = GROWTH * layout.problem.ops + 256
        self.scratch = scratch_for(self.arrays, self.room, seed)
        # The steps of the schedule at hand, as numbers, and two lists to edit.
        self.codes, self._trial, self._spare = (np.zeros(self.room, np.int32) for _ in range(3))
        self.left: Schedule | None = None

    def replay(self, schedule: Schedule) -> Figures | None:
        """Figures of a schedule, or None when it is not valid (or far too long)."""
        steps, hold = self._load(schedule), _ints(schedule.placement)
        if steps < 0 or not evaluate(
            self.arrays, self.scratch, self.codes, steps, hold, self.budget, self.free_order
        ):
            return None
        span = makespan(self.arrays, self.scratch, self.codes, steps, self.budget)
        seconds, area = self.scratch.figures[:2].tolist()
        return Figures(seconds, span, tuple(self.scratch.peak.tolist()), area)

    def mended(self, schedule: Schedule) -> Schedule | None:
        """The schedule with copies wherever a value is missing, and nothing unread; or None."""
        steps, hold = self._load(schedule), _ints(schedule.placement)
        if steps < 0:
            return None
        count = mend(self.arrays, self.scratch, self.codes, steps, hold, self._trial)
        if count < 0:
            return None
        mode = (hold, self.budget, self.free_order)
        if not evaluate(self.arrays, self.scratch, self._trial, count, *mode):
            return None
        count = prune(self.arrays, self.scratch, self._trial, count, *mode)
        return Schedule(unpack(self._trial[:count]), schedule.placement)

    def fit(
        self,
        schedule: Schedule,
        until: float,
        stop: Callable[[], bool],
        depth: int,
        power: float,
    ) -> Schedule | None:
        """Greedy repair of a schedule, polished; None when the budgets are not met.

        Leaves what was reached in ``left``.

        Args:
            until: when to stop, on the clock.
            depth: levels of ancestry one candidate may remake.
            power: exponent of the cost in the score.
        """
        start = self.mended(schedule)
        if start is None:
            return None
        steps, hold = self._load(start), _ints(start.placement)
        batch = max(1, self.layout.problem.ops // 400)
        over = np.zeros((self.layout.problem.devices, self.room + 2), np.int64)
        while True:
            steps = fill(
                self.arrays, self.scratch, self.codes, steps, hold, self.budget, self.free_order,
                depth, power, batch, 4, self._trial, self._spare, over,
            )  # fmt: skip
            met = self.scratch.figures[1] <= 0
            self.clock.spend((1 + abs(steps)) / PASSED)
            if met or steps < 0 or self.clock.now() > until or stop():
                break
        self.left = Schedule(unpack(self.codes[: abs(steps)]), schedule.placement)
        return self.polished(self.left) if met else None

    def polished(self, schedule: Schedule) -> Schedule:
        """Delete copies and second runs that the budgets do not need."""
        steps, hold = self._load(schedule), _ints(schedule.placement)
        mode = (hold, self.budget, self.free_order)
        args = (self.arrays, self.scratch, self.codes)
        steps = prune(*args, steps, *mode)
        if steps < 0:
            return schedule
        if self.scratch.figures[1] <= 0:
            steps = polish(*args, steps, *mode, self._trial)
        return Schedule(unpack(self.codes[:steps]), schedule.placement)

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
            parallel: minimise the makespan instead of the sum of all steps.
            heat: starting temperature in mean op costs.
        """
        if self.replay(schedule) is None:
            return
        walker = _Walker(self, schedule, heat, parallel)
        clock = self.clock
        begin = now = clock.now()
        moves, known, told, took = (
            CHUNK if clock.counted else 20, walker.best, 0.0, 0.0
        )  # fmt: skip
        while now < begin + seconds and not stop():
            walker.step((now - begin) / seconds, moves)
            clock.spend(moves * walker.steps / REPLAYED)
            later = clock.now()
            if not clock.counted:
                moves = int(min(1e6, max(10, moves * SLICE / max(1e-4, later - now))))
            now = later
            if walker.best < known and now - told > SELDOM * took:
                known = walker.best
                improved(walker.found())
                told = clock.now()
                took = told - now
        if walker.best < known:
            improved(walker.found())

    def _load(self, schedule: Schedule) -> int:
        steps = len(schedule.steps)
        if steps > self.room - 64:
            return -1
        self.codes[:steps] = pack(schedule.steps)
        return steps


def _ints(hold: Sequence[int]) -> Ints:
    return np.asarray(hold, np.int32)


class _Walker:
    """State of one annealing run."""

    def __init__(self, search: Search, schedule: Schedule, heat: float, parallel: bool) -> None:
        self.search, self.parallel = search, parallel
        self.steps, self.hold = search._load(schedule), _ints(schedule.placement)
        self.kept: Ints = np.zeros(search.room, np.int32)
        self.kept_hold = self.hold.copy()
        problem = search.layout.problem
        finite = problem.cost[np.isfinite(problem.cost)]
        mean_cost = max(1e-300, float(finite.mean()))
        mean_size = max(1.0, float(problem.size.mean()) if problem.values else 1.0)
        self.hot, self.cold = heat * mean_cost, 0.004 * mean_cost
        arrays, scratch = search.arrays, search.scratch
        args = (arrays, scratch, search.codes, self.steps)
        evaluate(*args, self.hold, search.budget, search.free_order)
        area = float(scratch.figures[1])
        value = value_of(*args, search.budget, parallel)
        price = 4 * mean_cost / mean_size
        self.state = np.asarray([price, inf, 0, value, area, price])
        if area <= 0:
            self.state[1], self.state[2] = value, self.steps
            self.kept[: self.steps] = search.codes[: self.steps]

    @property
    def best(self) -> float:
        """Best feasible value so far."""
        return float(self.state[1])

    def found(self) -> Schedule:
        """Best feasible schedule so far."""
        return Schedule(unpack(self.kept[: int(self.state[2])]), tuple(self.kept_hold.tolist()))

    def step(self, share: float, moves: int) -> None:
        """Run moves at the temperature for this share of the run."""
        heat = self.hot * (self.cold / self.hot) ** min(1.0, share)
        search = self.search
        self.steps = walk(
            search.arrays, search.scratch, search.codes, self.steps, self.hold, search.budget,
            search.free_order, self.parallel, heat, moves, self.state, search._trial,
            search._spare, self.kept, self.kept_hold,
        )  # fmt: skip
