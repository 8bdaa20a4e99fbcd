"""Rounds of annealing, one after the other: what placements of any shape and latency share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from onnxremat.placement.answer import Work
from onnxremat.placement.graph import Index

FIRST = 5_000  # moves of the first rounds
GROWTH = 1.5
SLACK = 1e-9  # relative: a gain that is less is none

Found: TypeAlias = tuple[float, Index]  # a value, and the placement that has it


@dataclass(frozen=True)
class Rounds:
    """How rounds follow each other.

    Attributes:
        heats: of the value at hand, where rounds begin, in turn.
        most: moves of a round.
    """

    heats: tuple[float, float, float]
    most: int

    def improve(
        self,
        pool: Sequence[Found],
        cooled: Callable[[Found, int, float], Found],
        work: Work,
        enough: float,
        count: float = inf,
    ) -> Found:
        """Rounds from the best placement, and from each of the pool in turn, until time is up, the
        value is ``enough``, or there were so many.

        Args:
            cooled: the best of a round from a placement, of so many moves, from a heat on.
        """
        best = min(pool, key=lambda entry: entry[0])
        steps, turn = FIRST, 0
        while turn < count and work.left and best[0] > enough:
            base = best if turn % 3 else pool[turn // 3 % len(pool)]
            found = cooled(base, steps, self.heats[turn % 3])
            if found[0] < best[0] * (1 - SLACK):
                best = found
                work.progress(best[0], enough, "annealing")
            turn += 1
            if turn % 3 == 0:
                steps = min(int(steps * GROWTH), self.most)
        return best
