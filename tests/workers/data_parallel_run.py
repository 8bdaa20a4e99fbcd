"""One of several processes that train steps and tell what came out: ``mpiexec -n 2 python -m
tests.workers.data_parallel_run FOLDER ...``, each of which has step.onnx and data.npz."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

from onnxremat.training.data import open_data
from onnxremat.training.progress import Progress
from onnxremat.workers.mpi import Ranks, join
from onnxremat.workers.sums.data_parallel import DataParallel, Shard


def main(folders: list[str]) -> None:
    """Train each, and write what each rank holds; numbers are rates of those that follow."""
    ranks, rate = join(), 0.1
    with ranks.together():
        for each in folders:
            if each.replace(".", "").isdigit():
                rate = float(each)
            else:
                train(ranks, Path(each), rate)


def train(ranks: Ranks, folder: Path, rate: float) -> None:
    """One rank's share."""
    shard = folder.name.startswith("sharded")
    trainer = DataParallel(folder / "step.onnx", ranks=ranks, rate=rate, threads=1, shard=shard)
    data = open_data(str(folder / "data.npz"), trainer.batch_size, seed=3)
    kept = folder / "during.safetensors"

    def saw(progress: Progress, _: float) -> None:
        if kept.exists() and progress.step in (2, 3) and ranks.first:
            shutil.copy(kept, folder / f"at{progress.step}.safetensors")

    losses = trainer.fit(Shard(data, ranks), 5, checkpoint=kept, every=1, on_step=saw)
    trainer.save(folder / "saved.safetensors")
    np.savez(folder / f"rank{ranks.rank}.npz", losses=np.array(losses), **trainer.values())


if __name__ == "__main__":
    main(sys.argv[1:])
