"""Loss and accuracy on data that is not trained on, with the parameters a trainer holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from onnx import helper

from onnxremat.errors import UsageError
from onnxremat.grad.evaluation import loss_for, prediction_graph, score_graph
from onnxremat.grad.exported.frozen import check_frozen
from onnxremat.grad.exported.unfold import apply_restored
from onnxremat.grad.losses import CrossEntropy, Loss
from onnxremat.ort.binding import BoundSession, BoundState
from onnxremat.ort.functions import inline_functions
from onnxremat.ort.infer import bind
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.training.data import Arrays, check_arrays
from onnxremat.training.state import Source, marks_in, open_source
from onnxremat.training.trainer import Trainer

Weighed = tuple[float, float]  # a mean, and what it is one of


@dataclass(frozen=True)
class Score:
    """How good the model is.

    Attributes:
        loss: mean over the rows; of labels that count, by the weights of their classes.
        accuracy: share of right predictions, None where the loss knows no right and wrong.
        rows: how many were looked at.
    """

    loss: float
    accuracy: float | None
    rows: int

    def __str__(self) -> str:
        text = f"loss {self.loss:.4f}"
        return text if self.accuracy is None else f"{text}, accuracy {self.accuracy:.2%}"


class Evaluator:
    """Scores the model at any time between steps, on the trainer's own arrays.

    The model runs in inference mode: running statistics, no dropout.

    Args:
        trainer: holds the parameters.
        model: the inference model that was differentiated, or its file.
        loss: instead of the one it is trained with.
        threads: intra-op threads, 0 for one per core.

    Raises:
        UsageError: another model, or one with other values of what is frozen, or a loss that is not
            known here.
    """

    def __init__(
        self, trainer: Trainer, model: Source, *, loss: Loss | None = None, threads: int = 0
    ) -> None:
        about = self._about = trainer.training
        source, folder = open_source(model)
        shapes = {name: trainer.types[name][0] for name in about.data}
        bound = bind(inline_functions(source), shapes)
        held = {*about.of_model}
        check_frozen(about, marks_in(apply_restored(bound, about.restored, folder), folder))
        graph = prediction_graph(bound, about.prediction, held, folder, about.restored)
        session = open_session(graph, session_options(Options(threads=threads)), folder)
        self._trainer = trainer
        arrays = trainer.state
        state = {v.name: arrays[v.name] for v in session.get_inputs() if v.name in held}
        self._session = BoundSession(session, BoundState(state), {}, [about.prediction])
        self._inputs = [v.name for v in session.get_inputs() if v.name not in held]
        self._types = trainer.types
        self._size = trainer.batch_size
        self._loss = (loss or loss_for(about)) if about.target else None
        self._scorers: dict[tuple[int, ...], Any] = {}

    def abandon(self) -> None:
        """Stop the run that is on, from any thread; it raises StoppedError."""
        self._session.abandon()

    def score(self, data: Arrays, between: Callable[[], None] | None = None) -> Score:
        """Loss and accuracy over all rows.

        The last batch is filled up with rows that do not count. Where a row of the prediction is
        not a row of the data, rows that do not fill a batch are left out.

        Args:
            between: called before each batch.

        Raises:
            UsageError: the data do not suit the step.
        """
        check_arrays(self._about, self._types, data)
        self._trainer.pull_state()
        total, weight = dict[str, float](), dict[str, float]()
        done = 0
        for start in range(0, data.rows, self._size):
            if between is not None:
                between()
            rows = np.arange(start, min(start + self._size, data.rows))
            found = self._batch(data, rows)
            if found is None:
                break
            for name, (value, counts) in found.items():
                total[name] = total.get(name, 0.0) + (value * counts if counts else 0.0)
                weight[name] = weight.get(name, 0.0) + counts
            done += len(rows)
        if not done:
            raise UsageError(f"{data.rows} rows do not fill a batch of {self._size}")
        means = {n: value / weight[n] if weight[n] else nan for n, value in total.items()}
        return Score(means["loss"], means.get("accuracy"), done)

    def _batch(self, data: Arrays, rows: np.ndarray) -> dict[str, Weighed] | None:
        filled = np.resize(rows, self._size)
        feeds = {name: np.asarray(data.arrays[name][filled]) for name in self._inputs}
        prediction = self._session.run(feeds)[self._about.prediction]
        if len(rows) < self._size:
            if prediction.ndim == 0 or prediction.shape[0] != self._size:
                return None
            prediction = prediction[: len(rows)]
        if self._loss is None:
            return {"loss": (float(prediction.mean()), len(rows))}
        return self._scored(prediction, np.asarray(data.arrays[self._about.target][rows]))

    def _scored(self, prediction: np.ndarray, target: np.ndarray) -> dict[str, Weighed]:
        assert self._loss is not None
        session = self._scorers.get(prediction.shape)
        if session is None:
            kind = helper.np_dtype_to_tensor_dtype(prediction.dtype)
            graph = score_graph(self._loss, prediction.shape, kind)
            session = open_session(graph, session_options(Options(threads=1)))
            self._scorers[prediction.shape] = session
        wanted = self._types[self._about.target][1]
        feeds = {"prediction": prediction, "target": target.astype(wanted, copy=False)}
        names = [output.name for output in session.get_outputs()]
        counts = _counts(self._loss, target)
        values = zip(names, map(float, session.run(None, feeds)), strict=True)
        return {name: (value, counts.get(name, len(target))) for name, value in values}


def _counts(loss: Loss, target: np.ndarray) -> dict[str, float]:
    """What loss and accuracy of some rows count beside those of others, where that is no matter of
    rows: labels may be left out, and weigh as their classes do."""
    if not isinstance(loss, CrossEntropy):
        return {}
    counted = np.ones(target.shape, np.bool_)
    if loss.ignore_index is not None:
        counted = target != loss.ignore_index
    every = float(counted.sum())
    if loss.class_weights is None:
        return {"loss": every, "accuracy": every}
    weights = np.asarray(loss.class_weights)[target[counted].astype(np.int64)]
    return {"loss": float(weights.sum()), "accuracy": every}
