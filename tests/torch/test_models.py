"""Whole models against PyTorch: every gradient, and the losses of twenty steps.

What is held, model by model:

* **Float64.** Our training graph, run in float64, gives PyTorch's float64 gradients to 1e-9, in
  the Euclidean norm of each parameter's gradient. The very graph that float32 runs, its constants
  rounded to float32 but computed in float64, gives them to 1e-6. So the graph is right, and what
  is left below is rounding.
* **Float32.** Run by onnxruntime, each parameter's gradient is within 1e-4 of PyTorch's float32
  one; or, where float32 itself cannot say (the gradient is the small rest of large terms that
  cancel), at most twice as far from PyTorch's float64 gradient as PyTorch's own float32 one.
* **Training.** Twenty losses are PyTorch's to four digits (1e-4), under SGD and AdamW.

PyTorch takes onnxruntime's side of kinks where the two differ by rounding (``kinks.py``): at most
one element in 100,000, and none further from its kink than 1e-4 of the tensor's spread (ten times
that in training, where weights drift apart). Models with many rectifiers also train with PyTorch as
it is, at rates so low that sides do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import numpy_helper

import models
from onnxremat.grad import differentiate
from onnxremat.training.trainer import Trainer
from tests.torch.comparison import (
    Race,
    agreement,
    by_autograd,
    by_interpreting,
    distance,
    in_float64,
    moving,
)
from tests.torch.graph import TorchGraph
from tests.torch.kinks import Overruled
from tests.torch.settings import SETTINGS, prepare

STEPS = 20
# Long ones. The gradients of every net are compared in every run, in float64 or in float32.
LARGE = ("densenet121", "inception")
SLOW = {(name, kind) for name in (*LARGE, "mobilenetv2", "resnet50") for kind in ("sgd", "adamw")}
SLOW |= {("unet", "adamw")}
TRAINED = [
    pytest.param(name, optimizer, marks=[pytest.mark.slow] * ((name, optimizer) in SLOW))
    for name, setting in SETTINGS.items()
    for optimizer in setting.rates
]


def _marked(slow: Sequence[str]) -> list[Any]:
    return [pytest.param(n, marks=[pytest.mark.slow] * (n in slow)) for n in SETTINGS]


def test_every_model_is_compared() -> None:
    """The light zoo apart: large images, and no operator that the others lack."""
    assert set(SETTINGS) == {name for name in models.names() if not name.startswith("light_")}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _rarely(overruled: Overruled, share: float = 1e-5, distance: float = 1e-4) -> None:
    """PyTorch's side of a kink was changed for rounding only."""
    assert overruled.count <= share * overruled.seen
    assert overruled.distance <= distance


@pytest.mark.parametrize("name", _marked(("inception", "shufflenet", "mobilenetv2", "resnet34")))
def test_graph_is_right_in_float64(name: str) -> None:
    model, feeds = prepare(name)
    wide = in_float64(model)
    for source, graph, bar in (
        (wide, differentiate(wide, optimizer=None, dropout=False), 1e-9),
        (model, differentiate(model, optimizer=None, dropout=False), 1e-6),
    ):
        found = by_interpreting(source, feeds, graph)
        exact = by_autograd(TorchGraph(source, torch.float64, train=True), feeds, list(found.of))
        assert found.loss == pytest.approx(exact.loss, rel=bar)
        errors = {p: distance(found.of[p], exact.of[p]) for p in moving(exact)}
        worst = max(errors, key=lambda p: errors[p])
        assert errors[worst] <= bar, (worst, errors[worst])


@pytest.mark.parametrize("name", _marked(("densenet121",)))
def test_gradients_equal_torch(name: str) -> None:
    found = agreement(*prepare(name))
    for overruled in found.overruled:
        _rarely(overruled)
    assert found.loss <= 1e-5
    assert found.vanishing <= 1e-5
    wrong = {
        p: (found.torch[p], found.ours[p], found.theirs[p])
        for p in found.torch
        if found.torch[p] > 1e-4 and found.ours[p] > 2 * found.theirs[p]
    }
    assert not wrong
    assert sum(error > 1e-4 for error in found.torch.values()) <= 0.01 * len(found.torch)


@pytest.mark.parametrize(("name", "optimizer"), TRAINED)
def test_twenty_losses_equal_torch(name: str, optimizer: str, tmp_path: Path) -> None:
    rates = SETTINGS[name].rates[optimizer]
    race = Race(*prepare(name), optimizer, tmp_path)
    if rates.calm is not None:
        plain = race.run(rates.calm, STEPS, guided=False)
        assert plain.difference <= 1e-4
    finish = race.run(rates.useful, STEPS, guided=True)
    assert finish.difference <= 1e-4
    _rarely(finish.overruled, 1e-4, 1e-3)
    assert finish.losses[-1] < 0.9 * finish.losses[0], "nothing was learned"


def test_running_statistics_equal_torch() -> None:
    model, feeds = prepare("resnet18")
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    trainer = Trainer(differentiate(model, optimizer="sgd"), model, rate=0.0, threads=1)
    for _ in range(2):
        trainer.step(feeds)
    mean, var = (torch.tensor(stored[f"bn1.running_{kind}"].copy()) for kind in ("mean", "var"))
    x = torch.conv2d(torch.tensor(feeds["input"]), torch.tensor(stored["conv1.weight"]), None, 2, 3)
    for _ in range(2):
        torch.nn.functional.batch_norm(x, mean, var, training=True, momentum=0.1)
    found = trainer.values()
    np.testing.assert_allclose(found["bn1.running_mean"], mean.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["bn1.running_var"], var.numpy(), rtol=1e-4)
