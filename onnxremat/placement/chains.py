"""Contiguous placements: the least largest load over chains of ideals, proven.

A chain of ideals {} = I0 < I1 < ... < Ir = all gives device i the classes of I_i without those of
I_(i-1). What makes it quick, beside compiled loops (proofs in ``docs/placement.md``):

* an upper bound first, from the chains of a few linear orders;
* windows: an ideal can end a piece only where what is left fits the devices left, in balance;
* a walk over the ideals above each start that is reached, which ends where the compute of the
  piece and the nets that are cut whatever follows reach the upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from onnxremat.placement.answer import Work
from onnxremat.placement.balance import balance
from onnxremat.placement.classes import Classes
from onnxremat.placement.graph import Index
from onnxremat.placement.kernels import lattice as ideals
from onnxremat.placement.kernels import pieces
from onnxremat.planner.problem import Floats, Ints

HUGE = 1e300  # no upper bound: finite, so that nothing times it is undefined
TOLERANCE = 1e-9  # of loads, relative
MOST_IDEALS = 3_000_000
MOST_BYTES = 400e6  # of the bits of all ideals
MOST_ENTRIES = 100_000_000  # ideals times numbers of devices
AT_ONCE = 20_000  # ideals between looks at the clock
WALKED = 200_000  # the same, of walks over pieces


@dataclass(frozen=True, eq=False)
class Chain:
    """A placement along a chain: device per class, shape (c,), and devices in the order of the
    chain."""

    value: float
    where: Index
    order: tuple[int, ...]


@dataclass
class Effort:
    """What a search looked at."""

    ideals: int = 0
    pairs: int = 0


class Chains:
    """Chains of one problem.

    Args:
        c: with precedence; its classes are few enough, or ``whole`` is never asked for.
        parts: which load is minimised: None for forward and backward together, else the backward
            one is, and the forward one is kept below a cap.
    """

    def __init__(self, c: Classes, *, two: bool = False) -> None:
        self.c = c
        graph = c.graph
        self.accelerators = min(graph.accelerators, c.count)
        self.cpus = min(graph.cpus, c.count)
        self.acc, self.cpu, self.cost = (_parts(x, two) for x in (c.acc, c.cpu, c.cost))
        supported = c.supported
        self.balances = [
            balance(self.acc[:, side], self.cpu[:, side], supported, self.accelerators, self.cpus)
            for side in (0, 1)
        ]
        self.work = np.stack([b.work for b in self.balances], 1)
        self.effort = Effort()
        self._ideals: pieces.Lattice | None = None

    def along(self, order: list[int], best: float = HUGE, cap: float = HUGE) -> Chain | None:
        """The best chain among the beginnings of one order of classes, if it is below ``best``."""
        n = self.c.count
        bits = np.zeros((n + 1, self.words), np.uint64)
        added = np.asarray(order, np.int64)
        bits[np.arange(1, n + 1), added >> 6] = np.uint64(1) << (added & 63).astype(np.uint64)
        bits = np.bitwise_or.accumulate(bits, axis=0)
        work = np.concatenate((np.zeros((1, 2)), np.cumsum(self.work[added], axis=0)))
        first = np.minimum(np.arange(n + 2), n).astype(np.int64)
        child = np.arange(1, n + 1, dtype=np.int32)
        lattice = pieces.Lattice(bits, first, child, added.astype(np.int32), work)
        self.effort.ideals = max(self.effort.ideals, len(bits))
        found, _ = self._solve(lattice, Work(inf), best, cap)
        return found

    def whole(self, work: Work, best: float = HUGE, cap: float = HUGE) -> tuple[Chain | None, bool]:
        """The best chain of all, if it is below ``best`` with forward loads below ``cap``; and
        whether that is proven (there are not too many ideals, and there was time)."""
        lattice = self.lattice(work)
        if lattice is None:
            return None, False
        return self._solve(lattice, work, best, cap)

    @property
    def words(self) -> int:
        """Words of 64 bits for a set of classes."""
        return (self.c.count + 63) // 64

    def lattice(self, work: Work) -> pieces.Lattice | None:
        """All ideals, made once; None where they are too many, or time is up."""
        if self._ideals is None:
            states = (self.accelerators + 1) * (self.cpus + 1)
            most = min(MOST_IDEALS, MOST_ENTRIES // states, int(MOST_BYTES / (8 * self.words)))
            grown = all_ideals(self.c, work, most)
            self._ideals = None if grown is None else self._lattice(*grown)
        return self._ideals

    def _lattice(
        self, bits: ideals.Words, first: Index, child: Ints, added: Ints
    ) -> pieces.Lattice:
        work = np.zeros((len(bits), 2))
        pieces.weigh(bits, np.ascontiguousarray(self.work), work)
        self.effort.ideals = max(self.effort.ideals, len(bits))
        return pieces.Lattice(bits, first, child, added, work)

    def _solve(
        self, lattice: pieces.Lattice, work: Work, best: float, cap: float
    ) -> tuple[Chain | None, bool]:
        costs = self._costs(best, cap)
        table = _table(self.accelerators, self.cpus, len(lattice.bits), best)
        walk = _walk(len(lattice.bits), self.c)
        count = len(lattice.bits)
        done = True
        for a in range(self.accelerators + 1):
            for c in range(self.cpus + 1):
                start = 0
                while start < count and done:
                    start = pieces.from_starts(costs, lattice, table, walk, a, c, start, WALKED)
                    done = start >= count or work.left > 0
        self.effort.pairs += int(table.pairs[0])
        last = count - 1
        if not np.isfinite(table.value[:, last]).any():
            return None, done
        return self._read(lattice, table, int(np.argmin(table.value[:, last]))), done

    def _costs(self, best: float, cap: float) -> pieces.Costs:
        c = self.c
        net_at, net_of = c.touching
        total = self.work.sum(0)
        slack = TOLERANCE * min(best, float(total[1]))
        return pieces.Costs(
            self.acc, self.cpu, c.size, c.supported.astype(np.uint8), self.cost, net_at, net_of,
            np.asarray([len(row) for row in c.nets], np.int64),
            np.asarray([self.accelerators, self.cpus], np.int64),
            np.asarray([
                c.graph.memory, cap, TOLERANCE * float(total[0]), slack,
                self.balances[0].ratio, self.balances[1].ratio,
            ]),
        )  # fmt: skip

    def _read(self, lattice: pieces.Lattice, table: pieces.Table, here: int) -> Chain:
        """The placement of a whole chain, by its back links."""
        where = np.full(self.c.count, -1, np.int64)
        at, used = len(lattice.bits) - 1, [0, 0]
        value = float(table.value[here, at])
        order: list[int] = []
        while at:
            start, kind = int(table.back[here, at]), int(table.kind[here, at])
            device = used[kind] if kind == 0 else self.c.graph.accelerators + used[kind]
            used[kind] += 1
            piece = lattice.bits[at] & ~lattice.bits[start]
            where[members(piece, self.c.count)] = device
            order.append(device)
            at, here = start, here - (self.cpus + 1 if kind == 0 else 1)
        return Chain(value, *_renumbered(where, order[::-1], self.c.graph.accelerators))


def _renumbered(where: Index, order: list[int], accelerators: int) -> tuple[Index, tuple[int, ...]]:
    """Devices of each kind numbered along the chain."""
    new: dict[int, int] = {}
    for device in order:
        first = 0 if device < accelerators else accelerators
        new[device] = first + sum(1 for d in new if (d < accelerators) == (device < accelerators))
    return np.asarray([new[d] for d in where.tolist()], np.int64), tuple(new[d] for d in order)


def members(bits: ideals.Words, count: int) -> Index:
    """Classes of a set."""
    flags = np.unpackbits(bits.view(np.uint8), bitorder="little")[:count]
    return np.flatnonzero(flags)


def _parts(values: Floats, two: bool) -> Floats:
    """(forward, backward), or (nothing, both)."""
    if two:
        return np.ascontiguousarray(values)
    return np.ascontiguousarray(np.stack([np.zeros(len(values)), values.sum(1)], 1))


def _table(accelerators: int, cpus: int, count: int, best: float) -> pieces.Table:
    states = (accelerators + 1) * (cpus + 1)
    value = np.full((states, count), np.inf)
    value[0, 0] = 0.0
    return pieces.Table(
        value, np.full((states, count), -1, np.int32), np.zeros((states, count), np.int8),
        np.asarray([best]), np.zeros(1, np.int64),
    )  # fmt: skip


def _walk(count: int, c: Classes) -> pieces.Walk:
    nets, deep = len(c.nets), c.count + 2
    return pieces.Walk(
        np.zeros(count, np.int64), np.zeros(1, np.int64), np.zeros(nets, np.uint8),
        np.zeros(nets, np.int64), np.zeros(deep, np.int64), np.zeros(deep, np.int64),
        np.zeros(deep, np.int64),
    )  # fmt: skip


def all_ideals(c: Classes, work: Work, most: int) -> tuple[ideals.Words, Index, Ints, Ints] | None:
    """All ideals of the precedence, by size: bits, and in compressed rows the ideals with one class
    more and that class. None where they are over ``most``, or time is up."""
    words = (c.count + 63) // 64
    key = np.random.default_rng(1).integers(1, 2**63, c.count).astype(np.uint64)
    before_at, before = c.predecessors
    size = 1 << 12
    g = _tables(size, words, c.count)
    ideals.refill(g)
    while True:
        ended = ideals.grow(g, before_at, before, key, AT_ONCE)
        if ended == 0:
            count, edges = int(g.state[1]), int(g.state[2])
            return (
                g.bits[:count].copy(),
                g.first[: count + 1].copy(),
                g.child[:edges],
                g.added[:edges],
            )
        if int(g.state[1]) >= most or not work.left:
            return None
        if ended == 1:
            size *= 2
            g = _larger(g, size, words, c.count)


def _tables(size: int, words: int, n: int) -> ideals.Growing:
    return ideals.Growing(
        np.zeros((size + n, words), np.uint64), np.zeros(size + n, np.uint64),
        np.full(_power(4 * (size + n)), -1, np.int32), np.zeros(size + n + 1, np.int64),
        np.zeros(4 * (size + n), np.int32), np.zeros(4 * (size + n), np.int32),
        np.asarray([0, 1, 0], np.int64),
    )  # fmt: skip


def _power(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _larger(old: ideals.Growing, size: int, words: int, n: int) -> ideals.Growing:
    g = _tables(size, words, n)
    count, edges = int(old.state[1]), int(old.state[2])
    child = np.zeros(max(len(g.child), 2 * len(old.child)), np.int32)
    added = np.zeros_like(child)
    g = g._replace(child=child, added=added)
    g.bits[:count], g.keys[:count] = old.bits[:count], old.keys[:count]
    g.first[: int(old.state[0]) + 1] = old.first[: int(old.state[0]) + 1]
    g.child[:edges], g.added[:edges] = old.child[:edges], old.added[:edges]
    g.state[:] = old.state
    ideals.refill(g)
    return g
