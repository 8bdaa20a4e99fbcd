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
FEWEST, SHARE = 100, 0.5  # moves of a round; of the time left, for one round
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
        steps, turn, pace = FIRST, 0, inf
        while turn < count and best[0] > enough and (left := work.left):
            base = best if turn % 3 else pool[turn // 3 % len(pool)]
            # A round is not broken off: one that would take more than what is left is made shorter.
            moves, begun = int(min(steps, max(FEWEST, SHARE * left * pace))), work.taken
            found = cooled(base, moves, self.heats[turn % 3])
            pace = moves / max(work.taken - begun, 1e-9)
            if found[0] < best[0] * (1 - SLACK):
                best = found
                work.progress(best[0], enough, "annealing")
            turn += 1
            if turn % 3 == 0:
                steps = min(int(steps * GROWTH), self.most)
        return best
