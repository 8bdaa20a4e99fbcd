"""Two processes train together (MPI), and get what one gets with batches of twice the size.

Wants ``pip install 'onnxremat[mpi]'``, which brings MPICH.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import models
import onnxremat
from examples.run import Said, example
from onnxremat.training.data import Arrays

RATE = 0.05


def weights(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@example
def main(small: bool, folder: Path, say: Said) -> None:
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    if mpiexec is None:
        say.skip("there is no mpiexec: pip install 'onnxremat[mpi]'")
        return
    rows, width, layers, epochs = (16, 16, 2, 1) if small else (64, 256, 4, 4)
    net = models.build("mlp", width=width, layers=layers, symbolic_batch=True)
    onnx.save(net, folder / "net.onnx")
    data: dict[str, Any] = models.feeds(net, seed=0, batch=4 * rows if small else 16 * rows)
    (name,) = data
    random = np.random.default_rng(0)
    classes = net.graph.output[0].type.tensor_type.shape.dim[-1].dim_value
    data["labels"] = random.integers(classes, size=len(data[name]))
    np.savez(folder / "data.npz", **data)

    onnxremat.differentiate(net, folder / "step.onnx", dims={"batch": rows})
    command = (
        mpiexec, "-n", "2", sys.executable, "-m", "onnxremat", "train", str(folder / "step.onnx"),
        "--weights", str(folder / "net.onnx"), "--data", str(folder / "data.npz"),
        "--epochs", str(epochs), "--rate", str(RATE), "--no-shuffle", "--data-parallel",
        "--threads", "1", "--export", str(folder / "two.onnx"), "--quiet",
    )  # fmt: skip
    subprocess.run(command, check=True)
    say(f"two processes, {rows} rows each, {epochs * len(data[name]) // (2 * rows)} updates")

    onnxremat.differentiate(net, folder / "whole.onnx", dims={"batch": 2 * rows})
    trainer = onnxremat.Trainer(folder / "whole.onnx", net, rate=RATE)
    losses = trainer.fit(Arrays(data, 2 * rows, shuffle=False), epochs)
    trainer.export(net, folder / "one.onnx")
    say(f"one process, {2 * rows} rows: loss {losses[0]:.4f} -> {losses[-1]:.4f}")

    one, two = weights(folder / "one.onnx"), weights(folder / "two.onnx")
    off = max(float(np.abs(one[n] - two[n]).max() / np.abs(one[n]).max()) for n in one)
    say(f"their weights differ by at most {off:.0e} of the largest of a tensor")


if __name__ == "__main__":
    main.run()
