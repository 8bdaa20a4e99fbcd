"""Where a file's tensors hold the numbers of a module's parameters, and their gradients.

Exporters transpose, reshape, slice and concatenate parameters, and give them other names. Numbers
tell: one that occurs once in the module says which element of which parameter it is. Layers that
begin equal are told apart by what the file says of a tensor, else each is one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
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
    """All numbers of a module's parameters, and where a file's trained tensors hold them.

    Args:
        values: per parameter.
        tensors: what the file trains, by name.
        labels: what tensors with names of the exporter's are called in the module, as far as
            the file says: one parameter, several with commas, or more or less.

    Attributes:
        under: trained tensors that hold a part of a parameter, by its name.
        others: trained tensors with numbers of no parameter.
    """

    def __init__(
        self,
        values: Mapping[str, np.ndarray],
        tensors: Mapping[str, np.ndarray],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.values, self._tensors = values, tensors
        ends = np.cumsum([0, *(v.size for v in values.values())])
        self._start = dict(zip(values, (int(end) for end in ends), strict=False))
        self._size = int(ends[-1])
        self.under: dict[str, tuple[str, ...]] = {}
        self._at: dict[str, np.ndarray] = {}  # of tensors that are no parameter as a whole
        others, taken = [], {name for name in tensors if self._is_whole(name)}
        for name, value in tensors.items():
            owners = [name]
            if not self._is_whole(name):
                places = self._places(value, (labels or {}).get(name, ""), taken)
                if places is None:
                    others.append(name)
                    continue
                self._at[name] = places
                owners = self._owners(places[places >= 0])
            for owner in owners:
                taken.add(owner)
                self.under[owner] = (*self.under.get(owner, ()), name)
        self.others = tuple(others)

    def gather(self, gradients: Mapping[str, np.ndarray]) -> Gathered:
        """Add up the gradients of trained tensors at the elements that their numbers come from."""
        found = Gathered(under=self.under, others=self.others)
        shared = {owner for owner, names in self.under.items() if names != (owner,)}
        if not shared:
            found.gradients = {name: gradients[name] for name in self.under}
            return found
        times, total = self._times(), np.zeros(self._size)
        for name, gradient in gradients.items():
            if name in self._at:
                known = self._at[name] >= 0
                added = gradient.reshape(-1)[known].astype(np.float64)
                np.add.at(total, self._at[name][known], added)
            elif name not in self.others:
                total[self._own(name)] += gradient.reshape(-1)
        total[times == 0] = np.nan
        for name in self.under:
            found.gradients[name] = total[self._own(name)].reshape(self.values[name].shape)
        found.copied = {name for name in self.under if (times[self._own(name)] > 1).any()}
        return found

    def complete(self) -> list[str]:
        """Parameters of which trained tensors hold every element."""
        if not self._at:
            return [*self.under]
        times = self._times()
        return [name for name in self.under if times[self._own(name)].all()]

    def with_values(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The trained tensors where these complete parameters have these values."""
        if not values:
            return dict(self._tensors)
        made = {n: values.get(n, v) for n, v in self._tensors.items()}
        if not self._at:
            return made
        flat = [values.get(n, v).reshape(-1) for n, v in self.values.items()]
        every = np.concatenate([np.asarray(v, np.float32) for v in flat])
        changed = np.concatenate([np.full(v.size, n in values) for n, v in self.values.items()])
        for name, places in self._at.items():
            old = self._tensors[name]
            new = np.where((places >= 0) & changed[places], every[places], old.reshape(-1))
            made[name] = new.reshape(old.shape).astype(old.dtype)
        return made

    def _is_whole(self, name: str) -> bool:
        whole = self.values.get(name)
        return whole is not None and whole.shape == self._tensors[name].shape

    def _own(self, name: str) -> slice:
        return slice(self._start[name], self._start[name] + self.values[name].size)

    def _times(self) -> np.ndarray:
        """How often each number is trained."""
        times = np.zeros(self._size, np.int32)
        for name in self._tensors:
            if name in self._at:
                np.add.at(times, self._at[name][self._at[name] >= 0], 1)
            elif name not in self.others:
                times[self._own(name)] += 1
        return times

    @cached_property
    def _ranked(self) -> tuple[np.ndarray, np.ndarray]:
        """Places of all numbers in the order of their size, and the numbers in this order."""
        return self._rank([*self.values])

    def _rank(self, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
        parts = [self._start[n] + np.arange(self.values[n].size) for n in names]
        flat = [np.asarray(self.values[n], np.float32).reshape(-1) for n in names]
        order = np.concatenate([*parts, np.empty(0, np.int64)])
        numbers = np.concatenate([*flat, np.empty(0, np.float32)])
        rank = np.argsort(numbers, kind="stable")
        return order[rank], numbers[rank]

    def _places(self, value: np.ndarray, label: str, taken: Collection[str]) -> np.ndarray | None:
        """Where each number of a tensor is among all numbers; -1 where several are equal to it,
        None where most are none of them."""
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
        whole = len(names) == len(self.values)
        order, numbers = self._ranked if whole else self._rank(names)
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
