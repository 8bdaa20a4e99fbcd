"""Parts of one graph on several ranks: who sends which value to whom, and when it is waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onnxremat.workers.courier import Courier, Transfer
from onnxremat.workers.pieces import Flight, Piece, Pieces


class Relay:
    """Sends on what parts here make for other ranks, and fetches what they make for us.

    Values of one name travel in the order of their batches: the tag of a message is the value's.

    Args:
        cut: all parts, of all ranks.
        rank_of: where each part runs; -1 for everywhere.
        pieces: those of this rank.
        first_tag: tags from there on are this relay's.
    """

    def __init__(
        self,
        cut: Mapping[Any, Piece],
        rank_of: Callable[[Any], int],
        pieces: Pieces,
        courier: Courier,
        rank: int,
        first_tag: int,
    ) -> None:
        self._pieces, self._courier, self._rank = pieces, courier, rank
        makers = {name: rank_of(key) for key, piece in cut.items() for name in piece.makes}
        targets: dict[str, set[int]] = {}
        for key, piece in cut.items():
            for name in piece.reads:
                here, there = rank_of(key), makers.get(name, -1)
                if there >= 0 and here != there:
                    targets.setdefault(name, set()).add(here)
        self._targets = {name: sorted(ranks) for name, ranks in targets.items()}
        self._tag = {name: first_tag + k for k, name in enumerate(sorted(targets))}
        self.tags = first_tag + len(targets)  # the first that is free
        self._source = {name: makers[name] for name in targets}
        self._sending: list[tuple[Transfer, Flight, str]] = []

    @property
    def readers(self) -> Counter[str]:
        """Sends count as readers of what is made here."""
        made = {n for piece in self._pieces.pieces.values() for n in piece.makes}
        return Counter({n: len(self._targets[n]) for n in made & self._targets.keys()})

    def fetch(self, key: Any, flight: Flight) -> None:
        """Ask for what a part reads and other ranks make; it may come while others compute."""
        for name in self._pieces.pieces[key].reads:
            source = self._source.get(name, self._rank)
            if source != self._rank and not flight.has(name):
                value = self._pieces.pool.take(*self._pieces.types[name])
                transfer = self._courier.receive(value.raw, source, self._tag[name], name)
                flight.comes(name, value, transfer)

    def ready(self, key: Any, flight: Flight) -> bool:
        """Whether everything that a part reads is there; asks for what is not on its way."""
        self.fetch(key, flight)
        reads = self._pieces.pieces[key].reads
        coming = (flight.coming.get(name) for name in reads)
        return all(flight.has(n) for n in reads) and all(
            t is None or t.done.is_set() for t in coming
        )

    def wait(self, key: Any, flight: Flight) -> None:
        """Everything that a part reads is there."""
        self.fetch(key, flight)
        for name in self._pieces.pieces[key].reads:
            transfer = flight.coming.pop(name, None)
            if transfer is not None:
                self._courier.wait(transfer)

    def send(self, key: Any, flight: Flight) -> None:
        """What a part has made goes to whoever reads it."""
        self.clear(False)
        for name in self._pieces.pieces[key].makes:
            for rank in self._targets.get(name, ()):
                raw = flight.values[name].raw
                transfer = self._courier.send(raw, rank, self._tag[name], name)
                self._sending.append((transfer, flight, name))

    def clear(self, wait: bool) -> None:
        """Let go of what has been sent; with ``wait`` everything."""
        left = []
        for transfer, flight, name in self._sending:
            if wait or transfer.done.is_set():
                self._courier.wait(transfer)
                flight.read(name)
            else:
                left.append((transfer, flight, name))
        self._sending = left


def raw_of(array: np.ndarray) -> np.ndarray:
    """The bytes of an array."""
    return array.reshape(-1).view(np.uint8)
