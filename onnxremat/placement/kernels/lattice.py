"""All ideals (sets closed under predecessors) of a precedence, breadth first.

Kept as bits; the edges to the ideals with one class more lie in compressed rows. Capacity is the
caller's: a call ends when the tables are nearly full, and goes on after they have grown.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.placement.graph import Index
from onnxremat.planner.search.compiled import I32, I64, U64, compiled, part

Words = NDArray[np.uint64]
U64_2D = types.Array(types.uint64, 2, "C")


class Growing(NamedTuple):
    """Tables under construction; ``state`` is (next ideal to expand, ideals, edges)."""

    bits: Words  # (ideals, words)
    keys: Words  # (ideals,): the sum of the keys of their classes
    slots: NDArray[np.int32]  # hash table, -1 for empty; a power of two
    first: Index  # (ideals + 1,): first edge of each
    child: NDArray[np.int32]
    added: NDArray[np.int32]
    state: Index


GROWING = types.NamedTuple((U64_2D, U64, I32, I64, I32, I32, I64), Growing)


@part
def _slot(g: Growing, key: np.uint64) -> int:
    spread = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)
    return int(np.int64(spread)) & (len(g.slots) - 1)


@part
def _same(g: Growing, at: int, v: int, other: int) -> bool:
    """Whether ideal ``other`` is ideal ``at`` and class v."""
    word, bit = v >> 6, np.uint64(1) << np.uint64(v & 63)
    for k in range(g.bits.shape[1]):
        wanted = g.bits[at, k]
        if k == word:
            wanted |= bit
        if g.bits[other, k] != wanted:
            return False
    return True


@part
def _number(g: Growing, at: int, v: int, key: np.uint64) -> int:
    """The ideal ``at`` and class v, made where it is new."""
    slot = _slot(g, key)
    while g.slots[slot] >= 0:
        other = g.slots[slot]
        if g.keys[other] == key and _same(g, at, v, other):
            return other
        slot = (slot + 1) & (len(g.slots) - 1)
    new = g.state[1]
    g.state[1] += 1
    for k in range(g.bits.shape[1]):
        g.bits[new, k] = g.bits[at, k]
    g.bits[new, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
    g.keys[new] = key
    g.slots[slot] = new
    return new


@part
def _ready(g: Growing, at: int, v: int, before_at: Index, before: Index) -> bool:
    """Whether class v is not in the ideal and all before it are."""
    if (g.bits[at, v >> 6] >> np.uint64(v & 63)) & np.uint64(1):
        return False
    for j in range(before_at[v], before_at[v + 1]):
        u = before[j]
        if not ((g.bits[at, u >> 6] >> np.uint64(u & 63)) & np.uint64(1)):
            return False
    return True


@compiled(types.int64(GROWING, I64, I64, U64, types.int64), entry=True)
def grow(g: Growing, before_at: Index, before: Index, key: Words, most: int) -> int:
    """Expand ideals: 0 when all are there, 1 when tables must grow, 2 at ``most`` in this call."""
    n = len(key)
    for _ in range(most):
        at = g.state[0]
        if at == g.state[1]:
            return 0
        full = g.state[1] + n > len(g.keys) or 2 * (g.state[1] + n) > len(g.slots)
        if full or g.state[2] + n > len(g.child):
            return 1
        for v in range(n):
            if _ready(g, at, v, before_at, before):
                g.child[g.state[2]] = _number(g, at, v, g.keys[at] + key[v])
                g.added[g.state[2]] = v
                g.state[2] += 1
        g.first[at + 1] = g.state[2]
        g.state[0] += 1
    return 2


@compiled(types.void(GROWING), entry=True)
def refill(g: Growing) -> None:
    """Enter all ideals into a larger, empty hash table."""
    for i in range(g.state[1]):
        slot = _slot(g, g.keys[i])
        while g.slots[slot] >= 0:
            slot = (slot + 1) & (len(g.slots) - 1)
        g.slots[slot] = i
