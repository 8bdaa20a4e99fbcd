"""The whole path on a tiny model: if these pass, the installation works. Run before all others.

net.onnx -> a training step -> the same step within a budget -> verified -> opened and run ->
trained with; net.onnx over two devices. Some seconds once the search is compiled.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import models
import onnxremat
from onnxremat.grad import training_of
from onnxremat.graph.onnx_io import read_model
from onnxremat.training.trainer import Trainer
from tests.limits import LONG

BATCH = 512
SETTINGS = onnxremat.Settings(threads=1, target="none")  # as given: bits can be compared
OPTIONS = onnxremat.PlanOptions(time_limit=LONG, gap=0.05)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, warm: None) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def net(folder: Path) -> Path:
    path = folder / "net.onnx"
    onnx.save(models.build("mlp", batch=BATCH, width=16), path)
    return path


@pytest.fixture(scope="module")
def step(folder: Path, net: Path) -> Path:
    path = folder / "step.onnx"
    onnxremat.differentiate(net, path, settings=onnxremat.Training(optimizer="sgd"))
    return path


@pytest.fixture(scope="module")
def planned(folder: Path, step: Path) -> Path:
    path = folder / "small.onnx"
    onnxremat.optimize(
        step, budget="0.8x", settings=SETTINGS, options=OPTIONS, bench_seconds=0
    ).save(path)
    return path


def batches(net: Path, step: Path) -> list[dict[str, np.ndarray]]:
    """One batch three times: images and the classes to learn."""
    model, about = read_model(net), training_of(read_model(step))
    labels = np.random.default_rng(1).integers(0, 10, BATCH)
    return [{**models.feeds(model, seed=0), about.target: labels}] * 3


def test_a_net_becomes_a_training_step(step: Path) -> None:
    model = read_model(step)
    onnx.checker.check_model(model, full_check=True)
    assert training_of(model).variables


def test_the_step_keeps_a_budget_and_computes_the_same(step: Path, planned: Path) -> None:
    found = onnxremat.verify(step, planned, settings=SETTINGS, seeds=1)
    assert found.ok, [check for check in found.checks if not check.ok]
    assert found.run.peaks["cpu"] <= 0.8 * found.facts["baseline_peak_bytes"]


def test_the_result_opens_as_an_ordinary_session(planned: Path) -> None:
    session = onnxremat.load(planned, threads=1)
    assert "loss" in [output.name for output in session.get_outputs()]


def test_training_within_the_budget_learns_the_same(net: Path, step: Path, planned: Path) -> None:
    losses = []
    for path in (step, planned):
        trainer = Trainer(read_model(path), read_model(net), rate=0.1, threads=1)
        losses.append([trainer.step(batch) for batch in batches(net, step)])
    assert losses[1] == losses[0]
    assert losses[0][2] < losses[0][0]


def test_two_devices_hold_what_is_planned_for_each(net: Path) -> None:
    result = onnxremat.optimize(
        net, devices="cpu-2x1", budget="1x", settings=SETTINGS, options=replace(OPTIONS, gap=1),
        bench_seconds=0,
    )  # fmt: skip
    assert result.checks
    assert all(check.ok for check in result.checks), result.checks
