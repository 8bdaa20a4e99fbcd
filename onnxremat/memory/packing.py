"""Places in one slab for blocks with known sizes and lifetimes.

Minimising the slab is dynamic storage allocation, which is NP-hard. Blocks are put in turn at the
lowest gap that takes them, in several orders known to do well (by size, by size times life, by
life: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020; and two
for training steps, whose new state piles up while what was kept for the backward pass goes: state
first, and lives of about the same length by their end); then, from the best three of these, blocks
at the top, and those beside them, are put earlier until the slab is all but the live peak,
which nothing undercuts, or the rounds are over. Blocks of less than 1/512 of the peak come last,
where they hardly matter.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np

from onnxremat.memory.events import Blocks, Events, Integers, blocks, profile, rounded
from onnxremat.memory.native import compiled_place

ALIGN = 64  # bytes; what onnxruntime's own allocator aligns to
SMALL = 512  # blocks of less than 1/SMALL of the peak are small
ENOUGH = 1.001  # slab over live peak at which the search ends
FEW = 1 << 20  # bytes that are no matter for a plan: less than 1/100 of most slabs
ROUNDS, SLOW_ROUNDS = 750, 60  # of the search: compiled, and in NumPy
ATTEMPTS = 3  # orders from which they are spent: some get stuck


def pack(events: Events, rounds: int | None = None) -> tuple[Integers, int]:
    """Offset of every slot, multiples of :data:`ALIGN`, and the bytes of the slab.

    Args:
        events: one run, an array of :data:`onnxremat.memory.events.EVENT`.
        rounds: of improvement.

    The result does not depend on the clock. No two blocks that live at once overlap: it is checked.
    """
    return pack_blocks(blocks(events), rounds)


def pack_blocks(found: Blocks, rounds: int | None = None) -> tuple[Integers, int]:
    """:func:`pack`, of blocks that may be those of several runs, one after another or side by
    side."""
    if not len(found.size):
        return np.zeros(0, np.int64), 0
    found = replace(found, size=rounded(found.size, ALIGN))
    if rounds is None:
        rounds = ROUNDS if compiled_place() else SLOW_ROUNDS
    offset, top = _searched(found, rounds)
    check(found, offset)
    return offset, top


def unused(size: Integers, first: Integers, last: Integers) -> int:
    """Bytes of a slab that no block has when most are live, as :func:`pack` lays it out; 0 where
    that is less than :data:`FEW`.

    Args:
        size, first, last: of each block, the steps from which and to which it is live.
    """
    size = rounded(size, ALIGN)
    peak = int(profile(size, first, last).max(initial=0))
    if peak < FEW:
        return 0
    found = Blocks.of_one_stream(size, first, last, np.zeros(len(size), np.bool_))
    rest = pack_blocks(found)[1] - peak
    return rest if rest >= FEW else 0


def _searched(found: Blocks, rounds: int) -> tuple[Integers, int]:
    peak = int(profile(found.size, found.first, found.last).max())
    (large,) = np.nonzero(found.size * SMALL >= peak)
    (small,) = np.nonzero(found.size * SMALL < peak)
    small = small[np.argsort(-found.size[small], kind="stable")]
    chosen = found[large]
    starts = _first_orders(chosen)[:ATTEMPTS]
    best = place(found, np.concatenate([large[starts[0]], small]))
    for attempt, start in enumerate(starts):
        order, (offset, top) = start, place(chosen, start)
        chance = Random(attempt)  # NumPy's draws in megabytes of library
        for _ in range(rounds // ATTEMPTS):
            if best[1] <= peak * ENOUGH:
                return best
            trial = _moved(chosen, order, offset, chance)
            reached = place(chosen, trial)
            if reached[1] > top:
                continue
            better = reached[1] < top
            order, (offset, top) = trial, reached
            if better or top <= peak:
                whole = place(found, np.concatenate([large[order], small]))
                best = min(best, whole, key=lambda packed: packed[1])
    return best


def _first_orders(found: Blocks) -> list[Integers]:
    """The orders known to do well, the one that packs best first."""
    size, life, passing = found.size, found.last - found.first + 1, ~found.kept
    about = -np.floor(np.log2(life))
    keys = [
        (-life, -size), (-size * life,), (-size, -life), (found.first,), (-found.last, -life),
        (found.last, about), (-found.first, about),
        (-life * passing, found.first * found.kept, passing),
    ]  # fmt: skip
    orders = [np.lexsort(key) for key in keys]
    return sorted(orders, key=lambda order: place(found, order)[1])


def _moved(found: Blocks, order: Integers, offset: Integers, chance: Random) -> Integers:
    """A block at the top, or one that lives beside it, goes to an earlier place in the order."""
    ends = offset + found.size
    block = int(chance.choice(np.flatnonzero(ends == ends.max())))
    if chance.random() < 0.5:
        block = int(chance.choice(np.flatnonzero(found.beside(block))))
    at = int(np.flatnonzero(order == block)[0])
    to = chance.randrange(at or len(order))
    return np.insert(np.delete(order, at), to, block)


def place(found: Blocks, order: Integers) -> tuple[Integers, int]:
    """Each block of ``order`` at the lowest gap that takes it: offset per block, and the top."""
    compiled = compiled_place()
    if compiled is None:
        return place_in_numpy(found, order)
    return compiled(order, found)


def place_in_numpy(found: Blocks, order: Integers) -> tuple[Integers, int]:
    """:func:`place`, where nothing is compiled."""
    count = len(order)
    offset = np.zeros(count, np.int64)
    starts, done = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for n, block in enumerate(order.tolist()):
        meets = done[:n][found.beside(block)[done[:n]]]
        at = _lowest(offset[meets], found.size[meets], int(found.size[block]))
        offset[block] = at
        i = int(np.searchsorted(starts[:n], at, "right"))
        for row, value in ((starts, at), (done, block)):
            row[i + 1 : n + 1] = row[i:n]
            row[i] = value
    return offset, int((offset + found.size).max(initial=0))


def _lowest(starts: Integers, sizes: Integers, size: int) -> int:
    """The lowest place for ``size`` bytes beside blocks that are sorted by where they start."""
    if not len(starts) or starts[0] >= size:
        return 0
    ends = np.maximum.accumulate(starts + sizes)
    gaps = np.flatnonzero(starts[1:] - ends[:-1] >= size)
    return int(ends[gaps[0]] if len(gaps) else ends[-1])


def check(found: Blocks, offset: Integers) -> None:
    """Raises AssertionError where two blocks that live at once overlap."""
    order = np.argsort(offset, kind="stable")
    start, sorted_by_place = offset[order], found[order]
    end = start + found.size[order]
    until = np.searchsorted(start, end, "left")
    for i in np.flatnonzero(until > np.arange(len(order)) + 1).tolist():
        rest = slice(i + 1, until[i])
        if sorted_by_place.beside(i)[rest].any():
            raise AssertionError(f"block {order[i]} overlaps another one")
