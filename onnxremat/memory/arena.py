"""onnxruntime's memory pool, imitated: what it holds, and the least region that serves a run.

Rules of its BFCArena (``core/framework/bfc_arena.cc``): sizes are rounded up to 256 bytes; the
tightest free chunk of the first bin that has one is taken, bins doubling in size from 256 bytes; a
chunk is split where at least half of it or ``dead`` bytes are left over; neighbours that are free
join, inside a region. A region is added where nothing fits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass

from onnxremat.memory.events import Events, live_peak

UNIT = 256  # bytes
BINS = 21
DEAD = (1, 64 << 10, 256 << 10, 128 << 20)  # tried; the last one is onnxruntime's own
STEP = 128 << 10  # bytes between sizes of a region that are tried
LARGEST = (2 << 30) - UNIT  # onnxruntime takes the size as a 32-bit number


@dataclass(frozen=True)
class Region:
    """An arena of one region.

    Attributes:
        bytes: its size, ``initial_chunk_size_bytes``.
        dead: bytes a chunk may be larger than asked for, ``max_dead_bytes_per_chunk``.
    """

    bytes: int
    dead: int


class Arena:
    """A BFC arena whose regions are given to it."""

    def __init__(self, dead: int) -> None:
        self._dead = dead
        self._bins: list[list[tuple[int, int]]] = [[] for _ in range(BINS)]  # (size, address)
        self._free: dict[int, int] = {}  # address to size
        self._ends: dict[int, int] = {}  # end of a free chunk to its address
        self._used: dict[int, int] = {}
        self._top = 0
        self.held = 0

    def extend(self, size: int) -> None:
        """Add a region; it never joins another."""
        self._put(self._top, size)
        self._top += size + 4096
        self.held += size

    def allocate(self, size: int) -> int | None:
        """An address for ``size`` bytes; None where no free chunk takes them."""
        want = -(-size // UNIT) * UNIT
        at = self._find(want)
        if at is None:
            return None
        chunk = self._cut(at)
        if chunk >= 2 * want or chunk - want >= self._dead:
            self._put(at + want, chunk - want)
            chunk = want
        self._used[at] = chunk
        return at

    def free(self, at: int) -> None:
        """Give back what :meth:`allocate` gave."""
        size = self._used.pop(at)
        if at + size in self._free:
            size += self._cut(at + size)
        if at in self._ends:
            at = self._ends[at]
            size += self._cut(at)
        self._put(at, size)

    def _find(self, want: int) -> int | None:
        for row in self._bins[_bin_of(want) :]:
            i = bisect_left(row, (want, -1))
            if i < len(row):
                return row[i][1]
        return None

    def _put(self, at: int, size: int) -> None:
        if not size:
            return
        self._free[at] = size
        self._ends[at + size] = at
        insort(self._bins[_bin_of(size)], (size, at))

    def _cut(self, at: int) -> int:
        size = self._free.pop(at)
        del self._ends[at + size]
        row = self._bins[_bin_of(size)]
        row.pop(bisect_left(row, (size, at)))
        return size


def _bin_of(size: int) -> int:
    return min(BINS - 1, (max(size, UNIT) // UNIT).bit_length() - 1)


def _replay(arena: Arena, events: Events, runs: int, missing: Callable[[int], int | None]) -> bool:
    """Follow a run, made ``runs`` times; outputs are given back between runs. False where there is
    no room.

    Args:
        missing: finds room for so many bytes where the arena has none, or None.
    """
    for _ in range(runs):
        where: dict[int, int] = {}
        for size, slot in events.tolist():
            if not size:
                arena.free(where.pop(slot))
                continue
            at = arena.allocate(size)
            if at is None:
                at = missing(size)
            if at is None:
                return False
            where[slot] = at
        for at in where.values():
            arena.free(at)
    return True


def fits(events: Events, region: Region, runs: int = 2) -> bool:
    """Whether a run, made ``runs`` times, finds room in one region. Outputs are given back between
    runs."""
    arena = Arena(region.dead)
    arena.extend(region.bytes // UNIT * UNIT)
    return _replay(arena, events, runs, lambda _: None)


def held(events: Events, *, initial: int = 1 << 20, dead: int = 128 << 20, runs: int = 1) -> int:
    """Bytes that onnxruntime's arena with doubling regions (its default) holds after some runs."""
    arena, grow = Arena(dead), max(UNIT, -(-initial // UNIT) * UNIT)

    def extended(size: int) -> int | None:
        nonlocal grow
        want, grown = -(-size // UNIT) * UNIT, False
        while want > grow:
            grow, grown = 2 * grow, True
        arena.extend(grow)
        grow = grow if grown else 2 * grow
        return arena.allocate(size)

    _replay(arena, events, runs, extended)
    return arena.held


def smallest_region(events: Events) -> Region | None:
    """The least region that serves a run, over the values of ``dead`` worth trying; None where it
    would be more than onnxruntime takes.

    Best fit is not monotone in the size of the region: a larger one can fail. Every size that is
    tried is simulated; sizes rise in steps of a 64th, then the last step in steps of
    :data:`STEP`.
    """
    floor = live_peak(events, UNIT)
    best: Region | None = None
    for dead in DEAD:
        limit = min(best.bytes if best else LARGEST, LARGEST)
        found = _first_that_fits(events, dead, floor, limit)
        if found is not None and (best is None or found < best.bytes):
            best = Region(found, dead)
    return best


def _first_that_fits(events: Events, dead: int, floor: int, limit: int) -> int | None:
    coarse = max(STEP, floor // 64 // UNIT * UNIT)
    size = floor
    while size <= limit and not fits(events, Region(size, dead)):
        size += coarse
    if size > limit:
        return None
    for finer in range(max(floor, size - coarse + STEP), size, STEP):
        if fits(events, Region(finer, dead)):
            return finer
    return size
