"""Iterated list scheduling: many quick schedules, each from guesses a little off the best ones.

A pass of :mod:`.decode` takes a millisecond for thousands of ops and moves all of them at once,
where a move of annealing replays the whole schedule for a single one. Its guesses are how far ops
are taken out of the base order, what a copy has to earn, and for some ops a preference for a
device; they are changed at random, and kept when the schedule that they lead to is no worse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from onnxremat.planner.clock import PASSED
from onnxremat.planner.problem import Bytes, Floats, Ints
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.search.anneal import value_of
from onnxremat.planner.search.arrays import runs_in, unpack
from onnxremat.planner.search.decode import Pass, list_schedule, queue_for, take_order
from onnxremat.planner.search.evaluate import evaluate
from onnxremat.planner.search.session import TUNING as SESSION
from onnxremat.planner.search.session import Search


class Tuning(NamedTuple):
    """What guesses are made of."""

    # Windows, shares of the ops. The first ``grid`` are tried with the first ``copies`` below.
    ahead: tuple[float, ...] = (0.03, 0.0, 0.01, 0.1, 0.3, 1.0, 0.003, 0.02, 0.05, 0.2)
    # What a copy must earn, in mean copies.
    earned: tuple[float, ...] = (4.0, 1.0, 16.0, 0.25, 0.5, 2.0, 8.0, 32.0)
    grid: int = 6
    copies: int = 4
    changed: float = 0.02  # share of the ops that get another preference at once, at most
    heat: float = 0.001  # share of the value by which a guess may be worse at first
    cool: int = 2  # power of the share of the time left in that
    again: float = 0.3  # of guesses with another window, and of those with another reluctance
    runs: float = 0.3  # of changes that are to neighbours in the base order
    strength: float = 3.0  # of a preference, in mean copies
    repaired: int = 3  # schedules over budget that are worth a repair


TUNING = Tuning()
GRID = TUNING.grid * TUNING.copies  # first guesses, without preferences


class Guess(NamedTuple):
    """What a pass goes by.

    Attributes:
        window: ops that one may be taken ahead of the first that is left.
        reluctance: seconds that a copy must earn.
        bias: seconds by which an op is said to finish later on a device, shape (D, n).
    """

    window: int
    reluctance: float
    bias: Floats


class Lists:
    """Iterated list scheduling for the makespan.

    Args:
        search: whose problem, budgets and work space are used.
        fixed_order: first runs keep the base order.
    """

    def __init__(self, search: Search, fixed_order: bool) -> None:
        self.search, self.fixed_order, self.lists = search, fixed_order, search.lists
        problem = self.lists.problem
        finite = problem.copy[np.isfinite(problem.copy)]
        self.copy = float(finite.mean()) if finite.size else 0.0
        self.urgency = _urgency(search)
        self._barred = _barred(search)
        self._state = _state(search)
        self._queue = queue_for(problem.ops)
        self._random = np.random.default_rng(int(search.scratch.random[0] % (1 << 32)))
        self._wide: list[tuple[float, int, Schedule]] = []  # over budget: value, number
        self.least = np.inf  # best value within budgets

    def run(
        self, seconds: float, stop: Callable[[], bool], improved: Callable[[Schedule], None]
    ) -> None:
        """Try guesses for a while; schedules within budgets go to ``improved`` as they get
        better."""
        clock = self.search.clock
        begin, seconds = clock.now(), max(1e-3, seconds)
        known, count, told, took = (np.inf, np.inf), 0, 0.0, 0.0
        here = guess = self._grid(0)
        pending: Schedule | None = None
        while True:
            area, value, steps = self._pass(guess)
            if area <= 0 and value < self.least:
                pending, self.least = self._schedule(steps), value
            heat = TUNING.heat * max(0.0, 1 - (clock.now() - begin) / seconds) ** TUNING.cool
            if steps and (area, value * (1 + heat * np.log(self._random.random()))) <= known:
                here, known = guess, (area, value)
            if area > 0 and steps and count < GRID:
                self._set_aside(value, count, steps)
            clock.spend((1 + abs(steps)) / PASSED)
            now, count = clock.now(), count + 1
            hopeless = count == GRID and known[0] == np.inf
            late = now > begin + seconds or hopeless or stop()
            if pending is not None and (late or now - told > SESSION.seldom * took):
                improved(pending)
                pending, told = None, clock.now()
                took = told - now
            if late:
                return
            guess = self._grid(count) if count < GRID else self._near(here)

    def over(self) -> list[Schedule]:
        """Schedules over budget that would be better than the best within, best first."""
        return [found for value, _, found in sorted(self._wide) if value < self.least]

    def _set_aside(self, value: float, number: int, steps: int) -> None:
        worst = max(self._wide, default=(np.inf, 0))[0]
        if len(self._wide) < TUNING.repaired or value < worst:
            self._wide = sorted([*self._wide, (value, number, self._schedule(steps))])[
                : TUNING.repaired
            ]

    def _grid(self, count: int) -> Guess:
        """One of the first guesses: no preferences."""
        problem = self.lists.problem
        window = int(TUNING.ahead[count % TUNING.grid] * problem.ops)
        reluctance = TUNING.earned[count // TUNING.grid % TUNING.copies] * self.copy
        return Guess(window, reluctance, np.zeros_like(problem.cost))

    def _near(self, guess: Guess) -> Guess:
        """Other preferences for a few ops, and now and then another window or reluctance."""
        draw, (devices, ops) = self._random, guess.bias.shape
        window, reluctance, bias = guess.window, guess.reluctance, guess.bias.copy()
        if draw.random() < TUNING.again:
            window = int(draw.choice(TUNING.ahead) * ops)
        if draw.random() < TUNING.again:
            reluctance = float(draw.choice(TUNING.earned)) * self.copy
        many = int(np.exp(draw.uniform(0.0, np.log(1 + TUNING.changed * ops))))
        changed = draw.integers(ops, size=many)
        if draw.random() < TUNING.runs:  # neighbours in the base order instead
            changed = np.arange(changed[0], min(ops, changed[0] + many))
            bias[draw.integers(devices), changed] = draw.normal(0.0, TUNING.strength * self.copy)
            return Guess(window, reluctance, bias)
        there = draw.integers(devices, size=len(changed))
        bias[there, changed] = draw.normal(0.0, TUNING.strength * self.copy, len(changed))
        return Guess(window, reluctance, bias)

    def _pass(self, guess: Guess) -> tuple[float, float, int]:
        """Bytes over budget summed over steps, value, number of steps (0: no schedule)."""
        search = self.search
        window = 0 if self.fixed_order else guess.window
        take_order(search.arrays, self._queue, self.urgency, window)
        order = self._queue.order
        steps = list_schedule(search.arrays, self._begin(guess.bias), order, guess.reluctance)
        if not 0 <= steps <= search.room - 64:
            return np.inf, np.inf, 0
        codes = self._state.out
        if not self.fixed_order:
            codes[:steps] = codes[:steps][np.argsort(self._state.start[:steps], kind="stable")]
        search.free_order = not self.fixed_order
        if not evaluate(
            search.arrays, search.scratch, codes, steps, self._placement(codes[:steps])
        ):
            return np.inf, np.inf, 0
        area = float(search.scratch.figures[1])
        value = value_of(search.arrays, search.scratch, search.streams, codes, steps, True)
        return area, value, steps

    def _begin(self, bias: Floats) -> Pass:
        """The state before the first op."""
        state, problem = self._state, self.lists.problem
        state.there.fill(np.inf)
        for clock in (state.link, state.free, state.used, state.home):
            clock.fill(0)
        np.copyto(state.live, problem.fixed)
        np.copyto(state.unread, np.diff(self.search.arrays.reader_start))
        np.add(bias, self._barred, out=state.bias)
        return state

    def _schedule(self, steps: int) -> Schedule:
        codes = self._state.out[:steps]
        return Schedule(unpack(codes), tuple(self._placement(codes).tolist()))

    def _placement(self, codes: Ints) -> Ints:
        """Where results end: on the required device, or where they are made."""
        device = np.zeros(self.lists.problem.ops, np.int32)
        ops, where = runs_in(codes)
        device[ops] = where
        arrays = self.search.arrays
        made = np.where(arrays.required >= 0, arrays.required, device[arrays.producer])
        return np.where(arrays.keep, made, -1).astype(np.int32)


def _barred(search: Search) -> Floats:
    """``inf`` where a device cannot run an op with its whole colocation group, shape (D, n)."""
    able = np.isfinite(search.lists.problem.cost)
    for members in search.lists.members.values():
        able[:, members] = able[:, members].all(axis=1, keepdims=True)
    return np.where(able, 0.0, np.inf)


def _state(search: Search) -> Pass:
    problem = search.lists.problem
    devices, ops, values = problem.devices, problem.ops, problem.values
    most = ops + devices * values  # steps
    return Pass(
        there=np.zeros((devices, values), np.float64),
        link=np.zeros((devices, devices), np.float64),
        ahead=np.zeros(devices, np.float64),
        free=np.zeros(devices, np.float64),
        live=np.zeros(devices, np.int64),
        used=np.zeros((devices, problem.weight.shape[1]), np.uint8),
        home=np.zeros(int(problem.group.max(initial=0)) + 1, np.int64),
        unread=np.zeros(values, np.int64),
        excess=_excess(search),
        bias=np.zeros((devices, ops), np.float64),
        out=np.zeros(most, np.int32),
        start=np.zeros(most, np.float64),
    )


def _excess(search: Search) -> Bytes:
    """Workspace and outputs of each op, less the budget, shape (D, n)."""
    problem = search.lists.problem
    writes = np.repeat(np.arange(problem.ops), np.diff(problem.writes.start))
    made = np.zeros((problem.devices, problem.ops), np.int64)
    for device in range(problem.devices):
        np.add.at(made[device], writes, problem.size[device, problem.writes.index])
    return made + problem.work - search.arrays.budget[:, None]


def _urgency(search: Search) -> Floats:
    """Seconds from the start of each op to the end: the mean over devices, copies counting half
    (many are saved), shape (n,)."""
    layout, problem = search.lists, search.lists.problem
    able = np.isfinite(problem.cost)
    cost = np.where(able, problem.cost, 0.0).sum(axis=0) / able.sum(axis=0)
    usable = np.isfinite(problem.copy).any(axis=(0, 1))
    copy = np.where(usable, 0.5 * problem.copy.min(axis=(0, 1)), 0.0)
    rank: list[float] = cost.tolist()
    way: list[float] = copy.tolist()
    for op in range(problem.ops - 1, -1, -1):
        after = 0.0
        for value in layout.writes[op]:
            for reader in layout.readers[value]:
                after = max(after, rank[reader] + way[value])
        rank[op] += after
    return np.asarray(rank, np.float64)
