"""What a run asks of its allocator, one event after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A slot is one block; an event of size 0 gives it back, any other asks for that many bytes.
EVENT = np.dtype([("size", "<u8"), ("slot", "<i8")])

Events = NDArray[np.void]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Blocks:
    """The blocks of a run, one entry per slot.

    Attributes:
        size: bytes asked for.
        first: the event that asks.
        last: the last event at which it is live; the last of all for what outlives the run.
        kept: it outlives the run (a graph output).
        stream: which of several streams asks, where they run side by side.
        until: per block and stream, the last event of that stream that may come while the block is
            live; ``first`` where there is none after it.
    """

    size: Integers
    first: Integers
    last: Integers
    kept: NDArray[np.bool_]
    stream: Integers
    until: Integers

    @classmethod
    def of_one_stream(
        cls, size: Integers, first: Integers, last: Integers, kept: NDArray[np.bool_]
    ) -> Blocks:
        """Blocks of runs that are never side by side."""
        return cls(size, first, last, kept, np.zeros(len(size), np.int64), last[:, None])

    def __getitem__(self, chosen: Integers) -> Blocks:
        """Some of them."""
        return Blocks(*(row[chosen] for row in vars(self).values()))

    def beside(self, block: int) -> NDArray[np.bool_]:
        """Which of them may live while ``block`` does."""
        here = self.first <= self.until[block, self.stream]
        return here & (self.until[:, self.stream[block]] >= self.first[block])


def blocks(events: Events) -> Blocks:
    """The blocks of ``events``, an array of :data:`EVENT`."""
    at = np.arange(len(events), dtype=np.int64)
    asked = events["size"] > 0
    given = events["slot"][~asked]
    count = int(asked.sum())
    size, first = np.zeros(count, np.int64), np.zeros(count, np.int64)
    last = np.full(count, max(len(events) - 1, 0), np.int64)
    kept = np.ones(count, np.bool_)
    size[events["slot"][asked]] = events["size"][asked]
    first[events["slot"][asked]] = at[asked]
    last[given] = at[~asked] - 1
    kept[given] = False
    return Blocks.of_one_stream(size, first, last, kept)


def joined(rows: Sequence[Blocks]) -> Blocks:
    """The blocks of several runs as those of one; their events are on one line already."""
    columns = zip(*(vars(row).values() for row in rows), strict=True)
    return Blocks(*(np.concatenate(column) for column in columns))


def rounded(size: Integers, align: int) -> Integers:
    """Sizes rounded up to multiples of ``align``."""
    return (size + align - 1) // align * align


def live_peak(events: Events, align: int = 1) -> int:
    """Most bytes live at once, outputs included: no packing takes less."""
    found = blocks(events)
    return int(profile(rounded(found.size, align), found.first, found.last).max(initial=0))


def profile(size: Integers, first: Integers, last: Integers) -> Integers:
    """Bytes live after each event."""
    change = np.zeros(int(last.max(initial=0)) + 2, np.int64)
    np.add.at(change, first, size)
    np.add.at(change, last + 1, -size)
    return np.cumsum(change)
