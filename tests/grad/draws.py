"""Random inputs of cases. Each case draws from a generator of its own, seeded by what it says, so
that a new one leaves the numbers of all others as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np


@dataclass(frozen=True)
class Draw:
    """Numbers that are drawn when their case is known. Arithmetic with arrays and numbers, and
    indices, are applied then.

    Attributes:
        name: kind and shape.
        draw: draws them.
    """

    __array_ufunc__ = None  # so that an array on the left leaves the arithmetic to this class

    name: str
    draw: Callable[[np.random.Generator], np.ndarray]

    def _then(self, change: Callable[[np.ndarray], np.ndarray]) -> Draw:
        return Draw(self.name, lambda rng: change(self.draw(rng)))

    def __add__(self, other: Any) -> Draw:
        return self._then(lambda value: value + other)

    def __sub__(self, other: Any) -> Draw:
        return self._then(lambda value: value - other)

    def __mul__(self, other: Any) -> Draw:
        return self._then(lambda value: value * other)

    def __truediv__(self, other: Any) -> Draw:
        return self._then(lambda value: value / other)

    def __getitem__(self, index: Any) -> Draw:
        return self._then(lambda value: value[index])


def normal(*shape: int) -> Draw:
    return Draw(f"normal{shape}", lambda rng: np.asarray(rng.standard_normal(shape)))


def apart(*shape: int) -> Draw:
    """Values no two of which are close, and none close to 0: safe for max, sign and the like."""
    count = int(np.prod(shape))
    values = (np.arange(count) - count / 2 + 0.25) * 0.37
    return Draw(f"apart{shape}", lambda rng: rng.permutation(values).reshape(shape))


def positive(*shape: int) -> Draw:
    """Values in (0.5, 2)."""
    return Draw(f"positive{shape}", lambda rng: np.asarray(rng.uniform(0.5, 2.0, shape)))


def inside(*shape: int) -> Draw:
    """Values in (-0.8, 0.8)."""
    return Draw(f"inside{shape}", lambda rng: np.asarray(rng.uniform(-0.8, 0.8, shape)))


def generator(
    domain: str, op: str, inputs: Sequence[Any], settings: Mapping[str, Any]
) -> np.random.Generator:
    """The generator of a case; opsets and tolerances do not matter to it."""
    words = [domain, op, *map(_word, inputs), *(f"{k}={v}" for k, v in sorted(settings.items()))]
    return np.random.default_rng(crc32(" ".join(words).encode()))


def _word(entry: Any) -> str:
    entry = getattr(entry, "value", entry)
    if isinstance(entry, Draw):
        return entry.name
    return "none" if entry is None else f"{entry.dtype}{entry.shape}"
