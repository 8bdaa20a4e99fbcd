"""A step in parts, its sums on the way: the results stay, and transfers run beside computing."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import models
from models.inputs import feeds
from onnxremat.grad import differentiate
from onnxremat.grad.description import training_of
from onnxremat.training.data import Arrays
from onnxremat.training.trainer import Trainer
from onnxremat.workers.sums.data_parallel import DataParallel, Overlap
from onnxremat.workers.sums.exchange import Exchange
from onnxremat.workers.sums.layers import in_turn, most_late
from onnxremat.workers.sums.urgent import be_urgent
from tests.workers.test_data_parallel import ALONE, arrays, mpiexec, net, several, write

NETS: dict[str, dict[str, Any]] = {
    "resnet18": {"batch": 2, "size": 32, "width": 8, "classes": 10},
    "gpt2": {"batch": 2, "sequence": 8, "hidden": 16, "layers": 4, "heads": 2, "vocab": 50,
             "positions": 8},
}  # fmt: skip


def joined(model: onnx.ModelProto, step: onnx.ModelProto, rows: int = 1) -> dict[str, np.ndarray]:
    """Data of a step, and its labels."""
    about = training_of(step)
    kind = {v.name: v.type.tensor_type for v in step.graph.input}[about.target]
    shape = [d.dim_value for d in kind.shape.dim]
    labels = np.random.default_rng(0).integers(0, about.classes, shape)
    batch = {**feeds(model), about.target: labels.astype(np.int64)}
    return {name: np.concatenate([array] * rows) for name, array in batch.items()}


@pytest.mark.parametrize("name", [pytest.param("resnet18", marks=pytest.mark.slow), "gpt2"])
def test_parts_make_the_bits_of_the_whole(name: str) -> None:
    """Whatever comes last, and however sums are joined; GPT-2's embedding is tied."""
    model = models.build(name, **NETS[name])
    step = differentiate(model, optimizer="adamw", initializers=True)
    batch = joined(model, step)
    whole = Trainer(step, rate=0.01, threads=1)
    few = DataParallel(step, rate=0.01, threads=1, ranks=ALONE)  # as nothing travels
    overlap = Overlap(layers=8, choose=False)
    cut = DataParallel(step, rate=0.01, threads=1, ranks=ALONE, overlap=overlap)
    assert cut.overlapped is not None
    assert cut._layers is not None
    count = cut._layers.count
    assert count > 4
    late = most_late(cut._layers)
    joined_by_two = tuple(tuple(range(k, min(k + 2, count))) for k in range(0, count, 2))
    for k, exchange in enumerate((Exchange(0, joined_by_two[::-1]), Exchange(late, joined_by_two))):
        cut.overlapped.exchange = exchange
        for _ in range(2):
            assert cut.step(batch) == whole.step(batch) == few.step(batch), k
    for key, value in whole.state.items():
        np.testing.assert_array_equal(cut.state[key], value)
        np.testing.assert_array_equal(few.state[key], value)


def test_weights_of_the_first_layers_come_last() -> None:
    assert [key[1] for key in in_turn(3, 2)] == [0, 1, 2, 2, 2, 1, 0, 0, 1]


@several
def test_sums_travel_beside_computing(tmp_path: Path) -> None:
    """A network on which no sum arrives before the batch is done: the first sums are asked for
    before the rest of the batch, which does not wait for them."""
    folder = tmp_path / "run"
    write(folder, differentiate(net(6), optimizer="sgd", initializers=True), arrays())
    run = mpiexec(2, "-m", "tests.workers.slow_network", str(folder))
    said = run.communicate()
    assert run.returncode == 0, said
    for rank in range(2):
        parts, sums = json.loads((folder / f"told{rank}.json").read_text())
        rest = [(begin, end) for name, begin, end in parts if name == "W0"]
        first = [row for row in sums if row[0] != "sums of layers 0"]
        assert len(first) == len(rest) == 8
        for (_, asked, arrived), (begin, end) in zip(first, rest, strict=True):
            assert asked < begin < end < arrived
    one, other = (dict(np.load(folder / f"rank{rank}.npz")) for rank in range(2))
    alone = Trainer(differentiate(net(12), optimizer="sgd", initializers=True), rate=0.1, threads=1)
    alone.fit(Arrays(arrays(), 12, seed=3), 2)
    for name in ("w1", "w2"):
        np.testing.assert_allclose(one[name], alone.state[name], rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(other[name], one[name])


def test_short_turns_leave_a_thread_its_rank() -> None:
    """Asked for, they change nothing else: no share of a core, no policy."""
    told: list[tuple[int, int]] = []

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, 5)
        be_urgent()
        told.append((os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert told == [(5, os.SCHED_OTHER)]
