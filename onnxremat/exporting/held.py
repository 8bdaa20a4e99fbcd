"""Where a file's tensors hold the numbers of a module's parameters, and their gradients.

Exporters transpose, reshape, slice and concatenate parameters, and give them other names. Numbers
tell: one that occurs once in the module says which element of which parameter it is. Layers that
begin equal are told apart by what the file says of a tensor, else each is one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

AXES = 4  # of a parameter, up to which transpositions are tried


@dataclass
class Gathered:
    """Gradients of a file's tensors, brought back to a module's parameters.

    Attributes:
        gradients: per parameter; NaN at elements that no trained tensor holds for sure.
        under: trained tensors that hold a part of a parameter, by its name.
        copied: parameters of which some element is trained twice: the copies drift apart.
        others: trained tensors with numbers of no parameter.
    """

    gradients: dict[str, np.ndarray] = field(default_factory=dict)
    under: dict[str, tuple[str, ...]] = field(default_factory=dict)
    copied: set[str] = field(default_factory=set)
    others: tuple[str, ...] = ()


class Numbers:
    """All numbers of a module's parameters.

    Args:
        values: per parameter.
    """

    def __init__(self, values: Mapping[str, np.ndarray]) -> None:
        self.values = values
        ends = np.cumsum([0, *(v.size for v in values.values())])
        self._start = dict(zip(values, ends, strict=False))
        self._size = int(ends[-1])
        flat = [np.asarray(v, np.float32).reshape(-1) for v in values.values()]
        every = np.concatenate([*flat, np.empty(0, np.float32)])
        self._order = np.argsort(every, kind="stable")
        self._sorted = every[self._order]

    def gather(
        self,
        tensors: Mapping[str, tuple[np.ndarray, np.ndarray]],
        labels: Mapping[str, str] | None = None,
    ) -> Gathered:
        """Add up the gradients of trained tensors (value and gradient by name) at the elements
        that their numbers come from.

        Args:
            labels: what tensors with names of the exporter's are called in the module, as far as
                the file says: one parameter, several with commas, or more or less.
        """
        total, times = np.zeros(self._size), np.zeros(self._size, np.int64)
        found, others, taken = Gathered(), [], {*tensors}.intersection(self.values)
        for name, (value, gradient) in tensors.items():
            places = self._places(name, value, (labels or {}).get(name, ""), taken)
            if places is None:
                others.append(name)
                continue
            known = places >= 0
            np.add.at(total, places[known], gradient.reshape(-1)[known].astype(np.float64))
            np.add.at(times, places[known], 1)
            for owner in self._owners(places[known]):
                taken.add(owner)
                found.under[owner] = (*found.under.get(owner, ()), name)
        total[times == 0] = np.nan
        for name in found.under:
            own = slice(self._start[name], self._start[name] + self.values[name].size)
            found.gradients[name] = total[own].reshape(self.values[name].shape)
            if (times[own] > 1).any():
                found.copied.add(name)
        found.others = tuple(others)
        return found

    def _places(
        self, name: str, value: np.ndarray, label: str, taken: Collection[str]
    ) -> np.ndarray | None:
        """Where each number of a tensor is among all numbers; -1 where several are equal to it,
        None where most are none of them."""
        whole = self.values.get(name)
        if whole is not None and whole.shape == value.shape:
            return self._start[name] + np.arange(value.size)
        for names, sure in self._likely(label, taken):
            found = self._transposed(value, names, sure)
            if found is None:
                found = self._among(value, names)
            if found is not None:
                return found
        return None

    def _likely(self, label: str, taken: Collection[str]) -> Iterator[tuple[list[str], bool]]:
        """Parameters that a tensor may hold, the likeliest first, and whether the file says so."""
        said = [name for name in label.split(", ") if name in self.values]
        if said:
            yield said, True
        home = f"{label.split(', ')[0].rpartition('.')[0]}."
        free = [name for name in self.values if name not in taken]
        if label:
            yield [name for name in free if name.startswith(home)], False
        yield free, False
        yield [*self.values], False

    def _among(self, value: np.ndarray, names: list[str]) -> np.ndarray | None:
        """By numbers that occur once in some parameters; None where most are not there."""
        order, numbers = self._order, self._sorted
        if len(names) < len(self.values):
            parts = [self._start[n] + np.arange(self.values[n].size) for n in names]
            order = np.concatenate([*parts, np.empty(0, np.int64)])
            flat = [np.asarray(self.values[n], np.float32).reshape(-1) for n in names]
            numbers = np.concatenate([*flat, np.empty(0, np.float32)])
            rank = np.argsort(numbers, kind="stable")
            order, numbers = order[rank], numbers[rank]
        if not numbers.size:
            return None
        flat_value = np.asarray(value, np.float32).reshape(-1)
        left = np.searchsorted(numbers, flat_value, "left")
        count = np.searchsorted(numbers, flat_value, "right") - left
        if 2 * (count == 1).sum() <= flat_value.size:
            return None
        return np.where(count == 1, order[np.minimum(left, numbers.size - 1)], -1)

    def _transposed(self, value: np.ndarray, names: list[str], sure: bool) -> np.ndarray | None:
        """The places of a tensor that is one parameter with its axes in another order.

        Args:
            sure: it is one of these, even where all elements are equal; else another such
                parameter would do as well.
        """
        wanted = np.asarray(value, np.float32).squeeze()
        for name in names:
            flat = np.asarray(self.values[name], np.float32).squeeze()
            if flat.ndim > AXES or sorted(flat.shape) != sorted(wanted.shape):
                continue
            equal = flat.size > 1 and flat.min() == flat.max()
            if equal and not sure:
                continue
            places = self._start[name] + np.arange(flat.size).reshape(flat.shape)
            orders = [*permutations(range(flat.ndim))]
            # Every order fits equal elements; an exporter renames what it transposes.
            for axes in reversed(orders) if equal else orders:
                if np.array_equal(flat.transpose(axes), wanted):
                    return places.transpose(axes).reshape(-1)
        return None

    def _owners(self, places: np.ndarray) -> list[str]:
        names, starts = list(self._start), np.array(list(self._start.values()))
        hit = np.unique(np.searchsorted(starts, places, "right") - 1)
        return [names[k] for k in hit]
