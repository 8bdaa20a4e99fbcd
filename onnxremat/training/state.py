"""What a training step keeps: parameters, optimizer state, sums, statistics, counters."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.device.machine import Device
from onnxremat.errors import ModelError, UsageError
from onnxremat.grad.description import StepSignature, Variable, is_step, training_of
from onnxremat.grad.exported.frozen import check_frozen, mark
from onnxremat.grad.exported.marks import first_of
from onnxremat.grad.exported.restored import Restored
from onnxremat.grad.exported.unfold import apply_restored
from onnxremat.grad.sharing import require_early_reads
from onnxremat.graph.onnx_io import read_model
from onnxremat.graph.wire import existing, read_light
from onnxremat.limits import at_least, whole
from onnxremat.memory.mapped import can_own
from onnxremat.ort.session import Options
from onnxremat.rewrite.emit import metadata
from onnxremat.session.load import options_of

Source: TypeAlias = onnx.ModelProto | str | os.PathLike[str]
Weights: TypeAlias = Source | Mapping[str, Any] | Any  # the last: a torch.nn.Module


def open_source(source: Source) -> tuple[onnx.ModelProto, Path | None]:
    """A model and the folder of its external weights."""
    if isinstance(source, onnx.ModelProto):
        return source, None
    return read_model(source), Path(source).parent


def require_inference(model: onnx.ModelProto) -> None:
    """Raises:
    UsageError: what takes trained values is a training step.
    """
    if is_step(model):
        raise UsageError(
            "an export wants the inference model, and this is a training step",
            hint="give the model that the step was made from: --weights MODEL",
        )


@dataclass(frozen=True)
class Step:
    """A training graph as it was found.

    Attributes:
        model: the graph; big values may be left in files.
        folder: where these files are.
        file: the graph's own file, where big values were left in it.
    """

    model: onnx.ModelProto
    folder: Path | None
    file: Path | None


def open_step(source: Source, without: str = "") -> Step:
    """A training graph without its big first values, where it comes from a file.

    Args:
        without: see :func:`onnxremat.graph.wire.read_light`.
    """
    if isinstance(source, onnx.ModelProto):
        return Step(source, None, None)
    file = existing(source)
    light = read_light(file, without) if can_own() and not file.is_symlink() else None
    if light is None or light.elsewhere:
        return Step(read_model(file), file.parent, None)
    file = file.absolute()
    return Step(onnx.ModelProto.FromString(light.content), file.parent, file)


class Runs(Protocol):
    """What a trainer runs: a session, or several in turn."""

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One run; results are copies."""
        ...

    def abandon(self) -> None:
        """Stop the run that is on, and every later one; from any thread."""
        ...


class FirstValues:
    """Initial values by name, read one at a time.

    Args:
        weights: arrays, a PyTorch module or its state dict, a model, or a model's file, which count
            first. What the training step undid of an exporter's work is undone in the model too.
        step: the training graph, which may hold them as well. Beside weights its own count only
            for arrays by name that are all of tensors that it trains.

    Raises:
        UsageError: what is given has nothing of the step's, or not all of it, or other values
            of what the step has frozen.
    """

    def __init__(self, weights: Weights | None, step: Step | onnx.ModelProto) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        self._stored: dict[str, tuple[onnx.TensorProto, Path | None]] = {}
        models = [(step, None) if isinstance(step, onnx.ModelProto) else (step.model, step.folder)]
        if weights is not None and hasattr(weights, "state_dict"):
            weights = weights.state_dict()
        if isinstance(weights, Mapping):
            self._arrays.update({name: as_array(value) for name, value in weights.items()})
        elif weights is not None:
            found = open_step(weights)  # big values stay in the file until they are asked for
            models.insert(0, (found.model, found.folder))
        restored = [entry for model, _ in models for entry in _restored(model)]
        known = set(self._arrays)
        for index, (model, folder) in enumerate(models):
            if not is_step(model):
                model = apply_restored(model, restored, folder)
                models[index] = model, folder
                known.update(tensor.name for tensor in model.graph.initializer)
            for tensor in model.graph.initializer:
                self._stored.setdefault(tensor.name, (tensor, folder))
        about, by_name = training_of(models[-1][0]), isinstance(weights, Mapping)
        if weights is not None:
            _check_given(sorted(known), about.of_model, self._sizes())
            given = marks_of(self._arrays) if by_name else marks_in(*models[0])
            check_frozen(about, given, named_alike=by_name)

    def _sizes(self) -> dict[str, int]:
        """Elements of all values."""
        stored = {name: prod(tensor.dims) for name, (tensor, _) in self._stored.items()}
        return stored | {name: array.size for name, array in self._arrays.items()}

    def of(self, variable: Variable, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """A new array with the first value of a variable.

        Raises:
            UsageError: there is none, or it has another shape.
        """
        name = variable.input
        if variable.initial == "zeros":
            return np.zeros(shape, dtype)
        if name in self._arrays:
            value = self._arrays[name]
        elif name in self._stored:
            value = read_weight(*self._stored[name])
        else:
            raise UsageError(
                f"no first value for '{name}'",
                why="neither the training graph nor the weights given hold it",
                hint="give the model that the graph was made from: --weights MODEL, weights=MODEL",
            )
        if value.shape != shape:
            raise UsageError(
                f"'{name}' has shape {value.shape}, the training graph wants {shape}",
                hint="give the model that the training graph was made from",
            )
        if name in self._arrays or not value.flags.writeable:
            return np.array(value, dtype, order="C")
        return np.asarray(value, dtype, order="C")


def _check_given(known: Sequence[str], trained: Sequence[str], sizes: Mapping[str, int]) -> None:
    """What is trained would begin partly with the weights given, partly with what the step's file
    holds, where an exporter gave some of them names of its own: those given have tensors of another
    name, and as large.

    Args:
        known: names in the weights given.
        sizes: elements of all values, those that the step alone holds too.

    Raises:
        UsageError: that is so, or nothing that is given is trained.
    """
    if known and trained and set(known).isdisjoint(trained):
        raise UsageError(
            "the weights given are of another model",
            why=f"they are {first_of(known, 2)}; the step trains {first_of(trained, 2)}",
            hint="name them as the model does that the training graph was made from",
        )
    others = {sizes[name]: name for name in known if name not in trained}
    for name in trained:
        if known and name not in known and sizes.get(name, 0) in others:
            raise UsageError(
                f"no first value for '{name}' in the weights given",
                why="the training graph holds one, which may be older; they have "
                f"'{others[sizes[name]]}', which it does not train",
                hint="give the model that the graph was made from, or a module to "
                "onnxremat.from_torch, which keeps its names; or no weights, for those of the "
                "graph",
            )


def marks_in(model: onnx.ModelProto, folder: Path | None) -> Callable[[str], str]:
    """Marks of a model's values by name, for :func:`onnxremat.grad.exported.frozen.check_frozen`.

    Args:
        model: with what an exporter did to parameters undone; of a training step it is the marks
            of the model that it was made from.
        folder: where external weights lie.
    """
    if is_step(model):
        marks = {row.name: row.mark for row in training_of(model).weights}
        return lambda name: marks.get(name, "")
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    return lambda name: mark(read_weight(stored[name], folder)) if name in stored else ""


def marks_of(arrays: Mapping[str, Any]) -> Callable[[str], str]:
    """The same of arrays or PyTorch tensors by name."""
    return lambda name: mark(as_array(arrays[name])) if name in arrays else ""


def check_home(name: str, value: np.ndarray, tensor: onnx.TensorProto | None) -> None:
    """Raises:
    UsageError: a model has no initializer for what was trained, or one of another kind.
    """
    what = None if tensor is None else np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if tensor is None or (what, tuple(tensor.dims)) != (value.dtype, value.shape):
        raise UsageError(
            f"'{name}' is trained as {value.dtype}{list(value.shape)}, and the model has "
            + ("no initializer of this name" if tensor is None else f"{what}{list(tensor.dims)}"),
            hint="give the model that the training step was made from",
        )


def as_array(value: Any) -> np.ndarray:
    """An array of an array or a PyTorch tensor, wherever that lies; shared where it can be."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if value.is_floating_point() and value.dtype.itemsize < 4:  # NumPy has no bfloat16
            value = value.float()
        return np.asarray(value.numpy())
    return np.asarray(value)


def read_weight(tensor: onnx.TensorProto, folder: Path | None) -> np.ndarray:
    """The value of an initializer; of one that lies in a file, read straight into the array.

    Raises:
        ModelError: of no known type, or its bytes are not those that its shape needs.
    """
    where = {entry.key: entry.value for entry in tensor.external_data}
    count = prod(tensor.dims)
    try:
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
        if folder is None or where.get("length") != str(count * kind.itemsize):
            return numpy_helper.to_array(tensor, str(folder or ""))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"weight '{tensor.name}' is damaged",
            why=f"element type {tensor.data_type}, shape {list(tensor.dims)}; onnx says: {error}",
            hint="export the model again",
        ) from error
    offset = int(where.get("offset", 0))
    value = np.fromfile(folder / where["location"], np.uint8, count * kind.itemsize, offset=offset)
    return value.view(kind).reshape(tuple(tensor.dims))


def _restored(model: onnx.ModelProto) -> tuple[Restored, ...]:
    return training_of(model).restored if is_step(model) else ()


def input_types(model: onnx.ModelProto) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and element type per input of a model whose sizes are bound.

    Raises:
        ModelError: an input is no tensor of a known type.
    """
    found = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        if kind.elem_type not in helper.get_all_tensor_dtypes():
            raise ModelError(
                f"input '{value.name}' of the training step is no tensor of a known type",
                why="the file says " + (" ".join(str(value.type).split()) or "nothing of it"),
                hint="make the step again: onnxremat differentiate NET STEP",
            )
        shape = tuple(dim.dim_value for dim in kind.shape.dim)
        found[value.name] = shape, np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return found


def check_kind(about: StepSignature, accumulate: int | None, gathers: bool) -> None:
    if about.share:
        raise UsageError("this is the update of a training step", hint="give the step itself")
    if not about.optimizer:
        raise UsageError(
            "the graph returns gradients, it does not train",
            hint="differentiate with an optimizer",
        )
    at_least(1 if accumulate is None else whole(accumulate, "accumulate"), 1, "accumulate")
    if accumulate and accumulate > 1 and not gathers:
        raise UsageError(
            "the step updates with every batch, it cannot accumulate",
            hint=f"make it with: onnxremat differentiate --accumulate {accumulate}",
        )


def check_ends(model: onnx.ModelProto, kept: Sequence[Variable], results: Sequence[str]) -> None:
    """What is kept from step to step goes in and comes out again, and results come out."""
    wanted = {
        "input": ({value.name for value in model.graph.input}, [v.input for v in kept]),
        "output": (
            {value.name for value in model.graph.output},
            [*results, *(v.output for v in kept if v.output)],
        ),
    }
    for side, (there, names) in wanted.items():
        for name in names:
            if name not in there:
                raise ModelError(
                    f"the training graph has no {side} '{name}'",
                    why="its metadata says that it has",
                    hint="make it again: onnxremat differentiate, or optimize --train",
                )


@dataclass(frozen=True)
class Serial:
    """A training graph as a session is given it: no parsed form of it has to be in memory while the
    session is opened, which takes that much itself and would come to lie around it.

    Attributes:
        content: the graph without its first values, serialised.
        about: what it says of itself.
        devices: it was planned over devices.
        planned: its nodes are to run as they are listed.
        folder, file: as of a :class:`Step`.
    """

    content: bytes
    about: StepSignature
    devices: bool
    planned: bool
    folder: Path | None
    file: Path | None

    @classmethod
    def of(cls, step: Step, held: Container[str]) -> Serial:
        """Serialise a step.

        Args:
            held: initializers that the trainer holds, and the session would hold as well.

        Raises:
            ModelError: it may read an old value after the new one is written over it.
        """
        model = step.model
        facts = metadata(model)
        planned = "plan" in facts and not options_of(model).fuses  # not written as it was
        require_early_reads(model, listed=planned)
        if any(tensor.name in held for tensor in model.graph.initializer):
            model = onnx.ModelProto()
            model.CopyFrom(step.model)
            kept = [tensor for tensor in model.graph.initializer if tensor.name not in held]
            del model.graph.initializer[:]
            model.graph.initializer.extend(kept)
        content, about = model.SerializeToString(), training_of(model)
        return cls(content, about, "devices" in facts, planned, step.folder, step.file)


@dataclass(frozen=True)
class Opening:
    """What the sessions of a trainer are opened with.

    Attributes:
        step: the training graph.
        update: its update, where that is a graph of its own.
        device: that runs them, with the threads it is given.
        options: of the step's session, None for those it was planned with.
    """

    step: Serial
    update: Serial | None
    device: Device
    options: Options | None
