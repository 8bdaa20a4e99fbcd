"""Training data: npz files, folders of npy files, or a Python loader; batches by step.

What batch ``k`` of epoch ``e`` holds depends on the seed alone, so that a resumed run sees the
same data as an uninterrupted one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from onnxremat.errors import UsageError
from onnxremat.grad.description import StepSignature
from onnxremat.limits import at_least
from onnxremat.ort.arrays import BROKEN, read_arrays
from onnxremat.ort.binding import check_elements, check_names

Batch = Mapping[str, np.ndarray]
ENDED: Any = object()  # what no loader makes
Types = Mapping[str, tuple[tuple[int, ...], np.dtype]]


class Arrays:
    """Batches of rows of arrays, shuffled anew every epoch.

    Args:
        arrays: one per input, with the same number of rows; may be memory-mapped.
        size: rows of a batch; rows that do not fill one are left out of the epoch.
        shuffle: draw rows in random order.
        seed: of the order.

    Raises:
        UsageError: no arrays, different numbers of rows, or fewer than a batch.
    """

    def __init__(
        self, arrays: Mapping[str, np.ndarray], size: int, *, shuffle: bool = True, seed: int = 0
    ) -> None:
        at_least(size, 1, "the size of a batch")
        if not arrays:
            raise UsageError("there are no arrays in the data")
        flat = [name for name, array in arrays.items() if array.ndim == 0]
        if flat:
            raise UsageError(f"array '{flat[0]}' is a single number, it has no rows")
        rows = {name: len(array) for name, array in arrays.items()}
        if len(set(rows.values())) != 1:
            counts = ", ".join(f"'{name}' has {count}" for name, count in rows.items())
            raise UsageError("the arrays differ in their number of rows", why=counts)
        self.rows = next(iter(rows.values()))
        if self.rows < size:
            raise UsageError(f"{self.rows} rows do not fill a batch of {size}")
        self.arrays = arrays
        self._size, self._shuffle, self._seed = size, shuffle, seed

    def of(self, names: Iterable[str]) -> Arrays:
        """The same rows of some of the arrays: a file may have columns that a step does not read.

        Raises:
            KeyError: there is no such array.
        """
        found = copy(self)
        found.arrays = {name: self.arrays[name] for name in names}
        return found

    def __len__(self) -> int:
        return self.rows // self._size

    @property
    def order(self) -> str:
        """What tells the order of an epoch from that of others."""
        how = f"shuffled by seed {self._seed}" if self._shuffle else "as they lie"
        return f"{self.rows} rows {how}"

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch, from batch ``start``."""
        order = np.arange(self.rows)
        if self._shuffle:
            np.random.default_rng([self._seed, number]).shuffle(order)
        for k in range(start, len(self)):
            rows = np.sort(order[k * self._size : (k + 1) * self._size])
            yield {name: np.asarray(array[rows]) for name, array in self.arrays.items()}


class Loader:
    """Batches of a Python function ``loader(epoch)`` that returns an iterable of dicts.

    It should give the same batches whenever it is called with the same epoch, so that resuming is
    exact. A result with a length (a list, a ``DataLoader``) is not run through to count it.

    Raises:
        UsageError: the function fails, or makes something else.
    """

    order = ""  # is the function's affair

    def __init__(self, function: Callable[[int], Iterable[Batch]]) -> None:
        self._function = function
        self._count: int | None = None

    def __len__(self) -> int:
        if self._count is None:
            with _blamed("the loader"):
                batches = self._function(0)
                try:
                    self._count = len(batches)  # type: ignore[arg-type]
                except TypeError:  # a DataLoader has a length as far as what it reads has one
                    self._count = sum(1 for _ in batches)
        if not self._count:
            raise UsageError("the loader makes no batches", where="epoch 0")
        return self._count

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch, from batch ``start`` (those before are made and dropped)."""
        with _blamed("the loader"):
            batches = iter(self._function(number))
        k = 0
        while True:
            with _blamed("the loader"):
                batch = next(batches, ENDED)
            if batch is ENDED and not k:
                raise UsageError(
                    "the loader makes no batches",
                    where=f"epoch {number}",
                    hint="it is called for every epoch, and to count its batches before: it has to "
                    "make them anew, where a generator or an iterator that it keeps has ended",
                )
            if batch is ENDED:
                return
            if not isinstance(batch, Mapping):
                raise UsageError(
                    f"the loader made a {type(batch).__name__}",
                    hint="it has to make dicts with an array per input",
                )
            if k >= start:
                with _blamed("the loader"):  # a list of unequal rows, say, is no array
                    arrays = {name: np.asarray(value) for name, value in batch.items()}
                yield arrays
            k += 1


Data = Arrays | Loader


class Batches(Protocol):
    """What a trainer goes through: batches by epoch."""

    def __len__(self) -> int: ...

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch, from batch ``start``."""
        ...


def by_epoch(data: Batches | Iterable[Batch]) -> Batches:
    """What has batches by epoch; of a list, or a PyTorch ``DataLoader``, each epoch goes through
    all of it.

    Raises:
        UsageError: it can be gone through once, or is something else.
    """
    if hasattr(data, "epoch"):
        return cast(Batches, data)
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise UsageError(
            f"a {type(data).__name__} is no batches",
            hint="a list of dicts with an array per input, or of a dict of all rows "
            "onnxremat.training.data.Arrays(arrays, trainer.batch_size)",
        )
    if iter(data) is data:
        raise UsageError(
            f"a {type(data).__name__} ends, and each epoch goes through all batches",
            hint="give a list, or onnxremat.training.data.Loader(function): it is called for each",
        )
    return Loader(lambda epoch: data)


AnyBatches = TypeVar("AnyBatches", bound=Batches)


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    """An exception in the user's own Python says where in it it arose, in one message."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        ours = place.filename in (__file__, "<frozen importlib._bootstrap>")
        raise UsageError(
            f"{what} failed",
            where="" if ours else f"{place.filename}:{place.lineno}",
            why=f"{type(error).__name__}: {error}",
        ) from error


# ---- checks --------------------------------------------------------------------------------------


def read_by(about: StepSignature, types: Types, data: AnyBatches, where: str = "") -> AnyBatches:
    """Data as a step reads them: checked, and of arrays only those that are its inputs.

    Raises:
        UsageError: see :func:`check_arrays`.
    """
    check_arrays(about, types, data, where)
    read: Any = data.of(about.fed) if isinstance(data, Arrays) else data
    return cast(AnyBatches, read)


def check_arrays(about: StepSignature, types: Types, data: Batches, where: str = "") -> None:
    """Fail before the first step where arrays do not suit a training step.

    Args:
        where: the arrays come from.

    Raises:
        UsageError: an array is missing, of another shape or type, or a label is no class.
    """
    if not isinstance(data, Arrays):
        return
    wanted = about.fed
    missing = [name for name in wanted if name not in data.arrays]
    if missing:
        raise UsageError(
            f"the data have no array '{missing[0]}'",
            where=where,
            why=f"the step reads {_names(wanted)}; there are {_names(data.arrays)}",
            hint="name the arrays after the inputs",
        )
    _check_rows({name: types[name][0] for name in wanted}, where)
    for name in wanted:
        (_, *row), dtype = types[name]
        array = data.arrays[name]
        if list(array.shape[1:]) != row:
            raise UsageError(
                f"a row of array '{name}' has shape {list(array.shape[1:])}, the step wants {row}",
                where=where,
                hint=_of_class_axis(about, name, array.shape[1:], row),
            )
        _check_elements(name, array, dtype, where)
    check_labels(about, data.arrays, where)


def _check_elements(name: str, array: np.ndarray, dtype: np.dtype, where: str) -> None:
    try:
        check_elements(f"array '{name}'", array, dtype, "the step")
    except UsageError as error:
        error.where = where
        raise


def _check_rows(shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raises:
    UsageError: an input has no rows, or others than the rest: rows of arrays are no batches then.
    """
    hint = "--data loader.py:function makes batches as the step takes them"
    for name, shape in shapes.items():
        if not shape:
            raise UsageError(
                f"input '{name}' of the step is a single number, arrays give rows",
                where=where,
                hint=f"{hint}; onnxremat set-input MODEL OUT {name}=VALUE gives it one for good",
            )
    first = next(iter(shapes), "")
    for name, shape in shapes.items():
        if shape[0] != shapes[first][0]:
            raise UsageError(
                f"the step takes {shapes[first][0]} rows of '{first}' and {shape[0]} of '{name}'",
                where=where,
                why="arrays give as many of each",
                hint=hint,
            )


def _of_class_axis(
    about: StepSignature, name: str, given: Sequence[int], wanted: Sequence[int]
) -> str:  # fmt: skip
    """A hint where labels are those of PyTorch's class axis, and the step takes the last one."""
    other = name == about.target and about.classes and about.loss_settings.get("axis") is None
    if not other or len(wanted) != 1 or len(given) != 1:
        return ""
    return (
        f"classes are the last axis of the prediction here ({about.classes} of them): make the "
        "step with --loss cross-entropy:axis=1 for the second one, as in PyTorch"
    )


def check_batch(about: StepSignature, batch: Batch, types: Types) -> None:
    """Fail before a step on a batch that is not one of the step's.

    Raises:
        UsageError: an input is missing, or is not the step's; labels of another shape, or one that
            is no class.
    """
    check_names(batch, about.fed, "the step")
    for name in about.fed:
        given, wanted = np.shape(batch[name]), types.get(name, ((),))[0]
        if given[1:] == wanted[1:] and given[:1] < wanted[:1]:
            raise UsageError(
                f"input '{name}' has shape {list(given)}, the step wants {list(wanted)}",
                hint="leave out what does not fill a batch, as the last of an epoch does not "
                "(drop_last=True of a DataLoader)",
            )
    if about.target in batch:
        given, wanted = np.shape(batch[about.target]), types[about.target][0]
        if given[:1] == wanted[:1] and given != wanted:
            raise UsageError(
                f"input '{about.target}' has shape {list(given)}, the model wants {list(wanted)}",
                hint=_of_class_axis(about, about.target, given[1:], wanted[1:]),
            )
    check_labels(about, batch)


def check_labels(about: StepSignature, batch: Batch, where: str = "") -> None:
    """Raises:
    UsageError: a label is no class (a negative one would count from the end).
    """
    if not about.classes or about.target not in batch:
        return
    labels = np.asarray(batch[about.target])
    if labels.dtype.kind not in "biuf":  # refused as what they are
        return
    wrong = (labels < 0) | (labels >= about.classes)
    ignored = about.loss_settings.get("ignore_index")
    if ignored is not None:
        wrong &= labels != ignored
    if wrong.any():
        label, other = labels[wrong].flat[0], (labels[wrong] != labels[wrong].flat[0]).any()
        hint = (
            f"one that does not count: make the step with --loss cross-entropy:ignore_index={label}"
        )
        raise UsageError(
            f"label {label} in '{about.target}' is no class",
            where=where,
            why=f"the prediction has {about.classes} classes, labels are 0 to {about.classes - 1}"
            + (f"; {ignored} does not count" if ignored is not None else ""),
            hint="" if other or ignored is not None else hint,
        )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


# ---- sources -------------------------------------------------------------------------------------


def open_data(source: str | Path, size: int, *, shuffle: bool = True, seed: int = 0) -> Data:
    """Data from a file, a folder or a function.

    Args:
        source: ``file.npz`` with an array per input; a folder with ``<input>.npy`` files, which
            are memory-mapped; ``file.py:function`` or ``package.module:function``.
        size: rows of a batch (a Python loader makes its own batches).

    Raises:
        UsageError: nothing of that kind there.
    """
    text = str(source)
    path, _, name = text.rpartition(":")
    if path.endswith(".py") or (name and _is_module(path)):
        return Loader(_function(path, name))
    place = Path(text)
    arrays = _mapped(place) if place.is_dir() else _unpacked(place)
    return Arrays(arrays, size, shuffle=shuffle, seed=seed)


def _mapped(folder: Path) -> dict[str, np.ndarray]:
    files = sorted(folder.glob("*.npy"))
    if not files:
        raise UsageError(f"no .npy files in {folder}", hint="one file per input, <input>.npy")
    arrays = {}
    for file in files:
        try:
            arrays[file.stem] = np.load(file, mmap_mode="r")
        except BROKEN as error:
            raise UsageError(f"cannot read {file}", why=str(error)) from error
    return arrays


def _unpacked(file: Path) -> dict[str, np.ndarray]:
    hint = "give an .npz file, a folder of .npy files, or loader.py:function"
    return read_arrays(file, "training data", hint)


def _is_module(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


@contextmanager
def _folder_at_hand() -> Iterator[None]:
    """Modules of the working directory can be imported, inside."""
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def _function(path: str, name: str) -> Any:
    """A function of a Python file, or of a module (the folder at hand is searched, too)."""
    if path.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        if not Path(path).is_file() or spec is None or spec.loader is None:
            raise UsageError(f"no Python file {path}")
        module = importlib.util.module_from_spec(spec)
        with _blamed(path):
            spec.loader.exec_module(module)
    else:
        try:
            with _blamed(f"module {path}"), _folder_at_hand():
                module = importlib.import_module(path)
        except UsageError as error:
            if not isinstance(error.__cause__, ModuleNotFoundError):
                raise
            raise UsageError(f"no Python module '{path}'", why=str(error.__cause__)) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{path} has no function '{name}'")
    return function
