"""A step whose update the processes of one machine share: parameters and optimizer state are there
once, in memory that all of them see, and each process updates its stretch of them, from
everybody's gradients.

Nothing is sent, and nothing is written twice: of n processes each reads n gradients of an n-th of
the parameters. Before an update all gradients have to be there, after it all stretches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from onnxremat.errors import ExhaustedError
from onnxremat.graph.ir import Op
from onnxremat.ort.denormals import denormals_as_zero
from onnxremat.workers.mpi import Ranks
from onnxremat.workers.pieces import Pieces, Pool, cut
from onnxremat.workers.sums.alike import GRADIENT, NEW, STATE, Alike, Formulas
from onnxremat.workers.sums.common_memory import CommonMemory
from onnxremat.workers.sums.fused import Loop, loop_of
from onnxremat.workers.sums.halves import Halves
from onnxremat.workers.sums.layers import Key
from onnxremat.workers.sums.overlap import SHARED, InParts, Overlapped
from onnxremat.workers.sums.rooms import Rooms

T = TypeVar("T")
EDGE = 16  # elements at whose multiples processes part: those of a cache line


class SharedUpdate:
    """This process's share of an update.

    Args:
        formulas: the update.
        parts: the step; state that the formulas change moves to common memory, and its sums lie
            there, a layer per formula.
        averaged: names of state that each process moves by itself, and that become means.
    """

    def __init__(
        self,
        formulas: Formulas,
        parts: InParts,
        averaged: Sequence[str],
        ranks: Ranks,
        common: CommonMemory,
    ) -> None:
        state, options = parts.state, parts.options
        without = {SHARED: formulas.common} if formulas.common else {}
        own = {op.name for op in formulas.common}
        rest = [op for op in formulas.update.ops if op.name not in own]
        pieces = cut(formulas.update, {**without, SHARED - 1: rest}, parts.halves.told)
        mine = {key: piece for key, piece in pieces.items() if key in without}
        self._pieces = Pieces(mine, state, options, Pool())
        self._made = sorted({name for piece in mine.values() for name in piece.makes})
        self._numbers = {n: np.zeros((), np.float32) for row in formulas.alike for n in row.given}
        self._loops = list[tuple[Loop, list[np.ndarray], list[np.ndarray]]]()
        self._common, self._mean = common, 1.0 / ranks.size
        moved = Rooms(state.arrays, dict.fromkeys(averaged, 0), common.stretch).all
        self._averaged = [_had(common.rows(room))[ranks.rank] for room in moved]
        for k, alike in enumerate(formulas.alike):
            rooms = _together(alike, state.arrays, common)
            (room,) = parts.sums.slices([k])
            self._take(alike, _had(common.rows(room)), rooms, ranks)

    def _take(
        self,
        alike: Alike,
        gradients: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        ranks: Ranks,
    ) -> None:
        """This process's share of the elements of a formula."""
        names = {f"{GRADIENT}{k}": row for k, row in enumerate(gradients)}
        names |= {f"{STATE}{k}": row for k, row in enumerate(states)}
        changed = {f"{STATE}{k}": f"{STATE}{k}{NEW}" for k in alike.changes}
        size = gradients[0].size
        share = -(-size // ranks.size // EDGE) * EDGE
        own = slice(ranks.rank * share, min(size, (ranks.rank + 1) * share))
        numbers = [self._numbers[name] for name in alike.given]
        loop = loop_of(alike.formula, list(names), changed)
        self._loops.append((loop, [row[own] for row in names.values()], numbers))

    def run(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Update this process's stretches."""
        self._common.add_share(self._averaged, self._mean)
        flight = self._pieces.flight(feeds, (), Counter(self._made))
        for key in self._pieces.pieces:
            self._pieces.run(key, flight)
        for name, number in self._numbers.items():
            given = flight.values[name].array if name in self._made else feeds[name]
            number[...] = given.reshape(())
        flight.end()
        with denormals_as_zero():
            for loop, rows, numbers in self._loops:
                loop(*rows, *(number[()] for number in numbers))

    def abandon(self) -> None:
        """Stop the run that is on, and every later one; from any thread."""
        self._pieces.abandon()


def _together(
    alike: Alike, arrays: dict[str, np.ndarray], common: CommonMemory
) -> list[np.ndarray]:
    """Each state of all these parameters as one row in memory that all processes have in common,
    laid out as their gradients are."""
    found = []

    def make(size: int) -> np.ndarray:
        return _had(common.one_for_all(size))

    for names in zip(*alike.states, strict=True):
        found += Rooms(arrays, dict.fromkeys(names, 0), make).all
    return found


def _had(found: T | None) -> T:
    """What common memory gave.

    Raises:
        ExhaustedError: nothing; processes would train apart, each by itself.
    """
    if found is None:
        raise ExhaustedError(
            "no memory for parameters that all processes have in common",
            why="the system gave a little of it, but not as much as they take",
            hint="fewer processes, or more memory",
        )
    return found


class Together(Overlapped):
    """A step in one piece, its update shared by the processes of this machine.

    Attributes:
        part: this process's part of the update.
        ranks: all of them.
        eager: seconds in which they wait for each other with a busy core.
    """

    part: SharedUpdate
    ranks: Ranks
    eager: float

    def _update_parts(self, halves: Halves, homes: Mapping[str, Key]) -> dict[int, list[Op]]:
        return {}

    def _leave(self, bucket: Sequence[int]) -> None:
        """No sums travel."""

    def update(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Update all parameters."""
        with self.spans.during("wait", "everybody's gradients"):
            self.ranks.meet(self.eager)
        with self.spans.during("compute", "update"):
            self.part.run(feeds)
        with self.spans.during("wait", "everybody's update"):
            self.ranks.meet(self.eager)
        self._emptied(self._sums)

    def describe(self) -> str:
        """How it trains, in a sentence."""
        return "parameters lie in memory common to all, and each process updates its share of them"

    def abandon(self) -> None:
        """Stop the run that is on, and every later one; from any thread."""
        super().abandon()
        self.part.abandon()
