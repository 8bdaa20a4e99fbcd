"""onnxruntime's memory pool, imitated: what it holds, and the settings with which it holds least.

Rules of its BFCArena (``core/framework/bfc_arena.cc``): sizes are rounded up to 256 bytes; the
tightest free chunk of the first bin that has one is taken, bins doubling in size from 256 bytes; a
chunk is split where at least half of it or ``dead`` bytes are left over; neighbours that are free
join, inside a region. A region is added where nothing fits: twice as large as the last one, until
that would be ``max_power_of_two_extend_bytes``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from onnxremat.memory.events import Events, live_peak

UNIT = 256  # bytes
BINS = 21
DEAD = (1, 64 << 10, 256 << 10, 128 << 20)  # tried; the last one is onnxruntime's own
STEP = 1 << 30  # bytes of a later region at most: onnxruntime's own
SHARES = (*(0.02 * 1.15**k for k in range(28)), *(1 + 0.0125 * k for k in range(32)))
NEARBY = (0.97, 0.98, 0.985, 0.99, 0.995, 1.0, 1.005, 1.01, 1.02)
LARGE, SIZES = 64, 12  # a block is large from a 64th of the peak; so many sizes are tried
LIMIT = 3  # of the live peak: arenas that hold more are not looked at
TRIED = 6  # arenas that are worth a run
RUNS = 3
LARGEST = (2 << 30) - UNIT  # onnxruntime takes the size as a 32-bit number


@dataclass(frozen=True)
class Region:
    """An arena of chosen sizes.

    Attributes:
        bytes: of the first region, ``initial_chunk_size_bytes``.
        dead: bytes a chunk may be larger than asked for, ``max_dead_bytes_per_chunk``.
        step: bytes of a later region at most, ``max_power_of_two_extend_bytes``.
        held: bytes of all regions together; 0 where that is not known.
    """

    bytes: int
    dead: int
    step: int = 1 << 30
    held: int = 0


OWN = Region(1 << 20, 128 << 20)  # onnxruntime's own settings


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


def _replay(
    arena: Arena,
    events: Events,
    runs: int,
    stays: Sequence[int],
    missing: Callable[[int], int | None],
) -> bool:
    """Follow a run, made ``runs`` times; outputs are given back between runs. False where there is
    no room.

    Args:
        stays: see :func:`held`.
        missing: finds room for so many bytes where the arena has none, or None.
    """

    def found(size: int) -> int | None:
        at = arena.allocate(size)
        return missing(size) if at is None else at

    if any(found(size) is None for size in stays):
        return False
    for _ in range(runs):
        where: dict[int, int] = {}
        for size, slot in events.tolist():
            if not size:
                arena.free(where.pop(slot))
                continue
            at = found(size)
            if at is None:
                return False
            where[slot] = at
        for at in where.values():
            arena.free(at)
    return True


def held(
    events: Events,
    region: Region = OWN,
    *,
    runs: int = 1,
    most: int = 1 << 62,
    stays: Sequence[int] = (),
) -> int | None:
    """Bytes that onnxruntime's arena holds after some runs; None where they are more than
    ``most``.

    Args:
        region: its settings. A region after the first is twice the one before; one that would be
            of ``step`` bytes or more is of exactly so many, or twice, four times as many for a
            block that is larger.
        stays: bytes of blocks that kernels ask for as the session is opened, and keep.
    """
    arena, step = Arena(region.dead), region.step
    grow = max(UNIT, -(-region.bytes // UNIT) * UNIT)

    def extended(size: int) -> int | None:
        nonlocal grow
        want, grown = -(-size // UNIT) * UNIT, False
        while want > grow:
            grow, grown = 2 * grow, True
        if arena.held + grow > most:
            return None
        arena.extend(grow)
        if not grown:
            grow = 2 * grow if 2 * grow < step else step
        return arena.allocate(size)

    return arena.held if _replay(arena, events, runs, stays, extended) else None


def smallest_regions(events: Events, count: int = TRIED, stays: Sequence[int] = ()) -> list[Region]:
    """Arenas that serve a run in few bytes, the least one first.

    What an arena holds is no monotone function of its settings, so each that is tried is simulated:
    the size of the first region between a 50th of the live peak and 1.4 times it, the size of
    later ones among those of large blocks, which then lie by themselves; then ``dead`` and sizes
    nearby.

    Args:
        count: of them at most.
        stays: see :func:`held`.
    """
    peak = max(UNIT, live_peak(events, UNIT) + sum(stays))
    found: dict[Region, None] = {}

    def tried(initial: int, step: int, dead: int, more: float) -> None:
        initial = initial // UNIT * UNIT
        if not UNIT <= initial <= LARGEST:
            return
        most = int(more * min((region.held for region in found), default=LIMIT * peak))
        region = Region(initial, dead, step)
        total = held(events, region, runs=RUNS, most=most, stays=stays)
        if total is not None:
            found[replace(region, held=total)] = None

    for step in (STEP, *_large(events, peak)):
        for share in SHARES:
            tried(int(share * peak), step, 1, 1.0)
    for region in _least(found, 3):
        for dead in DEAD:
            for part in NEARBY:
                tried(int(region.bytes * part), region.step, dead, 1.0)
    return _least(found, count)


def _least(found: Iterable[Region], count: int) -> list[Region]:
    """The least of each size of later regions: others would serve and fail like it."""
    kept: dict[int, Region] = {}
    for region in sorted(found, key=lambda region: (region.held, region.bytes)):
        kept.setdefault(region.step, region)
    return list(kept.values())[:count]


def _large(events: Events, peak: int) -> list[int]:
    """Sizes of the large blocks of a run, the largest first."""
    sizes = {-(-int(size) // UNIT) * UNIT for size in events["size"] if size * LARGE >= peak}
    return sorted(sizes, reverse=True)[:SIZES]
