"""Placements of any shape by annealing, from placements that are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxremat.placement.answer import Work
from onnxremat.placement.classes import Classes
from onnxremat.placement.graph import Index
from onnxremat.placement.kernels import annealing
from onnxremat.placement.kernels.pieces import Costs
from onnxremat.placement.rounds import Found, Rounds
from onnxremat.planner.search.compiled import generator

ROUNDS = Rounds(heats=(0.03, 0.01, 0.003), most=2_000_000)
COLD = 1e-5


class Annealing:
    """Annealing over the classes of a problem; one load or two maxima."""

    def __init__(self, c: Classes, *, two: bool, seed: int) -> None:
        self.c, self.two = c, two
        graph, (at, of) = c.graph, c.touching
        zero = np.zeros(6)
        zero[0] = graph.memory
        self.costs = Costs(
            np.ascontiguousarray(c.acc), np.ascontiguousarray(c.cpu), c.size,
            c.supported.astype(np.uint8), np.ascontiguousarray(c.cost), at, of,
            np.asarray([len(row) for row in c.nets], np.int64),
            np.asarray([graph.accelerators, graph.cpus], np.int64), zero,
        )  # fmt: skip
        devices, pins = graph.devices, c.pins
        self.state = annealing.State(
            np.zeros(c.count, np.int64), np.zeros((len(c.nets), devices), np.int32),
            np.zeros((devices, 2)), np.zeros(devices), np.zeros(c.count, np.int64), np.zeros(1),
            np.zeros(64, np.int64), *pins, generator(seed + 1),
        )  # fmt: skip

    def value(self, where: Sequence[int] | Index) -> float:
        """Of a device per class."""
        self.state.where[:] = where
        return float(annealing.settle(self.costs, self.state, self.two))

    def round(self, where: Index, steps: int, heat: float) -> tuple[float, Index]:
        """The best of one round of cooling."""
        s = self.state
        value = self.value(where)
        s.best[0] = value
        s.kept[:] = where
        hot, cold = max(heat * value, 1e-300), max(COLD * value, 1e-301)
        annealing.anneal(self.costs, s, steps, hot, min(hot, cold), self.two)
        return float(s.best[0]), s.kept.copy()

    def improve(
        self, starts: Sequence[Index], work: Work, enough: float, rounds: int
    ) -> tuple[float, Index]:
        """Rounds from the best placement, and from each start in turn, until time is up or the
        value is ``enough``. Starts keep all limits, and so does what is found."""
        pool = [(self.value(where), np.asarray(where, np.int64)) for where in starts]

        def cooled(base: Found, steps: int, heat: float) -> Found:
            return self.round(base[1], steps, heat)

        return ROUNDS.improve(pool, cooled, work, enough, rounds)

    def descents(self, starts: Index, walked: Sequence[int]) -> tuple[float, Index]:
        """The released local search from placements on accelerators; memory and CPUs are not
        regarded.

        Args:
            starts: device of each class, shape (restarts, c).
            walked: classes in the order in which moves are tried; of equally good ones the first
                is made.
        """
        best: tuple[float, Index] | None = None
        for start in starts:
            self.state.where[:] = start
            annealing.descend(self.costs, self.state, np.asarray(walked, np.int64), 1e-5)
            if best is None or self.state.best[0] < best[0]:
                best = float(self.state.best[0]), self.state.where.copy()
        assert best is not None
        return best
