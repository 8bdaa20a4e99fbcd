"""ResNet-18, BERT and GPT-2, each process with batches of its own, as one process trains them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from onnxremat.grad import differentiate
from onnxremat.training.data import Arrays
from onnxremat.training.trainer import Trainer
from tests.workers.test_data_parallel import mpiexec, ranks_in, several, write
from tests.workers.test_overlap import joined
from tests.workers.test_pipelined import ROWS, SIZES

EPOCHS, STEPS = 5, 4
RATE = 0.01
NEAR = {"sgd": 1e-5, "adamw": 1e-4}  # of losses; of parameters, too, with SGD


def one_process(name: str, ranks: int, optimizer: str) -> Any:
    """The step of one process. Batch normalization sees the rows of one rank at a time."""
    settings: dict[str, Any] = {"optimizer": optimizer, "initializers": True}
    if name == "resnet18":
        small = models.build(name, batch=ROWS[name], **SIZES[name])
        return differentiate(small, accumulate=ranks, **settings)
    return differentiate(models.build(name, batch=ROWS[name] * ranks, **SIZES[name]), **settings)


def trained(folder: Path, ranks: int) -> dict[tuple[str, str], Path]:
    """Folders by net and optimizer, each trained for 20 steps, all in one start."""
    folders = {}
    for name, sizes in SIZES.items():
        big = models.build(name, batch=ROWS[name] * ranks * STEPS, **sizes)
        data = joined(big, differentiate(big))
        small = models.build(name, batch=ROWS[name], **sizes)
        for optimizer in NEAR:
            each = folders[name, optimizer] = folder / f"{name}-{optimizer}"
            write(each, differentiate(small, optimizer=optimizer, initializers=True), data)
    given = [str(RATE), *map(str, folders.values())]
    run = mpiexec(ranks, "-m", "tests.workers.data_parallel_run", *given)
    said = run.communicate()
    assert run.returncode == 0, said
    return folders


def differences(folder: Path, name: str, ranks: int, optimizer: str) -> tuple[float, float]:
    """Of losses and parameters from those of one process, as shares of these and of the largest
    element."""
    data = dict(np.load(folder / "data.npz"))
    alone = Trainer(one_process(name, ranks, optimizer), rate=RATE, threads=1)
    losses = alone.fit(Arrays(data, alone.batch_size, seed=3), EPOCHS)
    joint = np.array(losses).reshape(EPOCHS * STEPS, -1).mean(1)
    first, *others = ranks_in(folder, ranks)
    each = []
    for parameter in alone.training.parameters:
        value = alone.state[parameter.input]
        for other in others:
            np.testing.assert_array_equal(other[parameter.input], first[parameter.input])
        off = abs(first[parameter.input] - value).max()
        each.append(off / max(abs(value).max(), 1e-3))
    return float(abs(first["losses"] / joint - 1).max()), float(max(each))


@several
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_data_parallel(ranks: int, tmp_path: Path) -> None:
    """20 steps: SGD in 1e-5, and four digits of the loss with AdamW, whose division by the root of
    squares makes rounding large where a gradient is zero."""
    for (name, optimizer), folder in trained(tmp_path, ranks).items():
        losses, parameters = differences(folder, name, ranks, optimizer)
        assert losses <= NEAR[optimizer], name
        assert parameters <= NEAR[optimizer] or optimizer != "sgd", name
