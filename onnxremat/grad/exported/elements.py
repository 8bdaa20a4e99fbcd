"""Numbers that occur more than once in folded tensors: elements of one parameter.

Trained and freshly drawn numbers of full precision do not repeat by chance. Where they do, an
exporter computed a tensor in which elements of a parameter are repeated (a table of relative
positions, indexed), negated (a complex weight, ``[[r, -i], [i, r]]``) or replaced by zeros (a
masked weight), or several tensors from one parameter. Each becomes elements of the parameter, by
index, times 1, -1 or 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.grad.exported.patterns import FEW, LIMIT, made_by_code, permutation
from onnxremat.grad.exported.restored import Restored
from onnxremat.grad.exported.stored import Stored, made_by

LEAST = 8  # elements of a tensor from which repeated ones are looked for
CHANCE = 1 << 20  # among as many numbers about half as many pairs are equal by chance
SAMPLED = 1 << 16  # elements of a tensor from which a few are looked at before all are sorted
TOGETHER = 1 << 25  # elements of a file up to which tensors are looked for in others


@dataclass(frozen=True)
class Elements:
    """Elements of a tensor, flat.

    Attributes:
        values: the distinct ones, but for their sign, in the order in which they first occur.
        places: which of them each element is.
        factors: what it is times that: 1, -1, or 0 where it is none of them.
    """

    values: np.ndarray
    places: np.ndarray
    factors: np.ndarray


def elements_of(x: np.ndarray) -> Elements:
    """The elements of a tensor. Zeros are none where they are far more than any other number."""
    flat = np.ascontiguousarray(x).reshape(-1)
    sizes, first, place, counts = np.unique(
        np.abs(flat), return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)
    if _has_holes(sizes, counts):
        order = order[order != 0]  # the zeros
    rank = np.zeros(len(sizes), np.int64)
    rank[order] = np.arange(len(order))
    values, places = flat[first[order]], rank[place]
    known = values[places]
    factors = np.where(flat == known, 1, np.where(flat == -known, -1, 0)).astype(flat.dtype)
    return Elements(values, places, factors)


def are_shared(x: np.ndarray) -> bool:
    """Numbers of full precision are repeated in a tensor, more than by chance. Weights stored in 16
    bits repeat without being shared."""
    if x.dtype != np.float32 or x.size < LEAST:
        return False
    flat = np.abs(np.ascontiguousarray(x).reshape(-1))
    looked_at = flat[:: max(1, flat.size // 8)][:8]
    if flat.size > SAMPLED and all(np.count_nonzero(flat == value) == 1 for value in looked_at):
        return False  # without the sorting that follows
    values, counts = _learned(flat)
    repeated = int(counts.sum()) - len(values)
    return min(len(values), repeated) >= FEW and _surprising(repeated, counts) and _rich(values)


def are_copies(x: np.ndarray) -> bool:
    """Numbers of full precision are repeated in a tensor of which the file says that elements were
    copied into it."""
    if x.dtype != np.float32:
        return False
    values, counts = _learned(np.abs(x).reshape(-1))
    return bool((counts > 1).any()) and _rich(values[counts > 1])


def are_masked(x: np.ndarray) -> bool:
    """Irregular numbers, zeros among them in the place of others; more zeros than a single slice,
    such as the row of a table that stands for padding."""
    zeros = np.argwhere(x == 0)
    if x.dtype != np.float32 or x.ndim < 2 or len(zeros) < FEW or len(zeros) == x.size:
        return False
    if (np.ptp(zeros, axis=0) == 0).any():
        return False
    rest = x[x != 0]
    return not made_by_code(rest) and _rich(np.unique(np.abs(rest)))


def are_triangles(x: np.ndarray) -> bool:
    """Matrices that are zero on one side of a diagonal, and there alone."""
    if x.ndim < 2 or not x.any():
        return False
    rows, columns = x.shape[-2:]
    beside = np.arange(columns) - np.arange(rows)[:, None]  # the number of the diagonal
    numbers, zeros = beside[(x != 0).any(axis=tuple(range(x.ndim - 2)))], x == 0
    if not zeros.any():
        return False
    return any((zeros == side).all() for side in (beside > numbers.max(), beside < numbers.min()))


def _learned(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct numbers and how often each occurs, without zeros that are none."""
    values, counts = np.unique(sizes, return_counts=True)
    start = int(_has_holes(values, counts))
    return values[start:], counts[start:]


def _has_holes(sizes: np.ndarray, counts: np.ndarray) -> bool:
    return bool(len(sizes) > 1 and sizes[0] == 0 and counts[0] > 2 * counts[1:].max())


def _surprising(repeated: int, counts: np.ndarray) -> bool:
    return repeated > float(counts.sum()) ** 2 / CHANCE


def _rich(values: np.ndarray) -> bool:
    """Of full precision."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return bool(len(values) and ((bits & 0xFFF) != 0).mean() >= 0.75)


# ---- find --------------------------------------------------------------------------------------


def shared_among(
    names: Sequence[str],
    stored: Stored,
    sources: Mapping[str, str],
    nameless: Callable[[str], bool],
    fresh: Callable[[str], str],
) -> list[Restored]:
    """Tensors that hold elements of one parameter.

    Args:
        names: float32 tensors to look at.
        sources: the parameter that a folded tensor was made from, where the file says one.
        nameless: whether a tensor may have been made from any other.
        fresh: makes a name of its own from another.
    """
    names = [n for n in names if stored.tensors[n].data_type == onnx.TensorProto.FLOAT]
    found: list[Restored] = []
    groups: dict[str, list[str]] = {}
    for name in names:
        if name in sources and _irregular(stored.value(name)):
            groups.setdefault(sources[name], []).append(name)
    for source, group in groups.items():
        values = {name: stored.value(name) for name in group}
        whole = stored.value(source) if source in names else None
        inside = [n for n in group if whole is not None and _within(values[n], whole)]
        rest = [n for n in group if n not in inside]
        found += [Restored("pick", source, name) for name in inside]
        if len(rest) > 1 and _overlap([values[name] for name in rest]):
            made = fresh(f"{source}.elements")
            found += [Restored("share", made, name) for name in rest]
    done = {name for entry in found for name in (entry.tensor, entry.parameter)}
    left = [name for name in names if name not in done]
    if sum(map(stored.size, left)) > TOGETHER:
        return found
    free = [name for name in left if nameless(name) and name not in sources]
    found += _picked(free, [name for name in left if name not in free], stored)
    free = [name for name in free if name not in {entry.tensor for entry in found}]
    for group in _overlapping(free, stored):
        made = fresh(f"{group[0]}.elements")
        found += [Restored("share", made, name) for name in group]
    free = [name for name in free if name not in {entry.tensor for entry in found}]
    return found + _picked(free, free, stored)


def _irregular(x: np.ndarray) -> bool:
    return _rich(np.abs(x.reshape(-1))) if x.size == 1 else not made_by_code(x)


def _picked(names: Sequence[str], wholes: Sequence[str], stored: Stored) -> list[Restored]:
    """Tensors all of whose elements are those of another."""
    likely = [name for name in names if stored.size(name) > 1]
    values = {name: value for name in likely if _irregular(value := stored.value(name))}
    heads = {name: np.abs(value).max() for name, value in values.items()}
    found: dict[str, str] = {}
    for whole in sorted(wholes, key=stored.size):
        if whole in found or not heads:
            continue
        value = stored.value(whole)
        hits = _occurring(np.sort([*heads.values()]), np.abs(value).reshape(-1))
        for name in [n for n, head in heads.items() if head in hits and n != whole]:
            # Not one that others are made from; whether equal ones are one is known by now.
            free = name not in found.values() and permutation(value, values[name]) is None
            if free and _within(values[name], value):
                found[name] = whole
                del heads[name]
    return [Restored("pick", whole, name) for name, whole in found.items()]


def _occurring(known: np.ndarray, sizes: np.ndarray) -> set[float]:
    """Which of a few numbers, in order, are among many."""
    nearest = known[np.searchsorted(known, sizes).clip(max=len(known) - 1)]
    return set(nearest[nearest == sizes].tolist())


def _overlapping(names: Sequence[str], stored: Stored) -> list[list[str]]:
    """Groups of tensors in which the same numbers occur, not all of them."""
    each = [_distinct(stored.value(name)) for name in names if stored.size(name) >= FEW]
    names = [name for name in names if stored.size(name) >= FEW]
    if len(names) < 2:
        return []
    owners = np.repeat(np.arange(len(each)), [len(values) for values in each])
    every = np.concatenate(each)
    order = np.argsort(every, kind="stable")
    every, owners = every[order], owners[order]
    twice = np.flatnonzero(every[1:] == every[:-1])
    # A pair as one number: rows of an array are sorted a hundred times more slowly.
    pairs, counts = np.unique(owners[twice] * len(each) + owners[twice + 1], return_counts=True)
    group = list(range(len(names)))
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        one, other = divmod(pair, len(each))
        a, b = len(each[one]), len(each[other])
        if FEW <= count < max(a, b) and count > a * b / CHANCE:
            group = [group[one] if k == group[other] else k for k in group]
    found: dict[int, list[str]] = {}
    for name, number in zip(names, group, strict=True):
        found.setdefault(number, []).append(name)
    return [members for members in found.values() if len(members) > 1]


def _distinct(x: np.ndarray) -> np.ndarray:
    """The numbers of full precision in a tensor, each once."""
    values = np.unique(np.abs(x))
    rich: np.ndarray = values[(values.view(np.uint32) & 0xFFF) != 0]
    return rich if _irregular(x) else rich[:0]


def _within(part: np.ndarray, whole: np.ndarray) -> bool:
    """All elements of a tensor, but for zeros, are elements of another, or their negatives."""
    values, _ = _learned(np.abs(part))
    likely = len(values) >= FEW or whole.size < LIMIT >> 10
    return likely and _rich(values) and bool(np.isin(values, np.abs(whole)).all())


def _overlap(values: Sequence[np.ndarray]) -> bool:
    """Some numbers are in several tensors."""
    each = [np.unique(np.abs(value)) for value in values]
    every, counts = np.unique(np.concatenate(each), return_counts=True)
    twice = every[counts > 1]
    return bool(len(twice)) and _rich(twice) and _surprising(len(twice), counts)


# ---- carry out ---------------------------------------------------------------------------------


def share(
    parameter: str,
    tensors: Sequence[str],
    stored: Stored,
    nodes: list[onnx.NodeProto],
    added: list[onnx.TensorProto],
) -> None:
    """Tensors made from the distinct elements of all of them."""
    values = [stored.value(name) for name in tensors]
    made = elements_of(np.concatenate([value.reshape(-1) for value in values]))
    added.append(numpy_helper.from_array(np.ascontiguousarray(made.values), parameter))
    start = 0
    for name, value in zip(tensors, values, strict=True):
        own = slice(start, start := start + value.size)
        one = Elements(made.values, made.places[own], made.factors[own])
        _take(name, value.shape, parameter, one, nodes, added)


def pick(
    entry: Restored, stored: Stored, nodes: list[onnx.NodeProto], added: list[onnx.TensorProto]
) -> None:
    """A tensor made from elements of another."""
    value, whole = stored.value(entry.tensor), stored.value(entry.parameter).reshape(-1)
    sizes, order = np.abs(whole), np.argsort(np.abs(whole), kind="stable")
    flat = value.reshape(-1)
    at = np.searchsorted(sizes[order], np.abs(flat)).clip(max=whole.size - 1)
    places = order[at]
    signs = np.where(flat == whole[places], 1, np.where(flat == -whole[places], -1, 0))
    made = Elements(whole, places, signs.astype(value.dtype))
    source, shape = f"{entry.tensor}/flat", f"{entry.tensor}/length"
    added.append(numpy_helper.from_array(np.array([-1], np.int64), shape))
    nodes.append(made_by("Reshape", [entry.parameter, shape], source))
    _take(entry.tensor, value.shape, source, made, nodes, added)


def mask(
    entry: Restored, stored: Stored, nodes: list[onnx.NodeProto], added: list[onnx.TensorProto]
) -> None:
    """A tensor whose zeros stay."""
    value = stored.value(entry.tensor)
    added.append(numpy_helper.from_array(value, entry.parameter))
    _times(entry.parameter, value != 0, entry.tensor, nodes, added)


def _take(
    tensor: str,
    shape: tuple[int, ...],
    source: str,
    made: Elements,
    nodes: list[onnx.NodeProto],
    added: list[onnx.TensorProto],
) -> None:
    index = f"{tensor}/index"
    added.append(numpy_helper.from_array(made.places.reshape(shape).astype(np.int64), index))
    plain = bool((made.factors == 1).all())
    taken = tensor if plain else f"{tensor}/taken"
    nodes.append(made_by("Gather", [source, index], taken, axis=0))
    if not plain:
        _times(taken, made.factors.reshape(shape), tensor, nodes, added)


def _times(
    source: str,
    factors: np.ndarray,
    tensor: str,
    nodes: list[onnx.NodeProto],
    added: list[onnx.TensorProto],
) -> None:
    factor, cast = f"{tensor}/factor", f"{tensor}/signs"
    added.append(numpy_helper.from_array(factors.astype(np.int8), factor))
    nodes.append(made_by("Cast", [factor], cast, to=onnx.TensorProto.FLOAT))
    nodes.append(made_by("Mul", [source, cast], tensor))


def retaken(entry: Restored, value: np.ndarray, stored: Stored) -> np.ndarray:
    """What the file holds, of the value of the parameter."""
    index, factor = f"{entry.tensor}/index", f"{entry.tensor}/factor"
    made = value.reshape(-1)[stored.value(index)] if index in stored.tensors else value
    return made * stored.value(factor).astype(made.dtype) if factor in stored.tensors else made


def helpers_of(tensor: str) -> tuple[set[str], set[str]]:
    """Names of tensors that nodes make on the way, and of stored ones."""
    stored = {f"{tensor}/{end}" for end in ("index", "factor", "length")}
    return {f"{tensor}/{end}" for end in ("flat", "taken", "signs")}, stored
