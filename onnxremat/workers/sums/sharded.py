"""Optimizer state dealt out over the ranks of a data-parallel run (ZeRO-1).

Every rank has all parameters and the sums of all gradients, but updates only some parameters, and
keeps the optimizer's state of these alone. Then each sends round what it has updated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onnxremat.graph.ir import Op
from onnxremat.ort.binding import BoundState
from onnxremat.ort.session import Options
from onnxremat.workers.courier import Courier
from onnxremat.workers.pieces import Piece, Pieces, Pool, cut
from onnxremat.workers.relay import Relay, raw_of
from onnxremat.workers.sums.halves import Halves
from onnxremat.workers.sums.layers import Key
from onnxremat.workers.sums.overlap import Overlapped
from onnxremat.workers.sums.spread import EVERYWHERE, Phase, spread


@dataclass(frozen=True)
class Shares:
    """Who updates what.

    Attributes:
        parts: of the update, of all ranks.
        owner: rank that updates each variable; without those that every rank updates by itself.
        shared: variables that the step reads, so that every rank has them.
    """

    parts: Mapping[Phase, Piece]
    owner: Mapping[str, int]
    shared: frozenset[str]

    def elsewhere(self, rank: int) -> frozenset[str]:
        """Variables that this rank does without."""
        own = (p for key, p in self.parts.items() if key == EVERYWHERE or key[1] == rank)
        read = {name for piece in own for name in (*piece.states, *piece.reads)}
        others = {name for name, owner in self.owner.items() if owner != rank}
        return frozenset(others - read - self.shared)

    def brought(self, ranks: int) -> list[str]:
        """Variables that others than their owner have, too."""
        others = {name: [k for k in range(ranks) if k != rank] for name, rank in self.owner.items()}
        missing = [self.elsewhere(rank) for rank in range(ranks)]
        return [n for n in sorted(others) if any(n not in missing[k] for k in others[n])]


def shares_of(halves: Halves, ranks: int) -> Shares:
    """Parameters dealt out, the largest first, each to whom has least so far.

    Args:
        halves: the step and its update.
    """
    load, homes = [0] * ranks, dict[str, int]()
    sizes = {name: halves.update.tensors[name].bytes for _, name in halves.told.gradients}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        homes[name] = load.index(min(load))
        load[homes[name]] += sizes[name]
    parts = cut(halves.update, spread(halves.update, homes), halves.told)
    owner = {
        old: key[1]
        for key, piece in parts.items()
        if key != EVERYWHERE
        for old, _ in (*piece.placed, *piece.copied)
    }
    return Shares(parts, owner, frozenset(v.input for v in halves.about.variables))


class Tail:
    """This rank's share of the update.

    Args:
        shares: who updates what.
        rank, ranks: this one, and how many there are.
        state: arrays of what this rank holds.
    """

    def __init__(
        self,
        shares: Shares,
        rank: int,
        ranks: int,
        courier: Courier,
        state: BoundState,
        options: Options,
    ) -> None:
        mine = {k: p for k, p in shares.parts.items() if k == EVERYWHERE or k[1] == rank}
        self._pieces = Pieces(mine, state, options, Pool())
        self._relay = Relay(shares.parts, lambda key: key[1], self._pieces, courier, rank, 1)
        self._courier = courier
        self._brought = [(n, state.arrays[n], shares.owner[n]) for n in shares.brought(ranks)
                         if n in state.arrays]  # fmt: skip

    def run(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Update, and bring everybody what they read of it."""
        flight = self._pieces.flight(feeds, (), self._relay.readers)
        for key in self._pieces.pieces:
            self._relay.wait(key, flight)
            self._pieces.run(key, flight)
            self._relay.send(key, flight)
        self._relay.clear(True)
        flight.end()
        going = [
            self._courier.bring(raw_of(array), owner, f"new {name}")
            for name, array, owner in self._brought
        ]
        for transfer in going:
            self._courier.wait(transfer)

    def abandon(self) -> None:
        """Stop the run that is on, and every later one; from any thread."""
        self._pieces.abandon()


class Sharded(Overlapped):
    """A step whose gradients travel beside it, and whose update is shared out: it is made when all
    sums are there.

    Attributes:
        tail: this rank's share.
    """

    tail: Tail

    def _update_parts(self, halves: Halves, homes: Mapping[str, Key]) -> dict[int, list[Op]]:
        return {}

    def update(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Update all parameters, everywhere."""
        if not self._travel:
            self._leave_all()
        for layer in sorted(self._travel):
            with self.spans.during("wait", f"sums of layer {layer}"):
                self._courier.wait(self._travel[layer])
        self._travel.clear()
        with self.spans.during("compute", "update"):
            self.tail.run(feeds)
        self._emptied(self._sums)

    def abandon(self) -> None:
        """Stop the run that is on, and every later one; from any thread."""
        super().abandon()
        self.tail.abandon()
