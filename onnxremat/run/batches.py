"""Training data: npz files, folders of npy files, or a Python loader; batches by step.

What batch ``k`` of epoch ``e`` holds depends on the seed alone, so that a resumed run sees the
same data as an uninterrupted one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onnxremat.errors import UsageError

Batch = Mapping[str, np.ndarray]


class Arrays:
    """Batches of rows of arrays, shuffled anew every epoch.

    Args:
        arrays: one per input, with the same number of rows; may be memory-mapped.
        size: rows of a batch; rows that do not fill one are left out of the epoch.
        shuffle: draw rows in random order.
        seed: of the order.

    Raises:
        UsageError: different numbers of rows, or fewer than a batch.
    """

    def __init__(
        self, arrays: Mapping[str, np.ndarray], size: int, *, shuffle: bool = True, seed: int = 0
    ) -> None:
        rows = {name: len(array) for name, array in arrays.items()}
        if len(set(rows.values())) != 1:
            raise UsageError("the arrays differ in their number of rows", why=str(rows))
        self.rows = next(iter(rows.values()))
        if self.rows < size:
            raise UsageError(f"{self.rows} rows do not fill a batch of {size}")
        self._arrays, self._size, self._shuffle, self._seed = arrays, size, shuffle, seed

    def __len__(self) -> int:
        return self.rows // self._size

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch, from batch ``start``."""
        order = np.arange(self.rows)
        if self._shuffle:
            np.random.default_rng([self._seed, number]).shuffle(order)
        for k in range(start, len(self)):
            rows = np.sort(order[k * self._size : (k + 1) * self._size])
            yield {name: np.asarray(array[rows]) for name, array in self._arrays.items()}


class Loader:
    """Batches of a Python function ``loader(epoch)`` that returns an iterable of dicts."""

    def __init__(self, function: Callable[[int], Iterable[Batch]]) -> None:
        self._function = function
        self._count: int | None = None

    def __len__(self) -> int:
        if self._count is None:
            self._count = sum(1 for _ in self._function(0))
        return self._count

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch, from batch ``start`` (those before are made and dropped)."""
        for k, batch in enumerate(self._function(number)):
            if k >= start:
                yield batch


Data = Arrays | Loader


def open_data(source: str | Path, size: int, *, shuffle: bool = True, seed: int = 0) -> Data:
    """Data from a file, a folder or a function.

    Args:
        source: ``file.npz`` with an array per input; a folder with ``<input>.npy`` files, which
            are memory-mapped; or ``file.py:function``.
        size: rows of a batch (a Python loader makes its own batches).

    Raises:
        UsageError: nothing of that kind there.
    """
    text = str(source)
    path, _, name = text.rpartition(":")
    if path.endswith(".py"):
        return Loader(_function(Path(path), name))
    place = Path(text)
    if place.is_dir():
        arrays = {file.stem: np.load(file, mmap_mode="r") for file in sorted(place.glob("*.npy"))}
        if not arrays:
            raise UsageError(f"no .npy files in {place}")
        return Arrays(arrays, size, shuffle=shuffle, seed=seed)
    try:
        with np.load(place) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read training data from {place}", why=str(error)) from error
    return Arrays(arrays, size, shuffle=shuffle, seed=seed)


def _function(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{path} has no function '{name}'")
    return function
