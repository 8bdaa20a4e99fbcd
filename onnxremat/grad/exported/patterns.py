"""What the values of a tensor say about where it comes from: made by code, or learned.

Trained and freshly drawn weights are irregular numbers. What code makes has a rule: masks,
positions, frequencies, tables of sines and cosines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

LIMIT = 1 << 22  # elements of a tensor up to which its values are looked at
HEAD = 256  # elements that two tensors are compared by before all are
FEW = 4  # elements from which a progression is one
ROUND = 256  # numbers that are multiples of one part of so many are round
MASKED = -1e4  # what masks hide with, or below
ORDERED = 8  # elements of a vector that are in order by chance once in 20,000 times
EQUAL = "all its elements are equal"
MASK = "it holds what masks hide with"  # which no weight does


def is_constant(x: np.ndarray) -> bool:
    """All elements are equal."""
    return bool(x.size and (x == x.flat[0]).all())


def made_by_code(x: np.ndarray) -> str:
    """Why a tensor whose name says nothing holds no learned numbers, "" where it may."""
    if is_constant(x):
        return EQUAL
    found = regular(x)
    if found:
        return found
    if (x == np.rint(x)).all():
        return "it holds whole numbers only"
    if x.size > FEW and _two_numbers(x):
        return "it holds two numbers only, as a mask does"
    return ""


def _two_numbers(x: np.ndarray) -> bool:
    others = x[x != x.flat[0]]
    return bool(others.size and (others == others[0]).all())


def zero_block(x: np.ndarray) -> tuple[int, int] | None:
    """Where the zeros begin and end in a vector that was joined from parts of equal length, one in
    the middle zeros, the others irregular numbers; None if it is no such vector."""
    if x.ndim != 1:
        return None
    zeros = np.flatnonzero(x == 0)
    count = zeros.size
    if count < FEW or zeros[-1] - zeros[0] + 1 != count or zeros[0] % count or x.size % count:
        return None
    rest, start = np.delete(x, zeros), int(zeros[0])
    if not start or start == rest.size or made_by_code(rest):
        return None
    return start, start + count


def regular(x: np.ndarray) -> str:
    """The rule that the values of a tensor follow: mask, progression, sines and cosines; "" if
    none of these."""
    if x.size < FEW or is_constant(x):
        return ""
    with np.errstate(all="ignore"):
        if not np.isfinite(x).all() or x.min() <= MASKED:
            return MASK
        if is_progression(x):
            return "its values are a progression"
        if is_decay(x):
            return "its rows are powers of one number each"
        if is_sinusoidal(x[:FEW]) and is_sinusoidal(x):
            return "its values are sines and cosines"
    return ""


def seems_made(x: np.ndarray) -> bool:
    """What may be a parameter as it begins, and looks like what code makes: a matrix or filter of
    round numbers (Sobel's), or one that is its own mirror image (that of a blur, adjacencies); a
    vector that only rises or only falls (how much noise each step adds)."""
    x = np.squeeze(x)
    if not x.ndim or not 0 < x.size <= LIMIT or is_constant(x) or not np.isfinite(x).all():
        return False
    if x.ndim == 1:
        steps = np.diff(x)
        return x.size >= ORDERED and bool((steps > 0).all() or (steps < 0).all())
    row = np.abs(x[(0,) * (x.ndim - 1)])
    if (row * ROUND == np.rint(row * ROUND)).all() and (x * ROUND == np.rint(x * ROUND)).all():
        return True
    flipped = x.shape[-1] > 2 and bool((x == x[..., ::-1]).all())
    return flipped or (x.ndim == 2 and x.shape[0] == x.shape[1] > 2 and bool((x == x.T).all()))


def is_progression(x: np.ndarray) -> bool:
    """Equal differences or ratios along one axis, the same numbers along all others."""
    longer = [axis for axis, d in enumerate(x.shape) if d > 1]
    for axis in longer:
        if x.shape[axis] < FEW:
            continue
        row = np.moveaxis(x, axis, -1)[(0,) * (x.ndim - 1)].astype(np.float64)
        if _steady(row) and (np.moveaxis(x, axis, -1) == row.astype(x.dtype)).all():
            return True
    return False


def is_decay(x: np.ndarray) -> bool:
    """Along one axis, neighbours that are not 0 have one ratio, another for each of the slices
    along the first axis that is longer than 1: how fast the heads of an attention forget."""
    x = np.squeeze(x)
    return any(_decays(x[:1], axis) and _decays(x, axis) for axis in range(1, x.ndim))


def _decays(x: np.ndarray, axis: int) -> bool:
    rows = np.moveaxis(x, axis, -1).astype(np.float64)
    pairs = (rows[..., 1:] != 0) & (rows[..., :-1] != 0)
    if pairs.reshape(len(x), -1).sum(axis=1).min() < FEW - 1:
        return False
    ratios = np.where(pairs, rows[..., 1:] / np.where(pairs, rows[..., :-1], 1), np.nan)
    ratios = ratios.reshape(len(x), -1)
    low, high = np.nanmin(ratios, axis=1), np.nanmax(ratios, axis=1)
    return bool((low > 0).all() and (high - low <= 1e-4 * high).all() and (high != 1).all())


def _steady(row: np.ndarray) -> bool:
    steps = np.diff(row)
    scale = np.abs(row).max()
    if np.abs(steps).min() > 0 and np.ptp(steps) <= 1e-5 * scale:
        return True
    if (row > 0).all() or (row < 0).all():
        ratios = row[1:] / row[:-1]
        return bool(np.abs(ratios - 1).min() > 1e-3 and np.ptp(ratios) <= 1e-4 * ratios.max())
    return False


def is_sinusoidal(x: np.ndarray) -> bool:
    """Rows of sines and cosines of the same angles, side by side, in turns or in quarters; rows of
    zeros (for padding, or a class token) may be among them."""
    width = x.shape[-1] if x.ndim else 0
    if x.ndim < 2 or width < FEW or width % 2 or np.abs(x).max() > 1.001:
        return False
    rows = x.reshape(-1, width).astype(np.float64)
    rows = rows[np.abs(rows).max(axis=1) > 0]
    half, quarter = width // 2, width // 4
    pairs = [(rows[:, :half], rows[:, half:]), (rows[:, 0::2], rows[:, 1::2])]
    if width % 4 == 0:
        parts = [rows[:, k * quarter : (k + 1) * quarter] for k in range(4)]
        pairs.append((np.hstack(parts[0::2]), np.hstack(parts[1::2])))
    return any(are_sine_and_cosine(a, b) for a, b in pairs)


def are_sine_and_cosine(a: np.ndarray, b: np.ndarray) -> bool:
    """Squares add up to 1 everywhere."""
    return a.shape == b.shape and a.size > 0 and bool(np.abs(a * a + b * b - 1).max() <= 2e-3)


def rotations(names: Iterable[str], read: Callable[[str], np.ndarray]) -> dict[str, str]:
    """Tensors of cosines and of sines of the same angles, each with its partner.

    Args:
        read: gives the tensor of a name; few are held at a time.
    """
    groups: dict[tuple[int, ...], list[tuple[str, np.ndarray]]] = {}
    for name in names:
        value = read(name)
        if value.ndim < 2 or is_constant(value):  # 0 and 1 are no angle's
            continue
        if np.abs(value).max(initial=0.0) <= 1.001:
            head = value.reshape(-1)[:HEAD].astype(np.float64)
            groups.setdefault(value.shape, []).append((name, head))
    found: dict[str, str] = {}
    for group in groups.values():
        for index, (first, a) in enumerate(group):
            for second, b in group[index + 1 :]:
                if are_sine_and_cosine(a, b) and are_sine_and_cosine(read(first), read(second)):
                    found.update({first: second, second: first})
    return found


def repeated_axes(x: np.ndarray) -> tuple[int, ...]:
    """Axes along which all slices are equal: where a smaller tensor was expanded."""
    return tuple(
        axis
        for axis in range(x.ndim)
        if x.shape[axis] > 1 and (x == np.take(x, [0], axis=axis)).all()
    )


def permutation(known: np.ndarray, value: np.ndarray) -> tuple[int, ...] | None:
    """The permutation of axes that makes ``value`` of ``known``; None where none does."""
    straight = tuple(range(known.ndim))
    if known.shape == value.shape and np.array_equal(known, value):
        return straight
    if known.ndim == 2 and known.shape[::-1] == value.shape and np.array_equal(known.T, value):
        return (1, 0)
    return None
