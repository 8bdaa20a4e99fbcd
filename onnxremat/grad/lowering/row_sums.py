"""Rows added up at indices: the transpose of taking rows, the same bits with any number of threads.

onnxruntime's CPU kernel of ScatterND with a reduction divides the updates among threads, which add
to one row at the same time where indices repeat: sums are lost. ScatterElements adds in one thread,
but takes 5 to 20 ns an element. So rows are mostly added up by products with matrices of 0 and 1,
which are as exact as sums one by one (no differences of running sums).

In these products 0 times an infinite number is NaN: a row of dy that is not finite may spoil the
sums of other indices as well.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2

import numpy as np
from onnx import TensorProto as T

from onnxremat.grad.tape import Tape

_BLOCK = 16  # rows of one index that are added up at once
_SORTED = 32  # sorted rows in which equal indices are found at once
_AT_ONCE = 128  # rows up to which every index is compared with every other
_AT_ONCE_AGAIN = 300  # the same for ends of blocks
_IN_TURN = 512  # numbers added one by one
_CHUNK = 1 << 19  # elements of rows in blocks, moved at once: they stay in the cache
_CHUNKS = 8  # at most
_NONE = -1  # no index
_LARGE = 1 << 18  # elements of a matrix from which rows are added onto it in place
_RATIO = 6  # times as many rows as are added it has then

# Nanoseconds on one thread of the CPU provider (1.31, AVX-512), by which a formulation is chosen.
_PER_ELEMENT = 9.0  # of ScatterElements
_PER_PRODUCT = 0.035  # one multiplication and addition of MatMul
_PER_MASK = 0.7  # one comparison, made a number
_PER_MOVE = 0.5  # an element read and written
_PER_SORT = 10.0  # a comparison of TopK
_FIXED = 100_000.0  # the small ops on indices


def sum_rows(t: Tape, rows: str, indices: str, length: int) -> str:
    """Rows [N, D] added up at indices [N], int32 in [0, length); gives [length, D].

    Of four formulations the one that should be quickest: :func:`_elements` for few elements,
    :func:`_one_hot` for few indices, :func:`_blocks` where indices repeat often, else
    :func:`_segments`.
    """
    count, width = t.shape(rows)
    if not count * width * length:
        return t.filled(0.0, (length, width), t.dtype(rows))
    if t.varies(count) or t.varies(length):
        return _elements(t, rows, indices, length)
    chosen = min(_costs(count, width, length).items(), key=lambda item: item[1])[0]
    return chosen(t, rows, indices, length)


def rows_added(t: Tape, onto: str, rows: str, indices: str) -> str:
    """``onto`` [length, D] with rows [N, D] added up at indices [N], int32 in [0, length).

    Each of the N rows becomes its place's number plus all that is added there, so that where
    indices repeat the same is written twice and no order matters. ``onto`` is taken over in place
    where nothing else reads it: beside it there is no second matrix of its size, let alone a third.
    """
    count, width = t.shape(rows)
    length = t.shape(onto)[0]
    if count <= _AT_ONCE:
        totals = t.matmul(_same(t, indices, indices, t.dtype(rows)), rows)
    else:
        sums, stands = _sums_of_segments(t, rows, indices, length)
        totals = _take(t, sums, _take(t, stands, indices))
    made = t.add(_take(t, onto, indices), totals)
    places = t.add(t.reshape(t.mul(indices, width), (count, 1)), _ramp(t, width))
    flat = t.op(
        "ScatterElements", t.reshape(onto, (length * width,)), t.reshape(places, (count * width,)),
        t.reshape(made, (count * width,)), shape=(length * width,), axis=0,
    )  # fmt: skip
    return t.reshape(flat, (length, width))


def is_better_added(t: Tape, rows: str, length: int) -> bool:
    """Whether :func:`rows_added` onto a matrix that is there takes less than a matrix of all sums
    and an addition."""
    count, width = t.shape(rows)
    size = length * width
    if t.varies(count) or t.dtype(rows) != T.FLOAT or not _LARGE <= size < 2**31:
        return False
    return _RATIO * count <= length


def _costs(
    count: int, width: int, length: int
) -> dict[Callable[[Tape, str, str, int], str], float]:
    """Nanoseconds that each formulation should take."""

    def product(m: int, k: int) -> float:
        return m * k * (_PER_PRODUCT * width + _PER_MASK)

    moved, tables = _PER_MOVE * width, ceil(count / _IN_TURN)
    sort = _FIXED + _PER_SORT * count * log2(max(count, 2))
    blocks = _block_count(count, length)
    if count <= _AT_ONCE:
        segments = product(count, count) + moved * length
    else:
        segments = sort + product(count, _SORTED) + moved * (3 * count + length) + _FIXED / 2
    return {
        _elements: _PER_ELEMENT * count * width + moved * length * tables,
        _one_hot: product(length, count) + moved * count / 2,
        _blocks: sort + moved * blocks * _BLOCK + product(length, blocks),
        _segments: segments,
    }


def _numbers(t: Tape, *values: int) -> str:
    return t.constant(np.array(values).reshape(-1), T.INT32)


def _ramp(t: Tape, count: int) -> str:
    return t.constant(np.arange(count), T.INT32)


def _full(t: Tape, value: int, count: int, dtype: int = T.INT32) -> str:
    return t.filled(value, (count,), dtype)


def _take(t: Tape, data: str, indices: str) -> str:
    shape = (*t.shape(indices), *t.shape(data)[1:])
    return t.op("Gather", data, indices, shape=shape, axis=0)


def _elements(t: Tape, rows: str, indices: str, length: int) -> str:
    """Element by element, in one thread. Seen flat, since the kernel is quicker with one axis; and
    into several tables, which are added up, since a sum of many numbers one by one is inexact. The
    CPU provider's kernel adds no 16-bit numbers."""
    kept = t.dtype(rows)
    if kept in (T.FLOAT16, T.BFLOAT16):
        return t.cast(_elements(t, t.cast(rows, T.FLOAT), indices, length), kept)
    count, width = t.shape(rows)
    tables, size = 1 if t.varies(count) else ceil(count / _IN_TURN), length * width
    kind = T.INT32 if tables * size < 2**31 and not t.varies(length) else T.INT64
    places = t.mul(t.cast(indices, kind), width)
    if tables > 1:
        places = t.add(places, t.constant(np.arange(count) // _IN_TURN * size, kind))
    if width > 1:
        columns = t.constant(np.arange(width), kind)
        places = t.add(t.reshape(places, (count, 1)), columns)
    made = t.op(
        "ScatterElements", t.filled(0.0, (tables * size,), t.dtype(rows)),
        t.reshape(places, (count * width,)), t.reshape(rows, (count * width,)),
        shape=(tables * size,), axis=0, reduction="add",
    )  # fmt: skip
    if tables > 1:
        made = t.sum(t.reshape(made, (tables, size)), [0])
    return t.reshape(made, (length, width))


def _one_hot(t: Tape, rows: str, indices: str, length: int) -> str:
    """One product with the matrix that has a 1 where an index is the number of its row."""
    return t.matmul(_same(t, _ramp(t, length), indices, t.dtype(rows)), rows)


def _sorted(t: Tape, indices: str) -> tuple[str, str]:
    """Indices in ascending order, and where each was; equal ones keep their order, as ONNX
    defines it."""
    count = t.size(indices)
    outputs = [(t.dtype(indices), (count,)), (T.INT64, (count,))]
    made = t.multi("TopK", (indices, t.integers(count)), outputs, axis=0, largest=0)
    return made[0], made[1]


# ---- blocks of one index ---------------------------------------------------------------------


def _block_count(count: int, length: int) -> int:
    """Blocks that rows of ``count`` indices can fill, each of one index; a multiple of the chunks
    they are moved in."""
    return (count + min(length, count) * (_BLOCK - 1)) // _BLOCK


def _blocks(t: Tape, rows: str, indices: str, length: int) -> str:
    """Rows are laid out in blocks that hold one index each, the rest filled with rows that count
    0 times; every block is added up, then the blocks of each index."""
    count, width = t.shape(rows)
    blocks, kind = _block_count(count, length), t.dtype(rows)
    chunks = min(_CHUNKS, ceil(blocks * _BLOCK * width / _CHUNK))
    each = ceil(blocks / chunks)
    places = chunks * each * _BLOCK
    source, first, last = _layout(t, indices, length, places)
    there = t.cast(t.compare("GreaterOrEqual", source, 0), kind)
    sums = []
    for k in range(chunks):
        bounds = [k * each * _BLOCK], [(k + 1) * each * _BLOCK]
        part = _take(t, rows, t.slice(source, [0], *bounds))
        weights = t.reshape(t.slice(there, [0], *bounds), (each, 1, _BLOCK))
        sums.append(t.matmul(weights, t.reshape(part, (each, _BLOCK, width))))
    number = t.reshape(_ramp(t, chunks * each), (1, chunks * each))
    since = t.compare("GreaterOrEqual", number, t.reshape(first, (length, 1)))
    until = t.compare("Less", number, t.reshape(last, (length, 1)))
    belongs = t.cast(t.op("And", since, until), kind)
    return t.matmul(belongs, t.reshape(t.concat(sums, 0), (chunks * each, width)))


def _layout(t: Tape, indices: str, length: int, places: int) -> tuple[str, str, str]:
    """Which row each place of the blocks holds (-1 for none), and the first block of each index
    and the one after its last."""
    count = t.size(indices)
    ascending, order = _sorted(t, indices)
    ones = _full(t, 1, count)
    times = t.op(
        "ScatterElements", _full(t, 0, length), indices, ones, shape=(length,), axis=0,
        reduction="add",
    )  # fmt: skip
    needed = t.op("Div", t.add(times, _BLOCK - 1), _BLOCK)
    axis = t.constant(0, T.INT64)
    last = t.op("CumSum", needed, axis, shape=(length,))
    first = t.sub(last, needed)
    before = t.op("CumSum", times, axis, shape=(length,), exclusive=1)
    moves = t.sub(t.mul(first, _BLOCK), before)
    place = t.add(_take(t, moves, ascending), _ramp(t, count))
    source = t.op(
        "ScatterElements", _full(t, -1, places, T.INT64), place, order, shape=(places,), axis=0
    )
    return source, first, last


# ---- segments of sorted rows -----------------------------------------------------------------


def _segments(t: Tape, rows: str, indices: str, length: int) -> str:
    """Rows are sorted by index, those of one index added up (:func:`_totals`); then each row of the
    result is taken from where its sum stands, or is the last one, which is zero."""
    return _take(t, *_sums_of_segments(t, rows, indices, length))


def _sums_of_segments(t: Tape, rows: str, indices: str, length: int) -> tuple[str, str]:
    """Sums, and for each index where its own stands; -1, of a row of zeros, where it has none."""
    count = t.size(indices)
    if count <= _AT_ONCE:
        lines = t.concat([indices, _numbers(t, _NONE)], 0)
        sums = t.matmul(_same(t, lines, indices, t.dtype(rows)), rows)
        return sums, _stands(t, indices, length, np.arange(count))
    padding = _padded(count) - count
    ascending, order = _sorted(t, indices)
    lines = t.concat([ascending, _numbers(t, *[length] * padding)], 0)  # an index of its own
    summed = t.concat([ascending, _numbers(t, *[_NONE] * padding)], 0)
    order = t.concat([order, t.integers(*[0] * padding)], 0)
    sums, stands = _totals(t, _take(t, rows, order), lines, summed, length + 1)
    return sums, t.slice(stands, [0], [0], [length])


def _padded(count: int) -> int:
    """Least number above ``count`` that :func:`_totals` divides into whole blocks, and the ends of
    these, of which there are 2 / _SORTED as many, too."""
    fewer, unit = 1, 1
    while True:
        padded = (count // unit + 1) * unit
        if padded // fewer < _AT_ONCE_AGAIN:
            return padded
        fewer *= _SORTED // 2
        unit = 2 * fewer


def _same(t: Tape, lines: str, columns: str, kind: int) -> str:
    """[..., i, j]: 1 where line i and column j have one index, else 0."""
    tall, wide = (*t.shape(lines), 1), (*t.shape(columns)[:-1], 1, t.shape(columns)[-1])
    return t.cast(t.compare("Equal", t.reshape(lines, tall), t.reshape(columns, wide)), kind)


def _stands(t: Tape, indices: str, length: int, ranks: np.ndarray) -> str:
    """For each index its greatest rank, -1 where it does not occur."""
    return t.op(
        "ScatterElements", _full(t, -1, length), indices, t.constant(ranks, T.INT32),
        shape=(length,), axis=0, reduction="max",
    )  # fmt: skip


def _totals(t: Tape, rows: str, lines: str, summed: str, length: int) -> tuple[str, str]:
    """Sums of sorted rows by index, and where each index has its sum.

    Every row becomes the sum of the rows of its index in its block. An index that crosses from
    block to block has its first such sum at the end of a block: it is replaced by the sum of what
    the ends of all blocks hold of that index, found in the same way.

    Args:
        rows: [n, D].
        lines: their indices, [n], ascending.
        summed: the same, but -1 for rows that are not to be added.
        length: of the table of indices.
    """
    (count, width), kind = t.shape(rows), t.dtype(rows)
    if count < _AT_ONCE_AGAIN:
        sums = t.matmul(_same(t, lines, summed, kind), rows)
        return sums, _stands(t, lines, length, np.arange(count))
    blocks = count // _SORTED
    lines_in, summed_in = (t.reshape(a, (blocks, _SORTED)) for a in (lines, summed))
    same, rows_in = _same(t, lines_in, summed_in, kind), t.reshape(rows, (blocks, _SORTED, width))
    sums = t.reshape(t.matmul(same, rows_in), (count, width))
    at_ends = t.slice(same, [1], [0], [_SORTED], [_SORTED - 1])
    ends = t.reshape(t.matmul(at_ends, rows_in), (2 * blocks, width))
    first = t.slice(lines_in, [1], [0], [1])
    last = t.slice(lines_in, [1], [_SORTED - 1], [_SORTED])
    once = t.where(t.compare("Equal", first, last), _NONE, last)
    ends, stands = _totals(
        t, ends, t.reshape(t.concat([first, last], 1), (2 * blocks,)),
        t.reshape(t.concat([first, once], 1), (2 * blocks,)), length,
    )  # fmt: skip
    whole = _take(t, ends, _take(t, stands, t.reshape(last, (blocks,))))
    is_end = np.arange(count) % _SORTED == _SORTED - 1
    places = t.constant(np.flatnonzero(is_end).reshape(-1, 1), T.INT64)  # no two are the same
    sums = t.op("ScatterND", sums, places, whole, shape=(count, width))
    ranked = _stands(t, lines, length, np.arange(count) + count * is_end)
    return sums, t.op("Mod", ranked, count)  # -1 becomes the last row
