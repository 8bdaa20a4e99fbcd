"""Gradient accumulation: the step only adds up; N batches make the step of one N times as big."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

from onnxremat import api
from onnxremat.cli.commands import app
from onnxremat.errors import ModelError, UsageError
from onnxremat.grad import SGD, differentiate, training_of, update_of
from onnxremat.graph.tensor_files import read_tensors
from onnxremat.training.data import Arrays, Batch
from onnxremat.training.schedules import Schedule
from onnxremat.training.trainer import Trainer

RNG = np.random.default_rng(5)
ROWS, WIDTH = 24, 16
DATA = {
    "x": RNG.standard_normal((ROWS, WIDTH)).astype(np.float32),
    "labels": RNG.integers(0, 4, ROWS),
}
WEIGHTS = {
    "w1": RNG.standard_normal((WIDTH, 12)).astype(np.float32) / 4,
    "b1": RNG.standard_normal(12).astype(np.float32),
    "w2": RNG.standard_normal((12, 4)).astype(np.float32) / 4,
}
RATE = 0.02


def net(rows: int) -> onnx.ModelProto:
    """z = tanh(x w1 + b1) w2."""
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Tanh", ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "w2"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", 1, (rows, WIDTH))],
        [helper.make_tensor_value_info("z", 1, (rows, 4))],
        [numpy_helper.from_array(value, name) for name, value in WEIGHTS.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def rows(start: int, count: int) -> Batch:
    return {name: array[start : start + count] for name, array in DATA.items()}


def trainer(
    size: int,
    parts: int,
    rate: float | Schedule = RATE,
    override: int | None = None,
    **options: Any,
) -> Trainer:
    graph = differentiate(net(size), accumulate=parts, **{"optimizer": "adamw", **options})
    return Trainer(graph, net(size), threads=1, rate=rate, accumulate=override)


def parameters(run: Trainer) -> dict[str, np.ndarray]:
    return {name: run.values()[name] for name in WEIGHTS}


@pytest.mark.parametrize(
    "options",
    [{"optimizer": "sgd"}, {"optimizer": SGD(momentum=0.9, weight_decay=0.1)},
     {"optimizer": "adam"}, {"optimizer": "lamb"}, {"optimizer": "sgd", "clip_norm": 0.2},
     {"optimizer": "sgd", "clip_value": 0.02}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_equal_the_whole_batch(parts: int, options: dict[str, Any]) -> None:
    whole, split = trainer(ROWS, 1, **options), trainer(ROWS // parts, parts, **options)
    size = ROWS // parts
    for _ in range(4):
        whole.step(DATA)
        for k in range(parts):
            split.step(rows(k * size, size))
    assert split.progress.updates == whole.progress.updates == 4
    found = parameters(split)
    for name, value in parameters(whole).items():
        np.testing.assert_allclose(found[name], value, rtol=3e-6, atol=3e-7, err_msg=name)
        assert np.abs(value - WEIGHTS[name]).max() > 1e-4


def test_the_optimizer_runs_with_the_update_alone() -> None:
    graph = differentiate(net(8), optimizer="adamw", accumulate=3)
    update = update_of(graph)
    assert update is not None
    onnx.checker.check_model(graph)
    onnx.checker.check_model(update, full_check=True)
    about = training_of(graph)
    assert "learning_rate" not in {value.name for value in graph.graph.input}
    assert {v.input for v in about.states} == {"w1.grad_sum", "b1.grad_sum", "w2.grad_sum"}
    phases = [{e.key: e.value for e in n.metadata_props} for n in graph.graph.node]
    assert sum(each.get("onnxremat.phase") == "update" for each in phases) == 3  # one Add each
    run = Trainer(graph, net(8), threads=1, rate=RATE)
    for _ in range(2):
        run.step(rows(0, 8))
        for name, value in parameters(run).items():
            np.testing.assert_array_equal(value, WEIGHTS[name])
        assert int(run.values()["optimizer.step"]) == 0
    run.step(rows(0, 8))
    assert int(run.values()["optimizer.step"]) == 1
    assert not run.values()["w1.grad_sum"].any()
    assert all((value != WEIGHTS[name]).any() for name, value in parameters(run).items())


def test_both_graphs_run_in_any_runtime() -> None:
    """The documented loop of one's own, without a Trainer."""
    graph = differentiate(net(8), optimizer="sgd", accumulate=2)
    about, update = training_of(graph), update_of(graph)
    assert update is not None
    later = training_of(update)
    step, apply = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
        for m in (graph, update)
    )
    values = {**WEIGHTS, **{f"{n}.grad_sum": np.zeros_like(w) for n, w in WEIGHTS.items()}}
    for start in (0, 8):
        results = step.run(list(about.updates.values()), {**rows(start, 8), **values})
        values.update(zip(about.updates, results, strict=True))
    scalars = {later.rate: np.array(RATE, "f4"), later.share: np.array(0.5, "f4")}
    results = apply.run(list(later.updates.values()), {**values, **scalars})
    whole = trainer(16, 1, optimizer="sgd")
    whole.step(rows(0, 16))
    for name, found in zip(later.updates, results, strict=True):
        np.testing.assert_allclose(found, whole.values()[name], rtol=3e-6, atol=3e-7)


def test_what_is_left_of_an_epoch_is_averaged_over_what_it_is() -> None:
    run = trainer(8, 2)
    run.fit(Arrays(DATA, 8, shuffle=False), 2)
    assert (run.progress.step, run.progress.updates, run.progress.gathered) == (6, 4, 0)
    by_hand = trainer(8, 2)
    for _ in range(2):
        for start in (0, 8, 16):
            by_hand.step(rows(start, 8))
        by_hand.update()
        by_hand.update()  # there is nothing left: no second update
    for name, value in by_hand.values().items():
        np.testing.assert_array_equal(run.values()[name], value)


def test_how_many_is_the_callers_choice() -> None:
    three, changed = trainer(8, 3), trainer(8, 2, override=3)
    for run in (three, changed):
        run.fit(Arrays(DATA, 8, seed=2), 3)
    assert changed.progress.updates == 3
    for name, value in three.values().items():
        np.testing.assert_array_equal(changed.values()[name], value)


def test_schedules_count_updates() -> None:
    run = trainer(8, 3, rate=Schedule(1.0, "linear"), optimizer="sgd")
    rates: list[float] = []
    inner = run.rate
    run.rate = type("Spy", (), {"at": lambda _, *at: rates.append(at) or inner.at(*at)})()
    run.fit(Arrays(DATA, 8), 4)
    assert rates == [(k, 4) for k in range(4)]


def test_resumed_in_the_middle_of_a_set(tmp_path: Path) -> None:
    data, file = Arrays(DATA, 4), tmp_path / "run.safetensors"
    whole, first, second = (trainer(4, 4) for _ in range(3))
    whole.fit(data, 3)

    def stop(progress: Any, _: float) -> None:
        if progress.step == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.fit(data, 3, checkpoint=file, every=7, on_step=stop)
    assert "w1.grad_sum" in read_tensors(file)[0]
    second.resume(file)
    assert (second.progress.gathered, second.progress.updates) == (1, 2)
    second.fit(data, 3, checkpoint=file)
    assert "w1.grad_sum" not in read_tensors(file)[0], "empty sums take no room in a checkpoint"
    for name, value in whole.values().items():
        np.testing.assert_array_equal(second.values()[name], value)
    second.resume(file)


def test_a_planned_step_keeps_its_update(tmp_path: Path) -> None:
    step = differentiate(net(8), optimizer="adamw", accumulate=2)
    options = api.Settings(target="none", threads=1)
    planned = api.optimize(step, budget="1x", settings=options, bench_seconds=0).model
    both = [Trainer(graph, net(8), threads=1, rate=RATE) for graph in (step, planned)]
    for run in both:
        run.fit(Arrays(DATA, 8), 2)
    for name, value in both[0].values().items():
        np.testing.assert_array_equal(both[1].values()[name], value)


@pytest.mark.parametrize(
    ("loss", "parts", "said"),
    [("cross-entropy:ignore_index=3", 2, "mean of 2 batches, each of which divides by its own"),
     ("cross-entropy:ignore_index=3", 1, ""), ("cross-entropy", 2, "")],
)  # fmt: skip
def test_labels_that_do_not_count_alike_are_told_of(
    loss: str, parts: int, said: str, tmp_path: Path
) -> None:
    """What is averaged are the means of batches, not their labels."""
    step = differentiate(net(4), optimizer="sgd", accumulate=parts, loss=loss, initializers=True)
    onnx.save(step, tmp_path / "step.onnx")
    np.savez(tmp_path / "data.npz", **DATA)
    given = ["train", str(tmp_path / "step.onnx"), "--data", str(tmp_path / "data.npz")]
    told = CliRunner().invoke(app, given)
    assert told.exit_code == 0
    assert said in told.stderr
    assert ("divides by its own" in told.stderr) == bool(said)


def test_wrong_uses_are_named() -> None:
    with pytest.raises(UsageError, match="cannot accumulate") as caught:
        trainer(8, 1, override=4)
    assert "differentiate --accumulate 4" in str(caught.value)
    with pytest.raises(UsageError, match="nothing is accumulated"):
        differentiate(net(8), optimizer=None, accumulate=2)
    with pytest.raises(UsageError, match="average 0 batches"):
        differentiate(net(8), accumulate=0)
    with pytest.raises(UsageError, match=r"accumulate is 1\.5"):
        differentiate(net(8), accumulate=1.5)
    graph = differentiate(net(8), accumulate=2)
    with pytest.raises(UsageError, match="the update of a training step"):
        Trainer(update_of(graph), net(8))
    with pytest.raises(UsageError, match="training step already"):
        differentiate(graph)
    next(e for e in graph.metadata_props if e.key == "onnxremat.update").value = "spoilt"
    with pytest.raises(ModelError, match="unreadable"):
        Trainer(graph, net(8))
