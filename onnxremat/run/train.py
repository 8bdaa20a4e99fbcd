"""The training loop over a training graph: state in place, checkpoints, export."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.errors import ModelError, UsageError
from onnxremat.grad.description import Training, Variable, training_of
from onnxremat.graph.onnx_io import read_model, write_model
from onnxremat.ort.binding import BoundSession
from onnxremat.ort.session import TUNED, Options, open_session, session_options
from onnxremat.run.batches import Batch, Data
from onnxremat.run.checkpoint import read_tensors, write_tensors
from onnxremat.run.rates import Schedule

Source: TypeAlias = onnx.ModelProto | str | os.PathLike[str]
# The memory pattern would double the peak of a training graph; see docs/gradients.md.
UNPLANNED = Options(pattern=False)


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        step: steps done.
        epoch, batch: the next batch.
        losses: of all steps of this process, for a curve.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    losses: list[float] = field(default_factory=list)


class Trainer:
    """Trains with a graph made by :func:`onnxremat.grad.differentiate`.

    Parameters and optimizer state are arrays of this object that each step reads and overwrites;
    there is no second copy of them.

    Args:
        graph: the training graph, planned or not.
        weights: where first values come from: the inference model (or its file), or arrays by
            name. Not needed when the graph holds them.
        rate: learning rate, or a schedule of it.
        threads: intra-op threads, 0 for one per core.
        providers: execution providers; state is kept in host memory.
        loss_scale: value of the loss-scale input, for graphs that have one.
        options: session options instead of those that suit the graph.

    Raises:
        ModelError: no training graph, or onnxruntime refuses it.
        UsageError: a first value is missing or has another shape.
    """

    def __init__(
        self,
        graph: Source,
        weights: Source | Mapping[str, np.ndarray] | None = None,
        *,
        rate: float | Schedule = 0.01,
        threads: int = 0,
        providers: list[str] | None = None,
        loss_scale: float = 1.0,
        options: Options | None = None,
    ) -> None:
        model, folder = _model(graph)
        self.training: Training = training_of(model)
        if not self.training.rate:
            raise UsageError(
                "the graph returns gradients, it does not train",
                hint="differentiate with an optimizer",
            )
        self.rate = rate if isinstance(rate, Schedule) else Schedule(rate)
        self.progress = Progress()
        self._loss_scale = loss_scale
        first = _first_values(weights)
        self._batch_size = _batch_size(model, self.training)
        self._state = self._initial(model, folder, first)
        self._session = BoundSession(
            _session(model, folder, self._state, threads, providers, options),
            self._state,
            {v.input: v.output for v in self.training.variables},
            [self.training.loss, *self.training.outputs],
        )

    @property
    def batch_size(self) -> int:
        """Rows of a batch: the first dimension of the first data input."""
        return self._batch_size

    def _initial(
        self, model: onnx.ModelProto, folder: Path | None, first: _FirstValues
    ) -> dict[str, np.ndarray]:
        inputs = {value.name: value.type.tensor_type for value in model.graph.input}
        stored = _FirstValues(model, folder)
        state = {}
        for variable in self.training.variables:
            kind = inputs[variable.input]
            shape = tuple(dim.dim_value for dim in kind.shape.dim)
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            if variable.initial == "zeros":
                state[variable.input] = np.zeros(shape, dtype)
                continue
            value = first.get(variable.input)
            value = stored.get(variable.input) if value is None else value
            state[variable.input] = _checked(variable, value, shape, dtype)
        return state

    # ---- steps ---------------------------------------------------------------------------

    def step(self, batch: Batch, rate: float | None = None) -> float:
        """One step on a batch; returns the loss before the update.

        Args:
            batch: an array per data input, and the target.
            rate: learning rate of this step instead of the schedule's.

        Raises:
            UsageError: an input is missing or of another shape.
        """
        return float(self.run(batch, rate)[self.training.loss])

    def run(self, batch: Batch, rate: float | None = None) -> dict[str, np.ndarray]:
        """One step; returns the loss and the model outputs asked for when the graph was made."""
        about, progress = self.training, self.progress
        feeds: dict[str, np.ndarray] = {**batch}
        rate = self.rate.at(progress.step, progress.step + 1) if rate is None else rate
        feeds[about.rate] = np.array(rate, np.float32)
        if about.apply:
            feeds[about.apply] = np.array((progress.step + 1) % about.accumulate == 0)
        if about.loss_scale:
            feeds[about.loss_scale] = np.array(self._loss_scale, np.float32)
        results = self._session.run(feeds)
        progress.step += 1
        return results

    def fit(
        self,
        data: Data,
        epochs: int,
        *,
        checkpoint: Path | None = None,
        every: int = 0,
        on_step: Callable[[Progress, float], None] | None = None,
    ) -> list[float]:
        """Train over epochs, from where :attr:`progress` stands.

        Args:
            data: batches by epoch.
            epochs: to train in all, those already done included.
            checkpoint: file to write after each epoch, and every ``every`` steps.
            on_step: called with the progress and the loss after each step.

        Returns:
            The loss of every step of this call.
        """
        progress, total, losses = self.progress, epochs * len(data), []
        while progress.epoch < epochs:
            for batch in data.epoch(progress.epoch, progress.batch):
                loss = self.step(batch, self.rate.at(progress.step, total))
                progress.batch += 1
                progress.losses.append(loss)
                losses.append(loss)
                if on_step is not None:
                    on_step(progress, loss)
                if checkpoint is not None and every and progress.step % every == 0:
                    self.save(checkpoint)
            progress.epoch, progress.batch = progress.epoch + 1, 0
            if checkpoint is not None:
                self.save(checkpoint)
        return losses

    # ---- state ---------------------------------------------------------------------------

    def values(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and state."""
        return {name: array.copy() for name, array in self._state.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: parameters, state and progress, in safetensors format.

        A kill at any moment leaves either the old file or the new one.
        """
        progress = self.progress
        facts = {
            "format": "onnxremat-checkpoint", "version": "1", "step": str(progress.step),
            "epoch": str(progress.epoch), "batch": str(progress.batch),
        }  # fmt: skip
        write_tensors(Path(path), self._state, facts)

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint.

        Raises:
            ModelError: unreadable, or of another model.
        """
        tensors, facts = read_tensors(Path(path))
        if set(tensors) != set(self._state):
            odd = sorted(set(tensors) ^ set(self._state))
            raise ModelError(
                f"{path} is a checkpoint of another training graph",
                why=f"differing tensors: {', '.join(odd[:5])}",
            )
        for name, array in self._state.items():
            if tensors[name].shape != array.shape or tensors[name].dtype != array.dtype:
                raise ModelError(f"tensor '{name}' in {path} has shape {tensors[name].shape}")
            np.copyto(array, tensors[name])
        self.progress = Progress(int(facts["step"]), int(facts["epoch"]), int(facts["batch"]))

    def export(self, model: Source, path: str | os.PathLike[str] | None = None) -> onnx.ModelProto:
        """The inference model with the trained parameters and running statistics.

        Args:
            model: the model that was differentiated.
            path: where to write it, if anywhere.

        Raises:
            UsageError: the model lacks a parameter that was trained.
        """
        source, folder = _model(model)
        result = onnx.ModelProto()
        result.CopyFrom(source)
        trained = [v.input for v in self.training.variables if v.initial == "model"]
        stored = {tensor.name: tensor for tensor in result.graph.initializer}
        for name in trained:
            if name not in stored:
                raise UsageError(f"the model has no initializer '{name}'")
            stored[name].CopyFrom(numpy_helper.from_array(self._state[name], name))
        if path is not None:
            write_model(result, path, weights_from=folder)
        return result


def _batch_size(model: onnx.ModelProto, training: Training) -> int:
    inputs = {value.name: value for value in model.graph.input}
    named = training.data[0] if training.data else training.target
    dims = inputs[named].type.tensor_type.shape.dim
    return int(dims[0].dim_value) if dims else 1


class _FirstValues:
    """Initial values by name, read one at a time."""

    def __init__(
        self,
        model: onnx.ModelProto | None,
        folder: Path | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        stored = model.graph.initializer if model is not None else ()
        self._stored = {tensor.name: tensor for tensor in stored}
        self._folder, self._arrays = folder, arrays or {}

    def get(self, name: str) -> np.ndarray | None:
        """The value, None when it is not there."""
        if name in self._arrays:
            return np.asarray(self._arrays[name])
        if name in self._stored:
            return numpy_helper.to_array(self._stored[name], str(self._folder or ""))
        return None


def _first_values(weights: Source | Mapping[str, np.ndarray] | None) -> _FirstValues:
    if weights is None or isinstance(weights, Mapping):
        return _FirstValues(None, None, weights)
    return _FirstValues(*_model(weights))


def _checked(
    variable: Variable, value: np.ndarray | None, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    if value is None:
        raise UsageError(
            f"no first value for '{variable.input}'",
            why="the training graph does not hold its weights",
            hint="give the model it was made from",
        )
    if value.shape != shape:
        raise UsageError(
            f"'{variable.input}' has shape {value.shape}, the training graph wants {shape}"
        )
    return np.array(value, dtype, order="C")


def _model(source: Source) -> tuple[onnx.ModelProto, Path | None]:
    if isinstance(source, onnx.ModelProto):
        return source, None
    return read_model(source), Path(source).parent


def _session(
    model: onnx.ModelProto,
    folder: Path | None,
    state: Mapping[str, np.ndarray],
    threads: int,
    providers: list[str] | None,
    options: Options | None,
) -> object:
    """A session on the graph without the first values, which would only take memory."""
    planned = any(entry.key == "onnxremat.plan" for entry in model.metadata_props)
    light = model
    if any(tensor.name in state for tensor in model.graph.initializer):
        light = onnx.ModelProto()
        light.CopyFrom(model)
        kept = [tensor for tensor in light.graph.initializer if tensor.name not in state]
        del light.graph.initializer[:]
        light.graph.initializer.extend(kept)
    chosen = options or replace(TUNED if planned else UNPLANNED, threads=threads)
    made = session_options(chosen)
    # The pool's threads; the calling thread is seen to at each run.
    made.add_session_config_entry("session.set_denormal_as_zero", "1")
    return open_session(light, made, folder, providers)
