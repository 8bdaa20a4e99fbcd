"""A run goes on with another number of processes, or a step of other rows; what it leaves out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from onnxremat.cli.commands import app
from onnxremat.grad import differentiate
from onnxremat.graph.tensor_files import read_tensors
from onnxremat.training.data import Arrays
from onnxremat.training.progress import Progress
from onnxremat.training.schedules import Schedule
from onnxremat.training.trainer import Trainer
from onnxremat.workers.pipelines.pipelined import PipelineParallel
from onnxremat.workers.pipelines.staged import Wanted
from tests.workers.test_data_parallel import ALONE, ROWS, arrays, mpiexec, net, several, write

PROGRAM = "from onnxremat.cli.app import main; main()"


def trainer(rows: int) -> Trainer:
    """Of steps of so many rows, at a rate that falls to 0."""
    step = differentiate(net(rows), optimizer="sgd", initializers=True)
    return Trainer(step, rate=Schedule(0.1, "linear"), threads=1)


def test_steps_of_other_rows_go_on_at_the_same_place(tmp_path: Path) -> None:
    """In the data, of which nothing is skipped, and in the schedule of the rate."""
    saved = tmp_path / "a.safetensors"
    small = trainer(6)
    small.progress = Progress(step=14, epoch=1, batch=6, updates=14)
    small.save(saved)
    large = trainer(12)
    large.resume(saved)
    assert large.progress == Progress(step=7, epoch=1, batch=3, updates=7)
    assert large.progress.counted == 6
    for one, two in zip(
        Arrays(arrays(), 12, seed=3).epoch(1, 3), range(6, ROWS // 6, 2), strict=True
    ):
        halves = list(Arrays(arrays(), 6, seed=3).epoch(1, two))[:2]
        both = np.concatenate([half["x"] for half in halves])
        assert set(map(tuple, one["x"])) == set(map(tuple, both))
    large.fit(Arrays(arrays(), 12, seed=3), 3, checkpoint=saved)
    assert large.progress.updates == 3 * ROWS // 12  # the rate fell to 0 at the end, not before
    small.resume(saved)
    assert (small.progress.step, small.progress.counted) == (3 * ROWS // 6, 12)


def test_a_place_between_two_steps_is_the_one_before(tmp_path: Path) -> None:
    """Rows are rather seen again than left out."""
    saved = tmp_path / "a.safetensors"
    small = trainer(6)
    small.progress = Progress(step=5, batch=5, updates=5)
    small.save(saved)
    step = differentiate(net(6), optimizer="sgd", initializers=True)
    pipe = PipelineParallel(step, ranks=ALONE, wanted=Wanted(2), threads=1)
    pipe.resume(saved)
    assert pipe.progress == Progress(step=2, batch=2, updates=2)
    assert pipe.progress.counted == 6


def test_updates_of_other_rows_are_counted_from_the_place_in_the_data(tmp_path: Path) -> None:
    """A step that gathers, and micro-batches: 3 updates per epoch, the last of 2 batches, 2, and 8.
    The rate would be 0 long before the end, or not at it."""
    saved = tmp_path / "a.safetensors"
    step = differentiate(net(6), optimizer="sgd", initializers=True, accumulate=3)
    rate = Schedule(0.1, "linear")
    gathers, each = (Trainer(step, rate=rate, accumulate=n, threads=1) for n in (3, 1))
    pipe = PipelineParallel(step, ranks=ALONE, wanted=Wanted(4), rate=rate, threads=1)
    gathers.fit(Arrays(arrays(), 6), 2, checkpoint=saved)
    pipe.resume(saved)
    pipe.fit(Arrays(arrays(), 24), 3, checkpoint=saved)
    assert pipe.progress.updates == 3 * 2
    gathers.resume(saved)
    gathers.fit(Arrays(arrays(), 6), 4, checkpoint=saved)
    assert gathers.progress.updates == 4 * 3
    each.resume(saved)
    each.fit(Arrays(arrays(), 6), 5)
    assert each.progress.updates == 5 * 8


@several
def test_one_process_goes_on_from_two(tmp_path: Path) -> None:
    folder, saved = tmp_path / "run", tmp_path / "c.safetensors"
    write(folder, differentiate(net(6), optimizer="sgd", initializers=True), arrays())
    train = ["train", str(folder / "step.onnx"), "--data", str(folder / "data.npz")]
    train += ["--checkpoint", str(saved)]
    run = mpiexec(2, "-c", PROGRAM, *train, "--data-parallel", "--threads", "1")
    assert run.communicate()
    assert run.returncode == 0
    assert read_tensors(saved)[1]["step"] == str(ROWS // 12)
    again = CliRunner().invoke(app, [*train, "--resume", "--epochs", "2", "--threads", "1"])
    assert again.exit_code == 0
    assert f"resumed at step {ROWS // 6}, in steps of 6 rows, not 12" in again.stderr
    assert read_tensors(saved)[1]["step"] == str(2 * ROWS // 6)


@pytest.mark.parametrize(("rows", "left"), [(6, ""), (10, f"8 of {ROWS} rows are left out")])
def test_what_no_step_sees_is_told(rows: int, left: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(folder, differentiate(net(rows), optimizer="sgd", initializers=True), arrays())
    given = ["train", str(folder / "step.onnx"), "--data", str(folder / "data.npz")]
    told = CliRunner().invoke(app, given)
    assert told.exit_code == 0
    assert ("left out" in told.stderr) == bool(left)
    assert left in told.stderr
