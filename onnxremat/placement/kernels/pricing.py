"""The set of classes of most profit whose load an accelerator can take, by dynamic programming.

Classes are decided one by one. What later costs depend on is the *state*: for every net with some
pins decided and some not, whether none, all or some of the decided ones are in the set. For every
state and every load, in whole units rounded down, the most profit is kept; so what is found is
never below the true optimum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.placement.graph import Index
from onnxremat.placement.kernels.compiling import entry
from onnxremat.planner.problem import Floats
from onnxremat.planner.search.compiled import F64, F64_2D, I32, I64, U8, part


class Layers(NamedTuple):
    """Transitions from state to state, in rows by class, ordered by target within a row."""

    first: Index  # (n + 1,): transitions of each class
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    take: NDArray[np.uint8]  # the class is in the set
    load: NDArray[np.int32]  # units it adds
    number: NDArray[np.uint8]  # among the transitions into its target
    states: Index  # (n + 1,): before each class
    shelf: Index  # (n + 1,): first state of each layer in ``choice``


class Room(NamedTuple):
    """Work space: profits of two layers, (states, units + 1), and the transitions taken."""

    old: Floats
    new: Floats
    choice: NDArray[np.uint8]  # (all states * (units + 1),)


LAYERS = types.NamedTuple((I64, I32, I32, U8, I32, U8, I64, I64), Layers)
ROOM = types.NamedTuple((F64_2D, F64_2D, U8), Room)
NEVER = -1e300


@part
def _spread(r: Room, s: int, t: int, load: int, gain: float, shelf: int, number: int) -> None:
    """One transition for all loads."""
    units = r.old.shape[1]
    base = (shelf + t) * units
    for i in range(units - load):
        value = r.old[s, i] + gain
        if value > r.new[t, i + load]:
            r.new[t, i + load] = value
            r.choice[base + i + load] = number


@entry(types.void(LAYERS, F64, ROOM))
def fill(p: Layers, profit: Floats, r: Room) -> None:
    """The most profit of every load; ends in row 0 of ``old``."""
    units = r.old.shape[1]
    for i in range(units):
        r.old[0, i] = NEVER
    r.old[0, 0] = 0.0
    for v in range(len(profit)):
        for t in range(p.states[v + 1]):
            for i in range(units):
                r.new[t, i] = NEVER
        for j in range(p.first[v], p.first[v + 1]):
            gain = profit[v] if p.take[j] > 0 else 0.0
            _spread(r, p.source[j], p.target[j], p.load[j], gain, p.shelf[v + 1], p.number[j])
        for t in range(p.states[v + 1]):
            for i in range(units):
                r.old[t, i] = r.new[t, i]


@entry(types.void(LAYERS, ROOM, types.int64, U8))
def trace(p: Layers, r: Room, load: int, inside: NDArray[np.uint8]) -> None:
    """The set behind a load of the last layer; ``inside`` is one flag per class, in its order."""
    units = r.old.shape[1]
    t, i = 0, load
    for v in range(len(inside) - 1, -1, -1):
        number = r.choice[(p.shelf[v + 1] + t) * units + i]
        for j in range(p.first[v], p.first[v + 1]):
            if p.target[j] == t and p.number[j] == number:
                inside[v] = p.take[j]
                i -= p.load[j]
                t = p.source[j]
                break
