"""The training loop over a training graph: state in place, checkpoints, export."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.errors import ModelError, UsageError
from onnxremat.grad.description import StepSignature, training_of
from onnxremat.grad.dropout import COUNTER
from onnxremat.grad.exported.at_rest import at_rest
from onnxremat.grad.exported.frozen import check_frozen
from onnxremat.grad.exported.unfold import apply_restored, fold_restored
from onnxremat.grad.scaling import GOOD
from onnxremat.grad.update import RATE, SHARE, update_of
from onnxremat.graph.onnx_io import files_of, write_model
from onnxremat.graph.tensor_files import drop_leftovers, read_tensors, write_tensors
from onnxremat.memory.native import trim
from onnxremat.ort.binding import BoundSession, BoundState
from onnxremat.ort.blocks import require_block
from onnxremat.ort.providers import CPU, place
from onnxremat.ort.session import Options
from onnxremat.rewrite.pins import PREFIX as PIN
from onnxremat.training.checkpoint import facts_of, progress_in
from onnxremat.training.data import Batch, Batches, by_epoch, check_batch, read_by
from onnxremat.training.on_devices import DeviceSteps, planned_steps
from onnxremat.training.progress import Progress
from onnxremat.training.schedules import Schedule
from onnxremat.training.sessions import device_of, session_of
from onnxremat.training.state import (
    FirstValues,
    Opening,
    Runs,
    Serial,
    Source,
    Step,
    Weights,
    check_ends,
    check_home,
    check_kind,
    input_types,
    marks_in,
    open_source,
    open_step,
    require_inference,
)


class Trainer:
    """Trains with a graph made by :func:`onnxremat.grad.differentiate`.

    Parameters and optimizer state are arrays of this object that each step reads and overwrites;
    there is no second copy of them, unless a GPU trains: then they lie in its memory, and are
    brought back when somebody asks for them. ``state`` has them by name, ``training`` says what
    they are, ``progress`` how far the run is.

    Args:
        graph: the training graph, planned or not.
        weights: where first values come from: the inference model (or its file), arrays by name,
            or a PyTorch module or its state dict. Not needed when the graph holds them.
        rate: learning rate, or a schedule of it.
        accumulate: batches whose gradients are averaged before an update, for graphs that were
            differentiated to accumulate; by default as many as was said then.
        seed: of dropout.
        threads: intra-op threads, 0 for one per core.
        providers: execution providers; the first has to be CUDA's or the processor's. Its ops on
            the processor, of the graph that CUDA does not take, are onnxruntime's own fall-back.
        loss_scale: value of the loss-scale input, for graphs that have one.
        options: session options instead of those that suit the graph.

    A file planned over devices that read the processor's memory runs on them; :meth:`describe`.

    Raises:
        ModelError: no training graph, or onnxruntime refuses it.
        UsageError: a first value is missing or has another shape; the graph does not accumulate.
        MissingComponentError: the first provider does not start here.
        UnsupportedError: it is neither CUDA's nor the processor's.
    """

    alone = True  # one process holds everything that a checkpoint does

    def __init__(
        self,
        graph: Source,
        weights: Weights | None = None,
        *,
        rate: float | Schedule = 0.01,
        accumulate: int | None = None,
        seed: int = 0,
        threads: int = 0,
        providers: list[str] | None = None,
        loss_scale: float = 1.0,
        options: Options | None = None,
    ) -> None:
        step = self._open(graph, PIN if options is None else "")
        require_block(step.model)
        self.training: StepSignature = training_of(step.model)
        update = update_of(step.model)
        check_kind(self.training, accumulate, update is not None)
        self.rate = rate if isinstance(rate, Schedule) else Schedule(rate)
        self.accumulate = accumulate or self.training.accumulate
        self.progress = Progress()
        self.types = input_types(step.model)
        self._loss_scale, self._total = loss_scale, 0
        self._sums = () if update is None else tuple(n for _, n in training_of(update).gradients)
        first = FirstValues(weights, step)
        variables = [v for v in self.training.variables if self._holds(v.input)]
        check_ends(step.model, variables, [self.training.loss] if self.alone else [])
        arrays = {v.input: first.of(v, *self.types[v.input]) for v in variables}
        if seed and COUNTER in arrays:
            arrays[COUNTER][...] = np.random.default_rng(seed).integers(1 << 62)
        self._arrange(arrays)
        device = device_of(providers or [CPU])
        self._held = BoundState(arrays, place(device))
        if update is not None:
            self._add_states(update, first)
        own = None if update is None else Serial.of(Step(update, None, None), ())
        settings = (replace(device, threads=threads), options)
        held = {v.input for v in self.training.variables}
        opening = Opening(Serial.of(step, held), own, *settings)
        del first, step, update  # parsed graphs, before sessions take memory
        self._start(opening)
        del opening, own
        trim()  # what reading first values has left, before a step asks for more

    def _start(self, opening: Opening) -> None:
        """Open what runs; one of several processes opens other sessions."""
        self._update: Runs | None = None
        found = planned_steps(opening, self._held.arrays)
        if isinstance(found, DeviceSteps):
            self._session: Runs = found
            self._held, self._how = found.state, found.describe
            return
        session = session_of(opening.step, opening)
        how = getattr(session, "describe", str)
        self._how = (lambda: f"{found}; {how()}") if found else how
        self._session = self._bound(session, self.training)
        if opening.update is not None:
            about = opening.update.about
            self._update = self._bound(session_of(opening.update, opening), about)

    def _open(self, graph: Source, without: str) -> Step:
        """The training graph; one of several processes takes it apart further."""
        return open_step(graph, without)

    def _holds(self, name: str) -> bool:
        """Whether this process keeps a parameter or state; one of several may not."""
        return True

    def _arrange(self, arrays: dict[str, np.ndarray]) -> None:
        """Where state lies on the host; one of several processes lays sums side by side."""

    def _join(self, gathered: int) -> int:
        """Gradients of other processes into the sums; of how many batches they then are."""
        return gathered

    def _add_states(self, update: onnx.ModelProto, first: FirstValues) -> None:
        """The optimizer's state, which the step does not read."""
        types = input_types(update)
        for variable in training_of(update).states:
            # What the step reads as well is there already, and bound.
            name = variable.input
            if name not in self._held.arrays and self._holds(name):
                self._held.arrays[name] = first.of(variable, *types[name])

    def _bound(self, session: Any, about: StepSignature) -> BoundSession:
        results = [about.loss, *about.outputs] if about.loss else []
        return BoundSession(session, self._held, about.updates, results)

    @property
    def state(self) -> dict[str, np.ndarray]:
        """Parameters and optimizer state by name, as they are now. On the processor these are the
        arrays that it trains; what is written into them on a GPU counts after
        :meth:`push_state`."""
        self.pull_state()
        return self._held.arrays

    def pull_state(self) -> None:
        """Bring state that lies in a GPU's memory into the arrays of :attr:`state`."""
        self._held.pull()

    def push_state(self) -> None:
        """Train from what the arrays of :attr:`state` hold; needed on a GPU alone."""
        self._held.push()

    def describe(self) -> str:
        """How the session of the step holds its bytes, in a sentence or two."""
        return self._how()

    @property
    def whole(self) -> bool:
        """A checkpoint of now would hold all there is; gradients that wait for an update in another
        process it would not."""
        return True

    @property
    def batch_size(self) -> int:
        """Rows of a batch: the first dimension of the first data input that has one."""
        names = filter(None, (*self.training.data, self.training.target))
        return next((shape[0] for shape, _ in map(self.types.__getitem__, names) if shape), 1)

    @property
    def rows(self) -> int:
        """Rows of a step, of all processes together."""
        return self.batch_size

    @property
    def joined(self) -> int:
        """Batches of the step's own rows whose gradients an update averages."""
        return self.accumulate

    # ---- steps ---------------------------------------------------------------------------

    def step(self, batch: Batch, rate: float | None = None) -> float:
        """One step on a batch; returns the loss before the update.

        Args:
            batch: an array per data input, and the target.
            rate: learning rate of this step instead of the schedule's.

        Raises:
            UsageError: an input is missing, of another shape or type, or not the step's; a label is
                no class.
        """
        return float(self.run(batch, rate)[self.training.loss])

    def run(self, batch: Batch, rate: float | None = None) -> dict[str, np.ndarray]:
        """One step; returns the loss and the model outputs asked for when the graph was made.

        A step that accumulates updates once as many batches are gathered as it averages.
        """
        about, progress = self.training, self.progress
        check_batch(about, batch, self.types)
        feeds: dict[str, np.ndarray] = {**batch}
        if about.rate:
            feeds[about.rate] = np.array(self._rate(rate), np.float32)
        feeds |= self._scale()
        results = self._session.run(feeds)
        progress.step += 1
        if self._update is None:
            progress.updates += 1
        else:
            progress.gathered += 1
            if progress.gathered >= self.accumulate:
                self.update(rate)
        return results

    def abandon(self) -> None:
        """Stop the step that is on, from any thread; it raises StoppedError, and the state is good
        for nothing any more: what is kept is the last checkpoint."""
        self._session.abandon()
        if self._update is not None:
            self._update.abandon()

    def update(self, rate: float | None = None) -> None:
        """Update with the mean of the gradients gathered so far, be they fewer than a full set;
        nothing happens when there are none."""
        if self._update is None or not self.progress.gathered:
            return
        share = 1.0 / self._join(self.progress.gathered)
        self._update.run(self._of_update(self._rate(rate), share))
        for name in self._sums:
            self._held.arrays[name].fill(0)
        if self._sums:
            self._held.push(*self._sums)
        self.progress.gathered = 0
        self.progress.updates += 1

    def _of_update(self, rate: float, share: float) -> dict[str, np.ndarray]:
        """What an update graph is fed, by ``differentiate`` or cut off a step: that reads the loss
        scale, too."""
        feeds = {RATE: np.array(rate, np.float32), SHARE: np.array(share, np.float32)}
        return feeds | self._scale()

    def _scale(self) -> dict[str, np.ndarray]:
        """The loss scale of a step that is given it."""
        name = self.training.loss_scale
        return {name: np.array(self._loss_scale, np.float32)} if name else {}

    def _rate(self, given: float | None) -> float:
        return self.rate.at(self.progress.updates, self._total) if given is None else given

    def fit(
        self,
        data: Batches | Iterable[Batch],
        epochs: int,
        *,
        checkpoint: Path | None = None,
        every: int = 0,
        on_step: Callable[[Progress, float], None] | None = None,
        on_epoch: Callable[[Progress], None] | None = None,
    ) -> list[float]:
        """Train over epochs, from where :attr:`progress` stands.

        The last update of an epoch averages what is left where the batches do not fill it.

        Args:
            data: batches by epoch, or a list or the like, whose batches each epoch has.
            epochs: to train in all, those already done included.
            checkpoint: file to write after each epoch, and every ``every`` steps; by several
                processes after the update that follows.
            on_step: called with the progress and the loss after each step.
            on_epoch: called after each epoch (and its checkpoint).

        Returns:
            The loss of every step of this call.

        Raises:
            UsageError: the data do not suit the graph, or the loss is no number any more: where a
                loss scale skips such updates, in all steps of an epoch.
        """
        data = read_by(self.training, self.types, by_epoch(data))
        progress, losses, due = self.progress, list[float](), False
        self._total = epochs * math.ceil(len(data) / self.accumulate)
        progress.begin(getattr(data, "order", ""), len(data), self.accumulate)
        while progress.epoch < epochs:
            begin = len(losses)
            for batch in data.epoch(progress.epoch, progress.batch):
                loss = self.step(batch)
                progress.add(loss)
                losses.append(loss)
                if on_step is not None:
                    on_step(progress, loss)
                due |= checkpoint is not None and bool(every) and progress.step % every == 0
                if due and self.whole and checkpoint is not None:
                    self.save(checkpoint)
                    due = False
            self.update()
            self._require_update(losses[begin:])
            progress.end_epoch()
            if checkpoint is None:
                self.require_sound()
            else:
                self.save(checkpoint)
            if on_epoch is not None:
                on_epoch(progress)
        return losses

    def require_sound(self) -> None:
        """Raises:
        UsageError: a parameter, a running statistic or a sum of gradients holds no numbers.
        """
        state, gathered = self.state, self._sums if self.progress.gathered else ()
        lost = next(
            (name for name in (*self.training.of_model, *gathered)
             if name in state and not np.isfinite(state[name]).all()), None,
        )  # fmt: skip
        if lost is not None:
            raise UsageError(
                f"'{lost}' holds no numbers any more",
                where=self.progress.where_lost(),
                why="training diverged, or the data hold infinities or values that are no numbers",
                hint="a lower --rate, a --warmup, or a step made with --clip-norm 1",
            )

    def _require_update(self, losses: Sequence[float]) -> None:
        """Raises:
        UsageError: an epoch with these losses has trained nothing.
        """
        good = self.state.get(GOOD)
        if losses and good is not None and not good and not np.isfinite(losses).any():
            raise UsageError(
                f"epoch {self.progress.epoch + 1} has trained nothing: the loss is {losses[-1]} in "
                "all its steps",
                why="the loss scale skips such updates; the model overflows, or the data hold "
                "infinities or values that are no numbers",
                hint="bf16 or float32 in place of fp16, or look at the data",
            )

    # ---- state ---------------------------------------------------------------------------

    def learned(self) -> dict[str, np.ndarray]:
        """Parameters and running statistics by name, as they are now.

        Raises:
            UsageError: other processes hold some of them.
        """
        state, names = self.state, self.training.of_model
        absent = next((name for name in names if name not in state), None)
        if absent is not None:
            raise UsageError(
                f"this process does not hold '{absent}'",
                why="each stage of a pipeline holds its own parameters",
                hint="call collect() in all processes; the first holds everything then",
            )
        return {name: state[name] for name in names}

    def values(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and state."""
        return {name: array.copy() for name, array in self.state.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: parameters, state and progress, in safetensors format.

        A kill at any moment leaves either the old file or the new one.

        Raises:
            UsageError: it cannot be written, or would hold no numbers (:meth:`require_sound`).
        """
        self.require_sound()
        self._write(Path(path))

    def _write(self, path: Path) -> None:
        """A checkpoint of what holds numbers."""
        pace = self.rows, self.accumulate
        facts = facts_of(self.training, self.progress, *pace) | self._facts()
        empty = () if self.progress.gathered else self._sums
        kept = {name: array for name, array in self.state.items() if name not in empty}
        write_tensors(path, kept, facts)

    def _facts(self) -> dict[str, str]:
        """What a checkpoint says besides."""
        return {}

    def _take(self, facts: Mapping[str, str]) -> None:
        """Heed what a checkpoint says besides."""

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint.

        Raises:
            ModelError: unreadable, of another model, or with gradients that wait for an update and
                are of batches of another size.
        """
        drop_leftovers(Path(path))
        tensors, facts = read_tensors(Path(path))
        tensors = {name: array for name, array in tensors.items() if self._holds(name)}
        for name in self._sums:  # left out where they are empty
            tensors.setdefault(name, np.zeros_like(self.state[name]))
        odd = sorted(set(tensors) ^ set(self.state))
        kinds = {name: (a.shape, a.dtype) for name, a in self.state.items()}
        odd += [n for n, a in tensors.items() if kinds.get(n) not in (None, (a.shape, a.dtype))]
        if odd:
            raise ModelError(
                f"{path} is a checkpoint of another training graph",
                why=f"differing tensors: {', '.join(odd[:5])}",
                hint="resume with the step it was made with, or start anew with another file",
            )
        progress = progress_in(Path(path), facts, self.training, self.rows, self.accumulate)
        if progress.counted and progress.gathered:
            raise ModelError(
                f"{path} holds gradients of {progress.gathered} batches that wait for an update",
                why=f"steps took {progress.counted} rows, not {self.rows}: their mean would not be "
                "that of all rows",
                hint="go on with the step that it was made with, to the end of an epoch",
            )
        for name, array in self.state.items():
            np.copyto(array, tensors[name])
        self.push_state()
        self.progress = progress
        self._take(facts)

    def export(self, model: Source, path: str | os.PathLike[str] | None = None) -> onnx.ModelProto:
        """The inference model with the trained parameters and running statistics, out of training
        mode where its file was in it.

        Args:
            model: the model that was differentiated.
            path: where to write it, if anywhere.

        Raises:
            UsageError: it is a training step, or another model: one without a parameter that was
                trained, or with another shape or type of it, or other values of what is frozen; or
                other processes hold a parameter.
        """
        source, folder = open_source(model)
        require_inference(source)
        result = onnx.ModelProto()
        result.CopyFrom(apply_restored(source, self.training.restored, folder))
        check_frozen(self.training, marks_in(result, folder))
        stored = {tensor.name: tensor for tensor in result.graph.initializer}
        for name, value in self.learned().items():
            check_home(name, value, stored.get(name))
            stored[name].CopyFrom(numpy_helper.from_array(value, name))
        result = at_rest(fold_restored(result, self.training.restored))
        if path is not None:
            write_model(result, path, folder, files_of(source, folder))
        return result
