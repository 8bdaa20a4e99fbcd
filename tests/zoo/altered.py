"""Nets of which PyTorch's exporter computed parameters into others: no module trains as
their files do.

A file has to say so, by name where it has names. Its steps are compared with steps that NumPy takes
along the gradients, which are compared with autograd where a parameter is still there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx

from onnxremat.grad import StepSignature, training_of
from onnxremat.grad.description import Variable
from onnxremat.grad.exported.marks import is_nameless
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.training.state import FirstValues, input_types
from onnxremat.training.trainer import Trainer
from tests.zoo.steps import step_of

Values = Mapping[str, np.ndarray]
# What is said once of tensors whose parameters the file does not name.
NOBODY = "(of no parameter)"
NAMELESS = ("batch normalizations into convolutions", "PyTorch's older exporter stored")


def untold(about: StepSignature, lost: Iterable[str]) -> list[str]:
    """Parameters of which neither a warning nor the table of weights says anything."""
    if any(text in warning for warning in about.warnings for text in NAMELESS):
        return []
    rows = [" ".join((w.name, w.label, w.why, *w.tied)) for w in about.weights]
    said = "\n".join((*about.warnings, *rows))
    return [n for n in lost if not re.search(rf"(?<![\w.]){re.escape(n)}(?![\w.]*\w)", said)]


def computed(about: StepSignature, foreign: Iterable[str]) -> tuple[list[str], list[str]]:
    """Of trained tensors with numbers of no parameter: those of which a warning says that the
    exporter may have computed them, and the others."""
    nameless = any(NAMELESS[1] in warning for warning in about.warnings)
    said = [text for text in foreign if nameless and text.endswith(NOBODY) and is_nameless(text)]
    return said, [text for text in foreign if text not in said]


def partly(about: StepSignature, off: Iterable[str]) -> list[str]:
    """Parameters that are there, but of which a warning says that more was computed from them, as
    the first step of an unrolled recurrent layer is."""
    said = [text for text in about.warnings if "computed it from" in text]
    words = {word.strip(",:") for text in said for word in text.split()}
    return [name for name in off if name in words]


def by_hand(
    model: onnx.ModelProto, loss: str, feeds: Values, rate: float, steps: int
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses of steps of SGD along the gradients, and the parameters after them."""
    step = step_of(model, None, loss)
    about, types, first = training_of(step), input_types(step), FirstValues(model, step)
    every = [*about.states, *(Variable(name, "", "model") for name, _ in about.gradients)]
    values = {v.input: first.of(v, *types[v.input]) for v in every}
    session = open_session(step, session_options(Options(threads=1, pattern=False)))
    names = [output.name for output in session.get_outputs()]
    losses = []
    for _ in range(steps):
        made = dict(zip(names, session.run(None, {**feeds, **values}), strict=True))
        losses.append(float(made[about.loss]))
        for name, gradient in about.gradients:
            values[name] = np.asarray(values[name] - np.float32(rate) * made[gradient])
        values |= {old: made[new] for old, new in about.updates.items()}
    return losses, {name: values[name] for name, _ in about.gradients}


def by_trainer(
    model: onnx.ModelProto, step: onnx.ModelProto | Path, feeds: Values, rate: float, steps: int
) -> tuple[list[float], dict[str, np.ndarray]]:
    """The same of a trainer."""
    trainer = Trainer(step, model, rate=rate, threads=1)
    losses = [trainer.step(feeds) for _ in range(steps)]
    return losses, {v.input: trainer.state[v.input] for v in trainer.training.parameters}
