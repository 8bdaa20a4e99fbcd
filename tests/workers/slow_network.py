"""One of several processes whose sums travel slowly: ``mpiexec -n 2 python -m
tests.workers.slow_network FOLDER``, which has step.onnx and data.npz."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from onnxremat.training.data import open_data
from onnxremat.workers.courier import Delay
from onnxremat.workers.data_parallel import DataParallel, Overlap, Shard
from onnxremat.workers.mpi import join


def main(folder: Path) -> None:
    """Train two epochs, and write what each rank did when, and what it holds."""
    ranks = join()
    overlap = Overlap(delay=Delay(0.1), choose=False)
    trainer = DataParallel(folder / "step.onnx", ranks=ranks, rate=0.1, threads=1, overlap=overlap)
    assert trainer.overlapped is not None
    trainer.overlapped.spans.on = True
    data = open_data(str(folder / "data.npz"), trainer.batch_size, seed=3)
    trainer.fit(Shard(data, ranks), 2)
    np.savez(folder / f"rank{ranks.rank}.npz", **trainer.values())
    rows = [[s.lane, s.name, s.begin, s.end] for s in trainer.overlapped.spans.rows]
    (folder / f"spans{ranks.rank}.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
