"""The search as the ladder uses it: one object per problem, budget and thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from onnxremat.planner.clock import MOVES, PASSED, WALL, Clock
from onnxremat.planner.problem import Bytes, Problem, Rows
from onnxremat.planner.search.anneal import walk
from onnxremat.planner.search.compiled import arrays_of, generator, scratch_for
from onnxremat.planner.search.edit import prune
from onnxremat.planner.search.evaluate import evaluate
from onnxremat.planner.search.greedy import fill, polish
from onnxremat.planner.search.timeline import lay_out, line_for, read_out

GROWTH = 4  # sequences may be this many times as long as the op list
CHUNK = 2000  # moves between looks at a clock that counts them
SLICE = 0.05  # seconds between looks at the clock
LARGE, SPARSE, DENSE = 4000, 16, 6  # slots per step up to so many ops, and beyond


class Search:
    """Sequence search for one problem and budget.

    Args:
        problem: ops in base order.
        budget: bytes.
        free_order: let first runs leave the base order.
        seed: random seed.
        clock: what limits are counted by.
    """

    def __init__(
        self, problem: Problem, budget: int, *, free_order: bool = False, seed: int = 0,
        clock: Clock = WALL,
    ) -> None:  # fmt: skip
        self.problem, self.budget, self.free_order = problem, budget, free_order
        self.clock = clock
        self.arrays = arrays_of(problem)
        self.room = GROWTH * problem.ops + 256
        self.scratch = scratch_for(self.arrays, self.room)
        self.random = generator(seed)
        self._sequence, self._trial = (np.zeros(self.room + 64, np.int32) for _ in range(2))

    def replay(self, sequence: Sequence[int]) -> tuple[float, int, float] | None:
        """(seconds, peak bytes, excess area) of a sequence, or None when it is not valid."""
        steps = self._load(sequence)
        if steps < 0:
            return None
        if not evaluate(
            self.arrays, self.scratch, self._sequence, steps, self.budget, self.free_order
        ):
            return None
        seconds, peak, area, _ = self.scratch.figures.tolist()
        return seconds, int(peak), area

    def usage(self, sequence: Sequence[int]) -> Bytes:
        """Bytes per step, equal to :func:`onnxremat.planner.problem.occupancy`.

        Raises:
            ValueError: the sequence is not valid.
        """
        if self.replay(sequence) is None:
            raise ValueError("not a valid sequence")
        return self.scratch.use[: len(sequence)].copy()

    def fit(
        self,
        sequence: Sequence[int],
        until: float,
        stop: Callable[[], bool],
        depth: int,
        power: float,
    ) -> list[int] | None:
        """Greedy insertion from a sequence, polished; None when the budget is not met.

        Args:
            until: when to stop, on the clock.
            depth: levels of ancestry one candidate may remake.
            power: exponent of the cost in the score.
        """
        steps = self._load(sequence)
        if steps < 0:
            return None
        batch = max(1, self.problem.ops // 400)
        args = (self.arrays, self.scratch, self._sequence)
        mode = (self.budget, self.free_order)
        while True:
            steps = fill(*args, steps, *mode, depth, power, batch, 4, self._trial)
            met = self.scratch.figures[2] <= 0
            self.clock.spend((1 + abs(steps)) / PASSED)
            if met or steps < 0 or self.clock.now() > until or stop():
                break
        self.left = self._sequence[: abs(steps)].tolist()
        if not met:
            return None
        return self.polished(self.left)

    def polished(self, sequence: Sequence[int]) -> list[int]:
        """Delete second runs that the budget does not need."""
        steps = self._load(sequence)
        mode = (self.budget, self.free_order)
        args = (self.arrays, self.scratch, self._sequence)
        steps = prune(*args, steps, *mode)
        if self.scratch.figures[2] <= 0:
            steps = polish(*args, steps, *mode, self._trial)
        found: list[int] = self._sequence[:steps].tolist()
        return found

    def anneal(
        self,
        sequence: Sequence[int],
        seconds: float,
        stop: Callable[[], bool],
        improved: Callable[[list[int], float], None],
        *,
        heat: float = 0.6,
        target: float = -inf,
    ) -> list[int] | None:
        """Anneal from a sequence; ``improved`` is called with each better feasible one.

        Args:
            heat: starting temperature in mean op costs.
            target: seconds of compute at which to stop.
        """
        self.clock.spend(1)
        if self.replay(sequence) is None:
            return None
        walker = _Walker(self, sequence, heat)
        if not walker.ready:
            return None
        clock = self.clock
        begin = now = clock.now()
        moves = CHUNK if clock.counted else 20
        known = inf
        while now < begin + seconds and not stop():
            share = (now - begin) / seconds
            walker.step(share, moves)
            clock.spend(moves / MOVES)
            later = clock.now()
            if not clock.counted:
                moves = int(min(1e6, max(10, moves * SLICE / max(1e-4, later - now))))
            now = later
            if walker.time < known:
                known = walker.time
                improved(walker.found(), known)
                if known <= target:
                    break
        return walker.found() if known < inf else None

    def _load(self, sequence: Sequence[int]) -> int:
        steps = len(sequence)
        if steps > self.room - 64:
            return -1
        self._sequence[:steps] = sequence
        return steps


class _Walker:
    """State of one annealing run from a valid sequence."""

    def __init__(self, search: Search, sequence: Sequence[int], heat: float) -> None:
        self.search = search
        problem, self.room = search.problem, search.room
        steps, apart = len(sequence), SPARSE if problem.ops <= LARGE else DENSE
        self.line = line_for(search.arrays, apart * (steps + 1), search.budget, search.random)
        self._spare, self._best = (np.zeros(self.room, np.int32) for _ in range(2))
        self._spare[:steps] = sequence
        self.ready = lay_out(search.arrays, self.line, self._spare, steps)
        mean_cost = max(1e-300, float(problem.cost.mean()))
        mean_size = max(1.0, float(problem.size.mean()) if problem.values else 1.0)
        self.hot, self.cold = heat * mean_cost, 0.004 * mean_cost
        seconds, area = self.line.sums.tolist()
        self.state = np.asarray([4 * mean_cost / mean_size, inf, 0])
        if area <= 0:
            self.state[1], self.state[2] = seconds, steps
            self._best[:steps] = sequence

    @property
    def time(self) -> float:
        """Best feasible seconds so far."""
        return float(self.state[1])

    def found(self) -> list[int]:
        """Best feasible sequence so far."""
        sequence: list[int] = self._best[: int(self.state[2])].tolist()
        return sequence

    def step(self, share: float, moves: int) -> None:
        """Run moves at the temperature for this share of the run."""
        heat = self.hot * (self.cold / self.hot) ** min(1.0, share)
        arrays, free = self.search.arrays, self.search.free_order
        walk(arrays, self.line, self.room, free, heat, moves, self.state, self._spare, self._best)
        steps = read_out(self.line, self._spare)
        lay_out(arrays, self.line, self._spare, steps)  # evenly spread, and sums without drift


def warm_up() -> float:
    """Compile every kernel (or load it from the cache); returns the seconds it took."""
    begin = time.monotonic()
    problem = Problem.single(
        cost=np.ones(3),
        work=np.zeros(3, np.int64),
        reads=Rows.of([[], [0], [0, 1]]),
        writes=Rows.of([[0], [1], [2]]),
        size=np.ones(3, np.int64),
        keep=np.zeros(3, np.bool_),
        inplace=Rows.of([[], [], []]),
        recompute=np.ones(3, np.bool_),
    )
    search = Search(problem, 2)
    search.fit([0, 1, 2], time.monotonic() + 1, lambda: False, 1, 1.0)
    search.anneal([0, 1, 2], 0.01, lambda: False, lambda _s, _t: None)
    return time.monotonic() - begin
