"""The clock of planning: the wall's, or one that only counted work moves.

With a limit of work the same seed gives the same plan on any machine, however busy. A unit is about
a millisecond of one processor: 100 moves of the annealing of one device (20 000 steps replayed by
that of several), a pass of the greedy search over 2 000 steps, 50 orders looked at, or a hundred
rows of a model each time that its solver looks up (once or twice a node).
"""

from __future__ import annotations

from time import monotonic

UNITS = 1000.0  # of work in what counts as a second
MOVES = 100.0  # of annealing in a unit
REPLAYED = 20_000.0  # steps that moves replay in a unit
PASSED = 2_000.0  # steps of a greedy pass in a unit
ORDERS = 50.0  # sets of executed ops in a unit
ROWS = 100.0  # of a model in a unit, each time its solver looks up
PIVOTS = 20_000.0  # rows times simplex iterations in a unit


class Clock:
    """Seconds of the wall."""

    counted = False

    def now(self) -> float:
        """Seconds since some moment."""
        return monotonic()

    def spend(self, units: float) -> None:
        """Work was done."""


class WorkClock(Clock):
    """A clock that only work moves."""

    counted = True

    def __init__(self) -> None:
        self._units = 0.0

    def now(self) -> float:
        return self._units / UNITS

    def spend(self, units: float) -> None:
        self._units += units


WALL = Clock()
