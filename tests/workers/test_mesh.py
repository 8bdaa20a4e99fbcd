"""Pipelines side by side do what one process does with the joined batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxremat.cli.counted import numbered
from onnxremat.cli.workers import pipelines_of
from onnxremat.errors import UsageError
from onnxremat.grad import differentiate
from onnxremat.graph.tensor_files import read_tensors
from onnxremat.training.data import Arrays
from onnxremat.training.trainer import Trainer
from tests.training import nets
from tests.workers.test_data_parallel import arrays, net, several, write
from tests.workers.test_pipelined import (
    MICRO_BATCHES,
    SIZES,
    compare,
    planned,
    prepare,
    run,
    told,
    train,
)

PIPELINES = 2
ROWS = 3  # of a micro-batch
TOGETHER = ROWS * MICRO_BATCHES * PIPELINES


def mesh(folder: Path, schedule: str, steps: int, **wanted: Any) -> dict[str, Any]:
    """Pipelines of two stages."""
    return planned(folder, schedule, steps, pipelines=PIPELINES, **wanted)


@several
@pytest.mark.slow
def test_as_one_process_with_the_joined_batch(tmp_path: Path) -> None:
    """20 steps of SGD, and of AdamW with a norm of everything, with the same bits in all pipelines;
    running statistics of one step are means over pipelines."""
    kinds: dict[str, dict[str, Any]] = {"sgd": {}, "adamw": {"clip_norm": 0.5}}
    batch, rows = {name: a[:TOGETHER] for name, a in arrays().items()}, []
    for name, more in kinds.items():
        settings = {"optimizer": name, "initializers": True, **more}
        write(tmp_path / name, differentiate(net(ROWS), **settings), batch)
        rows.append(mesh(tmp_path / name, "zb-h1", 20, stages="Tanh_1"))
    step = differentiate(nets.net(), optimizer="sgd", initializers=True)
    few = {name: a[: 4 * nets.BATCH] for name, a in nets.arrays().items()}
    write(tmp_path / "mean", step, few)
    rows.append(mesh(tmp_path / "mean", "1f1b", 1, stages="Relu_2", micro_batches=2))
    run(tmp_path, 4, rows)
    for row, name in zip(rows, kinds, strict=False):
        settings = {"optimizer": name, "initializers": True, **kinds[name]}
        one = Trainer(differentiate(net(TOGETHER), **settings), rate=0.01, threads=1)
        losses = [one.step(batch) for _ in range(20)]
        got = dict(np.load(Path(row["folder"]) / "zb-h1.npz"))
        np.testing.assert_allclose(got["losses"], losses, rtol=1e-5)
        for key in ("w1", "b1", "w2", "b2"):
            near = 1e-7 if name == "sgd" else 2e-6
            np.testing.assert_allclose(got[key], one.state[key], rtol=1e-5, atol=near)
    assert all(told(Path(row["folder"]), row)["alike"] for row in rows)
    _means(dict(np.load(tmp_path / "mean" / "1f1b.npz")), few)


def _means(got: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> None:
    """Statistics, of what each pipeline makes of its half."""
    step = differentiate(nets.net(), optimizer="sgd", initializers=True, accumulate=2)
    halves = []
    for half in range(2):
        one = Trainer(step, threads=1)
        for k in (2 * half, 2 * half + 1):
            rows = slice(k * nets.BATCH, (k + 1) * nets.BATCH)
            one.step({name: a[rows] for name, a in batch.items()})
        halves.append(one.state)
    for name in ("mean", "var"):
        mean = (halves[0][name] + halves[1][name]) / 2
        assert abs(halves[0][name] - mean).max() > 1e-4
        np.testing.assert_allclose(got[name], mean, rtol=1e-5, atol=1e-7)


@several
@pytest.mark.slow
def test_nets(tmp_path: Path) -> None:
    """20 steps of SGD in 1e-5; four digits of the loss with AdamW. Running statistics of a batch
    normalization, which one process moves one after the other, are another test's."""
    near = {"sgd": 1e-5, "adamw": 10.0}  # AdamW makes rounding large where a gradient is zero
    rows = []
    for name in SIZES:
        for optimizer in near:
            folder = tmp_path / f"{name}-{optimizer}"
            prepare(folder, name, PIPELINES, optimizer=optimizer)
            rows.append(mesh(folder, "zb-h1", 20))
    run(tmp_path, 4, rows)
    for row in rows:
        folder = Path(row["folder"])
        name, optimizer = folder.name.split("-")
        assert told(folder, row)["alike"]
        if name == "resnet18":
            _by_halves(folder, row)
        else:
            compare(folder, row, near[optimizer], 1e-5 if optimizer == "sgd" else 1e-4)


def _by_halves(folder: Path, row: dict[str, Any]) -> None:
    """As one process that adds up the micro-batches of one half, those of the other, and both:
    where rounding moves a value over the kink of a Relu, another order makes another net."""
    one = Trainer(folder / "whole.onnx", rate=row["rate"], accumulate=1000, threads=1)
    batch, losses = dict(np.load(folder / "data.npz")), []
    count = MICRO_BATCHES * PIPELINES
    parts = [{name: np.split(a, count)[k] for name, a in batch.items()} for k in range(count)]
    for _ in range(row["steps"]):
        each, before = [], {name: np.zeros_like(one.state[name]) for name in one._sums}
        for half in (parts[:MICRO_BATCHES], parts[MICRO_BATCHES:]):
            each += [one.step(part) for part in half]
            for name, kept in before.items():
                here = one.state[name]
                before[name] = kept + here
                here.fill(0)
        for name, total in before.items():
            one.state[name][...] = total
        one.update()
        losses.append(sum(each) / count)
    got = dict(np.load(folder / f"{row['name']}.npz"))
    np.testing.assert_allclose(got["losses"], losses, rtol=1e-5)
    for parameter in one.training.parameters:
        value = one.state[parameter.input]
        np.testing.assert_allclose(got[parameter.input], value, rtol=1e-5, atol=1e-6)


@several
@pytest.mark.slow
def test_several_stages_of_a_process(tmp_path: Path) -> None:
    """Whose sums leave one after the other, those of a tied embedding last."""
    folder = prepare(tmp_path / "gpt2", "gpt2", PIPELINES, optimizer="sgd")
    rows = [mesh(folder, schedule, 3) for schedule in ("interleaved", "zb-v", "auto")]
    run(tmp_path, 4, rows)
    for row in rows:
        compare(folder, row, 1e-5, 1e-5)
        assert told(folder, row)["alike"]


@several
def test_the_command_writes_what_one_process_reads(tmp_path: Path) -> None:
    """A checkpoint, the trained model, and a trace of all processes."""
    folder, saved, trace = tmp_path / "run", tmp_path / "c.safetensors", tmp_path / "t.json"
    write(folder, differentiate(net(6), optimizer="adamw", initializers=True), arrays())
    source, learned = folder / "net.onnx", tmp_path / "learned.onnx"
    onnx.save(net(6), source)
    files = ["--checkpoint", str(saved), "--trace", str(trace), "--epochs", "3"]
    files += ["--weights", str(source), "--export", str(learned)]
    train(folder, "--data-parallel", "--pipeline", "2", *CUT, *files, ranks=4)
    step = differentiate(net(24), optimizer="adamw", initializers=True)
    resumed, whole = Trainer(step, threads=1), Trainer(step, threads=1)
    resumed.resume(saved)
    assert resumed.progress.step == 6
    whole.fit(Arrays(arrays(), 24, shuffle=False), 3)
    for name, value in whole.state.items():
        np.testing.assert_allclose(resumed.state[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    for tensor in onnx.load(learned).graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), resumed.state[tensor.name])
    events = json.loads(trace.read_text())["traceEvents"]
    lanes = {(event["pid"], event["cat"]) for event in events if event["ph"] == "X"}
    assert {(rank, lane) for rank in range(4) for lane in ("compute", "transfer")} <= lanes
    sums = {event["pid"] for event in events if event.get("name", "").startswith("sums of stage")}
    assert sums == set(range(4))


CUT = ["--micro-batches", "2", "--stages", "Tanh_1"]


@several
@pytest.mark.slow
def test_any_number_of_processes_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Two pipelines of two, then one of two, then two processes with all of the model, then one:
    each trains an epoch whose steps see the same rows, and in the end all is as one process has
    it."""
    data, saved = arrays(), tmp_path / "c.safetensors"
    folders = {rows: tmp_path / str(rows) for rows in (6, 12, 24)}
    settings = {"optimizer": "adamw", "initializers": True}
    for rows, folder in folders.items():
        write(folder, differentiate(net(rows), **settings), data)
    keep = ["--checkpoint", str(saved)]
    train(folders[6], "--data-parallel", "--pipeline", "2", *CUT, *keep, ranks=4)
    go_on = [*keep, "--resume"]
    train(folders[12], "--pipeline", *CUT, *go_on, "--epochs", "2")
    train(folders[12], "--data-parallel", *go_on, "--epochs", "3")
    train(folders[6], "--data-parallel", "2", "--pipeline", *CUT, *go_on, "--epochs", "4", ranks=4)
    one = Trainer(differentiate(net(24), **settings), rate=0.01, threads=1)
    one.fit(Arrays(data, 24, shuffle=False), 4)
    found, facts = read_tensors(saved)
    assert int(facts["step"]) == one.progress.step == 8
    for name, value in one.state.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    ("given", "pipelines"),
    [
        ((4, 0, None), 4),
        ((4, 4, None), 4),
        ((4, None, 0), 1),
        ((4, None, 4), 1),
        ((4, 0, 2), 2),
        ((4, 2, 0), 2),
        ((8, 2, 4), 2),
        ((1, 0, 1), 1),
    ],
)
def test_processes_are_dealt_out(given: tuple[int, int | None, int | None], pipelines: int) -> None:
    assert pipelines_of(*given) == pipelines


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((4, 0, 0), "neither says how many"),
        ((4, None, 2), "2 pipelines side by side"),
        ((4, 3, None), "--data-parallel 3 does not suit 4 processes"),
        ((4, None, 3), "--pipeline 3 does not suit"),
        ((4, 0, 3), "--data-parallel --pipeline 3 does not suit 4 processes"),
        ((4, 0, 3), "N a multiple of 3"),
        ((4, 0, 8), "does not suit"),
        ((4, 8, 0), "does not suit"),
        ((4, 2, 4), "mpiexec -n 8"),
        ((4, 2, 4), "--data-parallel 2 --pipeline 4 does not suit"),
        ((1, 0, 2), "1 process\n"),
    ],
)
def test_numbers_that_do_not_suit(given: tuple[int, int | None, int | None], said: str) -> None:
    with pytest.raises(UsageError) as told_of:
        pipelines_of(*given)
    assert said in str(told_of.value)


def test_an_option_with_a_number_and_without() -> None:
    given = ["train", "--data-parallel", "step.onnx", "--pipeline", "2", "-q", "--pipeline"]
    assert list(numbered(given)) == [
        "train", "--data-parallel=0", "step.onnx", "--pipeline", "2", "-q", "--pipeline=0",
    ]  # fmt: skip
