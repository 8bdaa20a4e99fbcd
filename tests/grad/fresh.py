"""What became of the parameters of a module that was exported as it was made: with zeros, ones and
copies of layers, which exporters fold, merge and leave out. Numbers do not tell tensors apart
here; names and gradients do.

A parameter is *right* when the step has its gradient, *told* when a warning of the step names it.
What is neither is silently wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx

from onnxremat.grad import StepSignature, differentiate, training_of
from onnxremat.grad.description import Variable
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.training.state import FirstValues, input_types

EXACT = 1e-4  # error of a gradient, against its norm
VANISHING = 1e-6  # against the largest, a gradient is 0 in exact arithmetic
ROUNDED = 4.0  # times what PyTorch is off in float32: three times as far as that from float64


@dataclass(frozen=True)
class Wanted:
    """A batch, and what autograd says.

    Attributes:
        data: arrays by input.
        target: of a mean squared error.
        loss: its value.
        gradients: by parameter.
        rounding: how far these are from those in float64, where that is known.
    """

    data: Mapping[str, np.ndarray]
    target: np.ndarray
    loss: float
    gradients: Mapping[str, np.ndarray]
    rounding: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Found:
    """What became of the parameters of a fresh module.

    Attributes:
        right, told, silent: see above; without those that have no part in the loss.
        denied: right ones that a warning says are not trained.
        loss: its relative error.
        warnings: of the step.
    """

    right: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    loss: float = 0.0
    warnings: tuple[str, ...] = ()


def look(model: onnx.ModelProto, wanted: Wanted) -> Found:
    """Compare the gradients of a file with those of its module."""
    step = differentiate(model, optimizer=None, loss="mse", dropout=False)
    about = training_of(step)
    loss, gradients = _run(step, model, wanted)
    found = Found(loss=abs(loss / wanted.loss - 1), warnings=about.warnings)
    largest = max(float(np.linalg.norm(value)) for value in wanted.gradients.values())
    least = VANISHING * largest
    needed = {n: v for n, v in wanted.gradients.items() if np.linalg.norm(v) > least}
    good = _right(about, gradients, needed, wanted.rounding)
    for name in needed:
        word = re.compile(rf"(?<![\w.]){re.escape(name)}(?![\w.]*\w)")
        said = any(map(word.search, about.warnings))
        (found.right if name in good else found.told if said else found.silent).append(name)
        if name in good and any(word.search(t) and "not trained" in t for t in about.warnings):
            found.denied.append(name)
    return found


def _run(
    step: onnx.ModelProto, model: onnx.ModelProto, wanted: Wanted
) -> tuple[float, dict[str, np.ndarray]]:
    """The loss, and the gradient of each tensor."""
    about, types, first = training_of(step), input_types(step), FirstValues(model, step)
    names = [name for name, _ in about.gradients]
    feeds = {name: first.of(Variable(name, "", "model"), *types[name]) for name in names}
    feeds |= {name: value for name, value in wanted.data.items() if name in types}
    feeds[about.target] = wanted.target.reshape(types[about.target][0])
    session = open_session(step, session_options(Options(threads=1, pattern=False)))
    made = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    return float(made[about.loss]), {name: made[output] for name, output in about.gradients}


def _right(
    about: StepSignature,
    gradients: Mapping[str, np.ndarray],
    want: Mapping[str, np.ndarray],
    rounding: Mapping[str, float],
) -> set[str]:
    """Parameters whose gradient is there: under their name, in whatever order of elements,
    or, where no tensor has it, element by element among those of tensors of no other name."""
    holders: dict[str, list[str]] = {}
    for weight in about.weights:
        for name in (weight.name, *filter(None, weight.label.split(", "))):
            if weight.name in gradients and name in want:
                holders.setdefault(name, []).append(weight.name)
    right, used = set(), set()
    for name, tensors in holders.items():
        fit = [t for t in tensors if gradients[t].size == want[name].size]
        if len(fit) == 1:
            used.add(fit[0])
            if _alike(gradients[fit[0]], want[name], ROUNDED * rounding.get(name, 0.0)):
                right.add(name)
    rest = [value.reshape(-1) for tensor, value in gradients.items() if tensor not in used]
    pool = np.sort(np.concatenate([*rest, np.zeros(2)]))
    for name, value in want.items():
        if name not in right and not any(t in used for t in holders.get(name, ())):
            flat, least = value.reshape(-1), EXACT * np.abs(value).max()
            after = np.searchsorted(pool, flat).clip(1, pool.size - 1)
            near = np.minimum(np.abs(pool[after - 1] - flat), np.abs(pool[after] - flat))
            if (near <= least).all():
                right.add(name)
    return right


def _alike(ours: np.ndarray, theirs: np.ndarray, rounded: float) -> bool:
    size = max(EXACT * float(np.linalg.norm(theirs)), rounded)
    if ours.shape == theirs.shape and np.linalg.norm(ours - theirs) <= size:
        return True
    apart = np.sort(ours, axis=None) - np.sort(theirs, axis=None)
    return bool(np.linalg.norm(apart) <= size)
