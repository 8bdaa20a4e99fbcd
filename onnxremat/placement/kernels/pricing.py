"""The set of classes of most profit for every load of an accelerator, by dynamic programming.

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
from onnxremat.planner.problem import Floats
from onnxremat.planner.search.compiled import F64, F64_3D, I32, I64, I64_2D, U8, compiled, part


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
    """Work space: profits of two layers in turn, and the transitions taken."""

    profit: Floats  # (2, states, units + 1); -inf where no set has that load
    least: Index  # (2, states): the least load of each state
    choice: NDArray[np.uint8]  # (all states * (units + 1),)


LAYERS = types.NamedTuple((I64, I32, I32, U8, I32, U8, I64, I64), Layers)
ROOM = types.NamedTuple((F64_3D, I64_2D, U8), Room)


@part
def _begin(r: Room, now: int, then: int, s: int, t: int, load: int, gain: float, at: int) -> None:
    """The first transition into a state, for all loads.

    Indices without a sign: such loops become vector instructions, others are looked over for
    negative indices."""
    units = r.profit.shape[2]
    low = min(units, r.least[now, s] + load)
    r.least[then, t] = low
    for i in range(np.uint64(low)):
        r.profit[then, t, i] = -np.inf
    to, from_, shelf = np.uint64(low), np.uint64(max(0, low - load)), np.uint64(at + low)
    for i in range(np.uint64(units - low)):
        r.profit[then, t, to + i] = r.profit[now, s, from_ + i] + gain
        r.choice[shelf + i] = 0


@part
def _spread(
    r: Room, now: int, then: int, s: int, t: int, load: int, gain: float, at: int, number: int
) -> None:
    """A further transition into a state, for all loads."""
    units = r.profit.shape[2]
    low = min(units, r.least[now, s] + load)
    r.least[then, t] = min(r.least[then, t], low)
    taken = np.uint8(number)
    to, from_, shelf = np.uint64(low), np.uint64(max(0, low - load)), np.uint64(at + low)
    for i in range(np.uint64(units - low)):
        value, old = r.profit[now, s, from_ + i] + gain, r.profit[then, t, to + i]
        better = value > old
        r.profit[then, t, to + i] = value if better else old
        r.choice[shelf + i] = taken if better else r.choice[shelf + i]


@compiled(types.int64(LAYERS, F64, ROOM), entry=True)
def fill(p: Layers, gains: Floats, r: Room) -> int:
    """The most profit of every load, with what each transition gains; which half of ``profit``
    holds it, in row 0."""
    units = r.profit.shape[2]
    for i in range(units):
        r.profit[0, 0, i] = -np.inf
    r.profit[0, 0, 0] = 0.0
    r.least[0, 0] = 0
    layers = len(p.first) - 1
    for v in range(layers):
        now, then = v & 1, 1 - (v & 1)
        for j in range(p.first[v], p.first[v + 1]):
            gain = gains[j]
            s, t = p.source[j], p.target[j]
            at = (p.shelf[v + 1] + t) * units
            if p.number[j] == 0:
                _begin(r, now, then, s, t, p.load[j], gain, at)
            else:
                _spread(r, now, then, s, t, p.load[j], gain, at, p.number[j])
    return layers & 1


@compiled(types.void(LAYERS, ROOM, types.int64, U8), entry=True)
def trace(p: Layers, r: Room, load: int, inside: NDArray[np.uint8]) -> None:
    """The set behind a load of the last layer; ``inside`` is one flag per class, in its order."""
    units = r.profit.shape[2]
    t, i = 0, load
    for v in range(len(inside) - 1, -1, -1):
        number = r.choice[(p.shelf[v + 1] + t) * units + i]
        for j in range(p.first[v], p.first[v + 1]):
            if p.target[j] == t and p.number[j] == number:
                inside[v] = p.take[j]
                i -= p.load[j]
                t = p.source[j]
                break
