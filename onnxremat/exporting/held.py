"""Where a file's tensors hold the numbers of a module's parameters, and their gradients.

Exporters transpose, reshape, slice and concatenate parameters, and give them other names. Numbers
tell: one that occurs once in the module says which element of which parameter it is.
"""

from __future__ import annotations

from collections.abc import Mapping
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

    def gather(self, tensors: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Gathered:
        """Add up the gradients of trained tensors (value and gradient by name) at the elements
        that their numbers come from."""
        total, times = np.zeros(self._size), np.zeros(self._size, np.int64)
        found, others = Gathered(), []
        for name, (value, gradient) in tensors.items():
            places = self._places(name, value)
            if places is None:
                others.append(name)
                continue
            known = places >= 0
            np.add.at(total, places[known], gradient.reshape(-1)[known].astype(np.float64))
            np.add.at(times, places[known], 1)
            for owner in self._owners(places[known]):
                found.under[owner] = (*found.under.get(owner, ()), name)
        total[times == 0] = np.nan
        for name in found.under:
            own = slice(self._start[name], self._start[name] + self.values[name].size)
            found.gradients[name] = total[own].reshape(self.values[name].shape)
            if (times[own] > 1).any():
                found.copied.add(name)
        found.others = tuple(others)
        return found

    def _places(self, name: str, value: np.ndarray) -> np.ndarray | None:
        """Where each number of a tensor is among all numbers; -1 where several are equal to it,
        None where most are none of them."""
        whole = self.values.get(name)
        if whole is not None and whole.shape == value.shape:
            return self._start[name] + np.arange(value.size)
        turned = self._transposed(value)
        if turned is not None:
            return turned
        flat = np.asarray(value, np.float32).reshape(-1)
        left = np.searchsorted(self._sorted, flat, "left")
        count = np.searchsorted(self._sorted, flat, "right") - left
        if 2 * (count == 1).sum() <= flat.size:
            return None
        return np.where(count == 1, self._order[np.minimum(left, self._size - 1)], -1)

    def _transposed(self, value: np.ndarray) -> np.ndarray | None:
        """The places of a tensor that is one parameter with its axes in another order."""
        wanted = np.asarray(value, np.float32).squeeze()
        for name, whole in self.values.items():
            flat = np.asarray(whole, np.float32).squeeze()
            if flat.ndim > AXES or sorted(flat.shape) != sorted(wanted.shape):
                continue
            if flat.size > 1 and flat.min() == flat.max():
                continue  # equal elements: any other such parameter would do
            places = self._start[name] + np.arange(flat.size).reshape(flat.shape)
            for axes in permutations(range(flat.ndim)):
                if np.array_equal(flat.transpose(axes), wanted):
                    return places.transpose(axes).reshape(-1)
        return None

    def _owners(self, places: np.ndarray) -> list[str]:
        names, starts = list(self._start), np.array(list(self._start.values()))
        hit = np.unique(np.searchsorted(starts, places, "right") - 1)
        return [names[k] for k in hit]
